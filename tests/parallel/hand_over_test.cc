// How hidden states get from a stage to the next, whole and in slices, over in-process groups.
#include "parallel/hand_over.h"

#include <cmath>
#include <limits>
#include <mutex>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "tests/parallel/run_ranks.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kWidth = 3;  // numbers of a token

TEST(HandOver, SlicesAreEqualAlignedAndReachTheEnd) {
  for (const int tp : {1, 2, 3, 4, 7, 8}) {
    for (const int64_t count : {1, 3, 15, 16, 17, 63, 64, 65, 1000}) {
      const int64_t slice = SliceFloats(count, tp);
      EXPECT_EQ(slice % 4, 0) << tp << ", " << count;
      EXPECT_GE(tp * slice, count) << tp << ", " << count;
      EXPECT_LT(tp * (slice - 4), count) << tp << ", " << count << ": as short as they can be";
    }
  }
  EXPECT_EQ(SliceFloats(64 * 4096, 8), 64 * 512) << "nothing is added where the count divides";
}

TEST(HandOver, RoomSufficesForEveryShorterHandOver) {
  for (const int tp : {1, 2, 3, 8}) {
    const int64_t room = HandOverFloats(200, kWidth, tp);
    for (int64_t tokens = 1; tokens <= 200; ++tokens) {
      EXPECT_GE(room, tp == 1 ? tokens * kWidth : tp * SliceFloats(tokens * kWidth, tp));
      EXPECT_GE(room, TokenRoom(tokens, tp) * kWidth) << tp << ", " << tokens;
    }
  }
  EXPECT_EQ(HandOverFloats(17, kWidth, 1), 17 * kWidth) << "alone, nobody slices";
}

TEST(HandOver, TheLongestMessageIsTheLongestOfAll) {
  for (const int tp : {1, 2, 4}) {
    for (const int64_t most_whole_bytes : {int64_t{0}, int64_t{400}, INT64_MAX}) {
      int64_t longest = 0;
      for (int64_t count = 1; count <= 300; ++count) {
        const bool is_whole = tp == 1 || count * 4 <= most_whole_bytes;
        longest = std::max(longest, 4 * (is_whole ? count : SliceFloats(count, tp)));
        EXPECT_GE(LongestMessageBytes(count, tp, most_whole_bytes), longest);
      }
      EXPECT_EQ(LongestMessageBytes(300, tp, most_whole_bytes), longest);
    }
  }
}

TEST(HandOver, StagesOnOtherNodesLieApart) {
  const ProcessGrid grid = *ProcessGrid::Create(2, 3);
  const std::vector<int> nodes = {0, 0, 0, 0, 4, 4};
  EXPECT_EQ(MostWholeBytes(grid, nodes, -1), INT64_MAX) << "nothing comes before the first";
  EXPECT_EQ(MostWholeBytes(grid, nodes, 0), INT64_MAX);
  EXPECT_EQ(MostWholeBytes(grid, nodes, 1), 0);
  EXPECT_EQ(MostWholeBytes(grid, nodes, 2), INT64_MAX) << "nor anything after the last";
  EXPECT_EQ(MostWholeBytes(grid, std::vector<int>{0, 0, 0, 3, 3, 3}, 0), 0)
      << "one pair is enough, or ranks of a stage would differ";
}

// What crossed the borders between stages, in bytes.
class Counted final : public Communicator {
 public:
  Counted(Communicator& group, int64_t& bytes_sent) : group_(group), bytes_sent_(bytes_sent) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  absl::Status AllReduceSum(float* data, int64_t count) override {
    return group_.AllReduceSum(data, count);
  }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override {
    return group_.AllGather(mine, bytes, all);
  }
  absl::Status Send(int peer, const void* data, int64_t bytes) override {
    bytes_sent_ += bytes;
    return group_.Send(peer, data, bytes);
  }
  absl::Status Recv(int peer, void* data, int64_t bytes) override {
    return group_.Recv(peer, data, bytes);
  }
  bool Probe(int peer) override { return group_.Probe(peer); }
  absl::Status Barrier() override { return group_.Barrier(); }
  void Abort() override { group_.Abort(); }

