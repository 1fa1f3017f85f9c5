// What every body of Communicator must do, as one rank sees it: each function is called by all
// ranks of a group.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "parallel/communicator.h"

namespace lockstep::testing {

inline constexpr int64_t kCounts[] = {0, 1, 3, 7, 1023, 1024, 1025, 100000};

// Element i of rank r: magnitudes far apart, so that another order of additions gives other bits;
// now and then a NaN with the rank in its payload, an infinity or a negative zero.
inline float RankValue(int rank, int64_t i) {
  uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  const uint32_t sign = static_cast<uint32_t>(x >> 63) << 31;
  switch (i % 64) {
    case 5:
      return std::bit_cast<float>(sign | 0x7fc00000u | static_cast<uint32_t>(rank + 1));
    case 9:
      return std::bit_cast<float>(sign | 0x7f800000u);
    case 11:
      return -0.0f;
  }
  const uint32_t exponent = 127 - 12 + static_cast<uint32_t>(x >> 32) % 24;
  return std::bit_cast<float>(sign | (exponent << 23) | static_cast<uint32_t>(x & 0x7fffff));
}

// The specification of AllReduceSum: the tree of neighbours.
inline float TreeSum(int begin, int end, int64_t i) {
  if (end - begin == 1) return RankValue(begin, i);
  const int half = static_cast<int>(std::bit_ceil(static_cast<unsigned>(end - begin)) / 2);
  return TreeSum(begin, begin + half, i) + TreeSum(begin + half, end, i);
}

inline bool SameBits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

inline absl::Status Mismatch(const Communicator& group, const char* what, int64_t index) {
  return absl::DataLossError(
      absl::StrFormat("%s: wrong at %d on rank %d of %d", what, index, group.rank(), group.size()));
}

// Every number as the tree gives it; every NaN a NaN, and the same one on every rank (which of two
// NaNs a sum keeps is the compiler's choice, but it must be one choice).
inline absl::Status CheckAllReduce(Communicator& group, int64_t count) {
  std::vector<float> data(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) data[static_cast<size_t>(i)] = RankValue(group.rank(), i);
  RETURN_IF_ERROR(group.AllReduceSum(data.data(), count));
  std::vector<float> all(static_cast<size_t>(count * group.size()));
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  RETURN_IF_ERROR(group.AllGather(data.data(), bytes, all.data()));
  for (int64_t i = 0; i < count; ++i) {
    const float sum = data[static_cast<size_t>(i)];
    const float expected = TreeSum(0, group.size(), i);
    if (std::isnan(expected) ? !std::isnan(sum) : !SameBits(sum, expected)) {
      return Mismatch(group, "all-reduce", i);
    }
    for (int rank = 0; rank < group.size(); ++rank) {
      if (!SameBits(sum, all[static_cast<size_t>(rank * count + i)])) {
        return Mismatch(group, "all-reduce across ranks", i);
      }
    }
  }
  return absl::OkStatus();
}

// A share of the sum, bits and NaNs as in CheckAllReduce.
inline absl::Status CheckReduceScatter(Communicator& group, int64_t share) {
  std::vector<float> data(static_cast<size_t>(share * group.size()));
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = RankValue(group.rank(), static_cast<int64_t>(i));
  }
  RETURN_IF_ERROR(group.ReduceScatterSum(data.data(), share));
  for (int64_t i = group.rank() * share; i < (group.rank() + 1) * share; ++i) {
    const float sum = data[static_cast<size_t>(i)];
    const float expected = TreeSum(0, group.size(), i);
    if (std::isnan(expected) ? !std::isnan(sum) : !SameBits(sum, expected)) {
      return Mismatch(group, "reduce-scatter", i);
    }
  }
  return absl::OkStatus();
}

inline std::vector<int32_t> RankMessage(int rank, int64_t count, int number) {
  std::vector<int32_t> message(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    message[static_cast<size_t>(i)] = static_cast<int32_t>(i * 31 + rank * 7919 + number);
  }
  return message;
}

