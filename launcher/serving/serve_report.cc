#include "launcher/serving/serve_report.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/steady_clock.h"
#include "launcher/cli/values.h"
#include "launcher/serving/gpu_summary.h"
#include "launcher/serving/layout_lines.h"
#include "launcher/serving/preflight_summary.h"
#include "launcher/serving/unused_tensors.h"

namespace lockstep {
namespace {

constexpr int kBarWidth = 30;

std::string BytesPerSecond(int64_t bytes, double seconds) {
  return absl::StrFormat("%.2f GB/s", static_cast<double>(bytes) / std::max(seconds, 1e-6) / 1e9);
}

}  // namespace

ServeReport::ServeReport(bool json, const ModelFlags& model, int num_replicas)
    : err_(STDERR_FILENO, [](const std::string&) {}),
      out_(STDOUT_FILENO,
           [this](const std::string& why) {
             err_.Write(absl::StrCat("lockstep: warning: standard output: ", why, "\n"));
           }),
      json_(json),
      tp_(model.tp),
      pp_(model.pp),
      quantize_(model.quantize),
      num_replicas_(num_replicas),
      block_size_(model.block_size),
      is_terminal_(!json && ::isatty(STDOUT_FILENO) == 1),
      started_(SteadyNow()) {}

void ServeReport::PrintJson(const char* event, Json fields) {
  Json line = {{"event", event}, {"seconds", absl::ToDoubleSeconds(SteadyNow() - started_)}};
  line.update(fields);
  out_.Write(absl::StrCat(line.dump(-1, ' ', false, Json::error_handler_t::replace), "\n"));
}

void ServeReport::Flush() {
  out_.Flush();
  err_.Flush();
}

void ServeReport::PrintLine(const std::string& line) {
  ClearProgress();
  out_.Write(absl::StrCat(line, "\n"));
}

void ServeReport::Tell(const char* event, Json fields, const std::string& line) {
  json_ ? PrintJson(event, std::move(fields)) : PrintLine(line);
}

void ServeReport::Model(const ModelSummary& summary, const std::string& name) {
  name_ = name;
  PrintModel(summary);
  if (!summary.unknown_tensors.empty()) Warn({UnusedTensorsText(summary.unknown_tensors)});
  Warn(MissingForTexts(summary));
}

void ServeReport::PrintModel(const ModelSummary& summary) {
  const ModelConfig& config = summary.config;
  kv_bytes_per_token_ = summary.kv_bytes_per_token;
  if (json_) {
    PrintJson("model", {{"model", name_}, {"num_parameters", summary.num_parameters}});
    return;
  }
  PrintLine(absl::StrFormat("Model    %s: %s parameters in %s%s, %d layers, vocabulary %s", name_,
                            FormatCount(summary.num_parameters),
                            std::string(DTypeName(config.dtype)),
                            quantize_ == "none" ? "" : absl::StrCat(" kept in ", quantize_),
                            config.num_layers, FormatCount(config.vocab_size)));
  const std::string stored =
      config.LoadingText(QuantizationOf(quantize_).value_or(Quantization::kNone), tp_);
  if (!stored.empty()) PrintLine(absl::StrCat("Stored   ", stored));
}

void ServeReport::Plan(const PlannedCapacity& capacity, std::optional<int> threads_per_rank) {
  kv_bytes_per_token_ = capacity.kv_bytes_per_token;
  has_fp8_cache_ = capacity.has_fp8_cache;
  if (json_) {
    PrintJson("plan", {{"tp", tp_},
                       {"pp", pp_},
                       {"replicas", num_replicas_},
                       {"threads_per_rank", threads_per_rank ? Json(*threads_per_rank) : Json()},
                       {"weight_bytes", capacity.weight_bytes},
                       {"num_kv_blocks", capacity.num_kv_blocks},
                       {"fp8_kv_cache", capacity.has_fp8_cache},
                       {"kv_offload_bytes", capacity.offload_bytes}});
    return;
  }
  const ShownLayout layout{tp_, pp_, num_replicas_, threads_per_rank};
  for (const std::string& line : LayoutLines(layout, capacity)) PrintLine(line);
}

void ServeReport::Predicted(const ServedLoad& load, const SpeedPrediction& prediction) {
  Tell("predicted",
       {{"prompt_tokens", load.mean_prompt_tokens},
        {"output_tokens", load.mean_output_tokens},
        {"ttft_ms", prediction.ttft_ms},
        {"tpot_ms", prediction.tpot_ms},
        {"source", prediction.source}},
       absl::StrFormat(
           "Predict  TPOT %s, TTFT %s for a request alone, %.0f tokens in, %.0f out (%s)",
           FormatMilliseconds(prediction.tpot_ms), FormatMilliseconds(prediction.ttft_ms),
           load.mean_prompt_tokens, load.mean_output_tokens, prediction.source));
}

void ServeReport::WaitingForRanks(const std::string& worker_address,
                                  const std::string& secret_file) {
  Tell("waiting", {{"worker_address", worker_address}, {"secret_file", secret_file}},
       absl::StrCat("Waiting for ", Counted(num_replicas_ * tp_ * pp_, "rank"), " at ",
                    worker_address, ", secret in ", secret_file));
}

std::string ServeReport::Prefix(int replica) const {
  return num_replicas_ == 1 ? "" : absl::StrCat("Replica ", replica, ": ");
}

ServeReport::Loading& ServeReport::LoadingOf(int replica) {
  const auto [found, is_new] = loading_.try_emplace(replica);
  if (is_new) found->second.since = SteadyNow();
  return found->second;
}

// Nobody has told that the old ones were lost.
void ServeReport::Replaced(const ControllerEvent& joined, uint64_t old_epoch) {
  loading_.erase(joined.replica);
  lost_at_[joined.replica] = SteadyNow();
  Tell("replaced", {{"replica", joined.replica}, {"epoch", joined.epoch}, {"old_epoch", old_epoch}},
       absl::StrCat(Prefix(joined.replica), "Replaced ranks of epoch ", old_epoch,
                    " by those of another job, epoch ", joined.epoch));
}

void ServeReport::RankJoined(const ControllerEvent& event) {
  const uint64_t epoch = LoadingOf(event.replica).epoch;
  if (epoch != 0 && epoch != event.epoch) Replaced(event, epoch);
  LoadingOf(event.replica).epoch = event.epoch;
  if (!json_) return;
  PrintJson("rank_joined", {{"replica", event.replica},
                            {"epoch", event.epoch},
                            {"rank", event.rank},
                            {"host", event.host},
                            {"pid", event.pid}});
}

void ServeReport::RankChecked(const ControllerEvent& event) {
  Loading& loading = LoadingOf(event.replica);
  loading.checks[event.rank] = event;
  if (std::ssize(loading.checks) < tp_ * pp_) return;
  loading.since = SteadyNow();
  const PreflightSummary summary = SummarizePreflight(tp_, pp_, loading.checks);
  if (json_) {
    Json preflight = PreflightJson(event.replica, summary);
    preflight["gpus"] = GpusJson(loading.checks);
    PrintJson("preflight", std::move(preflight));
  }
  if (have_served_.count(event.replica) != 0) return;  // it was told at the start
  if (!json_) {
    std::vector<std::string> lines = PreflightLines(summary);
    if (!lines.empty()) lines.front().insert(0, Prefix(event.replica));
    for (const std::string& line : lines) PrintLine(line);
    for (const std::string& line : GpuLines(loading.checks)) PrintLine(line);
  }
  Warn(GpuWarnings(tp_, loading.checks));
}

void ServeReport::RankLoading(const ControllerEvent& event) {
  Loading& loading = LoadingOf(event.replica);
  loading.ranks[event.rank] = {event.bytes_done, event.bytes_total};
  int64_t done = 0;
  int64_t total = 0;
  for (const auto& [rank, progress] : loading.ranks) {
    done += progress.done;
    total += progress.total;
  }
  const absl::Time now = SteadyNow();
  // A short load needs no bar.
  if (now - loading.since < absl::Milliseconds(500) || now < next_progress_) return;
  next_progress_ = now + (is_terminal_ ? absl::Milliseconds(100) : absl::Seconds(2));
  if (json_) {
    PrintJson("loading",
              {{"replica", event.replica}, {"bytes_done", done}, {"bytes_total", total}});
  } else {
    DrawProgress(done, total, now - loading.since);
  }
}

void ServeReport::DrawProgress(int64_t done, int64_t total, absl::Duration elapsed) {
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0.0;
  const std::string text = absl::StrFormat("%3.0f %% of %s, %s", 100.0 * share, FormatBytes(total),
                                           BytesPerSecond(done, absl::ToDoubleSeconds(elapsed)));
  if (!is_terminal_) {
    PrintLine("Loading  " + text);
    return;
  }
  const int filled = std::clamp(static_cast<int>(share * kBarWidth), 0, kBarWidth);
  out_.Write(absl::StrCat("\r\x1b[KLoading  [", std::string(static_cast<size_t>(filled), '#'),
                          std::string(static_cast<size_t>(kBarWidth - filled), '.'), "] ", text));
  progress_shown_ = true;
}

void ServeReport::ClearProgress() {
  if (std::exchange(progress_shown_, false)) out_.Write("\r\x1b[K");
}

// A line to standard error, of which a terminal must not take the bar's end for its own.
void ServeReport::PrintError(const std::string& line) {
  if (progress_shown_) {
    ClearProgress();
    out_.Flush();
  }
  err_.Write(absl::StrCat(line, "\n"));
}

void ServeReport::RankLoaded(const ControllerEvent& event) {
  Loading& loading = LoadingOf(event.replica);
  loading.ranks[event.rank] = {event.bytes_total, event.bytes_total};
  ++loading.num_loaded;
  loading.num_mapped += event.mapped_bytes > 0 ? 1 : 0;
  if (json_) {
    return PrintJson("rank_loaded", {{"replica", event.replica},
                                     {"rank", event.rank},
                                     {"shard_bytes", event.bytes_total},
                                     {"weight_bytes", event.weight_bytes},
                                     {"mapped_bytes", event.mapped_bytes},
                                     {"backend", event.message}});
  }
  if (loading.num_loaded < tp_ * pp_) return;
  int64_t total = 0;
  for (const auto& [rank, progress] : loading.ranks) total += progress.total;
  const double seconds = absl::ToDoubleSeconds(SteadyNow() - loading.since);
  const std::string how =
      loading.num_mapped == loading.num_loaded ? "packed already" : BytesPerSecond(total, seconds);
  PrintLine(absl::StrFormat("%sLoaded   %s in %s (%s); %s", Prefix(event.replica),
                            FormatBytes(total), FormatSeconds(seconds), how,
                            OneLine(event.message)));
}

void ServeReport::RankRehearsed(const ControllerEvent& event) {
  Loading& loading = LoadingOf(event.replica);
  loading.rehearsals[event.rank] = event;
  if (json_) return PrintJson("rank_rehearsed", RehearsalJson(event));
  const bool is_told = have_served_.count(event.replica) != 0;
  if (std::ssize(loading.rehearsals) < tp_ * pp_ || is_told) return;
  if (const std::string line = MemoryLine(loading.rehearsals); !line.empty()) PrintLine(line);
}

void ServeReport::RankLost(const ControllerEvent& event, bool is_final) {
  loading_.erase(event.replica);
  lost_at_[event.replica] = SteadyNow();
  if (json_) {
    PrintJson("rank_lost", {{"replica", event.replica},
                            {"epoch", event.epoch},
                            {"rank", event.rank},
                            {"host", event.host},
                            {"pid", event.pid},
                            {"message", ValidUtf8(event.message)},
                            {"ranks", event.ranks}});
  } else if (is_final) {
    PrintLine(absl::StrCat("Lost     ", OneLine(event.message)));
  }
}

void ServeReport::Restarting(const Restart& restart) {
  loading_.erase(restart.replica);
  lost_at_.try_emplace(restart.replica, SteadyNow());
  if (json_) {
    PrintJson("restarting", {{"replica", restart.replica},
                             {"epoch", restart.epoch},
                             {"reason", ValidUtf8(restart.reason)},
                             {"delay_seconds", absl::ToDoubleSeconds(restart.delay)},
                             {"num_recent_restarts", restart.num_recent},
                             {"max_restarts", restart.limits.max_restarts}});
    return;
  }
  PrintLine(absl::StrCat("Lost     ", OneLine(restart.reason)));
  PrintLine(absl::StrCat("Restart  ", restart.num_recent, " of at most ",
                         restart.limits.max_restarts, " within ",
                         absl::FormatDuration(restart.limits.window), ", epoch ", restart.epoch));
}

void ServeReport::GivenUp(int replica, absl::string_view reason) {
  loading_.erase(replica);
  Tell("given_up", {{"replica", replica}, {"reason", ValidUtf8(reason)}},
       absl::StrCat("Lost     ", OneLine(reason)));
}

void ServeReport::Waiting(absl::string_view message) {
  Tell("waiting_for_ranks", {{"message", ValidUtf8(message)}},
       absl::StrCat("Waiting  for new ranks: ", OneLine(message)));
}

void ServeReport::Serving(const ControllerEvent& event, const std::string& address) {
  const ShownCache cache = {event.num_kv_blocks, event.num_host_blocks, event.max_model_len,
                            block_size_,         kv_bytes_per_token_,   has_fp8_cache_};
  const bool is_again = !have_served_.insert(event.replica).second;
  const absl::Time since = is_again ? lost_at_[event.replica] : started_;
  const double seconds = absl::ToDoubleSeconds(SteadyNow() - since);
  lost_at_.erase(event.replica);
  if (json_) {
    PrintJson(is_again ? "ready_again" : "ready",
              {{"address", address},
               {"replica", event.replica},
               {"epoch", event.epoch},
               {"model", name_},
               {"tp", tp_},
               {"pp", pp_},
               {"num_kv_blocks", event.num_kv_blocks},
               {"num_host_blocks", event.num_host_blocks},
               {"kv_capacity_tokens", cache.num_tokens()},
               {"max_model_len", event.max_model_len},
               {"full_length_sequences", cache.num_sequences()}});
    return;
  }
  if (is_again) {
    PrintLine(absl::StrFormat("%sServing again after %.1f s, epoch %d", Prefix(event.replica),
                              seconds, event.epoch));
    return;
  }
  for (const std::string& line : CacheLines(cache)) {
    PrintLine(absl::StrCat(Prefix(event.replica), line));
  }
  PrintLine(absl::StrFormat("%sServing %s on %s (tp %d x pp %d), ready in %.1f s",
                            Prefix(event.replica), name_, address, tp_, pp_, seconds));
}

void ServeReport::RankOutput(int replica, int rank, absl::string_view text,
                             absl::string_view starter) {
  if (json_) {
    PrintJson("output", {{"replica", replica}, {"rank", rank}, {"text", ValidUtf8(text)}});
    return;
  }
  std::string source = rank < 0 ? std::string(starter) : absl::StrCat("rank ", rank);
  if (num_replicas_ > 1) source = absl::StrCat("replica ", replica, ", ", source);
  PrintError(absl::StrCat("[", source, "] ", OneLine(text)));
}

void ServeReport::Warn(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    if (json_) {
      PrintJson("warning", {{"message", ValidUtf8(warning)}});
    } else {
      PrintError(absl::StrCat("lockstep: warning: ", OneLine(warning)));
    }
  }
}

