#include "launcher/metrics/server_metrics.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

using Status = v1::GetStatusResponse;
using Labels = MetricFamilies::Labels;

// Exact up to 2^53, as everything that Prometheus keeps.
template <typename Count>
double AsDouble(Count count) {
  return static_cast<double>(count);
}

Labels OfReplica(int replica) { return {{"replica", absl::StrCat(replica)}}; }

void AddState(const v1::GetServerInfoResponse& info, const Status& status,
              MetricFamilies& families) {
  families.Gauge("lockstep_server_info", "The server that answers; always 1.", 1,
                 {{"version", info.version()},
                  {"model", info.model_name()},
                  {"dtype", info.weight_dtype()},
                  {"tp", absl::StrCat(info.tensor_parallel())},
                  {"pp", absl::StrCat(info.pipeline_parallel())}});
  families.Gauge("lockstep_uptime_seconds", "Since the server started.",
                 AsDouble(status.uptime_ms()) / 1e3);
  const std::pair<Status::State, const char*> states[] = {{Status::STATE_STARTING, "starting"},
                                                          {Status::STATE_SERVING, "serving"},
                                                          {Status::STATE_RECOVERING, "recovering"},
                                                          {Status::STATE_DRAINING, "draining"},
                                                          {Status::STATE_FAILED, "failed"}};
  for (const auto& [state, name] : states) {
    families.Gauge("lockstep_state", "1 for the state that the server is in.",
                   status.state() == state ? 1 : 0, {{"state", name}});
  }
  families.Gauge("lockstep_journal_failing", "1 while accepted requests are not recorded.",
                 status.journal_error().empty() ? 0 : 1);
}

void AddLoad(const Status& status, MetricFamilies& families) {
  families.Gauge("lockstep_sequences_running", "Sequences that steps compute.",
                 AsDouble(status.num_running()));
  families.Gauge("lockstep_sequences_waiting", "Sequences that wait for a slot or for KV blocks.",
                 AsDouble(status.num_waiting()));
  families.Gauge("lockstep_kv_cache_blocks", "KV cache blocks of the replicas that serve.",
                 AsDouble(status.kv_blocks_total()));
  families.Gauge("lockstep_kv_cache_blocks_in_use", "KV cache blocks that sequences hold.",
                 AsDouble(status.kv_blocks_in_use()));
  families.Gauge("lockstep_kv_cache_blocks_cached",
                 "Free KV cache blocks that hold a reusable prefix.",
                 AsDouble(status.kv_blocks_cached()));
  families.Gauge("lockstep_kv_host_blocks",
                 "Copies of KV cache blocks that hosts of the replicas that serve have room for.",
                 AsDouble(status.host_blocks_total()));
  families.Gauge("lockstep_kv_host_blocks_in_use",
                 "Copies of KV cache blocks with a reusable prefix in the hosts' memory.",
                 AsDouble(status.host_blocks_in_use()));
}

void AddCounters(const Status& status, MetricFamilies& families) {
  families.Counter("lockstep_requests_accepted_total", "Requests accepted.",
                   AsDouble(status.requests_accepted()));
  families.Counter("lockstep_requests_finished_total", "Requests all of whose outputs ended.",
                   AsDouble(status.requests_finished()));
  families.Counter("lockstep_requests_aborted_total",
                   "Requests that ended early: by their client, their deadline, or with an error.",
                   AsDouble(status.requests_aborted()));
  const v1::Rejections& rejections = status.rejections();
  for (const auto& [reason, count] : {std::pair("invalid", rejections.invalid()),
                                      {"overload", rejections.overload()},
                                      {"unavailable", rejections.unavailable()}}) {
    families.Counter("lockstep_requests_rejected_total",
                     "Requests refused: invalid, queues full, or not served now.", AsDouble(count),
                     {{"reason", reason}});
  }
  const char* prompt_tokens = "lockstep_prompt_tokens_total";
  const char* help =
      "Prompt tokens: computed (again after a preemption or a loss, and by each output where less "
      "than a "
      "block is shared), or found in the cache.";
  families.Counter(prompt_tokens, help, AsDouble(status.prompt_tokens_computed()),
                   {{"source", "computed"}});
  families.Counter(prompt_tokens, help, AsDouble(status.prompt_tokens_cached()),
                   {{"source", "cached"}});
  families.Counter("lockstep_output_tokens_total",
                   "Tokens generated, with those computed before a stop string was seen.",
                   AsDouble(status.tokens_generated()));
  families.Counter("lockstep_draft_tokens_total", "Guessed tokens that steps computed.",
                   AsDouble(status.draft_tokens()));
  families.Counter("lockstep_draft_tokens_accepted_total",
                   "Guessed tokens that were right, and so generated.",
                   AsDouble(status.draft_tokens_accepted()));
  families.Counter("lockstep_kv_blocks_offloaded_total", "KV cache blocks copied to the host.",
                   AsDouble(status.kv_blocks_offloaded()));
  families.Counter("lockstep_kv_blocks_restored_total",
                   "KV cache blocks copied back from the host instead of being computed.",
                   AsDouble(status.kv_blocks_restored()));
  families.Counter("lockstep_steps_total", "Steps computed.", AsDouble(status.num_steps()));
  families.Counter("lockstep_preemptions_total",
                   "Sequences that gave up their KV blocks for others, and were computed again.",
                   AsDouble(status.num_preemptions()));
}