inline absl::Status CheckAllGather(Communicator& group, int64_t count, bool in_place) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(int32_t));
  std::vector<int32_t> mine = RankMessage(group.rank(), count, 0);
  std::vector<int32_t> all(static_cast<size_t>(count * group.size()));
  int32_t* slot = all.data() + group.rank() * count;
  if (in_place) std::copy(mine.begin(), mine.end(), slot);
  RETURN_IF_ERROR(group.AllGather(in_place ? slot : mine.data(), bytes, all.data()));
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::vector<int32_t> theirs = RankMessage(rank, count, 0);
    if (!std::equal(theirs.begin(), theirs.end(), all.begin() + rank * count)) {
      return Mismatch(group, "all-gather", rank);
    }
  }
  return absl::OkStatus();
}

// Of several sizes, one of them nothing.
inline absl::Status CheckAllGatherTogether(Communicator& group, int64_t count) {
  const int64_t counts[] = {count, 0, 3};
  std::vector<std::vector<int32_t>> gathered;
  std::vector<Communicator::Gathering> gatherings;
  for (int number = 0; number < 3; ++number) {
    const std::vector<int32_t> mine = RankMessage(group.rank(), counts[number], number);
    std::vector<int32_t>& all =
        gathered.emplace_back(static_cast<size_t>(counts[number] * group.size()));
    int32_t* slot = all.data() + group.rank() * counts[number];
    std::copy(mine.begin(), mine.end(), slot);
    gatherings.push_back(
        {slot, counts[number] * static_cast<int64_t>(sizeof(int32_t)), all.data()});
  }
  RETURN_IF_ERROR(group.AllGatherTogether(gatherings));
  for (int number = 0; number < 3; ++number) {
    for (int rank = 0; rank < group.size(); ++rank) {
      const std::vector<int32_t> theirs = RankMessage(rank, counts[number], number);
      if (!std::equal(theirs.begin(), theirs.end(),
                      gathered[static_cast<size_t>(number)].begin() + rank * counts[number])) {
        return Mismatch(group, "all-gather of several", number);
      }
    }
  }
  return absl::OkStatus();
}

// Of groups of devices. What lies between the parts stays as it was.
inline absl::Status CheckAllToAll(Communicator& group, int64_t count, int64_t stride) {
  constexpr int64_t kBytes = sizeof(int32_t);
  const int size = group.size();
  std::vector<int32_t> mine(static_cast<size_t>(stride * size));
  for (int to = 0; to < size; ++to) {
    const std::vector<int32_t> message = RankMessage(group.rank(), count, to);
    std::copy(message.begin(), message.end(), mine.begin() + to * stride);
  }
  std::vector<int32_t> all(mine.size(), -1);
  RETURN_IF_ERROR(group.AllToAll(mine.data(), count * kBytes, stride * kBytes, all.data()));
  for (int from = 0; from < size; ++from) {
    std::vector<int32_t> want = RankMessage(from, count, group.rank());
    want.resize(static_cast<size_t>(stride), -1);
    if (!std::equal(want.begin(), want.end(), all.begin() + from * stride)) {
      return Mismatch(group, "all-to-all", from);
    }
  }
  return absl::OkStatus();
}

// Messages travel up the ranks, one hop each, three in order.
inline absl::Status CheckMessagesInOrder(Communicator& group, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(int32_t));
  for (int number = 0; number < 3; ++number) {
    std::vector<int32_t> message = RankMessage(0, count, number);
    if (group.rank() > 0) {
      std::vector<int32_t> received(static_cast<size_t>(count));
      RETURN_IF_ERROR(group.Recv(group.rank() - 1, received.data(), bytes));
      if (received != message) return Mismatch(group, "message", number);
    }
    if (group.rank() + 1 < group.size()) {
      RETURN_IF_ERROR(group.Send(group.rank() + 1, message.data(), bytes));
    }
  }
  return group.Barrier();
}

// Nothing to be seen, then something, then nothing again once taken; a collective is never seen as
// a message.
inline absl::Status CheckProbe(Communicator& group) {
  if (group.size() < 2) return absl::OkStatus();
  int32_t token = 17;
  if (group.rank() == 1 && group.Probe(0)) return Mismatch(group, "probe before", 0);
  RETURN_IF_ERROR(group.Barrier());
  if (group.rank() == 0) RETURN_IF_ERROR(group.Send(1, &token, sizeof(token)));
  if (group.rank() == 1) {
    while (!group.Probe(0)) {
    }
    RETURN_IF_ERROR(group.Recv(0, &token, sizeof(token)));
    if (group.Probe(0)) return Mismatch(group, "probe after", 0);
  }
  return group.Barrier();
}

}  // namespace lockstep::testing
