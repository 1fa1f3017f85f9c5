#include "parallel/message_collectives.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "kernels/base/status_macros.h"
#include "parallel/tree_sum.h"

namespace lockstep {

float* MessageCollectives::Scratch(int64_t count) {
  if (std::ssize(scratch_) < count) scratch_.resize(static_cast<size_t>(count));
  return scratch_.data();
}

MessageCollectives::Neighbours MessageCollectives::At(int distance) const {
  return {.to = (rank() + distance) % size(), .from = (rank() - distance + size()) % size()};
}

absl::Status MessageCollectives::AllReduceSum(float* data, int64_t count) {
  if (!std::has_single_bit(static_cast<unsigned>(size()))) return ReduceGathered(data, count);
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  return bytes <= small_bytes_ ? ReduceByDoubling(data, count) : ReduceByHalving(data, count);
}

// Recursive doubling (Thakur, Rabenseifner, Gropp 2005, section 4.3): at distance d a rank holds
// the sum over its aligned group of d ranks and adds its neighbour group's.
absl::Status MessageCollectives::ReduceByDoubling(float* data, int64_t count) {
  float* theirs = Scratch(count);
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  for (int distance = 1; distance < size(); distance *= 2) {
    const int peer = rank() ^ distance;
    RETURN_IF_ERROR(messages_.Exchange({peer, data, bytes, peer, theirs, bytes}));
    if (rank() < peer) {
      AddLowHigh(data, theirs, count, data);
    } else {
      AddLowHigh(theirs, data, count, data);
    }
  }
  return absl::OkStatus();
}

// Reduce-scatter by recursive halving, then all-gather by recursive doubling (same source,
// section 4.2), but starting with the neighbour, so that every element's sum is the tree of
// neighbours.
absl::Status MessageCollectives::ReduceByHalving(float* data, int64_t count) {
  constexpr int kMaxLevels = 31;
  int64_t begins[kMaxLevels], ends[kMaxLevels];  // what was mine before each level
  float* theirs = Scratch((count + 1) / 2);
  int64_t begin = 0, end = count;
  const auto bytes_of = [](int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); };
  int level = 0;
  for (int distance = 1; distance < size(); distance *= 2, ++level) {
    begins[level] = begin;
    ends[level] = end;
    const int peer = rank() ^ distance;
    const int64_t middle = begin + (end - begin) / 2;
    const bool keeps_low = rank() < peer;
    const int64_t given = keeps_low ? middle : begin;
    const int64_t num_given = keeps_low ? end - middle : middle - begin;
    begin = keeps_low ? begin : middle;
    end = keeps_low ? middle : end;
    RETURN_IF_ERROR(messages_.Exchange(
        {peer, data + given, bytes_of(num_given), peer, theirs, bytes_of(end - begin)}));
    float* kept = data + begin;
    AddLowHigh(keeps_low ? kept : theirs, keeps_low ? theirs : kept, end - begin, kept);
  }
  while (level-- > 0) {
    const int peer = rank() ^ (1 << level);
    const int64_t missing = begin == begins[level] ? end : begins[level];
    const int64_t num_missing = (ends[level] - begins[level]) - (end - begin);
    RETURN_IF_ERROR(messages_.Exchange(
        {peer, data + begin, bytes_of(end - begin), peer, data + missing, bytes_of(num_missing)}));
    begin = begins[level];
    end = ends[level];
  }
  return absl::OkStatus();
}

// For sizes that are not powers of two: everybody gathers a strip of everything and adds it up.
absl::Status MessageCollectives::ReduceGathered(float* data, int64_t count) {
  constexpr int64_t kStrip = 64 * 1024;  // floats; bounds the scratch memory
  float* all = Scratch(std::min(count, kStrip) * size());
  std::vector<float*> parts(static_cast<size_t>(size()));
  for (int64_t at = 0; at < count; at += kStrip) {
    const int64_t strip = std::min(kStrip, count - at);
    const int64_t bytes = strip * static_cast<int64_t>(sizeof(float));
    RETURN_IF_ERROR(AllGather(data + at, bytes, all));
    for (int rank = 0; rank < size(); ++rank) parts[static_cast<size_t>(rank)] = all + rank * strip;
    TreeSumInPlace(parts, 0, strip);
    std::memcpy(data + at, all, static_cast<size_t>(bytes));
  }
  return absl::OkStatus();
}

// Everybody sends each rank its share and adds up what has come: the traffic of halving, for any
// number of ranks.
absl::Status MessageCollectives::ReduceScatterSum(float* data, int64_t share) {
  float* const theirs = Scratch((size() - 1) * share);
  const int64_t bytes = share * static_cast<int64_t>(sizeof(float));
  float* const own = data + rank() * share;
  std::vector<float*> parts(static_cast<size_t>(size()), own);
  for (int distance = 1; distance < size(); ++distance) {
    const auto [to, from] = At(distance);
    float* const part = theirs + (distance - 1) * share;
    RETURN_IF_ERROR(messages_.Exchange({to, data + to * share, bytes, from, part, bytes}));
    parts[static_cast<size_t>(from)] = part;
  }
  TreeSum(parts, 0, share, own);
  return absl::OkStatus();
}

absl::Status MessageCollectives::AllGather(const void* mine, int64_t bytes, void* all) {
  std::byte* slots = static_cast<std::byte*>(all);
  std::byte* own = slots + rank() * bytes;
  if (own != mine && bytes > 0) std::memcpy(own, mine, static_cast<size_t>(bytes));
  for (int distance = 1; distance < size(); ++distance) {
    const auto [to, from] = At(distance);
    RETURN_IF_ERROR(messages_.Exchange({to, own, bytes, from, slots + from * bytes, bytes}));
  }
  return absl::OkStatus();
}

// Dissemination (Hensgen, Finkel, Manber 1988): after log2(size) rounds everybody has heard of
// everybody.
absl::Status MessageCollectives::Barrier() {
  for (int distance = 1; distance < size(); distance *= 2) {
    const auto [to, from] = At(distance);
    RETURN_IF_ERROR(messages_.Exchange({.to = to, .from = from}));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
