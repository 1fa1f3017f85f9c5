#include "launcher/calibration/calibration.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "deploy/plan/json_fields.h"
#include "kernels/backend.h"
#include "kernels/base/status_macros.h"
#include "launcher/bench/load_generator.h"
#include "launcher/calibration/other_programs.h"
#include "launcher/eval/local_server.h"
#include "launcher/job/job_output.h"
#include "launcher/job/job_supervisor.h"
#include "launcher/job/mpi_command.h"
#include "launcher/job/runtime_dir.h"
#include "model/checkpoint/model_shapes.h"
#include "model/checkpoint/model_writer.h"
#include "model/checkpoint/strict_json.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int kMostRanks = 8;
constexpr int kMostStages = 4;
constexpr double kDisturbed = 0.1;  // share of the processors that others took
constexpr int kTries = 2;
constexpr absl::Duration kGrace = absl::Seconds(2);
constexpr absl::Duration kInfoTimeout = absl::Seconds(10);
constexpr absl::Duration kLookInterval = absl::Milliseconds(100);

// Layers of the 1B's size: together far more than caches hold, with next to no vocabulary.
ModelConfig LayersConfig(bool quick) {
  ModelConfig config = *BuiltInShape("llama-3.2-1b");
  config.num_layers = quick ? 2 : 4;
  config.vocab_size = 4096;
  config.max_position_embeddings = 4096;
  config.rope_scaling.reset();
  config.bos_token_id.reset();
  config.eos_token_ids.clear();
  return config;
}

// Layers whose matrices take next to no time, so that what remains is what every layer takes.
ModelConfig OverheadConfig() {
  ModelConfig config = *BuiltInShape("tiny");
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.num_layers = 16;
  config.num_heads = 8;
  config.num_kv_heads = 8;
  config.head_dim = 16;
  config.vocab_size = 1024;
  config.max_position_embeddings = 4096;
  config.bos_token_id.reset();
  config.eos_token_ids.clear();
  return config;
}

absl::StatusOr<fs::path> Synthesize(const fs::path& directory, const std::string& name,
                                    const ModelConfig& config) {
  const fs::path shape = directory / absl::StrCat(name, ".json");
  std::ofstream file(shape, std::ios::trunc);
  file << ModelConfigJson(config);
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", shape.string()));
  SynthesizeOptions options;
  options.shape = shape.string();
  options.output = directory / name;
  options.dtype = DType::kBF16;
  RETURN_IF_ERROR(SynthesizeModel(options).status());
  return options.output;
}

absl::StatusOr<std::string> ThisProgram() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return absl::UnavailableError("cannot find this program in /proc: is it mounted?");
  return program.string();
}

std::string Today() { return absl::FormatTime("%Y-%m-%d", absl::Now(), absl::LocalTimeZone()); }

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "this host";
}

