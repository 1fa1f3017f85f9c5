// lockstep bench: loads a server in an open or a closed loop and reports latencies, throughput and
// goodput.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "launcher/base/signals.h"
#include "launcher/bench/load_generator.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/values.h"
#include "launcher/client/prompts.h"

namespace lockstep {
namespace {

constexpr char kBenchCommand[] = "bench";
constexpr absl::Duration kBenchInfoTimeout = absl::Seconds(10);
constexpr int64_t kWarmupConcurrency = 8;
// Random prompts of the warm-up must not be in the prefix cache when the measured ones come.
constexpr uint64_t kWarmupFirstIndex = uint64_t{1} << 40;

struct BenchOptions {
  ConnectionFlags connection;
  double rate = 0.0;
  bool fixed_rate = false;
  int64_t concurrency = 8;
  int64_t num_requests = 0;
  double duration_seconds = 0.0;
  int64_t warmup = 2;
  std::string input_len = "128";
  std::string output_len = "128";
  std::string prompts_file;
  bool stop_at_eos = false;
  std::optional<float> temperature;
  uint64_t seed = 1;
  double timeout_seconds = 0.0;
  ServiceLevel slo;
  bool json = false;
  bool each = false;
  bool quiet = false;
};

// What the flags say of it; every error is one of usage.
absl::StatusOr<WorkloadOptions> AskedWorkload(const BenchOptions& options) {
  WorkloadOptions workload;
  ASSIGN_OR_RETURN(workload.input_len, ParseLengthRange(options.input_len));
  ASSIGN_OR_RETURN(workload.output_len, ParseLengthRange(options.output_len));
  workload.ignore_eos = !options.stop_at_eos;
  workload.temperature = options.temperature;
  workload.seed = options.seed;
  if (!options.prompts_file.empty()) {
    ASSIGN_OR_RETURN(const std::string content, ReadFileOrStdin(options.prompts_file));
    ASSIGN_OR_RETURN(workload.prompts, ParsePromptLines(content));
  }
  return workload;
}

// For that server.
absl::StatusOr<Workload> MakeWorkload(WorkloadOptions workload,
                                      const v1::GetServerInfoResponse& info) {
  if (info.num_kv_blocks() == 0) {
    return absl::UnavailableError(
        "the server is starting: try again when `lockstep status` says that it serves");
  }
  workload.vocab_size = info.vocab_size();
  workload.excluded_ids.assign(info.eos_token_ids().begin(), info.eos_token_ids().end());
  if (info.has_bos_token_id()) workload.excluded_ids.push_back(info.bos_token_id());
  if (!workload.prompts.empty()) return Workload(std::move(workload));
  const int64_t longest = workload.input_len.max + workload.output_len.max;
  if (longest > info.max_model_len()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--input-len plus --output-len is ", longest, " tokens, the server takes ",
                     info.max_model_len(), " per sequence: lower one of them"));
  }
  if (workload.vocab_size <= static_cast<int32_t>(workload.excluded_ids.size())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the server names a vocabulary of ", info.vocab_size(), " tokens"));
  }
  return Workload(std::move(workload));
}

LoadShape MakeShape(const BenchOptions& options) {
  LoadShape shape;
  shape.num_requests = options.num_requests;
  if (options.duration_seconds > 0) shape.duration = absl::Seconds(options.duration_seconds);
  if (options.num_requests == 0 && options.duration_seconds <= 0) shape.num_requests = 100;
  shape.concurrency = options.concurrency;
  shape.rate = options.rate;
  shape.arrivals =
      options.fixed_rate ? ArrivalClock::Process::kFixed : ArrivalClock::Process::kPoisson;
  shape.seed = options.seed;
  return shape;
}

std::string DescribeLoad(const BenchOptions& options, const LoadShape& shape) {
  std::string text = shape.rate > 0
                         ? absl::StrFormat("open loop, %g requests/s (%s)", shape.rate,
                                           options.fixed_rate ? "fixed" : "Poisson")
                         : absl::StrFormat("closed loop, %d requests in flight", shape.concurrency);
  if (shape.num_requests > 0) absl::StrAppendFormat(&text, ", %d requests", shape.num_requests);
  if (options.duration_seconds > 0)
    absl::StrAppendFormat(&text, ", %g s", options.duration_seconds);
  absl::StrAppend(&text, options.prompts_file.empty()
                             ? absl::StrCat("; random prompts of ", options.input_len, " tokens")
                             : absl::StrCat("; prompts of ", options.prompts_file));
  return absl::StrCat(text, ", output ", options.output_len, " tokens, seed ", options.seed);
}

