#include <optional>

#include "deploy/plan/collectives.h"
#include "deploy/plan/report.h"
#include "nlohmann/json.hpp"

namespace lockstep::plan {
namespace {

using nlohmann::ordered_json;

ordered_json OrNull(std::optional<double> value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json StageJson(const StageMemory& stage) {
  return {{"stage", stage.stage},
          {"first_rank", stage.first_rank},
          {"first_layer", stage.weights.layers.begin},
          {"num_layers", stage.weights.layers.size()},
          {"layer_bytes", stage.weights.layer_bytes},
          {"expert_bytes", stage.weights.expert_bytes},
          {"embedding_bytes", stage.weights.embedding_bytes},
          {"lm_head_bytes", stage.weights.lm_head_bytes},
          {"activation_bytes", stage.activations},
          {"communication_bytes", stage.communication},
          {"runtime_bytes", stage.runtime},
          {"reserve_bytes", stage.reserve},
          {"kv_budget_bytes", stage.kv_budget},
          {"capacity_bytes", stage.capacity},
          {"kv_bytes_per_token", stage.kv_bytes_per_token},
          {"kv_blocks", stage.kv_blocks_held}};
}

ordered_json CandidateJson(const Candidate& candidate) {
  ordered_json out = {{"tp", candidate.layout.tp},
                      {"pp", candidate.layout.pp},
                      {"replicas", candidate.layout.replicas},
                      {"gpus", candidate.layout.gpus()},
                      {"nodes", candidate.nodes},
                      {"reserved_gpus", candidate.reserved_gpus},
                      {"holds", candidate.holds},
                      {"is_simulated", candidate.is_simulated},
                      {"tp_across_nodes", candidate.tp_across_nodes},
                      {"reason", candidate.reason},
                      {"num_kv_blocks", candidate.memory.num_kv_blocks},
                      {"max_requests", candidate.memory.max_requests},
                      {"max_request_tokens", candidate.memory.max_request_tokens}};
  if (!candidate.holds) return out;
  const Prediction& speed = candidate.prediction;
  out["requests_per_replica"] = candidate.load_per_replica;
  out["ttft_ms"] = speed.ttft_ms;
  out["ttft_p95_ms"] = speed.ttft_p95_ms;
  out["tpot_ms"] = speed.tpot_ms;
  out["tpot_p95_ms"] = speed.tpot_p95_ms;
  out["output_tokens_per_s"] = candidate.output_tokens_per_s;
  out["usd_per_hour"] = OrNull(candidate.usd_per_hour);
  out["usd_per_million_output_tokens"] = OrNull(candidate.usd_per_million_tokens);
  return out;
}

ordered_json AnswerJson(const Plan& plan) {
  if (plan.answer() == nullptr) return nullptr;
  ordered_json out = CandidateJson(*plan.answer());
  if (plan.not_served.empty()) {
    out["launch"] = LaunchCommand(plan);
  } else {
    out["launch"] = nullptr;
  }
  out["not_served"] = plan.not_served;
  out["tpot_band"] = plan.request.tpot_band();
  out["ttft_band"] = plan.request.ttft_band();
  out["slowest_part"] = plan.answer()->prediction.decode_step.largest();
  const ServedSpeed speed = SpeedOf(plan);
  out["ttft_ms"] = speed.ttft_ms;
  out["ttft_p95_ms"] = speed.ttft_p95_ms;
  out["tpot_ms"] = speed.tpot_ms;
  out["tpot_p95_ms"] = speed.tpot_p95_ms;
  if (plan.queue) out["queue"] = QueueJson(*plan.queue);
  out["stages"] = ordered_json::array();
  for (const StageMemory& stage : plan.answer()->memory.stages) {
    out["stages"].push_back(StageJson(stage));
  }
  return out;
}

ordered_json RelaxationJson(const Plan& plan, const Relaxation& relaxation) {
  ordered_json out = {{"change", relaxation.change},
                      {"gpus", relaxation.gpus},
                      {"usd_per_hour", OrNull(relaxation.usd_per_hour)},
                      {"not_served", relaxation.not_served},
                      {"is_simulated", relaxation.is_simulated},
                      {"tp", relaxation.layout.tp},
                      {"pp", relaxation.layout.pp},
                      {"replicas", relaxation.layout.replicas},
                      {"tpot_ms", relaxation.tpot_ms},
                      {"output_tokens_per_s", relaxation.output_tokens_per_s},
                      {"usd_per_million_output_tokens", OrNull(relaxation.usd_per_million_tokens)}};
  out["is_cheaper_per_token"] = plan.answer() == nullptr
                                    ? ordered_json(nullptr)
                                    : ordered_json(IsCheaperPerToken(plan, relaxation));
  return out;
}

ordered_json PointJson(const ParetoPoint& point) {
  return {{"tp", point.layout.tp},
          {"pp", point.layout.pp},
          {"requests", point.concurrency},
          {"tpot_ms", point.tpot_ms},
          {"tokens_per_s_per_gpu", point.tokens_per_s_per_gpu},
          {"on_front", point.on_front},
          {"is_answer", point.is_answer}};
}

// 0: it was not.
template <typename Number>
ordered_json IfAsked(Number value) {
  return value > 0 ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json RequestJson(const PlanRequest& request) {
  const bool by_rate = request.rate_per_s > 0;
  return {{"model", request.model.name},
          {"model_source", request.model.source},
          {"num_parameters", request.model.architecture.num_parameters()},
          {"num_active_parameters", request.model.architecture.num_active_parameters()},
          {"weights", request.weights.name},
          {"kv", request.kv.name},
          {"gpu", request.gpu.name},
          {"gpus_per_node", request.gpus_per_node},
          {"max_nodes", request.max_nodes},
          {"engine", request.engine.name},
          {"context", request.longest_request()},
          {"input_tokens", request.input_tokens},
          {"output_tokens", request.output_tokens},
          {"concurrency", by_rate ? ordered_json(nullptr) : ordered_json(request.concurrency)},
          {"rate_per_s", request.rate_per_s},
          {"trace_requests", request.trace.size()},
          {"ttft_p95_limit_ms", IfAsked(request.ttft_p95_ms)},
          {"tpot_p95_limit_ms", IfAsked(request.tpot_p95_ms)},
          {"tp", IfAsked(request.tp)},
          {"pp", IfAsked(request.pp)},
          {"expert_parallel", request.expert_parallel},
          {"utilization", request.memory.utilization},
          {"block_size", request.memory.block_size},
          {"usd_per_gpu_hour", OrNull(request.usd_per_gpu_hour)}};
}

}  // namespace

ordered_json QueueJson(const QueueResult& queue) {
  return {{"num_requests", queue.num_requests}, {"num_replicas", queue.num_replicas},
          {"is_steady", queue.is_steady},       {"ttft_mean_ms", queue.ttft_mean_ms},
          {"ttft_p50_ms", queue.ttft_p50_ms},   {"ttft_p95_ms", queue.ttft_p95_ms},
          {"tpot_mean_ms", queue.tpot_mean_ms}, {"tpot_p50_ms", queue.tpot_p50_ms},
          {"tpot_p95_ms", queue.tpot_p95_ms},   {"num_preemptions", queue.num_preemptions},
          {"num_left_out", queue.num_left_out}};
}

std::string PlanJson(const Plan& plan, const std::vector<ParetoPoint>& chart) {
  ordered_json out;
  out["answer"] = AnswerJson(plan);
  out["binding"] = {{"constraint", ConstraintName(plan.binding)}, {"reason", plan.binding_reason}};
  out["relaxations"] = ordered_json::array();
  for (const Relaxation& relaxation : plan.relaxations) {
    out["relaxations"].push_back(RelaxationJson(plan, relaxation));
  }
  out["request"] = RequestJson(plan.request);
  out["layouts"] = ordered_json::array();
  for (const Candidate& candidate : plan.candidates) {
    out["layouts"].push_back(CandidateJson(candidate));
  }
  out["chart"] = ordered_json::array();
  for (const ParetoPoint& point : chart) out["chart"].push_back(PointJson(point));
  out["sources"] = ordered_json::object();
  for (const auto& [field, source] : plan.request.gpu.sources) out["sources"][field] = source;
  out["sources"]["all_reduce"] =
      InterconnectOf(plan.request.gpu, plan.request.gpus_per_node, plan.request.engine.links)
          .source;
  out["sources"]["engine"] = plan.request.engine.source;
  out["sources"]["price"] = plan.request.price_source;
  return out.dump(1) + "\n";
}

}  // namespace lockstep::plan
