#include "launcher/calibration/calibration.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "kernels/backend.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "kernels/base/text_file.h"
#include "kernels/base/this_program.h"
#include "kernels/base/usable_cores.h"
#include "kernels/cpu_backend_options.h"
#include "launcher/base/host_name.h"
#include "launcher/bench/load_generator.h"
#include "launcher/calibration/other_programs.h"
#include "launcher/calibration/probe_models.h"
#include "launcher/calibration/ranks_to_measure.h"
#include "launcher/eval/local_server.h"
#include "launcher/job/job_output.h"
#include "launcher/job/job_supervisor.h"
#include "launcher/job/mpi_command.h"
#include "launcher/job/runtime_dir.h"
#include "launcher/ranks/device_choice.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr double kDisturbed = 0.1;  // share of the processors that others took
constexpr int kTries = 2;
constexpr int64_t kPrompt = 16;  // tokens of a request that is served
constexpr absl::Duration kGrace = absl::Seconds(2);
constexpr absl::Duration kInfoTimeout = absl::Seconds(10);
constexpr absl::Duration kLookInterval = absl::Milliseconds(100);

std::string Today() { return absl::FormatTime("%Y-%m-%d", absl::Now(), absl::LocalTimeZone()); }

absl::Status CheckWeights(const std::string& weights, bool on_gpus) {
  std::vector<std::string> held;
  for (const ProbeFormat& format : ProbeFormatsOf(on_gpus)) held.push_back(format.name);
  if (weights.empty() || std::find(held.begin(), held.end(), weights) != held.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--weights ", weights, " is not held by ",
                                                 on_gpus ? "GPUs" : "CPUs", ": ",
                                                 absl::StrJoin(held, ", ")));
}

absl::StatusOr<plan::ProfiledDevice> DeviceOfProfile(const std::optional<GpusHere>& here) {
  plan::ProfiledDevice device;
  if (!here) return device;
  const AcceleratorInfo& first = here->gpus.front();
  for (const AcceleratorInfo& gpu : here->gpus) {
    if (gpu.name == first.name) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the GPUs here are not alike (", first.name, ", ", gpu.name,
                     "): name some that are in CUDA_VISIBLE_DEVICES"));
  }
  return plan::ProfiledDevice{"cuda", first.name, first.memory_bytes,
                              static_cast<int>(here->gpus.size())};
}

class Calibration {
 public:
  Calibration(const CalibrationOptions& options, InterruptWatcher& interrupts, RuntimeDir files,
              RuntimeDir memory)
      : options_(options),
        interrupts_(interrupts),
        files_(std::move(files)),
        memory_(std::move(memory)) {}

  absl::StatusOr<plan::HostProfile> Run() {
    ASSIGN_OR_RETURN(plan::HostProfile profile, WithoutSpeeds());
    const plan::ProfiledDevice& device = profile.device;
    RETURN_IF_ERROR(CheckWeights(options_.weights, device.is_gpu()));
    ASSIGN_OR_RETURN(const auto cases, RanksToMeasure(device, profile.cores, options_.layout));
    device_ = device.kind;
    ASSIGN_OR_RETURN(sizes_, FindProbeSizes(options_.sizes.empty() ? device_ : options_.sizes));
    ASSIGN_OR_RETURN(mpirun_, FindMpirun());
    ASSIGN_OR_RETURN(program_, ThisProgram());
    Say(absl::StrFormat("Measuring %d combinations of ranks and threads on %s%s", cases.size(),
                        profile.device_text(),
                        device.is_gpu() ? "" : absl::StrFormat(", %d cores", profile.cores)));
    ASSIGN_OR_RETURN(models_, MakeProbeModels(files_.path(), sizes_, options_.quick));
    RETURN_IF_ERROR(MeasureRanks(cases, profile));
    RETURN_IF_ERROR(MeasureServing(profile));
    return profile;
  }

 private:
  void Say(const std::string& line) const {
    if (options_.on_progress) options_.on_progress(line);
  }

  absl::StatusOr<plan::HostProfile> WithoutSpeeds() const {
    plan::HostProfile profile;
    profile.host = HostName();
    profile.date = Today();
    profile.cores = NumUsableCores();
    ASSIGN_OR_RETURN(const DeviceSearch search, GpusFor(options_.device));
    ASSIGN_OR_RETURN(profile.device, DeviceOfProfile(search.gpus));
    profile.backend = profile.device.kind;
    if (profile.device.is_gpu()) return profile;
    ASSIGN_OR_RETURN(const auto backend, MakeCpuBackend({1}));
    profile.backend = backend->Description();
    profile.backend = profile.backend.substr(0, profile.backend.find(','));
    return profile;
  }

