#include "tests/gpu/bench_report.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <vector>

#include "fmt/format.h"

namespace lockstep::bench {
namespace {

constexpr size_t kNumGaps = 3;

template <typename... Arguments>
void Print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  fmt::print(format, std::forward<Arguments>(arguments)...);
  std::fflush(stdout);
}

double Number(const nlohmann::json& object, const char* key) {
  return object.at(key).get<double>();
}

int64_t Whole(const nlohmann::json& object, const char* key) {
  return object.at(key).get<int64_t>();
}

// What a step would gain if the kernel were as fast as the device's limits.
double LostSeconds(const nlohmann::json& kernel) {
  return Number(kernel, "times") * Number(kernel, "seconds") *
         std::max(0.0, 1 - Number(kernel, "share_of_limit"));
}

std::string WithBothAgainst(const nlohmann::json& beside, const nlohmann::json& decode) {
  if (!beside.contains("with_both") || !decode.contains("with_both")) return "";
  return fmt::format(
      ", with LM head and sampling {:.2f}",
      Number(beside["with_both"], "step_seconds") / Number(decode["with_both"], "step_seconds"));
}

}  // namespace

void BenchReport::AddDevice(const std::string& description, const DeviceLimits& limits) {
  report_["device"] = description;
  report_["limits"] = {{"read_gb_per_s", 1e-9 * limits.read_bytes_per_s},
                       {"copy_gb_per_s", 1e-9 * limits.copy_bytes_per_s},
                       {"to_host_gb_per_s", 1e-9 * limits.to_host_bytes_per_s},
                       {"to_device_gb_per_s", 1e-9 * limits.to_device_bytes_per_s},
                       {"bf16_tflop_per_s", 1e-12 * limits.bf16_flops_per_s},
                       {"fp8_tflop_per_s", 1e-12 * limits.fp8_flops_per_s},
                       {"brief_bf16_tflop_per_s", 1e-12 * limits.brief_bf16_flops_per_s},
                       {"brief_fp8_tflop_per_s", 1e-12 * limits.brief_fp8_flops_per_s}};
  Keep();
  Print("{}\n", description);
  Print(
      "limits   read {:.0f} GB/s, copy {:.0f} GB/s, bf16 products {:.0f} TFLOP/s, fp8 {:.0f} "
      "(sustained; {:.0f} and {:.0f} for a moment)\n",
      1e-9 * limits.read_bytes_per_s, 1e-9 * limits.copy_bytes_per_s,
      1e-12 * limits.bf16_flops_per_s, 1e-12 * limits.fp8_flops_per_s,
      1e-12 * limits.brief_bf16_flops_per_s, 1e-12 * limits.brief_fp8_flops_per_s);
  Print("         pinned memory: to the host {:.1f} GB/s, to the device {:.1f} GB/s\n",
        1e-9 * limits.to_host_bytes_per_s, 1e-9 * limits.to_device_bytes_per_s);
}

void BenchReport::AddLoad(const nlohmann::json& load) {
  report_["load"] = load;
  Keep();
  Print("load     {:.1f} s, {:.2f} GB/s\n", Number(load, "seconds"), Number(load, "gb_per_s"));
  Print("steps without LM head and sampling:\n");
}

void BenchReport::AddDecode(const nlohmann::json& decode) {
  report_["decode"].push_back(decode);
  Keep();
  Print(
      "decode   {:4} sequences  {:9.1f} tokens/s  {:8.3f} ms  {:6.0f} GB/s  {:5.1f} % of the "
      "floor, issued in {:.3f} ms\n",
      Whole(decode, "sequences"), Number(decode, "tokens_per_s"), 1e3 * Number(decode, "seconds"),
      Number(decode, "gb_per_s"), 100 * Number(decode, "share_of_floor"),
      1e3 * Number(decode, "issue_seconds"));
  if (!decode.contains("with_both")) return;
  const auto& both = decode["with_both"];
  Print(
      "  with both              {:9.1f} tokens/s  {:8.3f} ms  {:6.0f} GB/s  {:5.1f} % of the "
      "floor\n",
      Number(decode, "sequences") / Number(both, "step_seconds"),
      1e3 * Number(both, "step_seconds"), Number(both, "gb_per_s"),
      100 * Number(both, "share_of_floor"));
  Print(
      "  GPU idle {:.2f} % (p95 {:.2f} %): between steps {:.2f} %, at copies within them {:.2f} %; "
      "{:.0f} % of steps issued late\n",
      100 * Number(both, "idle_share"), 100 * Number(both, "idle_p95_share"),
      100 * Number(both, "idle_between_share"), 100 * Number(both, "idle_copies_share"),
      100 * Number(both, "late_share"));
}

void BenchReport::AddGuesses(const nlohmann::json& guesses) {
  report_["guesses"].push_back(guesses);
  Keep();
  Print("a token and {:2} guesses     {:8.3f} ms, {:.2f} of a token's alone\n",
        Whole(guesses, "guesses"), 1e3 * Number(guesses, "seconds"),
        Number(guesses, "steps_of_one_token"));
}

