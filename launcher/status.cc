// lockstep status: what the server is, how busy it is and what every rank is doing.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/json_util.h"
#include "kernels/base/status_macros.h"
#include "launcher/base/signals.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/values.h"
#include "launcher/client/connection.h"
#include "launcher/metrics/histogram_quantile.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

constexpr char kStatusCommand[] = "status";
constexpr absl::Duration kStatusTimeout = absl::Seconds(10);
constexpr char kClearScreen[] = "\x1b[H\x1b[2J";

struct StatusOptions {
  ConnectionFlags connection;
  bool json = false;
  bool watch = false;
  double interval_seconds = 1.0;
};

std::string StateName(v1::GetStatusResponse::State state) {
  switch (state) {
    case v1::GetStatusResponse::STATE_STARTING:
      return "starting";
    case v1::GetStatusResponse::STATE_SERVING:
      return "serving";
    case v1::GetStatusResponse::STATE_DRAINING:
      return "draining";
    case v1::GetStatusResponse::STATE_FAILED:
      return "failed";
    case v1::GetStatusResponse::STATE_RECOVERING:
      return "recovering";
    default:
      return "unknown";
  }
}

double Percent(int64_t part, int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

void AppendModel(const v1::GetServerInfoResponse& info, std::string& out) {
  absl::StrAppendFormat(&out, "model     %s, %s parameters, %s\n", TerminalText(info.model_name()),
                        FormatCount(info.num_parameters()), TerminalText(info.weight_dtype()));
  absl::StrAppendFormat(&out, "layout    tp %d x pp %d, %s; version %s\n", info.tensor_parallel(),
                        info.pipeline_parallel(), Counted(info.num_replicas(), "replica"),
                        TerminalText(info.version()));
  const std::string length =
      info.max_model_len() > 0
          ? absl::StrCat(FormatCount(info.max_model_len()), " tokens per sequence")
          : "length of sequences not known before the ranks are ready";
  const std::string guesses =
      info.speculative_tokens() > 0
          ? absl::StrCat("; up to ", info.speculative_tokens(), " guesses per sequence")
          : "";
  absl::StrAppendFormat(&out, "limits    %s, %d sequences, %s tokens per step%s\n", length,
                        info.max_num_seqs(), FormatCount(info.max_batched_tokens()), guesses);
}

// " (3 invalid, 1 for overload)"; empty: there are none.
std::string RejectionsText(const v1::Rejections& rejections) {
  std::vector<std::string> parts;
  for (const auto& [count, reason] : {std::pair(rejections.invalid(), "invalid"),
                                      {rejections.overload(), "for overload"},
                                      {rejections.unavailable(), "while not serving"}}) {
    if (count > 0) parts.push_back(absl::StrCat(count, " ", reason));
  }
  return parts.empty() ? "" : absl::StrCat(" (", absl::StrJoin(parts, ", "), ")");
}

void AppendLoad(const v1::GetServerInfoResponse& info, const v1::GetStatusResponse& status,
                std::string& out) {
  absl::StrAppendFormat(&out, "state     %s%s, up %s\n", StateName(status.state()),
                        status.detail().empty() ? "" : " (" + OneLine(status.detail()) + ")",
                        FormatSeconds(static_cast<double>(status.uptime_ms()) / 1e3));
  if (!status.journal_error().empty()) {
    absl::StrAppendFormat(&out, "journal   requests are not recorded: %s\n",
                          OneLine(status.journal_error()));
  }
  absl::StrAppendFormat(&out, "sequences %d running, %d waiting; %d preemptions\n",
                        status.num_running(), status.num_waiting(), status.num_preemptions());
  absl::StrAppendFormat(
      &out, "KV cache  %s of %s blocks in use (%.1f %%), %s cached; block = %d tokens\n",
      FormatCount(status.kv_blocks_in_use()), FormatCount(status.kv_blocks_total()),
      Percent(status.kv_blocks_in_use(), status.kv_blocks_total()),
      FormatCount(status.kv_blocks_cached()), info.kv_block_size());
  if (status.host_blocks_total() > 0) {
    absl::StrAppendFormat(
        &out, "on hosts  %s of %s copies of blocks (%.1f %%); %s blocks copied there, %s back\n",
        FormatCount(status.host_blocks_in_use()), FormatCount(status.host_blocks_total()),
        Percent(status.host_blocks_in_use(), status.host_blocks_total()),
        FormatCount(static_cast<int64_t>(status.kv_blocks_offloaded())),
        FormatCount(static_cast<int64_t>(status.kv_blocks_restored())));
  }
  absl::StrAppendFormat(&out, "requests  %d accepted, %d finished, %d rejected%s, %d aborted\n",
                        status.requests_accepted(), status.requests_finished(),
                        status.requests_rejected(), RejectionsText(status.rejections()),
                        status.requests_aborted());
  absl::StrAppendFormat(&out,
                        "tokens    %s generated, %s prompt computed, %s prompt cached; %s steps\n",
                        FormatCount(static_cast<int64_t>(status.tokens_generated())),
                        FormatCount(static_cast<int64_t>(status.prompt_tokens_computed())),
                        FormatCount(static_cast<int64_t>(status.prompt_tokens_cached())),
                        FormatCount(static_cast<int64_t>(status.num_steps())));
  if (status.draft_tokens() == 0) return;
  absl::StrAppendFormat(&out, "guesses   %s tokens, %s of them right (%.0f %%)\n",
                        FormatCount(static_cast<int64_t>(status.draft_tokens())),
                        FormatCount(static_cast<int64_t>(status.draft_tokens_accepted())),
                        Percent(static_cast<int64_t>(status.draft_tokens_accepted()),
                                static_cast<int64_t>(status.draft_tokens())));
}

std::string Percentiles(const char* what, const v1::Histogram& histogram) {
  std::string text = absl::StrCat(what, " p50 ");
  for (const auto& [quantile, before] :
       {std::pair(0.5, ""), std::pair(0.9, ", p90 "), std::pair(0.99, ", p99 ")}) {
    const std::optional<double> seconds = HistogramQuantile(histogram, quantile);
    absl::StrAppend(&text, before, seconds ? FormatMilliseconds(1e3 * *seconds) : "-");
  }
  return text;
}

void AppendSpeed(const v1::GetStatusResponse& status, std::string& out) {
  const v1::ServedLoad& served = status.served();
  if (served.num_outputs() == 0) return;
  absl::StrAppendFormat(&out,
                        "speed     TPOT %s, TTFT %s, means over %s outputs (%.0f tokens in, %.0f "
                        "out, %.1f requests at "
                        "a time)\n",
                        FormatMilliseconds(served.tpot_ms()), FormatMilliseconds(served.ttft_ms()),
                        FormatCount(served.num_outputs()), served.mean_prompt_tokens(),
                        served.mean_output_tokens(), served.mean_requests());
  const v1::Measurements& measured = status.measured();
  absl::StrAppendFormat(&out, "spread    %s; %s; %s\n",
                        Percentiles("TTFT", measured.time_to_first_token_seconds()),
                        Percentiles("between tokens", measured.inter_token_seconds()),
                        Percentiles("queue", measured.queue_seconds()));
  if (!served.has_predicted_tpot_ms()) return;
  absl::StrAppendFormat(&out, "predicted TPOT %s, TTFT %s for that load (%s)\n",
                        FormatMilliseconds(served.predicted_tpot_ms()),
                        FormatMilliseconds(served.predicted_ttft_ms()),
                        OneLine(served.prediction_source()));
}

const char* StateName(v1::ReplicaStatus::State state) {
  switch (state) {
    case v1::ReplicaStatus::STATE_JOINING:
      return "joining";
    case v1::ReplicaStatus::STATE_SERVING:
      return "serving";
    case v1::ReplicaStatus::STATE_LOST:
      return "lost";
    case v1::ReplicaStatus::STATE_GIVEN_UP:
      return "given up";
    default:
      return "unknown";
  }
}

// Worth a look when there are several, or when one was lost.
void AppendReplicas(const v1::GetStatusResponse& status, std::string& out) {
  const auto& replicas = status.replicas();
  const bool any_lost = std::any_of(replicas.begin(), replicas.end(),
                                    [](const auto& replica) { return replica.num_losses() > 0; });
  if (replicas.size() <= 1 && !any_lost) return;
  absl::StrAppendFormat(&out, "\n%7s  %-8s %14s %6s %8s %8s %10s  %s\n", "replica", "state",
                        "epoch", "losses", "running", "waiting", "KV blocks", "detail");
  for (const v1::ReplicaStatus& replica : replicas) {
    absl::StrAppendFormat(&out, "%7d  %-8s %14d %6d %8d %8d %10d  %s\n", replica.replica(),
                          StateName(replica.state()), replica.epoch(), replica.num_losses(),
                          replica.num_running(), replica.num_waiting(), replica.kv_blocks_in_use(),
                          OneLine(replica.detail()));
  }
}

void AppendRanks(const v1::GetStatusResponse& status, std::string& out) {
  absl::StrAppendFormat(&out, "\n%7s %4s %5s %3s  %-16s %8s %10s %10s %8s %9s  %s\n", "replica",
                        "rank", "stage", "tp", "host", "pid", "weights", "KV cache", "step",
                        "last seen", "operation");
  for (const v1::RankStatus& rank : status.ranks()) {
    if (rank.pid() == 0) {  // it is away
      absl::StrAppendFormat(&out, "%7d %4d %5d %3d  %-16s %8s %10s %10s %8s %9s  %s\n",
                            rank.replica(), rank.rank(), rank.pipeline_stage(), rank.tp_rank(), "-",
                            "-", "-", "-", "-", "-", OneLine(rank.operation()));
      continue;
    }
    absl::StrAppendFormat(&out, "%7d %4d %5d %3d  %-16s %8d %10s %10s %8d %9s  %s (%s)\n",
                          rank.replica(), rank.rank(), rank.pipeline_stage(), rank.tp_rank(),
                          Excerpt(rank.host(), 16), rank.pid(), FormatBytes(rank.weight_bytes()),
                          FormatBytes(rank.kv_cache_bytes()), rank.last_step(),
                          FormatSeconds(static_cast<double>(rank.last_seen_ms_ago()) / 1e3),
                          OneLine(rank.operation()),
                          FormatSeconds(static_cast<double>(rank.operation_age_ms()) / 1e3));
  }
}

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using nlohmann::ordered_json;

// Protobuf has 64 bits as strings (for JavaScript), which other readers take for text.
void MakeNumbers(const Descriptor& type, ordered_json& message) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const auto found = message.find(field.name());
    if (found == message.end() || field.is_map()) continue;
    const auto convert = [&field](ordered_json& value) {
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        MakeNumbers(*field.message_type(), value);
      } else if (value.is_string() && field.cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
        value = std::stoll(value.get<std::string>());
      } else if (value.is_string() && field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
        value = std::stoull(value.get<std::string>());
      }
    };
    if (field.is_repeated()) {
      for (ordered_json& value : *found) convert(value);
    } else if (!found->is_null()) {
      convert(*found);
    }
  }
}

