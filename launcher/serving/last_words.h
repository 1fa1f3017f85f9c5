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
  // Of the one that was lost first: where it was, and what was seen of it here.
  std::string lost_host;
  int64_t lost_pid = 0;
  std::string process_state;
  std::vector<ProcessKilled> killed_processes;  // that others of their hosts saw

  // Whether a line of the job is among them, to be told in the launcher's own error, once and not
  // by every rank.
  bool Hear(const JobLine& line);
  // reason: what the launcher knows of the loss; with what these add to it.
  std::string Explain(const std::string& reason) const;
  // What became of the one that was lost, where mpirun does not tell.
  std::string StateOfLost() const;
};

}  // namespace lockstep
