// What a job of ranks said before it ended.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/job/job_output.h"

namespace lockstep {

struct LastWords {
  std::string rank_error;                     // a rank's own
  std::optional<RankKilled> killed;           // mpirun's, when a rank was killed
  std::map<int, std::string> check_failures;  // by rank, its own of another kind
  std::vector<std::string> ranks;             // the controller's, of each, when one was lost
  std::string process_state;                  // of the one that fell silent

  // Whether a line of the job is among them, to be told in the launcher's own error, once and not
  // by every rank.
  bool Hear(const JobLine& line);
  // reason: what the launcher knows of the loss; with what these add to it.
  std::string Explain(const std::string& reason) const;
};

}  // namespace lockstep
