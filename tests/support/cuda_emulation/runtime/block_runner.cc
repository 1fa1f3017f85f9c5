#include "tests/support/cuda_emulation/runtime/block_runner.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/cuda_emulation/runtime/async_proxy.h"
#include "tests/support/cuda_emulation/runtime/static_shared.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace lockstep::cuda_emulation {

namespace {

std::string Place(const Site& site) { return absl::StrCat(site.file_name(), ":", site.line()); }

uint3 IndexIn(const dim3& shape, unsigned linear) {
  return {linear % shape.x, linear / shape.x % shape.y, linear / shape.x / shape.y};
}

}  // namespace

bool SamePlace(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

BlockRunner the_block_runner;

BlockRunner::BlockRunner() {
  if (const char* order = std::getenv("LOCKSTEP_CUDA_THREAD_ORDER"); order != nullptr) {
    SetOrder(std::strtoull(order, nullptr, 10));
  }
}

void BlockRunner::SetOrder(uint64_t seed) {
  order_ = seed;
  random_ = Random(seed);
}

const std::vector<int>& BlockRunner::Order(int count) {
  in_order_.resize(count);
  std::iota(in_order_.begin(), in_order_.end(), 0);
  if (order_ == 1) std::reverse(in_order_.begin(), in_order_.end());
  if (order_ > 1) random_.Shuffle(in_order_);
  return in_order_;
}

BlockRunner::Run::Run(Kernel launched)
    : kernel(std::move(launched)),
      num_threads(static_cast<int>(kernel.block.x * kernel.block.y * kernel.block.z)) {}
BlockRunner::Run::~Run() = default;
BlockRunner::~BlockRunner() = default;

void BlockRunner::Enter(Run& run) {
  run_ = &run;
  blockDim = run.kernel.block;
  gridDim = run.kernel.grid;
  if (std::exchange(run.has_order, true)) return;
  const dim3& grid = run.kernel.grid;
  const std::vector<int> order = Order(static_cast<int>(grid.x * grid.y * grid.z));
  run.blocks_to_come.assign(order.begin(), order.end());
}

bool BlockRunner::BeginEarly(Run& run) {
  constexpr int kBlocks = 2;
  if (run.has_order) return false;
  Enter(run);
  run.is_early = true;
  for (int i = 0; i < kBlocks && run.failure.empty() && !run.blocks_to_come.empty(); ++i) {
    Begin(run.blocks_to_come.front());
    run.blocks_to_come.pop_front();
    GoOn();
  }
  return true;
}

bool BlockRunner::Advance(Run& run, int num_resident) {
  Enter(run);
  run.has_begun = true;
  run.is_early = false;
  std::vector<std::unique_ptr<Block>> aside = std::exchange(run.aside, {});
  const std::vector<int> order = Order(static_cast<int>(aside.size()));  // GoOn asks for others
  for (const int i : order) {
    if (!run.failure.empty()) break;
    block_ = std::move(aside[i]);
    RestoreStaticShared(block_->static_shared);
    for (const int thread : std::exchange(block_->spinning, {})) Ready(thread);
    GoOn();
  }
  const auto is_room = [&] {
    return static_cast<int>(run.aside.size() + 1) * run.num_threads <= num_resident;
  };
  while (run.failure.empty() && !run.blocks_to_come.empty() && is_room()) {
    Begin(run.blocks_to_come.front());
    run.blocks_to_come.pop_front();
    GoOn();
  }
  const bool is_done = run.aside.empty() && run.blocks_to_come.empty();
  if (is_done && run.failure.empty() && run.kernel.overlaps && !run.has_awaited_earlier_kernels) {
    run.failure = "no block waits for earlier kernels, beside which it was launched";
  }
  return is_done || !run.failure.empty();
}

void BlockRunner::Begin(int index) {
  if (spare_.empty()) spare_.push_back(std::make_unique<Block>());
  block_ = std::move(spare_.back());
  spare_.pop_back();
  block_->index = index;
  while (static_cast<int>(block_->threads.size()) < run_->num_threads) {
    block_->threads.push_back(std::make_unique<Thread>());
  }
  // Of the exact size, so that AddressSanitizer sees what lies beyond.
  const size_t shared_bytes = run_->kernel.shared_bytes;
  block_->shared = {static_cast<char*>(std::malloc(std::max<size_t>(shared_bytes, 1))), &std::free};
  std::memset(block_->shared.get(), 0xff, shared_bytes);
  FillStaticShared(0xff);
  StartThreads();
}

// Until all its threads have returned, or none can go on before another device has done something.
void BlockRunner::GoOn() {
  blockIdx = IndexIn(run_->kernel.grid, block_->index);
  while (run_->failure.empty() && block_->num_returned < run_->num_threads) {
    if (std::exchange(block_->gives_way, false)) return PutAside();
    if (!block_->ready.empty()) {
      TakeTurn(Next());
    } else if (!ReleaseBarrier() && !(block_->async && block_->async->Advance())) {
      if (!block_->spinning.empty()) return PutAside();
      run_->failure = absl::StrCat("a block can go no further: ", DescribeDeadlock());
    }
  }
  if (block_->async && run_->failure.empty()) run_->failure = block_->async->Leftover();
  block_->async.reset();
  block_->shared.reset();
  spare_.push_back(std::move(block_));
}

void BlockRunner::PutAside() {
  SaveStaticShared(block_->static_shared);
  run_->aside.push_back(std::move(block_));
}

void BlockRunner::StartThreads() {
  block_->num_returned = 0;
  block_->num_at_barrier = 0;
  block_->any_true = false;
  block_->gives_way = false;
  block_->ready.Clear(run_->num_threads);
  block_->spinning.clear();
  for (std::vector<Gathering>& gatherings : block_->gatherings) gatherings.clear();
  for (const int index : Order(run_->num_threads)) {
    Thread& thread = *block_->threads[index];
    thread.index = IndexIn(run_->kernel.block, index);
    thread.copies.clear();
    thread.have_read.clear();
    thread.copy_group = 0;
    thread.fiber.Start(
        [](void* runner) { static_cast<BlockRunner*>(runner)->run_->kernel.thread(); }, this);
    Ready(index);
  }
}

BlockRunner::Thread& BlockRunner::Mine() { return *block_->threads[current_]; }

void* BlockRunner::dynamic_shared() const { return block_->shared.get(); }

void BlockRunner::Ready(int thread) {
  block_->threads[thread]->state = State::kReady;
  block_->ready.Add(thread);
}

int BlockRunner::Next() {
  ReadyThreads& ready = block_->ready;
  if (order_ <= 1) return ready.Take(0);
  const bool takes_last = IsHasty() && random_.Below(4) != 0;
  return ready.Take(takes_last ? ready.size() - 1 : random_.Below(ready.size()));
}

BlockRunner::Thread& BlockRunner::BeginTurn(int index) {
  current_ = index;
  Thread& thread = *block_->threads[index];
  threadIdx = thread.index;
  if (block_->async) block_->async->MaybeAdvance();
  return thread;
}

// Until no thread can go on before GoOn has seen to it, or one has returned: that one's was the
// last turn.
void BlockRunner::TakeTurn(int index) {
  BeginTurn(index).fiber.Resume();
  Thread& last = Mine();
  if (!last.fiber.ended()) return;
  last.state = State::kReturned;
  ++block_->num_returned;
}

// The next thread's turn begins at once, without a way back to GoOn, where that has nothing to do.
void BlockRunner::GiveTurnAway() {
  Fiber& mine = Mine().fiber;
  if (!run_->failure.empty() || block_->gives_way || block_->ready.empty()) return mine.Suspend();
  Fiber& next = BeginTurn(Next()).fiber;
  if (&next != &mine) mine.GoOverTo(next);
}

void BlockRunner::Wait(State state, const Site& site) {
  Thread& mine = Mine();
  mine.state = state;
  mine.site = site;
  GiveTurnAway();
}

void BlockRunner::Barrier(const Site& site) {
  if (block_->async) block_->async->NoteWrites();
  ++block_->num_at_barrier;
  Wait(State::kAtBarrier, site);
}

// The last vote stands until all have gone on and come to the next barrier.
bool BlockRunner::BarrierOr(bool mine, const Site& site) {
  block_->any_true |= mine;
  Barrier(site);
  return block_->was_any_true;
}

void BlockRunner::Park(const char* name, const Site& site) {
  Mine().name = name;
  Wait(State::kParked, site);
}

size_t BlockRunner::Pick(size_t count) {
  if (order_ > 1) return random_.Below(count);
  return order_ == 1 ? count - 1 : 0;
}

AsyncProxy& BlockRunner::Async() {
  if (block_->async == nullptr) {
    block_->async =
        std::make_unique<AsyncProxy>(*this, block_->shared.get(), run_->kernel.shared_bytes);
  }
  return *block_->async;
}

void BlockRunner::HaveTold() {
  run_->has_told = true;
  block_->gives_way = true;
  Ready(current_);
  Mine().fiber.Suspend();
}

void BlockRunner::SpinPause() {
  block_->spinning.push_back(current_);
  Wait(State::kSpinning, Mine().site);
}

// Copies under way may have read by now what those kernels have yet to write.
void BlockRunner::AwaitEarlierKernels() {
  run_->has_awaited_earlier_kernels = true;
  if (!run_->is_early) return;
  ReadCopies(Mine());
  SpinPause();
}

// All threads that have not returned wait at one barrier: they go on.
bool BlockRunner::ReleaseBarrier() {
  if (block_->num_at_barrier == 0 ||
      block_->num_at_barrier + block_->num_returned < run_->num_threads)
    return false;
  int first = -1;
  for (int t = 0; t < run_->num_threads; ++t) {
    if (block_->threads[t]->state != State::kAtBarrier) continue;
    if (first < 0) first = t;
    if (!SamePlace(block_->threads[first]->site, block_->threads[t]->site)) return false;
  }
  block_->num_at_barrier = 0;
  block_->was_any_true = std::exchange(block_->any_true, false);
  for (const int t : Order(run_->num_threads)) {
    if (block_->threads[t]->state == State::kAtBarrier) Ready(t);
  }
  return true;
}

uint32_t BlockRunner::LanesOfWarp() const {
  const int lanes = run_->num_threads - (current_ - lane());
  return lanes >= warpSize ? 0xffffffffu : (1u << lanes) - 1;
}

// __syncwarp may be met at several places; what exchanges values may not.
bool BlockRunner::Meeting::IsWith(const Meeting& other) const {
  return mask == other.mask && exchange == other.exchange &&
         (name == other.name || std::strcmp(name, other.name) == 0) &&
         (SamePlace(site, other.site) || std::strcmp(name, "__syncwarp") == 0);
}

BlockRunner::Gathering& BlockRunner::Join(const Meeting& mine) {
  std::vector<Gathering>& gatherings = block_->gatherings[current_ / warpSize];
  for (Gathering& gathering : gatherings) {
    if (gathering.meeting.IsWith(mine)) return gathering;
  }
  return gatherings.emplace_back(mine);
}

void BlockRunner::Exchange(const char* name, uint32_t mask, void* operand,
                           lockstep::cuda_emulation::Exchange exchange, const Site& site) {
  if ((mask >> lane() & 1) == 0) {
    Fail(absl::StrFormat("%s at %s: lane %d is not in its own mask %08x", name, Place(site), lane(),
                         mask));
  }
  if ((mask & ~LanesOfWarp()) != 0) {
    Fail(absl::StrFormat("%s at %s: mask %08x names lanes beyond the block's %d threads", name,
                         Place(site), mask, run_->num_threads));
  }
  Gathering& gathering = Join({name, mask, exchange, site});
  gathering.here |= 1u << lane();
  gathering.operands[lane()] = operand;
  Thread& mine = Mine();
  if (gathering.here != mask) {
    mine.name = name;
    mine.mask = mask;
    return Wait(State::kAtExchange, site);
  }
  exchange(gathering.operands.data(), mask);
  std::vector<Gathering>& gatherings = block_->gatherings[current_ / warpSize];
  gatherings.erase(gatherings.begin() + (&gathering - gatherings.data()));
  const int first = current_ - lane();
  uint32_t others = mask & ~(1u << lane());
  while (others != 0) {
    const int next = order_ == 1 ? 31 - std::countl_zero(others) : std::countr_zero(others);
    others &= ~(1u << next);
    Ready(first + next);
  }
}

void BlockRunner::FailBlock(std::string what) {
  run_->failure =
      absl::StrFormat("block (%d, %d, %d) thread (%d, %d, %d): %s", blockIdx.x, blockIdx.y,
                      blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, what);
}

void BlockRunner::Fail(std::string what) {
  FailBlock(std::exchange(what, {}));  // nothing unwinds this frame
  while (true) Mine().fiber.Suspend();
}

std::string BlockRunner::Describe(int index) const {
  const Thread& thread = *block_->threads[index];
  switch (thread.state) {
    case State::kAtBarrier:
      return absl::StrCat("waits at the barrier ", Place(thread.site));
    case State::kAtExchange:
      return absl::StrFormat("waits at %s %s for lanes %08x", thread.name, Place(thread.site),
                             thread.mask);
    case State::kParked:
      return absl::StrCat("waits at ", thread.name, " ", Place(thread.site));
    case State::kReady:
      return "runs";
    case State::kSpinning:
      return "waits for another device";
    case State::kReturned:
      return "has returned";
  }
  return "";
}

// The threads by what they do, runs of the same kind together.
std::string BlockRunner::DescribeDeadlock() const {
  std::string text;
  int num_runs = 0;
  for (int begin = 0, end; begin < run_->num_threads; begin = end) {
    const std::string what = Describe(begin);
    for (end = begin + 1; end < run_->num_threads && Describe(end) == what;) ++end;
    if (++num_runs > 8) return text + " ...";
    absl::StrAppend(&text, begin > 0 ? "; " : "", "threads ", begin, "-", end - 1, " ", what);
  }
  return absl::StrFormat("block (%d, %d, %d): %s", blockIdx.x, blockIdx.y, blockIdx.z, text);
}

}  // namespace lockstep::cuda_emulation