absl::StatusOr<std::string> MessageJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  print.always_print_primitive_fields = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, print);
  ordered_json parsed = ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!status.ok() || !parsed.is_object()) {
    return absl::InternalError("the server's answer cannot be shown as JSON");
  }
  MakeNumbers(*message.GetDescriptor(), parsed);
  return parsed.dump();
}

absl::StatusOr<std::string> Describe(const Connection& connection, bool json) {
  ASSIGN_OR_RETURN(const v1::GetServerInfoResponse info, connection.GetServerInfo(kStatusTimeout));
  ASSIGN_OR_RETURN(const v1::GetStatusResponse status, connection.GetStatus(kStatusTimeout));
  if (json) {
    ASSIGN_OR_RETURN(const std::string info_json, MessageJson(info));
    ASSIGN_OR_RETURN(const std::string status_json, MessageJson(status));
    return absl::StrCat("{\"server\":", info_json, ",\"status\":", status_json, "}\n");
  }
  std::string out;
  AppendModel(info, out);
  AppendLoad(info, status, out);
  AppendSpeed(status, out);
  AppendReplicas(status, out);
  AppendRanks(status, out);
  return out;
}

std::string AwayText(const absl::Status& status, bool json) {
  const std::string message(status.message());
  return (json ? ordered_json({{"error", message}}).dump() : message) + "\n";
}

