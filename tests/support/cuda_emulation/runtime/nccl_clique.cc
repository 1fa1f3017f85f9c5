#include "tests/support/cuda_emulation/runtime/nccl_clique.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"

namespace lockstep::cuda_emulation {

namespace {

// Element i is added up from rank i mod n on, around the ring.
template <typename T>
std::vector<T> RingSum(const std::vector<std::shared_ptr<Clique::Part>>& parts, size_t count) {
  std::vector<T> sums(count);
  for (size_t i = 0; i < count; ++i) {
    for (size_t step = 0; step < parts.size(); ++step) {
      const size_t rank = (i + step) % parts.size();
      const T term = static_cast<const T*>(parts[rank]->operation.from)[i];
      sums[i] = step == 0 ? term : sums[i] + term;
    }
  }
  return sums;
}

template <typename T>
void AllReduce(const std::vector<std::shared_ptr<Clique::Part>>& parts, size_t count) {
  const std::vector<T> sums = RingSum<T>(parts, count);
  for (const auto& part : parts)
    std::copy(sums.begin(), sums.end(), static_cast<T*>(part->operation.to));
}

void AllGather(const std::vector<std::shared_ptr<Clique::Part>>& parts) {
  const size_t bytes = parts[0]->operation.bytes();
  std::vector<char> all(bytes * parts.size());
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    std::memcpy(&all[rank * bytes], parts[rank]->operation.from, bytes);
  }
  for (const auto& part : parts) std::memcpy(part->operation.to, all.data(), all.size());
}

const char* Name(Operation::Kind kind) {
  switch (kind) {
    case Operation::Kind::kAllReduce:
      return "all-reduce";
    case Operation::Kind::kAllGather:
      return "all-gather";
    case Operation::Kind::kSend:
      return "send";
    case Operation::Kind::kRecv:
      return "receive";
  }
  return "";
}

}  // namespace

size_t BytesOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
  }
  return 0;
}

size_t Operation::bytes() const { return count * BytesOf(type); }

std::string Operation::Describe() const {
  return absl::StrFormat("%s of %d bytes%s", Name(kind), bytes(),
                         peer < 0 ? "" : absl::StrFormat(", peer %d", peer));
}

std::string Clique::Arrive(int rank, const std::shared_ptr<Part>& part) {
  // Nothing is completed that a rank which is gone had a part in: its memory may be gone, too.
  if (std::find(aborted.begin(), aborted.end(), true) != aborted.end()) return "";
  return part->operation.collective() ? ArriveAtCollective(rank, part)
                                      : ArriveAtMessage(rank, part);
}

std::string Clique::ArriveAtCollective(int rank, const std::shared_ptr<Part>& part) {
  const int64_t number = next_[rank]++;
  Collective& collective = collectives_[number];
  collective.parts.resize(num_ranks);
  const Operation& mine = part->operation;
  for (int other = 0; other < num_ranks; ++other) {
    if (collective.parts[other] == nullptr) continue;
    const Operation& theirs = collective.parts[other]->operation;
    if (theirs.kind != mine.kind || theirs.count != mine.count || theirs.type != mine.type) {
      return absl::StrFormat("NCCL: rank %d comes with an %s, rank %d with an %s", rank,
                             mine.Describe(), other, theirs.Describe());
    }
  }
  collective.parts[rank] = part;
  if (++collective.num_here < num_ranks) return "";
  if (mine.kind == Operation::Kind::kAllGather) {
    AllGather(collective.parts);
  } else if (mine.type == ncclInt32) {
    AllReduce<int32_t>(collective.parts, mine.count);
  } else {
    AllReduce<float>(collective.parts, mine.count);
  }
  for (const auto& each : collective.parts) each->done = true;
  collectives_.erase(number);
  return "";
}

std::string Clique::ArriveAtMessage(int rank, const std::shared_ptr<Part>& part) {
  const Operation& mine = part->operation;
  const bool sends = mine.kind == Operation::Kind::kSend;
  const std::pair<int, int> way = sends ? std::pair(rank, mine.peer) : std::pair(mine.peer, rank);
  auto& others = sends ? receives_[way] : sends_[way];
  if (others.empty()) {
    (sends ? sends_ : receives_)[way].push_back(part);
    return "";
  }
  const std::shared_ptr<Part> other = others.front();
  others.pop_front();
  const Operation& theirs = other->operation;
  if (theirs.bytes() != mine.bytes()) {
    return absl::StrFormat("NCCL: rank %d comes with a %s, which finds a %s", rank, mine.Describe(),
                           theirs.Describe());
  }
  std::memcpy(sends ? theirs.to : mine.to, sends ? mine.from : theirs.from, mine.bytes());
  part->done = other->done = true;
  return "";
}

}  // namespace lockstep::cuda_emulation
