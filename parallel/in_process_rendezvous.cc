// Ranks as threads of one process meet at a condition variable; the last to come makes the groups.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "parallel/rendezvous.h"

namespace lockstep {
namespace {

struct MeetingPlace {
  explicit MeetingPlace(const ProcessGrid& grid)
      : grid(grid), is_here(static_cast<size_t>(grid.world_size())), groups(is_here.size()) {}

  std::vector<int> Missing() const {
    std::vector<int> missing;
    for (size_t rank = 0; rank < is_here.size(); ++rank) {
      if (!is_here[rank]) missing.push_back(static_cast<int>(rank));
    }
    return missing;
  }
  // The last rank has come.
  void BeginRound() {
    std::vector<RankGroups> fresh = MakeInProcessGroups(grid);
    for (size_t rank = 0; rank < fresh.size(); ++rank) groups[rank] = std::move(fresh[rank]);
    std::fill(is_here.begin(), is_here.end(), false);
    epoch = std::exchange(proposed_epoch, 0);
    ++round;
  }

  const ProcessGrid grid;
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t round = 0;
  uint64_t epoch = 0;           // of the round
  uint64_t proposed_epoch = 0;  // for the next
  bool left = false;
  std::vector<bool> is_here;                      // for the next round
  std::vector<std::optional<RankGroups>> groups;  // until their rank takes them
};

class InProcessRendezvous final : public Rendezvous {
 public:
  InProcessRendezvous(std::shared_ptr<MeetingPlace> place, int rank)
      : place_(std::move(place)), rank_(static_cast<size_t>(rank)) {}

  absl::StatusOr<Round> Next(uint64_t epoch, absl::Duration timeout) override {
    std::unique_lock lock(place_->mutex);
    place_->is_here[rank_] = true;
    place_->proposed_epoch = std::max(place_->proposed_epoch, epoch);
    if (place_->Missing().empty()) place_->BeginRound();
    place_->changed.notify_all();
    place_->changed.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                             [&] { return place_->left || place_->round > round_; });
    if (place_->round > round_) return Take();
    if (place_->left) return absl::CancelledError("a rank has left the job");
    return absl::DeadlineExceededError(absl::StrCat(
        "ranks ", absl::StrJoin(place_->Missing(), ", "), " of ", place_->grid.world_size(),
        " did not come within ", absl::FormatDuration(timeout)));
  }

  bool Over() override {
    const std::lock_guard lock(place_->mutex);
    return place_->Missing().size() < place_->is_here.size();
  }

  void Leave() override {
    {
      const std::lock_guard lock(place_->mutex);
      place_->left = true;
    }
    place_->changed.notify_all();
  }

 private:
  Round Take() {
    round_ = place_->round;
    Round round{place_->epoch, *std::move(place_->groups[rank_])};
    place_->groups[rank_].reset();
    return round;
  }

  const std::shared_ptr<MeetingPlace> place_;  // shared: the last rank to go takes it along
  const size_t rank_;
  uint64_t round_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Rendezvous>> MakeInProcessRendezvous(const ProcessGrid& grid) {
  const auto place = std::make_shared<MeetingPlace>(grid);
  std::vector<std::unique_ptr<Rendezvous>> ranks;
  for (int rank = 0; rank < grid.world_size(); ++rank) {
    ranks.push_back(std::make_unique<InProcessRendezvous>(place, rank));
  }
  return ranks;
}

}  // namespace lockstep
