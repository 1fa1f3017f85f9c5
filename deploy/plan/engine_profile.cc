#include "deploy/plan/engine_profile.h"

#include "absl/strings/ascii.h"
#include "deploy/plan/json_fields.h"
#include "deploy/plan/tables.h"
#include "model/checkpoint/nearest_name.h"

namespace lockstep::plan {
namespace {

using nlohmann::json;

json Engines() { return BuiltInTable(EnginesJson())["engines"]; }

EngineProfile ToProfile(const json& entry) {
  EngineProfile profile;
  profile.name = entry["name"].get<std::string>();
  profile.source = entry["source"].get<std::string>();
  const auto number = [&](const char* field) { return entry[field].get<double>(); };
  profile.weight_bandwidth = number("weight_bandwidth");
  profile.kv_bandwidth = number("kv_bandwidth");
  profile.flops_16 = number("flops_16");
  profile.flops_8 = number("flops_8");
  profile.flops_4 = number("flops_4");
  profile.step_us = number("step_us");
  profile.layer_us = number("layer_us");
  profile.sequence_us = number("sequence_us");
  profile.prefill_layer_us = number("prefill_layer_us");
  profile.routing_spread = number("routing_spread");
  profile.moe_layer_us = number("moe_layer_us");
  profile.moe_prefill_layer_us = number("moe_prefill_layer_us");
  profile.latent_layer_us = number("latent_layer_us");
  profile.request_ms = number("request_ms");
  profile.max_batched_tokens = entry["max_batched_tokens"].get<int>();
  profile.max_running = entry["max_running"].get<int>();
  profile.tpot_band = number("tpot_band");
  profile.ttft_band = number("ttft_band");
  profile.moe_tpot_band = number("moe_tpot_band");
  profile.moe_ttft_band = number("moe_ttft_band");
  return profile;
}

}  // namespace

absl::StatusOr<EngineProfile> FindEngine(const std::string& name) {
  const std::string wanted = absl::AsciiStrToLower(name);
  for (const json& entry : Engines()) {
    if (entry["name"] == json(wanted)) return ToProfile(entry);
  }
  return UnknownName("engine", name, EngineNames());
}

std::vector<std::string> EngineNames() {
  std::vector<std::string> names;
  for (const json& entry : Engines()) names.push_back(entry["name"].get<std::string>());
  return names;
}

LoadPattern BenchmarkPattern(const std::string& engine, const std::string& version) {
  for (const json& entry : Engines()) {
    if (entry["name"] != json(engine)) continue;
    for (const json& benchmark : entry["benchmarks"]) {
      if (benchmark["version"] != json(version)) continue;
      return {version, benchmark["burst_share"].get<double>(),
              benchmark["slot_share"].get<double>()};
    }
  }
  return {};
}

}  // namespace lockstep::plan