  static std::string Describe(const plan::RankSpeed& speed) {
    const plan::FormatSpeed& format = speed.formats.front();
    std::string line = absl::StrFormat(
        "tp %d x %d at work, %d thread%s each: a rank reads %.1f GB/s of %s weights, computes %.0f "
        "GFLOP/s, layers take %.0f us",
        speed.tp, speed.groups, speed.threads, speed.threads == 1 ? "" : "s",
        1.0 / format.linear.front().ns_per_byte, format.weights,
        // Two bytes and two operations for each weight.
        format.linear.back().tokens / format.linear.back().ns_per_byte, speed.layer_us);
    if (speed.tp > 1) absl::StrAppendFormat(&line, "; all-reduce %.1f GB/s", speed.all_reduce_gb_s);
    if (speed.groups > 1) {
      absl::StrAppendFormat(&line, "; send %.0f us and %.1f GB/s", speed.send_us, speed.send_gb_s);
    }
    return line;
  }

  absl::Status MeasureRanks(const std::vector<RanksAtWork>& cases, plan::HostProfile& profile) {
    double worst_share = 0;
    for (const RanksAtWork& at_work : cases) {
      double others = 0;
      ASSIGN_OR_RETURN(plan::RankSpeed speed, MeasureUndisturbed(at_work, others));
      Say(absl::StrCat(Describe(speed), others > kDisturbed
                                            ? absl::StrFormat(" (other programs took %.0f %% of "
                                                              "the processors)",
                                                              100 * others)
                                            : ""));
      worst_share = std::max(worst_share, others);
      profile.speeds.push_back(std::move(speed));
    }
    if (worst_share > kDisturbed) {
      Say(
          absl::StrFormat("Other programs took up to %.0f %% of the processors' time: calibrate "
                          "again on an idle machine",
                          100 * worst_share));
    }
    return absl::OkStatus();
  }

  // Again when others disturbed it; the least disturbed counts, `least` is their share meanwhile.
  absl::StatusOr<plan::RankSpeed> MeasureUndisturbed(const RanksAtWork& at_work, double& least) {
    plan::RankSpeed best;
    least = 2.0;
    for (int i = 0; i < (options_.quick ? 1 : kTries) && least > kDisturbed; ++i) {
      const OtherPrograms others;
      ASSIGN_OR_RETURN(plan::RankSpeed speed, Measure(at_work));
      const double share = others.Share();
      if (share < least) {
        least = share;
        best = std::move(speed);
      }
    }
    return best;
  }