int RunStatus(const StatusOptions& options) {
  InterruptWatcher interrupts;
  const auto connection = Connection::Open(options.connection);
  if (!connection.ok()) return FailUsage(kStatusCommand, connection.status().message());
  const bool redraw = options.watch && !options.json && ::isatty(STDOUT_FILENO) == 1;
  for (bool is_first = true;; is_first = false) {
    std::optional<EndAtInterrupt> early(std::in_place, interrupts,
                                        [&] { return options.watch ? kExitOk : kExitFailure; });
    const auto text = Describe(**connection, options.json);
    early.reset();
    // Who watches sees the server come back.
    if (!text.ok() && is_first) return Fail(kStatusCommand, text.status());
    std::printf("%s%s", redraw ? kClearScreen : "",
                text.ok() ? text->c_str() : AwayText(text.status(), options.json).c_str());
    std::fflush(stdout);
    if (!options.watch) return kExitOk;
    WaitReadable({interrupts.fd()}, absl::Seconds(options.interval_seconds));
    if (interrupts.TakeCount() > 0) return kExitOk;
  }
}

}  // namespace

void AddStatusCommand(CLI::App& program, CommandBody& chosen) {
  StatusOptions* options = nullptr;
  CLI::App* command = AddCommand(program, chosen, kStatusCommand,
                                 "Show the server's model, load and ranks", &RunStatus, options);
  command->add_flag("--json", options->json, "one JSON object (per interval with --watch)");
  command->add_flag("--watch", options->watch, "show it again and again until Ctrl-C");
  command->add_option("--interval", options->interval_seconds, "between two looks with --watch")
      ->type_name("SECONDS")
      ->check(Between(0.1, 3600.0))
      ->capture_default_str();
  AddConnectionFlags(*command, options->connection);
}

}  // namespace lockstep
