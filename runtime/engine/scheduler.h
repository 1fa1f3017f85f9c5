// Decides what each step computes. Two queues and a pool are the whole state: sequences that wait
// (in their order), that run (each holds a slot and blocks), and blocks. The engine's thread only.
//
// There are no phases. Every sequence has computed tokens and known tokens; a step lets the first
// catch up with the second, under a budget of tokens: decodes first (gap of one), then prompts,
// those under way and those that wait in one order, but that short ones pass those of many steps
// (after vLLM v1's Scheduler.schedule()).
//
// Why it always moves: a sequence gets all blocks of its known tokens when it is admitted, so only
// decodes ask for more, and they ask in order; whoever finds no block preempts the last running
// sequence, possibly itself. So the first running sequence always gets its block, and with nothing
// running the first waiting one fits, because the engine accepts only what fits alone.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "runtime/engine/block_pool.h"
#include "runtime/engine/engine_types.h"
#include "runtime/engine/prefix_cache.h"
#include "runtime/engine/scheduled_step.h"
#include "runtime/engine/sequence.h"
#include "runtime/engine/slot_pool.h"

namespace lockstep::engine {

class Scheduler {
 public:
  explicit Scheduler(const EngineConfig& config);

  using Entry = ScheduledEntry;
  using Step = ScheduledStep;
  // The next step, or nullopt when no sequence can move now. `alone`: of this request only; others
  // that run are preempted.
  std::optional<Step> Schedule(uint64_t step_id, const Request* alone = nullptr);

  void Enqueue(Request& request);  // all its unfinished sequences start to wait; they hold nothing
  // The sequence is finished: it leaves its queue and gives back blocks and slot.
  void Remove(Sequence& sequence);
  // New tokens are known: full blocks get their names in the prefix cache.
  void NameFullBlocks(Sequence& sequence);
  // The ranks are gone, and with them slots and cached blocks. Nothing waits and nothing runs
  // afterwards; steps in flight are the caller's.
  void Reset();
  // EngineConfig's, of ranks that start now; after Reset.
  void SetHostBlocks(int64_t num_host_blocks, int64_t num_prefetched_blocks) {
    prefix_cache_.SetHostBlocks(config_.enable_prefix_cache ? num_host_blocks : 0);
    num_prefetched_blocks_ = num_prefetched_blocks;
  }
  bool MayGuess() const;
  int64_t BlocksFor(int64_t num_tokens) const {
    return (num_tokens + config_.block_size - 1) / config_.block_size;
  }
  // As of Engine.
  int64_t CachedPrefixTokens(const EngineRequest& request) const;
  int64_t NumUncomputedTokens() const;
  const Request* StrandedRequest() const;
  bool HasRoomFor(const EngineRequest& request) const;
  const OutputHistory& history() const { return history_; }
  BlockPool& pool() { return pool_; }
  void FillStats(EngineStats& stats) const;
  void CheckInvariants() const;  // counts everything: O(num_blocks), for tests

 private:
  struct Admission {
    PrefixCache::Match cached;
    int64_t num_new_blocks = 0;  // of those that are to be restored, too
    int64_t need = 0;            // of available blocks: these, and cached ones that nobody holds
  };

  std::optional<Step> TakeStep();
  void ScheduleDecodes();
  void CollectDecodes();
  bool GrowForDecode(Sequence& sequence);
  // Of a sequence whose last token is on its way: as far as stages know.
  bool HasPassed(const Sequence& sequence) const;
  // scheduler_drafts.cc. No more tokens are chosen than there are slots; guesses go last.
  int64_t NumFreeSamples() const;
  bool Guesses(const Sequence& sequence) const;
  bool AwaitsGuesser() const;
  void BeginDrafts();
  std::vector<int32_t> DraftsFor(Sequence& sequence);
  int64_t RoomForDrafts(Sequence& sequence, int64_t wanted);
  void Settle(Sequence& sequence);
  // scheduler_admissions.cc.
  void Wait(Sequence& sequence);
  void StopWaiting(Sequence& sequence);
  void SchedulePrompts();
  void LetShortPromptsPass();
  void AdmitShortPrompts();
  Sequence* NextToAdmit() const;
  Sequence* NextBehind(Sequence& sequence) const;
  using Waiting = std::set<Sequence*, GoesBefore>;
  bool MayAdmit(Waiting::const_iterator waiting) const;
  enum class Outcome : uint8_t { kAdmitted, kLater, kRefused };
  Outcome TryAdmit(Sequence& sequence, int64_t most_tokens);
  int64_t NumReserved() const;
  Admission LookUp(const Sequence& sequence) const;
  std::optional<Admission> FindRoom(const Sequence& sequence);
  bool IsComputedNow(const Sequence& sequence, const PrefixCache::Match& cached) const;
  void Admit(Sequence& sequence, const Admission& admission);
  std::vector<BlockCopy> Prefetch();
  void HoldCached(const PrefixCache::Match& cached, int64_t most_copies,
                  std::vector<BlockCopy>& copies, BlockTable& table);
  void AddWork(Sequence& sequence, int64_t num_tokens, std::vector<int32_t> drafts = {});
  void Preempt(Sequence& sequence);
  void PreemptAllBut(const Request& request);
  void LeaveSlot(Sequence& sequence);
  void Ungate(Request& request, bool all);
  bool ExtendsBlockedPrefix(PrefixCache::Node parent, std::span<const int32_t> tokens) const;

  const EngineConfig config_;
  SlotPool slots_;
  BlockPool pool_;
  PrefixCache prefix_cache_;
  OutputHistory history_;
  int64_t num_prefetched_blocks_ = config_.num_prefetched_blocks;

  Waiting waiting_;
  std::vector<Sequence*> running_;  // in the order of GoesBefore
  int64_t num_gated_ = 0;
  int64_t num_waiting_tokens_ = 0;  // of waiting_, as they began to wait

  // The first waiting sequence found no room. It is not asked again until so many blocks are
  // available or more of its prefix gets a name: each step would take longer for the look.
  struct {
    const Sequence* sequence = nullptr;
    int64_t need = 0;
    std::vector<PrefixCache::Node> prefix;  // as far as it was found
  } blocked_;

  // The step being built.
  uint64_t step_id_ = 0;
  const Request* alone_ = nullptr;
  int64_t budget_ = 0;
  int64_t num_opened_tokens_ = 0;
  // One that has room, but some of its blocks only on the host; until others take blocks.
  struct Awaiting {
    Sequence* sequence = nullptr;
    Admission admission;
  };
  std::optional<Awaiting> awaiting_;
  int64_t drafts_left_ = 0;
  int64_t num_guessers_left_ = 0;
  StepPlan plan_;
  std::vector<Entry> chunks_;
  std::vector<Entry> decodes_;
  std::vector<Sequence*> candidates_;  // scratch

  EngineStats counts_;  // what rises alone
};

}  // namespace lockstep::engine