void ServeReport::Draining(double seconds) {
  Tell("draining", {{"drain_seconds", seconds}},
       absl::StrFormat(
           "Draining: no new requests, running ones have %g s; interrupt again to stop at once",
           seconds));
}

void ServeReport::Served(const ServedLoad& load, const std::optional<SpeedPrediction>& prediction) {
  if (load.num_outputs == 0) return;
  if (json_) {
    Json fields = {{"num_outputs", load.num_outputs},
                   {"mean_prompt_tokens", load.mean_prompt_tokens},
                   {"mean_output_tokens", load.mean_output_tokens},
                   {"mean_requests", load.mean_requests},
                   {"ttft_ms", load.ttft_ms},
                   {"tpot_ms", load.tpot_ms}};
    if (prediction) {
      fields["predicted_ttft_ms"] = prediction->ttft_ms;
      fields["predicted_tpot_ms"] = prediction->tpot_ms;
      fields["source"] = prediction->source;
    }
    PrintJson("served", std::move(fields));
    return;
  }
  PrintLine(absl::StrFormat(
      "Served   %s outputs, %.1f requests at a time, %.0f tokens in, %.0f out: TPOT %s, TTFT %s%s",
      FormatCount(load.num_outputs), load.mean_requests, load.mean_prompt_tokens,
      load.mean_output_tokens, FormatMilliseconds(load.tpot_ms), FormatMilliseconds(load.ttft_ms),
      prediction
          ? absl::StrFormat("; predicted %s and %s (%s)", FormatMilliseconds(prediction->tpot_ms),
                            FormatMilliseconds(prediction->ttft_ms), prediction->source)
          : ""));
}

void ServeReport::Stopped(absl::string_view how) {
  Tell("stopped", {{"how", std::string(how)}}, absl::StrCat("Stopped ", how));
  Flush();
}

void ServeReport::Failed(absl::string_view message) {
  ClearProgress();
  if (json_) PrintJson("failed", {{"message", ValidUtf8(message)}});
  Flush();
}

}  // namespace lockstep