void BenchReport::AddPrefill(const nlohmann::json& prefill) {
  report_["prefill"] = prefill;
  Keep();
  Print(
      "prefill  {:4} tokens     {:9.1f} tokens/s  {:8.3f} ms  {:6.0f} TFLOP/s  {:5.1f} % of "
      "products' rate\n",
      Whole(prefill, "tokens"), Number(prefill, "tokens_per_s"), 1e3 * Number(prefill, "seconds"),
      Number(prefill, "tflop_per_s"), 100 * Number(prefill, "share_of_products"));
  Print("  with the head          {:9.1f} tokens/s  {:8.3f} ms\n",
        Number(prefill, "tokens") / Number(prefill, "seconds_with_head"),
        1e3 * Number(prefill, "seconds_with_head"));
}

void BenchReport::AddKvCopies(const nlohmann::json& copies) {
  report_["kv_copies"] = copies;
  Keep();
  const auto print = [&](const char* what, const nlohmann::json& speed) {
    Print("{:<24} {:9.1f} GB/s  {:5.1f} % of one copy's\n", what, Number(speed, "gb_per_s"),
          100 * Number(speed, "share_of_copies"));
  };
  Print("{} blocks of a KV cache, {} pieces of {} bytes each:\n", Whole(copies, "blocks"),
        Whole(copies, "pieces"), Whole(copies, "piece_bytes"));
  print("  to the host", copies.at("offload"));
  print("  back to the device", copies.at("restore"));
  print("  the same beside steps", copies.at("prefetch"));
}

void BenchReport::BeginKernels(const nlohmann::json& step) {
  report_["kernels"].push_back({{"step", step}, {"kernels", nlohmann::json::array()}});
  Print("\n{:<24}{:>6}{:>11}{:>11}{:>9}{:>10}{:>12}\n",
        fmt::format("{} x {} tokens at context {}", Whole(step, "sequences"),
                    Whole(step, "new_tokens"), Whole(step, "context")),
        "times", "us", "ms a step", "GB/s", "TFLOP/s", "% of limit");
}

void BenchReport::AddKernel(const nlohmann::json& kernel) {
  report_["kernels"].back()["kernels"].push_back(kernel);
  Keep();
  const double seconds = Number(kernel, "seconds");
  Print("{:<24}{:>6}{:>11.2f}{:>11.3f}{:>9.0f}{:>10.1f}{:>12.1f}\n",
        kernel.at("name").get<std::string>(), kernel.at("times").get<int64_t>(), 1e6 * seconds,
        1e3 * seconds * Number(kernel, "times"), Number(kernel, "gb_per_s"),
        Number(kernel, "tflop_per_s"), 100 * Number(kernel, "share_of_limit"));
}

void BenchReport::EndKernels() {
  auto& table = report_["kernels"].back();
  std::vector<nlohmann::json> kernels = table["kernels"];
  std::sort(kernels.begin(), kernels.end(),
            [](const auto& a, const auto& b) { return LostSeconds(a) > LostSeconds(b); });
  kernels.resize(std::min(kernels.size(), kNumGaps));
  std::string line;
  for (const auto& kernel : kernels) {
    const double lost = LostSeconds(kernel);
    if (lost <= 0) continue;
    table["largest_gaps"].push_back({{"name", kernel["name"]}, {"seconds_of_a_step", lost}});
    line += fmt::format("{} {} {:.3f} ms", line.empty() ? "" : ",",
                        kernel["name"].get<std::string>(), 1e3 * lost);
  }
  Keep();
  Print("largest gaps of a step to the limits:{}\n", line);
}

void BenchReport::CompareWith(const std::filesystem::path& other_file) const {
  std::ifstream file(other_file);
  const nlohmann::json other = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!other.is_object() || !other.contains("decode") || !other.contains("prefill")) {
    Print("\nno steps in {}\n", other_file.string());
    return;
  }
  Print("\ntimes as fast as in {}:\n", other_file.filename().string());
  for (const auto& decode : report_.at("decode")) {
    for (const auto& beside : other["decode"]) {
      if (beside["sequences"] != decode["sequences"] || beside["context"] != decode["context"]) {
        continue;
      }
      Print("decode   {:4} sequences  {:.2f}{}\n", Whole(decode, "sequences"),
            Number(beside, "seconds") / Number(decode, "seconds"), WithBothAgainst(beside, decode));
    }
  }
  const auto& prefill = report_.at("prefill");
  if (other["prefill"]["tokens"] == prefill["tokens"]) {
    Print("prefill  {:4} tokens     {:.2f}\n", Whole(prefill, "tokens"),
          Number(other["prefill"], "seconds") / Number(prefill, "seconds"));
  }
}

void BenchReport::Keep() const {
  if (json_file_.empty()) return;
  std::ofstream file(json_file_, std::ios::trunc);
  file << report_.dump(1) << "\n";
  if (!file.flush()) fmt::print(stderr, "gpu_bench: cannot write {}\n", json_file_.string());
}

}  // namespace lockstep::bench