void AddMeasurements(const v1::Measurements& measured, MetricFamilies& families) {
  families.Histogram("lockstep_request_queue_seconds",
                     "From a request's acceptance to the first step it has a part in.",
                     measured.queue_seconds());
  families.Histogram("lockstep_time_to_first_token_seconds",
                     "From a request's acceptance to an output's first token.",
                     measured.time_to_first_token_seconds());
  families.Histogram("lockstep_inter_token_seconds", "Between tokens of an output.",
                     measured.inter_token_seconds());
  families.Histogram("lockstep_request_seconds",
                     "From a request's acceptance to the end of its last output.",
                     measured.request_seconds());
  families.Histogram("lockstep_request_prompt_tokens", "Prompt tokens of a request.",
                     measured.prompt_tokens());
  families.Histogram("lockstep_request_output_tokens",
                     "Tokens of a finished request's outputs together.", measured.output_tokens());
  families.Histogram("lockstep_step_seconds",
                     "From a step's turn on the ranks until its result is here.",
                     measured.step_seconds());
}

void AddReplicas(const Status& status, MetricFamilies& families) {
  for (const v1::ReplicaStatus& replica : status.replicas()) {
    families.Gauge("lockstep_replica_serving", "1 while the replica serves.",
                   replica.state() == v1::ReplicaStatus::STATE_SERVING ? 1 : 0,
                   OfReplica(replica.replica()));
  }
  for (const v1::ReplicaStatus& replica : status.replicas()) {
    families.Counter("lockstep_replica_losses_total", "How often the replica's ranks were lost.",
                     replica.num_losses(), OfReplica(replica.replica()));
  }
  for (const v1::ReplicaStatus& replica : status.replicas()) {
    families.Gauge("lockstep_replica_sequences_running", "Sequences that its steps compute.",
                   AsDouble(replica.num_running()), OfReplica(replica.replica()));
  }
  for (const v1::ReplicaStatus& replica : status.replicas()) {
    families.Gauge("lockstep_replica_sequences_waiting", "Sequences that wait there.",
                   AsDouble(replica.num_waiting()), OfReplica(replica.replica()));
  }
}

Labels OfRank(const v1::RankStatus& rank) {
  return {{"replica", absl::StrCat(rank.replica())},
          {"rank", absl::StrCat(rank.rank())},
          {"host", rank.host()}};
}

// Of those that have joined: a rank that is away has neither a host nor been seen 0 s ago.
void AddRanks(const Status& status, MetricFamilies& families) {
  std::vector<v1::RankStatus> joined(status.ranks().begin(), status.ranks().end());
  std::erase_if(joined, [](const v1::RankStatus& rank) { return rank.pid() == 0; });
  for (const v1::RankStatus& rank : joined) {
    families.Gauge("lockstep_rank_last_seen_seconds", "Since something was heard of the rank.",
                   AsDouble(rank.last_seen_ms_ago()) / 1e3, OfRank(rank));
  }
  for (const v1::RankStatus& rank : joined) {
    families.Gauge("lockstep_rank_weight_bytes", "Memory of the rank's weights.",
                   AsDouble(rank.weight_bytes()), OfRank(rank));
  }
  for (const v1::RankStatus& rank : joined) {
    families.Gauge("lockstep_rank_kv_cache_bytes", "Memory of the rank's part of the KV cache.",
                   AsDouble(rank.kv_cache_bytes()), OfRank(rank));
  }
}

}  // namespace

void AddServerMetrics(const v1::GetServerInfoResponse& info, const Status& status,
                      MetricFamilies& families) {
  AddState(info, status, families);
  AddLoad(status, families);
  AddCounters(status, families);
  AddMeasurements(status.measured(), families);
  AddReplicas(status, families);
  AddRanks(status, families);
}

}  // namespace lockstep
