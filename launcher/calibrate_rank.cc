// lockstep calibrate-rank: one rank of the jobs that `lockstep plan --calibrate` starts. Not for
// people, hence hidden from the help.
#include <string>

#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "launcher/calibration/speed_probe.h"
#include "launcher/cli/add_command.h"
#include "launcher/job/parent_watch.h"
#include "launcher/ranks/device_choice.h"
#include "launcher/ranks/mpi_rank.h"

namespace lockstep {
namespace {

constexpr char kCalibrateRankCommand[] = "calibrate-rank";

struct CalibrateRankOptions {
  SpeedProbeOptions probe;
  RankFlags rank;
  std::string sizes;
  std::string output;
  bool quick = false;
};

absl::Status Measure(const CalibrateRankOptions& options, const MpiSession& session) {
  SpeedProbeOptions probe = options.probe;
  if (options.quick) probe.seconds = 0.3;
  ASSIGN_OR_RETURN(probe.sizes, FindProbeSizes(options.sizes));
  ASSIGN_OR_RETURN(probe.device, TakeDevice(options.rank, session));
  ASSIGN_OR_RETURN(const plan::RankSpeed speed, MeasureRankSpeed(session, probe));
  if (session.rank() != 0) return absl::OkStatus();
  return WriteTextFile(options.output, plan::RankSpeedJson(speed).dump() + "\n");
}

int RunCalibrateRank(const CalibrateRankOptions& options) {
  EndWithParent();
  // Calibration ends ranks that take too long.
  return RunMpiRank(kCalibrateRankCommand, absl::InfiniteDuration(),
                    [&](const MpiSession& session) { return Measure(options, session); });
}

}  // namespace

void AddCalibrateRankCommand(CLI::App& program, CommandBody& chosen) {
  CalibrateRankOptions* options = nullptr;
  CLI::App* command =
      AddCommand(program, chosen, kCalibrateRankCommand, "One rank of `lockstep plan --calibrate`",
                 &RunCalibrateRank, options);
  command->group("");  // for the launcher
  command->add_option("--layers-model", options->probe.models.layers)->required();
  command->add_option("--overhead-model", options->probe.models.overhead)->required();
  command->add_option("--sizes", options->sizes)->required();
  command->add_option("--device", options->rank.device)->required();
  command->add_option("--weights", options->probe.weights);
  command->add_option("--tp", options->probe.tp)->check(Between(1, 65536))->required();
  command->add_option("--threads", options->rank.threads)->check(Between(1, 65536))->required();
  command->add_option("--output", options->output)->required();
  command->add_flag("--quick", options->quick);
}

}  // namespace lockstep