  absl::StatusOr<plan::RankSpeed> Measure(const RanksAtWork& at_work) {
    const fs::path output = files_.path() / absl::StrCat("speed-", at_work.tp, "-", at_work.groups,
                                                         "-", at_work.threads, ".json");
    std::vector<std::string> rank = {program_,
                                     "calibrate-rank",
                                     "--layers-model",
                                     models_.layers.string(),
                                     "--overhead-model",
                                     models_.overhead.string(),
                                     "--sizes",
                                     sizes_.name,
                                     "--device",
                                     device_,
                                     "--tp",
                                     absl::StrCat(at_work.tp),
                                     "--threads",
                                     absl::StrCat(at_work.threads),
                                     "--output",
                                     output.string()};
    if (options_.quick) rank.push_back("--quick");
    if (!options_.weights.empty()) rank.insert(rank.end(), {"--weights", options_.weights});
    RETURN_IF_ERROR(RunJob(LocalMpiCommand(mpirun_, at_work.tp * at_work.groups,
                                           {files_.path(), memory_.path()}, rank)));
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(output));
    ASSIGN_OR_RETURN(const nlohmann::json json, ParseStrictJson(text));
    return plan::ToRankSpeed(json, "");
  }

  absl::Status RunJob(std::vector<std::string> command) {
    JobSpec spec;
    spec.command = std::move(command);
    spec.environment = JobEnvironment();
    spec.signal_without_launcher = kMpirunEndSignal;
    JobOutput output;
    std::string last_words;
    bool by_rank = false;  // then mpirun, which laments after them, says nothing new
    const auto hear = [&](const std::vector<JobLine>& lines) {
      for (const JobLine& each : lines) {
        if (by_rank && !each.rank) continue;
        by_rank = each.rank.has_value();
        last_words = std::string(absl::StripPrefix(each.text, "lockstep calibrate-rank: "));
      }
    };
    ASSIGN_OR_RETURN(const auto job, JobSupervisor::Start(spec, [&](absl::string_view line) {
                       hear(output.Take(line));
                     }));
    const absl::Time deadline = SteadyNow() + options_.most_time;
    while (!job->Wait(SteadyNow())) {
      WaitReadable({job->fd(), interrupts_.fd()}, kLookInterval);
      if (interrupts_.TakeCount() > 0) {
        job->Terminate(kGrace);
        return absl::CancelledError("interrupted");
      }
      job->ReadOutput();
      if (SteadyNow() > deadline) {
        job->Terminate(kGrace);
        return absl::DeadlineExceededError(absl::StrCat(
            "the ranks were not done after ", absl::FormatDuration(options_.most_time),
            last_words.empty() ? "" : absl::StrCat("; their last words: ", last_words)));
      }
    }
    if (job->exit()->code == 0 && job->exit()->signal == 0) return absl::OkStatus();
    hear(output.Finish());
    return absl::UnavailableError(
        absl::StrCat("the ranks failed (", job->exit()->ToString(), ")",
                     last_words.empty() ? "" : absl::StrCat(": ", last_words)));
  }

  // What a step takes in a server beyond the forward pass, from layers that take next to nothing.
  absl::Status MeasureServing(plan::HostProfile& profile) {
    constexpr int64_t kFew = 1;
    constexpr int64_t kMany = 8;
    const plan::Layout layout = options_.layout.value_or(plan::Layout());
    std::vector<std::string> arguments = {models_.overhead.string(),
                                          "--device",
                                          device_,
                                          "--tp",
                                          absl::StrCat(layout.tp),
                                          "--pp",
                                          absl::StrCat(layout.pp),
                                          "--num-kv-blocks",
                                          "256",
                                          "--max-model-len",
                                          "512",
                                          "--no-prefix-cache"};
    // Ranks on GPUs try steps of every size before they serve.
    if (profile.device.is_gpu()) {
      arguments.insert(arguments.end(), {"--max-num-seqs", absl::StrCat(kMany),
                                         "--max-batched-tokens", absl::StrCat(kMany * kPrompt)});
    }
    ASSIGN_OR_RETURN(const auto server, LocalServer::Start(arguments, interrupts_));
    ASSIGN_OR_RETURN(const BenchReport few, Load(server->address(), kFew));
    ASSIGN_OR_RETURN(const BenchReport many, Load(server->address(), kMany));
    const plan::RankSpeed speed =
        profile.SpeedOf(layout.tp, 1, std::max(1, profile.cores / layout.ranks()));
    const double layers_us = sizes_.num_overhead_layers * speed.layer_us;
    profile.sequence_us = std::max(
        0.0, (many.tpot_ms.p50 - few.tpot_ms.p50) * 1e3 / static_cast<double>(kMany - kFew));
    profile.step_us = std::max(0.0, few.tpot_ms.p50 * 1e3 - layers_us - profile.sequence_us);
    profile.request_ms = few.ttft_ms.p50;
    Say(
        absl::StrFormat("Serving adds %.0f us to a step, %.0f us for each sequence, %.1f ms to a "
                        "first token",
                        profile.step_us, profile.sequence_us, profile.request_ms));
    return absl::OkStatus();
  }

  absl::StatusOr<BenchReport> Load(const std::string& address, int64_t concurrency) {
    ConnectionFlags flags;
    flags.server = address;
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(flags));
    ASSIGN_OR_RETURN(const auto info, connection->GetServerInfo(kInfoTimeout));
    WorkloadOptions workload_options;
    workload_options.input_len = {kPrompt, kPrompt};
    workload_options.output_len = {sizes_.served_tokens, sizes_.served_tokens};
    workload_options.vocab_size = info.vocab_size();
    const Workload workload(std::move(workload_options));
    LoadGenerator generator(*connection, workload, absl::InfiniteDuration(), interrupts_, nullptr);
    LoadShape shape;
    shape.concurrency = concurrency;
    shape.num_requests = concurrency;
    generator.Run(shape, 1 << 20);  // warms up
    shape.num_requests = 4 * concurrency;
    const BenchReport report = generator.Run(shape, 0).Report({});
    if (generator.interrupted()) return absl::CancelledError("interrupted");
    if (report.num_completed == 0) return absl::UnavailableError("the server answered nothing");
    return report;
  }

  const CalibrationOptions& options_;
  InterruptWatcher& interrupts_;
  const RuntimeDir files_;
  const RuntimeDir memory_;
  fs::path mpirun_;
  std::string program_;
  std::string device_;
  ProbeSizes sizes_;
  ProbeModels models_;
};

}  // namespace

absl::StatusOr<plan::HostProfile> Calibrate(const CalibrationOptions& options,
                                            InterruptWatcher& interrupts) {
  ASSIGN_OR_RETURN(RuntimeDir files, RuntimeDir::Create());
  ASSIGN_OR_RETURN(RuntimeDir memory, RuntimeDir::CreateInMemory());
  return Calibration(options, interrupts, std::move(files), std::move(memory)).Run();
}

}  // namespace lockstep