 private:
  Communicator& group_;
  int64_t& bytes_sent_;
};

// Passes so many tokens down a pipeline, divided or not, and returns the bytes that all ranks sent.
int64_t BytesOfHandOver(int tp, int pp, int64_t num_tokens, int64_t most_whole_bytes,
                        bool is_divided = false) {
  std::mutex mutex;
  int64_t bytes_of_all = 0;
  RunRanks(tp, pp, [&](int, RankGroups& host) -> absl::Status {
    int64_t bytes = 0;
    RankGroups groups;
    groups.tp = std::move(host.tp);
    groups.pp = std::make_unique<Counted>(*host.pp, bytes);
    groups.most_whole_bytes_from_previous = most_whole_bytes;
    groups.most_whole_bytes_to_next = most_whole_bytes;
    const TokenSplit tokens =
        is_divided ? Divided(num_tokens, tp, groups.tp->rank()) : Undivided(num_tokens);
    std::vector<float> hidden(static_cast<size_t>(HandOverFloats(num_tokens, kWidth, tp)),
                              std::numeric_limits<float>::quiet_NaN());
    const Range mine{tokens.mine.begin * kWidth, tokens.mine.end * kWidth};
    const int stage = groups.pp->rank();
    if (stage == 0) {
      for (int64_t i = mine.begin; i < mine.end; ++i) hidden[i] = static_cast<float>(i + 1);
    } else {
      RETURN_IF_ERROR(ReceiveFromPreviousStage(groups, hidden.data(), tokens, kWidth));
      RETURN_IF_ERROR(GatherReceived(groups, hidden.data(), tokens, kWidth));
    }
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      EXPECT_EQ(hidden[i], static_cast<float>(i + 1));
    }
    if (stage + 1 < pp) RETURN_IF_ERROR(SendToNextStage(groups, hidden.data(), tokens, kWidth));
    const absl::Status status = groups.tp->Barrier();
    host.tp = std::move(groups.tp);
    const std::lock_guard lock(mutex);
    bytes_of_all += bytes;
    return status;
  });
  return bytes_of_all;
}

TEST(HandOver, EveryRankGetsEveryNumber) {
  for (const auto& [tp, pp] :
       {std::pair(1, 2), std::pair(2, 2), std::pair(3, 3), std::pair(4, 2)}) {
    for (const int64_t count : {1, 3, 7, 16, 17, 100, 257}) {
      const int64_t bytes = 4 * kWidth * count;
      EXPECT_EQ(BytesOfHandOver(tp, pp, count, INT64_MAX), (pp - 1) * tp * bytes);
      const int64_t sliced = BytesOfHandOver(tp, pp, count, 0);
      EXPECT_GE(sliced, (pp - 1) * bytes);
      EXPECT_LE(sliced, (pp - 1) * (bytes + tp * 16)) << "once, and what alignment adds";
    }
  }
}

TEST(HandOver, DividedTokensGoFromEachToItsPeer) {
  for (const auto& [tp, pp] : {std::pair(2, 2), std::pair(3, 3), std::pair(4, 2)}) {
    for (const int64_t count : {1, 3, 5, 16, 17, 100}) {
      for (const int64_t most_whole_bytes : {int64_t{0}, INT64_MAX}) {
        EXPECT_EQ(BytesOfHandOver(tp, pp, count, most_whole_bytes, /*is_divided=*/true),
                  (pp - 1) * 4 * kWidth * count)
            << "each number once";
      }
    }
  }
}

TEST(HandOver, ShortOnesGoWholeUpToTheLimit) {
  EXPECT_EQ(BytesOfHandOver(2, 2, 100, 400 * kWidth), 2 * 400 * kWidth);
  EXPECT_EQ(BytesOfHandOver(2, 2, 104, 400 * kWidth), 416 * kWidth);
}

}  // namespace
}  // namespace lockstep::testing
