// How far each rank of a job has come before it reads weights, and who is missing when the time is
// over. Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/job/job_output.h"

namespace lockstep {

class RankRoll {
 public:
  explicit RankRoll(std::vector<std::string> host_of_rank = {});

  // Ranks outside the job are ignored: its output may say anything.
  void Started(int rank, const RankStarted& started);
  void Met(int rank) { Advance(rank, Progress::kMet); }  // the others, over MPI
  void Joined(int rank) { Advance(rank, Progress::kJoined); }
  void Checked(int rank) { Advance(rank, Progress::kChecked); }

  bool IsComplete() const { return num_checked_ == ranks_.size(); }
  // Which ranks hold the others up, where, and what to look at; not when complete.
  // worker_address: where ranks connect.
  std::string Missing(const std::string& worker_address) const;

 private:
  enum class Progress { kSilent, kStarted, kMet, kJoined, kChecked };
  struct Rank {
    std::string host;
    Progress progress = Progress::kSilent;
  };
  void Advance(int rank, Progress progress);
  std::string RanksAt(Progress progress) const;

  std::vector<Rank> ranks_;
  size_t num_checked_ = 0;
};

}  // namespace lockstep
