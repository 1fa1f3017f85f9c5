// Plans of any kind, drawn from a seed, and the block tables that slots have by them: tenants come
// and go at any time, begin behind prefixes that others have cached, are left out of steps, and are
// granted blocks when they need them or earlier.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "model/llama/step_batch.h"
#include "tests/worker/plan_writer.h"

namespace lockstep::testing {

class RandomPlans {
 public:
  RandomPlans(const BatchLimits& limits, int64_t num_blocks, int32_t vocab_size, uint64_t seed)
      : limits_(limits),
        vocab_size_(vocab_size),
        random_(seed),
        tenants_(static_cast<size_t>(limits.max_num_seqs)),
        uses_(static_cast<size_t>(num_blocks)) {}

  engine::StepPlan Next() {
    do {
      DrawTenants();
      DrawWork();
    } while (num_tokens_ == 0);
    opened_.clear();
    return plan_.Take();
  }
  // Of the plan drawn last, in its order.
  const std::vector<uint32_t>& slots() const { return slots_; }
  // A slot's blocks, whole.
  const std::vector<int32_t>& BlocksOf(uint32_t slot) const { return tenants_[slot].blocks; }
  int32_t Token() { return Below(vocab_size_); }
  // 0 up to count - 1.
  int32_t Below(int64_t count) {
    return static_cast<int32_t>(random_() % static_cast<uint64_t>(count));
  }

 private:
  struct Tenant {
    bool open = false;
    int64_t num_known = 0;
    int64_t num_computed = 0;
    std::vector<int32_t> blocks = {};
  };

  void DrawTenants() {
    for (uint32_t slot = 0; slot < tenants_.size(); ++slot) {
      const bool is_full = tenants_[slot].num_known >= limits_.max_model_len;
      if (tenants_[slot].open && (is_full || Below(12) == 0)) Close(slot);
      if (!tenants_[slot].open && Below(3) > 0) Open(slot);
    }
  }

  void Close(uint32_t slot) {
    if (opened_.contains(slot)) return;
    for (const int32_t block : tenants_[slot].blocks) --uses_[static_cast<size_t>(block)];
    tenants_[slot] = {};
    plan_.Close(slot);
  }

  void Open(uint32_t slot) {
    Tenant tenant = {.open = true, .num_known = 1 + Below(limits_.max_model_len / 2)};
    // Of another's cached blocks, as many as are full.
    const Tenant& other = tenants_[static_cast<size_t>(Below(std::ssize(tenants_)))];
    const int64_t num_full =
        std::min(other.num_computed, tenant.num_known - 1) / limits_.block_size;
    const int32_t num_shared = Below(num_full + 1);
    tenant.num_computed = int64_t{num_shared} * limits_.block_size;
    std::vector<int32_t> tokens(static_cast<size_t>(tenant.num_known));
    for (int32_t& token : tokens) token = Token();
    plan_.Open(slot, std::move(tokens), PlanWriter::Greedy(), 0,
               static_cast<uint32_t>(tenant.num_computed));
    opened_.insert(slot);
    const std::vector<int32_t> shared(other.blocks.begin(), other.blocks.begin() + num_shared);
    tenants_[slot] = std::move(tenant);
    Grant(slot, shared);
  }

  void Grant(uint32_t slot, const std::vector<int32_t>& blocks) {
    for (const int32_t block : blocks) {
      ++uses_[static_cast<size_t>(block)];
      tenants_[slot].blocks.push_back(block);
    }
    plan_.Grant(slot, blocks);
  }

  // So many that nobody uses, drawn; fewer if there are not.
  std::vector<int32_t> FreeBlocks(int64_t count) {
    std::vector<int32_t> free;
    for (size_t block = 0; block < uses_.size(); ++block) {
      if (uses_[block] == 0) free.push_back(static_cast<int32_t>(block));
    }
    std::shuffle(free.begin(), free.end(), random_);
    free.resize(std::min<size_t>(free.size(), static_cast<size_t>(count)));
    return free;
  }

  void DrawWork() {
    slots_.clear();
    num_tokens_ = 0;
    std::vector<uint32_t> order(tenants_.size());
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random_);
    const bool is_long = Below(2) == 0;  // else of decodes alone, a step of another kind
    for (const uint32_t slot : order) {
      if (tenants_[slot].open && Below(4) > 0) AddWork(slot, is_long ? 20 : 1);
    }
  }

  void AddWork(uint32_t slot, int64_t most_tokens) {
    Tenant& tenant = tenants_[slot];
    const int64_t most = std::min({most_tokens, tenant.num_known - tenant.num_computed,
                                   limits_.max_batched_tokens - num_tokens_});
    if (most < 1) return;
    const int64_t count = most - (Below(3) == 0 ? Below(most) : 0);
    const int64_t end = tenant.num_computed + count;
    const int64_t ahead = Below(4) == 0 ? 1 : 0;
    const int64_t num_needed = (end + limits_.block_size - 1) / limits_.block_size;
    const int64_t num_wanted = std::min(num_needed + ahead, limits_.max_blocks_per_seq());
    const std::vector<int32_t> more =
        FreeBlocks(std::max<int64_t>(num_wanted - std::ssize(tenant.blocks), 0));
    if (std::ssize(tenant.blocks) + std::ssize(more) < num_needed) return;  // there are none
    Grant(slot, more);
    plan_.Chunk(slot, static_cast<uint32_t>(count), /*sample=*/end == tenant.num_known);
    slots_.push_back(slot);
    num_tokens_ += count;
    tenant.num_computed = end;
    if (end == tenant.num_known) ++tenant.num_known;
  }

  const BatchLimits limits_;
  const int32_t vocab_size_;
  std::mt19937_64 random_;
  std::vector<Tenant> tenants_;
  std::vector<int> uses_;  // of each block
  PlanWriter plan_;
  std::set<uint32_t> opened_;  // in the plan
  std::vector<uint32_t> slots_;
  int64_t num_tokens_ = 0;
};

}  // namespace lockstep::testing
