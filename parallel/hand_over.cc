#include "parallel/hand_over.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kSliceMultiple = 16 / kFloatBytes;

bool GoesWhole(int64_t count, int tp, int64_t most_whole_bytes) {
  return tp == 1 || count * kFloatBytes <= most_whole_bytes;
}

// What one tp_rank sends to its peer.
struct Message {
  int64_t first = 0;  // float
  int64_t bytes = 0;
};

Message MessageOf(const Communicator& tp, const TokenSplit& tokens, int64_t width,
                  int64_t most_whole_bytes) {
  if (tokens.is_divided()) {
    return {tokens.mine.begin * width, tokens.mine.size() * width * kFloatBytes};
  }
  const int64_t count = tokens.num_tokens * width;
  if (GoesWhole(count, tp.size(), most_whole_bytes)) return {0, count * kFloatBytes};
  const int64_t slice = SliceFloats(count, tp.size());
  return {tp.rank() * slice, slice * kFloatBytes};
}

}  // namespace

int64_t MostWholeBytes(const ProcessGrid& grid, std::span<const int> nodes, int stage) {
  LS_CHECK_EQ(std::ssize(nodes), grid.world_size());
  if (stage < 0 || stage + 1 >= grid.pp()) return INT64_MAX;
  for (int tp_rank = 0; tp_rank < grid.tp(); ++tp_rank) {
    const auto here = static_cast<size_t>(grid.rank_of(stage, tp_rank));
    const auto there = static_cast<size_t>(grid.rank_of(stage + 1, tp_rank));
    if (nodes[here] != nodes[there]) return 0;
  }
  return INT64_MAX;
}

int64_t SliceFloats(int64_t count, int tp) {
  const int64_t unit = tp * kSliceMultiple;
  return (count + unit - 1) / unit * kSliceMultiple;
}

int64_t HandOverFloats(int64_t max_tokens, int64_t width, int tp) {
  if (tp == 1) return max_tokens * width;
  return std::max(tp * SliceFloats(max_tokens * width, tp), TokenRoom(max_tokens, tp) * width);
}

int64_t LongestMessageBytes(int64_t count, int tp, int64_t most_whole_bytes) {
  const int64_t bytes = count * kFloatBytes;
  if (GoesWhole(count, tp, most_whole_bytes)) return bytes;
  return std::max(most_whole_bytes, SliceFloats(count, tp) * kFloatBytes);
}

absl::Status SendToNextStage(RankGroups& groups, const float* hidden, const TokenSplit& tokens,
                             int64_t width) {
  const Message message = MessageOf(*groups.tp, tokens, width, groups.most_whole_bytes_to_next);
  return groups.pp->Send(groups.pp->rank() + 1, hidden + message.first, message.bytes);
}

absl::Status ReceiveFromPreviousStage(RankGroups& groups, float* hidden, const TokenSplit& tokens,
                                      int64_t width) {
  const Message message =
      MessageOf(*groups.tp, tokens, width, groups.most_whole_bytes_from_previous);
  return groups.pp->Recv(groups.pp->rank() - 1, hidden + message.first, message.bytes);
}

absl::Status GatherReceived(RankGroups& groups, float* hidden, const TokenSplit& tokens,
                            int64_t width) {
  Communicator& tp = *groups.tp;
  const int64_t count = tokens.num_tokens * width;
  if (tokens.is_divided() || GoesWhole(count, tp.size(), groups.most_whole_bytes_from_previous)) {
    return absl::OkStatus();
  }
  const int64_t slice = SliceFloats(count, tp.size());
  return tp.AllGather(hidden + tp.rank() * slice, slice * kFloatBytes, hidden);
}

}  // namespace lockstep