// Two updates a second on a terminal, a line every five seconds elsewhere.
LoadGenerator::OnProgress MakeProgress(bool quiet) {
  if (quiet) return nullptr;
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  return [is_terminal, next = absl::Seconds(is_terminal ? 0 : 5), last_tokens = int64_t{0},
          last = absl::ZeroDuration()](const GeneratedLoad& progress) mutable {
    if (progress.elapsed < last) last = next = absl::ZeroDuration(), last_tokens = 0;
    if (progress.elapsed < next) return;
    const double seconds = absl::ToDoubleSeconds(progress.elapsed - last);
    const double rate = static_cast<double>(progress.num_tokens - last_tokens) / seconds;
    std::fprintf(stderr, "%s%6.1f s: %d done, %d running, %.0f output tokens/s%s",
                 is_terminal ? "\r\x1b[K" : "", absl::ToDoubleSeconds(progress.elapsed),
                 static_cast<int>(progress.num_done), static_cast<int>(progress.num_running), rate,
                 is_terminal ? "" : "\n");
    if (!is_terminal) next = progress.elapsed + absl::Seconds(5);
    last = progress.elapsed;
    last_tokens = progress.num_tokens;
  };
}

int PrintReport(const BenchOptions& options, const v1::GetServerInfoResponse& info,
                const LoadShape& shape, const Measurements& measurements) {
  const BenchReport report = measurements.Report(options.slo);
  if (options.json) {
    nlohmann::ordered_json json = {{"model", ValidUtf8(info.model_name())},
                                   {"tensor_parallel", info.tensor_parallel()},
                                   {"pipeline_parallel", info.pipeline_parallel()},
                                   {"load", DescribeLoad(options, shape)}};
    json.update(report.ToJson());
    if (options.each) json["requests"] = measurements.EachToJson();
    std::printf("%s\n", json.dump().c_str());
  } else {
    if (!options.quiet && ::isatty(STDERR_FILENO) == 1) std::fprintf(stderr, "\r\x1b[K");
    std::printf("%s", report.ToText().c_str());
  }
  return report.num_failed > 0 || report.num_completed == 0 ? kExitFailure : kExitOk;
}

int RunBench(const BenchOptions& options) {
  InterruptWatcher interrupts;
  auto asked = AskedWorkload(options);
  if (!asked.ok()) return FailUsage(kBenchCommand, asked.status().message());
  const auto connection = Connection::Open(options.connection);
  if (!connection.ok()) return FailUsage(kBenchCommand, connection.status().message());
  std::optional<EndAtInterrupt> early(std::in_place, interrupts, [] { return kExitFailure; });
  const auto info = (*connection)->GetServerInfo(kBenchInfoTimeout);
  if (!info.ok()) return Fail(kBenchCommand, info.status());
  early.reset();
  const auto workload = MakeWorkload(*std::move(asked), *info);
  if (!workload.ok()) return Fail(kBenchCommand, workload.status());
  const LoadShape shape = MakeShape(options);
  if (!options.quiet) {
    std::fprintf(stderr, "%s, tp %d x pp %d; %s\n", TerminalText(info->model_name()).c_str(),
                 info->tensor_parallel(), info->pipeline_parallel(),
                 DescribeLoad(options, shape).c_str());
  }
  const absl::Duration timeout = options.timeout_seconds > 0
                                     ? absl::Seconds(options.timeout_seconds)
                                     : absl::InfiniteDuration();
  LoadGenerator generator(**connection, *workload, timeout, interrupts,
                          MakeProgress(options.quiet));
  if (options.warmup > 0) {
    LoadShape warmup;
    warmup.num_requests = options.warmup;
    warmup.concurrency = std::min(options.warmup, kWarmupConcurrency);
    generator.Run(warmup, kWarmupFirstIndex);
  }
  const Measurements measurements = generator.Run(shape, 0);
  const int code = PrintReport(options, *info, shape, measurements);
  return generator.interrupted() ? kExitFailure : code;
}

