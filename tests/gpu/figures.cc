#include "tests/gpu/figures.h"

#include <optional>
#include <utility>

#include "fmt/format.h"

namespace lockstep::bench {
namespace {

using Json = nlohmann::json;
using Verdict = Figure::Verdict;

// Shares of what the device does at best, but for the last ones: how many times as fast.
constexpr double kDecodeOfBandwidth = 0.85;  // one sequence
constexpr double kDecodeOfFloor = 0.75;      // kManySeqs and more
constexpr int64_t kManySeqs = 64;
constexpr double kAttentionOfBandwidth = 0.85;  // decodes at kLongContext and longer
constexpr int64_t kLongContext = 32768;
constexpr double kPrefillOfProducts = 0.70;
constexpr double kAttentionOfProducts = 0.60;
constexpr double kMostIdle = 0.03;  // one sequence
constexpr double kFp8Decode = 1.7;  // one sequence; more share a cache that stays bf16
constexpr double kFp8Prefill = 1.5;
constexpr double kTransformersDecode = 1.3;
constexpr double kTransformersPrefill = 1.1;

std::optional<double> At(const Json& report, const char* pointer) {
  const Json::json_pointer at(pointer);
  if (!report.contains(at) || !report[at].is_number()) return std::nullopt;
  return report[at].get<double>();
}
int64_t Whole(const Json& object, const char* key) { return object.value(key, int64_t{0}); }
const Json& ListAt(const Json& report, const char* key) {
  static const Json kEmpty = Json::array();
  return report.is_object() && report.contains(key) && report[key].is_array() ? report[key]
                                                                              : kEmpty;
}

Figure AtLeast(Figure figure, double value, double target, const std::string& text) {
  figure.target = ">= " + text;
  figure.verdict = value >= target ? Verdict::kMet : Verdict::kMissed;
  return figure;
}
Figure ShareAtLeast(Figure figure, double value, double target) {
  return AtLeast(std::move(figure), value, target, fmt::format("{:.0f} %", 100 * target));
}
Figure TimesAtLeast(Figure figure, double value, double target) {
  return AtLeast(std::move(figure), value, target, fmt::format("{:.1f}", target));
}
std::string Share(double share, const char* of_what) {
  return fmt::format("{:.1f} % of {}", 100 * share, of_what);
}
std::string Speed(double tokens, double seconds) {
  return fmt::format("{:.1f} tokens/s, {:.3f} ms", tokens / seconds, 1e3 * seconds);
}

std::string DecodeName(const Json& decode) {
  return fmt::format("decode {} x {}", Whole(decode, "sequences"), Whole(decode, "context"));
}
constexpr char kWithBoth[] = "  with LM head and sampling";

// ---- one run of gpu_bench ----

Section DeviceSection(const Json& report) {
  Section section{.title = report.value("device", "")};
  const auto limit = [&](const char* what, const char* key, const char* unit) {
    const auto value = At(report, fmt::format("/limits/{}", key).c_str());
    if (value && *value > 0) {
      section.figures.push_back({.what = what, .value = fmt::format("{:.0f} {}", *value, unit)});
    }
  };
  limit("read bandwidth", "read_gb_per_s", "GB/s");
  limit("bf16 products' rate", "bf16_tflop_per_s", "TFLOP/s");
  limit("fp8 products' rate", "fp8_tflop_per_s", "TFLOP/s");
  if (const auto seconds = At(report, "/load/seconds")) {
    section.figures.push_back({.what = "load", .value = fmt::format("{:.1f} s", *seconds)});
  }
  return section;
}

Figure DecodeFigure(const Json& report, const Json& decode, bool has_targets) {
  const int64_t seqs = Whole(decode, "sequences");
  const auto seconds = At(decode, "/seconds").value_or(0);
  Figure figure{.what = DecodeName(decode), .detail = Speed(static_cast<double>(seqs), seconds)};
  const auto read = At(report, "/limits/read_gb_per_s");
  if (seqs == 1 && read) {
    const double share = At(decode, "/gb_per_s").value_or(0) / *read;
    figure.value = Share(share, "read bandwidth");
    return has_targets ? ShareAtLeast(figure, share, kDecodeOfBandwidth) : figure;
  }
  const double share = At(decode, "/share_of_floor").value_or(0);
  figure.value = Share(share, "the bytes-or-flops floor");
  return has_targets && seqs >= kManySeqs ? ShareAtLeast(figure, share, kDecodeOfFloor) : figure;
}

void AddWithBoth(std::vector<Figure>& figures, const Json& decode) {
  const auto seconds = At(decode, "/with_both/step_seconds");
  const auto idle = At(decode, "/with_both/idle_share");
  if (!seconds || !idle) return;
  const int64_t seqs = Whole(decode, "sequences");
  figures.push_back({.what = kWithBoth,
                     .detail = Speed(static_cast<double>(seqs), *seconds),
                     .value = Share(At(decode, "/with_both/share_of_floor").value_or(0),
                                    "the floor with the head's bytes")});
  Figure figure{.what = "  GPU idle",
                .detail = fmt::format("between steps {:.2f} %, at copies {:.2f} %",
                                      100 * At(decode, "/with_both/idle_between_share").value_or(0),
                                      100 * At(decode, "/with_both/idle_copies_share").value_or(0)),
                .value = fmt::format("{:.2f} %", 100 * *idle)};
  if (seqs == 1) {
    figure.target = fmt::format("< {:.0f} %", 100 * kMostIdle);
    figure.verdict = *idle < kMostIdle ? Verdict::kMet : Verdict::kMissed;
  }
  figures.push_back(figure);
}

void AddPrefill(std::vector<Figure>& figures, const Json& report, bool has_targets) {
  const auto seconds = At(report, "/prefill/seconds");
  if (!seconds) return;
  const int64_t tokens = Whole(report["prefill"], "tokens");
  const double share = At(report, "/prefill/share_of_products").value_or(0);
  const Figure figure{.what = fmt::format("prefill {}", tokens),
                      .detail = Speed(static_cast<double>(tokens), *seconds),
                      .value = Share(share, "products' rate")};
  figures.push_back(has_targets ? ShareAtLeast(figure, share, kPrefillOfProducts) : figure);
  if (const auto with_head = At(report, "/prefill/seconds_with_head")) {
    figures.push_back({.what = "  with the LM head of its last token",
                       .detail = Speed(static_cast<double>(tokens), *with_head)});
  }
}

std::string StepName(const Json& step) {
  const int64_t tokens = Whole(step, "new_tokens");
  return tokens > 1 ? fmt::format("prefill {}", tokens) : DecodeName(step);
}

// Targets are for bf16 caches.
Figure AttentionFigure(const Json& report, const Json& step, const Json& kernel, bool is_fp8) {
  const double seconds = At(kernel, "/seconds").value_or(0);
  const double gb_per_s = At(kernel, "/gb_per_s").value_or(0);
  const double tflop_per_s = At(kernel, "/tflop_per_s").value_or(0);
  const std::string over = is_fp8 ? "  over an fp8 cache, " : "attention alone, ";
  Figure figure{.what = over + StepName(step)};
  if (Whole(step, "new_tokens") > 1) {
    const double share = tflop_per_s / At(report, "/limits/bf16_tflop_per_s").value_or(1);
    figure.detail = fmt::format("{:.1f} TFLOP/s, {:.3f} ms", tflop_per_s, 1e3 * seconds);
    figure.value = Share(share, "products' rate");
    return is_fp8 ? figure : ShareAtLeast(figure, share, kAttentionOfProducts);
  }
  const double share = gb_per_s / At(report, "/limits/read_gb_per_s").value_or(1);
  figure.detail = fmt::format("{:.0f} GB/s, {:.3f} ms", gb_per_s, 1e3 * seconds);
  figure.value = Share(share, "read bandwidth");
  const bool has_target = !is_fp8 && Whole(step, "context") >= kLongContext;
  return has_target ? ShareAtLeast(figure, share, kAttentionOfBandwidth) : figure;
}

void AddAttention(std::vector<Figure>& figures, const Json& report) {
  for (const Json& table : ListAt(report, "kernels")) {
    for (const Json& kernel : ListAt(table, "kernels")) {
      const std::string name = kernel.value("name", "");
      const bool is_fp8 = name == "attention, fp8 cache";
      if (!is_fp8 && name != "attention") continue;
      figures.push_back(AttentionFigure(report, table.at("step"), kernel, is_fp8));
    }
  }
}

void AddGaps(std::vector<Figure>& figures, const Json& report) {
  for (const Json& table : ListAt(report, "kernels")) {
    std::string gaps;
    for (const Json& gap : ListAt(table, "largest_gaps")) {
      gaps += fmt::format("{}{} {:.3f} ms", gaps.empty() ? "" : ", ", gap.value("name", ""),
                          1e3 * gap.value("seconds_of_a_step", 0.0));
    }
    if (gaps.empty()) continue;
    figures.push_back({.what = "lost to limits, " + StepName(table.at("step")), .detail = gaps});
  }
}

// Targets are for bf16; fp8 has those against it, below.
Section SpeedSection(const std::string& title, const Json& report, bool has_targets) {
  Section section{.title = title};
  for (const Json& decode : ListAt(report, "decode")) {
    section.figures.push_back(DecodeFigure(report, decode, has_targets));
    AddWithBoth(section.figures, decode);
  }
  AddPrefill(section.figures, report, has_targets);
  if (has_targets) AddAttention(section.figures, report);  // the same whatever weights are
  AddGaps(section.figures, report);
  return section;
}

// ---- two runs ----

// Calls with (decode of the report, the same one of the other).
template <typename Visit>
void ForSameDecodes(const Json& report, const Json& other, const Visit& visit) {
  for (const Json& decode : ListAt(report, "decode")) {
    for (const Json& beside : ListAt(other, "decode")) {
      if (DecodeName(decode) == DecodeName(beside)) visit(decode, beside);
    }
  }
}
std::optional<double> Ratio(const Json& above, const Json& below, const char* pointer) {
  const auto a = At(above, pointer);
  const auto b = At(below, pointer);
  if (!a || !b || *b <= 0) return std::nullopt;
  return *a / *b;
}
std::optional<double> PrefillRatio(const Json& report, const Json& other) {
  if (At(report, "/prefill/tokens") != At(other, "/prefill/tokens")) return std::nullopt;
  return Ratio(other, report, "/prefill/seconds");
}
std::string Times(double ratio) { return fmt::format("{:.2f} times as fast", ratio); }

void AddFp8Decode(std::vector<Figure>& figures, const std::string& name, int64_t seqs,
                  std::optional<double> ratio, std::optional<double> bound) {
  if (!ratio || !bound) return;
  Figure figure{.what = name,
                .detail = fmt::format("the bytes of both bound it to {:.2f}", *bound),
                .value = Times(*ratio)};
  if (seqs == 1 && *bound > kFp8Decode) figure = TimesAtLeast(figure, *ratio, kFp8Decode);
  figures.push_back(figure);
}

Section Fp8Section(const Json& fp8, const Json& bf16) {
  Section section{.title = "fp8 against bf16 weights"};
  ForSameDecodes(fp8, bf16, [&](const Json& decode, const Json& beside) {
    const int64_t seqs = Whole(decode, "sequences");
    AddFp8Decode(section.figures, DecodeName(decode), seqs, Ratio(beside, decode, "/seconds"),
                 Ratio(beside, decode, "/bytes"));
    AddFp8Decode(section.figures, kWithBoth, seqs, Ratio(beside, decode, "/with_both/step_seconds"),
                 Ratio(beside, decode, "/with_both/bytes"));
  });
  if (const auto ratio = PrefillRatio(fp8, bf16)) {
    section.figures.push_back(
        TimesAtLeast({.what = fmt::format("prefill {}", Whole(fp8["prefill"], "tokens")),
                      .value = Times(*ratio)},
                     *ratio, kFp8Prefill));
  }
  return section;
}

Section CostSection(const std::string& title, const Json& costly, const Json& bf16) {
  Section section{.title = title};
  const auto add = [&](const std::string& what, std::optional<double> ratio) {
    if (!ratio) return;
    section.figures.push_back({.what = what,
                               .detail = Times(*ratio),
                               .value = fmt::format("{:+.1f} % time", 100 / *ratio - 100)});
  };
  ForSameDecodes(costly, bf16, [&](const Json& decode, const Json& beside) {
    add(DecodeName(decode), Ratio(beside, decode, "/seconds"));
    add(kWithBoth, Ratio(beside, decode, "/with_both/step_seconds"));
  });
  if (const auto ratio = PrefillRatio(costly, bf16)) {
    add(fmt::format("prefill {}", Whole(costly["prefill"], "tokens")), ratio);
  }
  return section;
}

// Both with the LM head; decodes with sampling, too.
Section TransformersSection(const Json& transformers, const Json& bf16) {
  Section section{.title = "against transformers with torch.compile, bf16"};
  for (const Json& theirs : ListAt(transformers, "measured")) {
    const auto seconds = At(theirs, "/seconds");
    const int64_t tokens = Whole(theirs, "tokens");
    const bool is_prefill = !theirs.contains("context");
    std::optional<double> ours;
    if (is_prefill && At(bf16, "/prefill/tokens") == static_cast<double>(tokens)) {
      ours = At(bf16, "/prefill/seconds_with_head");
    }
    for (const Json& decode : ListAt(bf16, "decode")) {
      if (is_prefill || Whole(decode, "sequences") != tokens) continue;
      if (Whole(decode, "context") == Whole(theirs, "context"))
        ours = At(decode, "/with_both/step_seconds");
    }
    if (!seconds) continue;
    Figure figure{.what = theirs.value("what", ""),
                  .detail = "theirs " + Speed(static_cast<double>(tokens), *seconds)};
    if (ours && *ours > 0) {
      const double ratio = *seconds / *ours;
      figure.value = Times(ratio);
      figure = TimesAtLeast(figure, ratio, is_prefill ? kTransformersPrefill : kTransformersDecode);
    }
    section.figures.push_back(figure);
  }
  return section;
}

// ---- the server ----

void AddServer(std::vector<Figure>& figures, const std::string& weights, const Json& report) {
  const auto rate = At(report, "/output_tokens_per_second");
  if (!rate) return;
  figures.push_back({.what = weights + " throughput",
                     .detail = report.value("load", ""),
                     .value = fmt::format("{:.0f} output tokens/s", *rate)});
  for (const auto& [name, key] : {std::pair("TTFT", "ttft_ms"), std::pair("TPOT", "tpot_ms")}) {
    const auto at = [&, key = key](const char* quantile) {
      return At(report, fmt::format("/{}/{}", key, quantile).c_str()).value_or(0);
    };
    figures.push_back({.what = fmt::format("{} {}", weights, name),
                       .value = fmt::format("p50 {:.1f} ms, p99 {:.1f} ms", at("p50"), at("p99"))});
  }
}

}  // namespace

std::vector<Section> FiguresOf(const Reports& reports) {
  std::vector<Section> sections;
  const auto add = [&](Section section) {
    if (!section.figures.empty()) sections.push_back(std::move(section));
  };
  const Json& any = reports.bf16.is_object() ? reports.bf16 : reports.fp8;
  if (any.is_object()) add(DeviceSection(any));
  add(SpeedSection("bf16 weights", reports.bf16, /*has_targets=*/true));
  add(SpeedSection("fp8 weights", reports.fp8, /*has_targets=*/false));
  add(Fp8Section(reports.fp8, reports.bf16));
  add(CostSection("what steps cost whose kernels do not overlap (against bf16)", reports.no_overlap,
                  reports.bf16));
  add(CostSection("what --deterministic costs (against bf16 without)", reports.deterministic,
                  reports.bf16));
  add(TransformersSection(reports.transformers, reports.bf16));
  Section server{.title = "the whole server"};
  AddServer(server.figures, "bf16", reports.server_bf16);
  AddServer(server.figures, "fp8", reports.server_fp8);
  add(std::move(server));
  return sections;
}

std::string Format(const std::vector<Section>& sections) {
  std::string text;
  std::string missed;
  int num_targets = 0;
  for (const Section& section : sections) {
    text += section.title + "\n";
    std::string of;  // the line above that is not indented
    for (const Figure& figure : section.figures) {
      if (!figure.what.starts_with(" ")) of = figure.what;
      const bool is_missed = figure.verdict == Verdict::kMissed;
      num_targets += figure.verdict == Verdict::kNoTarget ? 0 : 1;
      const char* mark = is_missed ? "MISSED" : figure.verdict == Verdict::kMet ? "ok" : "";
      std::string line = fmt::format("  {:<36}  {:<44}  {:<42}  {:<7}  {}", figure.what,
                                     figure.detail, figure.value, figure.target, mark);
      text += line.erase(line.find_last_not_of(' ') + 1) + "\n";
      if (!is_missed) continue;
      missed += fmt::format("MISSED TARGET: {}: {}{}: {}, not {}\n", section.title, of,
                            of == figure.what ? "" : "," + figure.what.substr(1), figure.value,
                            figure.target);
    }
  }
  if (num_targets == 0) return text;
  return text + (missed.empty() ? fmt::format("all {} targets are met\n", num_targets) : missed);
}

}  // namespace lockstep::bench