absl::Status CheckWeights(const std::string& weights) {
  for (const char* known : {"", "f32", "bf16", "int8", "int4"}) {
    if (weights == known) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--weights ", weights, " is not held by CPUs: f32, bf16, int8 or int4"));
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
    RETURN_IF_ERROR(CheckWeights(options_.weights));
    plan::HostProfile profile;
    profile.host = HostName();
    profile.date = Today();
    profile.cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    ASSIGN_OR_RETURN(const auto backend, MakeCpuBackend({1}));
    profile.backend = backend->Description();
    profile.backend = profile.backend.substr(0, profile.backend.find(','));
    ASSIGN_OR_RETURN(mpirun_, FindMpirun());
    ASSIGN_OR_RETURN(program_, ThisProgram());
    const std::vector<RanksAtWork> cases = options_.layout
                                               ? RanksToMeasure(profile.cores, *options_.layout)
                                               : RanksToMeasure(profile.cores);
    Say(absl::StrFormat("Measuring %d combinations of ranks and threads on %d cores (%s)",
                        cases.size(), profile.cores, profile.backend));
    ASSIGN_OR_RETURN(layers_model_,
                     Synthesize(files_.path(), "layers", LayersConfig(options_.quick)));
    ASSIGN_OR_RETURN(overhead_model_, Synthesize(files_.path(), "overhead", OverheadConfig()));
    for (const RanksAtWork& at_work : cases) {
      double others = 0;
      ASSIGN_OR_RETURN(plan::RankSpeed speed, MeasureUndisturbed(at_work, others));
      Say(absl::StrCat(Describe(speed), others > kDisturbed
                                            ? absl::StrFormat(" (other programs took %.0f %% of "
                                                              "the processors)",
                                                              100 * others)
                                            : ""));
      worst_share_ = std::max(worst_share_, others);
      profile.speeds.push_back(std::move(speed));
    }
    RETURN_IF_ERROR(MeasureServing(profile));
    if (worst_share_ > kDisturbed) {
      Say(
          absl::StrFormat("Other programs took up to %.0f %% of the processors' time: calibrate "
                          "again on an idle machine",
                          100 * worst_share_));
    }
    return profile;
  }

 private:
  void Say(const std::string& line) const {
    if (options_.on_progress) options_.on_progress(line);
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
                                     layers_model_.string(),
                                     "--overhead-model",
                                     overhead_model_.string(),
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
    ASSIGN_OR_RETURN(const std::string text, plan::ReadTextFile(output));
    ASSIGN_OR_RETURN(const nlohmann::json json, ParseStrictJson(text));
    return plan::ToRankSpeed(json, "");
  }

  absl::Status RunJob(std::vector<std::string> command) {
    JobSpec spec;
    spec.command = std::move(command);
    spec.environment = JobEnvironment();
    JobOutput output;
    std::string last_words;
    ASSIGN_OR_RETURN(const auto job, JobSupervisor::Start(spec, [&](absl::string_view line) {
                       for (const JobLine& each : output.Take(line)) {
                         last_words =
                             std::string(absl::StripPrefix(each.text, "lockstep calibrate-rank: "));
                       }
                     }));
    while (!job->Wait(absl::Now())) {
      WaitReadable({job->output_fd(), interrupts_.fd()}, kLookInterval);
      if (interrupts_.TakeCount() > 0) {
        job->Terminate(kGrace);
        return absl::CancelledError("interrupted");
      }
      job->ReadOutput();
    }
    if (job->exit()->code == 0 && job->exit()->signal == 0) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("the ranks failed (", job->exit()->ToString(), ")",
                     last_words.empty() ? "" : absl::StrCat(": ", last_words)));
  }

  // What a step takes in a server beyond the forward pass, from layers that take next to nothing.
  absl::Status MeasureServing(plan::HostProfile& profile) {
    constexpr int64_t kFew = 1;
    constexpr int64_t kMany = 8;
    const plan::Layout layout = options_.layout.value_or(plan::Layout());
    ASSIGN_OR_RETURN(const auto server,
                     LocalServer::Start({overhead_model_.string(), "--tp", absl::StrCat(layout.tp),
                                         "--pp", absl::StrCat(layout.pp), "--num-kv-blocks", "256",
                                         "--max-model-len", "512", "--no-prefix-cache"},
                                        interrupts_));
    ASSIGN_OR_RETURN(const BenchReport few, Load(server->address(), kFew));
    ASSIGN_OR_RETURN(const BenchReport many, Load(server->address(), kMany));
    const plan::RankSpeed speed =
        profile.SpeedOf(layout.tp, 1, std::max(1, profile.cores / layout.ranks()));
    const double layers_us = static_cast<double>(OverheadConfig().num_layers) * speed.layer_us;
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
    workload_options.input_len = {16, 16};
    workload_options.output_len = {128, 128};
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
  fs::path layers_model_;
  fs::path overhead_model_;
  double worst_share_ = 0;  // of other programs, in what counts
};

}  // namespace

std::vector<RanksAtWork> RanksToMeasure(int cores) {
  std::vector<RanksAtWork> cases;
  for (int world = 1; world <= std::min(kMostRanks, 2 * cores); world *= 2) {
    const int threads = std::max(1, cores / world);
    for (int stages = 1; stages <= std::min(world, kMostStages); stages *= 2) {
      for (int active = 1; active <= stages; active *= 2) {
        const RanksAtWork at_work{world / stages, active, threads};
        if (std::find(cases.begin(), cases.end(), at_work) == cases.end()) cases.push_back(at_work);
      }
    }
  }
  return cases;
}

std::vector<RanksAtWork> RanksToMeasure(int cores, const plan::Layout& layout) {
  std::vector<RanksAtWork> cases;
  for (int active = 1; active <= layout.pp; ++active) {
    cases.push_back({layout.tp, active, std::max(1, cores / layout.ranks())});
  }
  return cases;
}

absl::StatusOr<plan::HostProfile> Calibrate(const CalibrationOptions& options,
                                            InterruptWatcher& interrupts) {
  ASSIGN_OR_RETURN(RuntimeDir files, RuntimeDir::Create());
  ASSIGN_OR_RETURN(RuntimeDir memory, RuntimeDir::CreateInMemory());
  return Calibration(options, interrupts, std::move(files), std::move(memory)).Run();
}

}  // namespace lockstep