void AddLoadFlags(CLI::App& command, BenchOptions& options) {
  const char* group = "Load";
  auto* rate = command
                   .add_option("--rate", options.rate,
                               "open loop: send this many requests per second, answered or not")
                   ->type_name("PER_SECOND")
                   ->check(Between(1e-3, 1e6))
                   ->group(group);
  command.add_flag("--fixed", options.fixed_rate, "equal gaps instead of Poisson arrivals")
      ->needs(rate)
      ->group(group);
  command
      .add_option("--concurrency", options.concurrency, "closed loop: requests in flight at a time")
      ->type_name("N")
      ->check(Between(1, 100000))
      ->capture_default_str()
      ->excludes(rate)
      ->group(group);
  command
      .add_option("--num-requests", options.num_requests,
                  "stop after this many (default: 100 without --duration)")
      ->type_name("N")
      ->check(Between(1, 1e12))
      ->group(group);
  command.add_option("--duration", options.duration_seconds, "stop sending after this long")
      ->type_name("SECONDS")
      ->check(Between(0.001, 1e7))
      ->group(group);
  command.add_option("--warmup", options.warmup, "requests sent before, not measured")
      ->type_name("N")
      ->check(Between(0, 100000))
      ->capture_default_str()
      ->group(group);
}

void AddRequestFlags(CLI::App& command, BenchOptions& options) {
  const char* group = "Requests";
  command.add_option("--input-len", options.input_len, "tokens of random prompts")
      ->type_name("N|MIN:MAX")
      ->check(LengthOrRange())
      ->capture_default_str()
      ->group(group);
  command.add_option("--output-len", options.output_len, "tokens to generate")
      ->type_name("N|MIN:MAX")
      ->check(LengthOrRange())
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--prompts", options.prompts_file,
                  "use these instead: a prompt per line, or JSON lines with \"prompt\" or "
                  "\"token_ids\" and optionally \"max_tokens\"")
      ->type_name("FILE")
      ->group(group);
  command
      .add_flag("--stop-at-eos", options.stop_at_eos,
                "let outputs end early (default: always the full length)")
      ->group(group);
  command.add_option("--temperature", options.temperature, "default: the checkpoint's")
      ->type_name("T")
      ->group(group);
  command.add_option("--seed", options.seed, "of prompts, lengths, arrivals and sampling")
      ->type_name("N")
      ->check(Unsigned64())
      ->capture_default_str()
      ->group(group);
  command.add_option("--timeout", options.timeout_seconds, "per request (default: none)")
      ->type_name("SECONDS")
      ->check(Between(0.001, 1e7))
      ->group(group);
}

}  // namespace

void AddBenchCommand(CLI::App& program, CommandBody& chosen) {
  BenchOptions* options = nullptr;
  CLI::App* command =
      AddCommand(program, chosen, kBenchCommand,
                 "Load a server and report latencies and throughput", &RunBench, options);
  AddLoadFlags(*command, *options);
  AddRequestFlags(*command, *options);
  command
      ->add_option("--slo-ttft-ms", options->slo.ttft_ms,
                   "goodput counts requests with at most this time to first token")
      ->type_name("MS")
      ->check(Between(0.001, 1e9))
      ->group("Report");
  command
      ->add_option("--slo-tpot-ms", options->slo.tpot_ms, "and at most this time per output token")
      ->type_name("MS")
      ->check(Between(0.001, 1e9))
      ->group("Report");
  CLI::Option* json =
      command->add_flag("--json", options->json, "the report as one JSON object")->group("Report");
  command->add_flag("--each", options->each, "and the times of every request in it")
      ->needs(json)
      ->group("Report");
  command->add_flag("--quiet,-q", options->quiet, "no progress on stderr")->group("Report");
  AddConnectionFlags(*command, options->connection);
  command->footer(
      "TTFT: planned arrival to first token. TPOT: mean time per later token of a request.\n"
      "ITL: gaps between tokens over all requests. Times are in milliseconds.\n"
      "Example:\n  lockstep bench --rate 20 --duration 30 --input-len 64:256 --output-len 128\n"
      "Exit codes: 0 every request completed, 1 some failed or it was interrupted, 2 wrong usage.");
}

}  // namespace lockstep
