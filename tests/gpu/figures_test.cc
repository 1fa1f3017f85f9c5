#include "tests/gpu/figures.h"

#include <map>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::bench {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using Verdict = Figure::Verdict;

// Of a device that reads 1000 GB/s and multiplies 100 TFLOP/s; steps of 10 ms.
nlohmann::json Decode(int64_t seqs, double gb_per_s, double share_of_floor, double bytes) {
  return {{"sequences", seqs},
          {"context", 1024},
          {"seconds", 0.010},
          {"bytes", bytes},
          {"gb_per_s", gb_per_s},
          {"share_of_floor", share_of_floor},
          {"with_both",
           {{"step_seconds", 0.012},
            {"bytes", bytes + 1},
            {"share_of_floor", 0.5},
            {"idle_share", 0.02},
            {"idle_between_share", 0.005},
            {"idle_copies_share", 0.015}}}};
}
nlohmann::json Attention(int64_t seqs, int64_t new_tokens, int64_t context, double gb_per_s,
                         double tflop_per_s) {
  return {{"step", {{"sequences", seqs}, {"new_tokens", new_tokens}, {"context", context}}},
          {"kernels",
           {{{"name", "RMSNorm"}, {"seconds", 1e-5}},
            {{"name", "attention"},
             {"seconds", 1e-3},
             {"gb_per_s", gb_per_s},
             {"tflop_per_s", tflop_per_s}},
            {{"name", "attention, fp8 cache"},
             {"seconds", 6e-4},
             {"gb_per_s", 0.8 * gb_per_s},
             {"tflop_per_s", tflop_per_s}}}},
          {"largest_gaps", {{{"name", "SiLU"}, {"seconds_of_a_step", 0.001}}}}};
}
nlohmann::json Bench() {
  return {{"device", "a GPU"},
          {"limits", {{"read_gb_per_s", 1000.0}, {"bf16_tflop_per_s", 100.0}}},
          {"decode", {Decode(1, 860, 0.86, 14), Decode(64, 700, 0.74, 22)}},
          {"prefill",
           {{"tokens", 8192},
            {"seconds", 0.2},
            {"seconds_with_head", 0.21},
            {"share_of_products", 0.71}}},
          {"kernels",
           {Attention(1, 1, 1024, 500, 1), Attention(1, 1, 32768, 860, 1),
            Attention(32, 1, 32768, 840, 1), Attention(1, 8192, 8192, 1, 61)}}};
}

// By section and name; of equal names (what is indented) the first.
std::map<std::string, Figure> Figures(const Reports& reports) {
  std::map<std::string, Figure> figures;
  for (const Section& section : FiguresOf(reports)) {
    for (const Figure& figure : section.figures) {
      figures.emplace(section.title + ": " + figure.what, figure);
    }
  }
  return figures;
}

TEST(Figures, StandBesideTheirTargets) {
  const auto figures = Figures({.bf16 = Bench()});
  const auto expect = [&](const std::string& what, const std::string& value, Verdict verdict) {
    ASSERT_THAT(figures, Contains(Key("bf16 weights: " + what)));
    const Figure& figure = figures.at("bf16 weights: " + what);
    EXPECT_THAT(figure.value, HasSubstr(value)) << what;
    EXPECT_EQ(figure.verdict, verdict) << what;
    EXPECT_EQ(figure.target.empty(), verdict == Verdict::kNoTarget) << what;
  };
  expect("decode 1 x 1024", "86.0 % of read bandwidth", Verdict::kMet);
  expect("decode 64 x 1024", "74.0 % of the bytes-or-flops floor", Verdict::kMissed);
  expect("  with LM head and sampling", "50.0 %", Verdict::kNoTarget);
  expect("  GPU idle", "2.00 %", Verdict::kMet);
  expect("prefill 8192", "71.0 % of products' rate", Verdict::kMet);
  expect("attention alone, decode 1 x 1024", "50.0 %", Verdict::kNoTarget);
  expect("attention alone, decode 1 x 32768", "86.0 %", Verdict::kMet);
  expect("attention alone, decode 32 x 32768", "84.0 %", Verdict::kMissed);
  expect("attention alone, prefill 8192", "61.0 %", Verdict::kMet);
  expect("  over an fp8 cache, decode 32 x 32768", "67.2 % of read", Verdict::kNoTarget);
  expect("  over an fp8 cache, prefill 8192", "61.0 %", Verdict::kNoTarget);
}

