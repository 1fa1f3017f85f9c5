// Scheduler: what it tells of itself.
#include <algorithm>
#include <set>
#include <vector>

#include "kernels/base/check.h"
#include "runtime/engine/scheduler.h"

namespace lockstep::engine {

void Scheduler::FillStats(EngineStats& stats) const {
  stats = counts_;
  stats.num_waiting = static_cast<int64_t>(waiting_.size()) + num_gated_;
  stats.num_running = running_.size();
  stats.blocks_total = pool_.num_blocks();
  stats.blocks_in_use = pool_.num_in_use();
  stats.blocks_cached = pool_.num_cached();
  const HostBlocks* const host_blocks = prefix_cache_.host_blocks();
  if (host_blocks == nullptr) return;
  stats.host_blocks_total = host_blocks->num_blocks();
  stats.host_blocks_in_use = host_blocks->num_in_use();
}

void Scheduler::CheckInvariants() const {
  pool_.CheckInvariants();
  prefix_cache_.CheckInvariants();
  LS_CHECK(std::is_sorted(running_.begin(), running_.end(), GoesBefore()));
  std::vector<int32_t> references(pool_.num_blocks());
  const std::vector<uint32_t> unheld = slots_.AllUnheld();
  std::set<int32_t> slots(unheld.begin(), unheld.end());
  LS_CHECK_EQ(slots.size(), unheld.size());
  for (const Sequence* sequence : running_) {
    LS_CHECK(sequence->state == Sequence::State::kRunning);
    LS_CHECK(slots.insert(sequence->slot).second) << "slot " << sequence->slot;
    LS_CHECK_EQ(sequence->blocks.size(), sequence->num_blocks_granted);
    LS_CHECK_LE(BlocksFor(sequence->computed), sequence->blocks.size());
    for (int32_t block : sequence->blocks.blocks()) ++references[block];
  }
  LS_CHECK_EQ(static_cast<int>(slots.size()), slots_.num_slots());
  for (int64_t block = 0; block < pool_.num_blocks(); ++block) {
    LS_CHECK_EQ(references[block], pool_.num_references(block)) << "block " << block;
  }
  int64_t num_waiting_tokens = 0;
  for (const Sequence* sequence : waiting_) {
    LS_CHECK(sequence->state == Sequence::State::kWaiting);
    LS_CHECK_EQ(sequence->blocks.size(), 0);
    num_waiting_tokens += sequence->num_waiting_tokens;
  }
  LS_CHECK_EQ(num_waiting_tokens, num_waiting_tokens_);
}

}  // namespace lockstep::engine
