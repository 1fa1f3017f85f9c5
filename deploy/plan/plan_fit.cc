// Fits data/engines.json and data/collectives.json to public measurements:
//
//   ninja plan_fit && bin/plan_fit SERVING.csv SERVING_MOE.csv COLLECTIVES.csv deploy/plan/data
//
// What experts and latent attention add is fitted to SERVING_MOE.csv, which has the columns of
// SERVING.csv and expert_parallel. Half of the serving measurements, chosen by a hash, are fitted;
// the other half says how good it is, and that is written down with the coefficients.
#include <cmath>
#include <cstdio>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "deploy/plan/engine_fit.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "nlohmann/json.hpp"

namespace lockstep::plan {
namespace {

using nlohmann::ordered_json;

constexpr char kSource[] = "public measurements of NVIDIA AIConfigurator (Apache-2.0)";

// What measurements do not say: chunks of prompts (the engines' defaults), and SGLang's ceiling of
// running requests, seen in queues of loads above it.
const std::map<std::string, EngineProfile>& Starts() {
  static const std::map<std::string, EngineProfile> starts = [] {
    std::map<std::string, EngineProfile> engines;
    for (const char* name : {"vllm", "trtllm", "sglang"}) engines[name].name = name;
    engines["sglang"].max_running = 450;
    return engines;
  }();
  return starts;
}

std::string Today() { return absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()); }

double Rounded(double value) {
  const double scale = std::pow(10.0, 3 - std::ceil(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

ordered_json ToJson(const EngineFit& fit, int num_fitted, const Accuracy& held,
                    const Accuracy& held_moe) {
  const EngineProfile& p = fit.profile;
  ordered_json out = {
      {"name", p.name},
      {"source", absl::StrFormat("%s, %d measurements fitted; of %d others the median error is "
                                 "%.1f %% in TPOT, %.0f %% in TTFT, of %d of models with experts "
                                 "%.0f %% and %.0f %%",
                                 kSource, num_fitted, held.num_cases, 100 * held.tpot_median,
                                 100 * held.ttft_median, held_moe.num_cases,
                                 100 * held_moe.tpot_median, 100 * held_moe.ttft_median)},
      {"weight_bandwidth", Rounded(p.weight_bandwidth)},
      {"kv_bandwidth", Rounded(p.kv_bandwidth)},
      {"flops_16", Rounded(p.flops_16)},
      {"flops_8", Rounded(p.flops_8)},
      {"flops_4", Rounded(p.flops_4)},
      {"step_us", Rounded(p.step_us)},
      {"layer_us", Rounded(p.layer_us)},
      {"sequence_us", Rounded(p.sequence_us)},
      {"prefill_layer_us", Rounded(p.prefill_layer_us)},
      {"routing_spread", Rounded(p.routing_spread)},
      {"moe_layer_us", Rounded(p.moe_layer_us)},
      {"moe_prefill_layer_us", Rounded(p.moe_prefill_layer_us)},
      {"latent_layer_us", Rounded(p.latent_layer_us)},
      {"request_ms", Rounded(p.request_ms)},
      {"max_batched_tokens", p.max_batched_tokens},
      {"max_running", p.max_running},
      {"tpot_band", Rounded(held.tpot_p90)},
      {"ttft_band", Rounded(held.ttft_p90)},
      {"moe_tpot_band", Rounded(held_moe.tpot_p90)},
      {"moe_ttft_band", Rounded(held_moe.ttft_p90)}};
  out["benchmarks"] = ordered_json::array();
  for (const auto& [version, pattern] : fit.patterns) {
    out["benchmarks"].push_back({{"version", version},
                                 {"burst_share", Rounded(pattern.burst_share)},
                                 {"slot_share", Rounded(pattern.slot_share)}});
  }
  return out;
}

// An engine's measurements, in the half that is fitted and the one that judges.
struct Halves {
  std::vector<MeasuredCase> fitted;
  std::vector<MeasuredCase> held;
};

absl::StatusOr<Halves> HalvesOf(const std::vector<Measurement>& rows, const std::string& engine) {
  Halves halves;
  for (const Measurement& row : rows) {
    if (row.engine != engine) continue;
    auto measured = MeasuredCase::Create(row);
    if (!measured.ok()) return measured.status();
    (row.in_fit_half ? halves.fitted : halves.held).push_back(*std::move(measured));
  }
  return halves;
}

absl::Status FitEngines(const std::string& csv, const std::string& moe_csv,
                        const std::string& json) {
  ASSIGN_OR_RETURN(const std::vector<Measurement> rows, LoadMeasurements(csv));
  ASSIGN_OR_RETURN(const std::vector<Measurement> moe_rows, LoadMeasurements(moe_csv));
  ordered_json engines = ordered_json::array();
  for (const auto& [name, start] : Starts()) {
    ASSIGN_OR_RETURN(const Halves dense, HalvesOf(rows, name));
    ASSIGN_OR_RETURN(const Halves moe, HalvesOf(moe_rows, name));
    const EngineFit fit = FitExperts(FitEngine(start, dense.fitted), moe.fitted);
    engines.push_back(ToJson(fit, static_cast<int>(dense.fitted.size()),
                             AccuracyOf(fit, dense.held), AccuracyOf(fit, moe.held)));
    std::printf("%s: %s\n", name.c_str(), engines.back().dump().c_str());
  }
  const ordered_json out = {
      {"about", "Made by plan_fit. Shares of the datasheet's rates, and what an engine adds."},
      {"fitted", Today()},
      {"engines", engines}};
  return WriteTextFile(json, out.dump(1) + "\n");
}

absl::Status FitCollectives(const std::string& csv, const std::string& json) {
  const auto rows = LoadAllReduces(csv);
  if (!rows.ok()) return rows.status();
  const std::map<std::string, double> rates = {
      {"NVLink 3", 300}, {"NVLink 4", 450}, {"NVLink 5", 900}};
  ordered_json links = ordered_json::array();
  for (const auto& [link, rate] : rates) {
    ordered_json fits = ordered_json::array();
    for (const int ranks : {2, 4, 8}) {
      std::vector<MeasuredAllReduce> measured;
      for (const MeasuredAllReduce& row : *rows) {
        if (row.link == link && row.ranks == ranks && row.bytes >= 1024) measured.push_back(row);
      }
      const CollectiveFit fit = FitAllReduce(ranks, rate, measured);
      fits.push_back({{"ranks", ranks},
                      {"one_shot_us", Rounded(fit.one_shot_us)},
                      {"one_shot_gb_s", Rounded(fit.one_shot_gb_s)},
                      {"two_shot_us", Rounded(fit.two_shot_us)},
                      {"two_shot_gb_s", Rounded(fit.two_shot_gb_s)}});
      std::printf("%s %s\n", link.c_str(), fits.back().dump().c_str());
    }
    links.push_back({{"link", link}, {"source", kSource}, {"fits", fits}});
  }
  const ordered_json out = {
      {"about",
       "Made by plan_fit: all-reduces inside a node, the fastest implementation of each "
       "size. node_latency_us, of one step between nodes, is an assumption."},
      {"fitted", Today()},
      {"node_latency_us",
       {25.0,
        "assumption: NCCL over InfiniBand takes 30 to 50 us for small "
        "messages of 16 GPUs on two nodes"}},
      {"links", links}};
  return WriteTextFile(json, out.dump(1) + "\n");
}

}  // namespace
}  // namespace lockstep::plan

int main(int argc, char** argv) {
  using namespace lockstep::plan;
  if (argc != 5) {
    std::fprintf(stderr, "plan_fit SERVING.csv SERVING_MOE.csv COLLECTIVES.csv OUTPUT_DIR\n");
    return 2;
  }
  const std::string directory = argv[4];
  // Engines depend on the collectives that are compiled in: fit those first, build, fit engines.
  for (const absl::Status& status : {FitCollectives(argv[3], directory + "/collectives.json"),
                                     FitEngines(argv[1], argv[2], directory + "/engines.json")}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "plan_fit: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