TEST(Figures, IdleTimeIsAskedOfOneSequence) {
  nlohmann::json bench = Bench();
  for (auto& decode : bench["decode"]) decode["with_both"]["idle_share"] = 0.03;
  for (const Section& section : FiguresOf({.bf16 = bench})) {
    int num_idle = 0;
    for (const Figure& figure : section.figures) {
      if (figure.what != "  GPU idle") continue;
      EXPECT_EQ(figure.verdict, num_idle == 0 ? Verdict::kMissed : Verdict::kNoTarget);
      ++num_idle;
    }
    EXPECT_TRUE(num_idle == 0 || num_idle == 2);
  }
}

TEST(Figures, Fp8IsHeldAgainstBf16WhereItsBytesAllowIt) {
  nlohmann::json fp8 = Bench();
  fp8["decode"] = {Decode(1, 860, 0.86, 7), Decode(64, 700, 0.74, 15)};
  for (auto& decode : fp8["decode"]) {
    decode["seconds"] = 0.005;
    decode["with_both"]["step_seconds"] = 0.008;
  }
  fp8["prefill"]["seconds"] = 0.1;
  const auto figures = Figures({.bf16 = Bench(), .fp8 = fp8});
  const auto at = [&](const char* what) {
    return figures.at("fp8 against bf16 weights: " + std::string(what));
  };
  EXPECT_EQ(at("decode 1 x 1024").value, "2.00 times as fast");
  EXPECT_EQ(at("decode 1 x 1024").verdict, Verdict::kMet);
  EXPECT_EQ(at("  with LM head and sampling").value, "1.50 times as fast");
  EXPECT_EQ(at("  with LM head and sampling").verdict, Verdict::kMissed);
  EXPECT_EQ(at("decode 64 x 1024").verdict, Verdict::kNoTarget);
  EXPECT_THAT(at("decode 64 x 1024").detail, HasSubstr("bound it to 1.47"));
  EXPECT_EQ(at("prefill 8192").verdict, Verdict::kMet);
  EXPECT_EQ(figures.at("fp8 weights: decode 1 x 1024").verdict, Verdict::kNoTarget);
  EXPECT_THAT(figures, Not(Contains(Key("fp8 weights: attention alone, decode 1 x 32768"))));
}

TEST(Figures, OthersAreComparedOverTheSameSizes) {
  const nlohmann::json transformers = {
      {"measured",
       {{{"what", "decode of 1 at context 1024"},
         {"tokens", 1},
         {"context", 1024},
         {"seconds", 0.0144}},
        {{"what", "decode of 1 at context 99"}, {"tokens", 1}, {"context", 99}, {"seconds", 1.0}},
        {{"what", "prefill of 8192"}, {"tokens", 8192}, {"seconds", 0.252}}}}};
  nlohmann::json deterministic = Bench();
  deterministic["decode"][0]["seconds"] = 0.0125;
  deterministic["prefill"]["seconds"] = 2 * deterministic["prefill"]["seconds"].get<double>();
  nlohmann::json no_overlap = Bench();
  no_overlap["decode"][0]["seconds"] = 0.011;
  const auto figures = Figures({.bf16 = Bench(),
                                .no_overlap = no_overlap,
                                .deterministic = deterministic,
                                .transformers = transformers});
  const std::string theirs = "against transformers with torch.compile, bf16: ";
  EXPECT_EQ(figures.at(theirs + "decode of 1 at context 1024").value, "1.20 times as fast");
  EXPECT_EQ(figures.at(theirs + "decode of 1 at context 1024").verdict, Verdict::kMissed);
  EXPECT_EQ(figures.at(theirs + "decode of 1 at context 99").value, "");
  EXPECT_EQ(figures.at(theirs + "prefill of 8192").verdict, Verdict::kMet);
  EXPECT_EQ(figures.at("what --deterministic costs (against bf16 without): decode 1 x 1024").value,
            "+25.0 % time");
  EXPECT_EQ(figures.at("what --deterministic costs (against bf16 without): prefill 8192").value,
            "+100.0 % time");
  const std::string alone = "what steps cost whose kernels do not overlap (against bf16): ";
  EXPECT_EQ(figures.at(alone + "decode 1 x 1024").value, "+10.0 % time");
  EXPECT_EQ(figures.at(alone + "prefill 8192").value, "+0.0 % time");
}

