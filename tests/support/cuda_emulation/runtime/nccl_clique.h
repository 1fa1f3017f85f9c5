// The ranks of one NCCL communicator as threads of this process, and what they have under way. Used
// with the device's lock held.
#pragma once

#include <nccl.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::cuda_emulation {

struct Operation {
  enum class Kind { kAllReduce, kAllGather, kSend, kRecv };
  Kind kind = Kind::kAllReduce;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  int peer = -1;

  bool collective() const { return kind == Kind::kAllReduce || kind == Kind::kAllGather; }
  size_t bytes() const;
  std::string Describe() const;  // "all-gather of 16 bytes"
};
size_t BytesOf(ncclDataType_t type);

class Clique {
 public:
  explicit Clique(int num_ranks)
      : num_ranks(num_ranks), joined(num_ranks), aborted(num_ranks), next_(num_ranks) {}

  const int num_ranks;
  std::vector<bool> joined;
  std::vector<bool> aborted;
  int num_joined = 0;

  // One rank's part of an operation that its stream has come to. done: set when it is complete.
  struct Part {
    Operation operation;
    bool done = false;
  };
  // "" or what the ranks do not agree on.
  std::string Arrive(int rank, const std::shared_ptr<Part>& part);

 private:
  struct Collective {
    std::vector<std::shared_ptr<Part>> parts;  // by rank
    int num_here = 0;
  };
  std::string ArriveAtCollective(int rank, const std::shared_ptr<Part>& part);
  std::string ArriveAtMessage(int rank, const std::shared_ptr<Part>& part);

  std::vector<int64_t> next_;  // number of each rank's next collective
  std::map<int64_t, Collective> collectives_;
  // Waiting for their other side, by sender and receiver.
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Part>>> sends_, receives_;
};

}  // namespace lockstep::cuda_emulation