TEST(Figures, TheServersAreThroughputAndLatencies) {
  const nlohmann::json server = {{"load", "closed loop"},
                                 {"output_tokens_per_second", 2000.4},
                                 {"ttft_ms", {{"p50", 100.0}, {"p99", 250.5}}},
                                 {"tpot_ms", {{"p50", 12.0}, {"p99", 20.0}}}};
  const auto figures = Figures({.server_fp8 = server});
  EXPECT_EQ(figures.at("the whole server: fp8 throughput").value, "2000 output tokens/s");
  EXPECT_EQ(figures.at("the whole server: fp8 TTFT").value, "p50 100.0 ms, p99 250.5 ms");
  EXPECT_EQ(figures.at("the whole server: fp8 TPOT").value, "p50 12.0 ms, p99 20.0 ms");
}

TEST(Figures, WhatIsLongIsSetApartFromWhatFollowsIt) {
  const nlohmann::json server = {{"load", "closed loop; random prompts, output 128 tokens, seed 1"},
                                 {"output_tokens_per_second", 20.0}};
  EXPECT_THAT(Format(FiguresOf({.server_bf16 = server})), HasSubstr("seed 1  20 output tokens/s"));
}

// A run that was ended, or keeps less than is asked for.
TEST(Figures, OfReportsCutShortAreThoseThatAreThere) {
  EXPECT_TRUE(FiguresOf({}).empty());
  EXPECT_EQ(Format({}), "");
  nlohmann::json bench = Bench();
  for (const char* key : {"kernels", "prefill", "decode", "limits"}) {
    bench.erase(key);
    Figures({.bf16 = bench, .fp8 = bench, .deterministic = bench, .transformers = bench});
  }
  bench = Bench();
  for (auto& decode : bench["decode"]) decode.erase("with_both");
  bench["kernels"][0].erase("kernels");
  const auto figures = Figures({.bf16 = bench, .fp8 = bench, .server_bf16 = bench});
  EXPECT_THAT(figures, Contains(Key("bf16 weights: decode 1 x 1024")));
  EXPECT_THAT(figures, Contains(Key("fp8 against bf16 weights: prefill 8192")));
}

TEST(Figures, ThatMissTheirTargetsAreNamedOnceMore) {
  const std::string text = Format(FiguresOf({.bf16 = Bench()}));
  EXPECT_THAT(text, HasSubstr("  decode 1 x 1024  "));
  EXPECT_THAT(text, HasSubstr("MISSED TARGET: bf16 weights: decode 64 x 1024: 74.0 % of the "
                              "bytes-or-flops floor, not >= 75 %\n"));
  EXPECT_THAT(text, Not(HasSubstr("targets are met")));
  nlohmann::json bench = Bench();
  bench["decode"] = {Decode(1, 860, 0.86, 14)};
  bench["kernels"].clear();
  EXPECT_THAT(Format(FiguresOf({.bf16 = bench})), HasSubstr("all 3 targets are met\n"));
  bench["decode"][0]["with_both"]["idle_share"] = 0.5;
  EXPECT_THAT(
      Format(FiguresOf({.bf16 = bench})),
      HasSubstr("MISSED TARGET: bf16 weights: decode 1 x 1024, GPU idle: 50.00 %, not < 3"));
}

}  // namespace
}  // namespace lockstep::bench
