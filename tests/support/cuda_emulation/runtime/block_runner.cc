#include "tests/support/cuda_emulation/runtime/block_runner.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/cuda_emulation/runtime/static_shared.h"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace lockstep::cuda_emulation {

namespace {

std::string Place(const Site& site) { return absl::StrCat(site.file_name(), ":", site.line()); }

bool SamePlace(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

uint3 IndexIn(const dim3& shape, unsigned linear) {
  return {linear % shape.x, linear / shape.x % shape.y, linear / shape.x / shape.y};
}

}  // namespace

BlockRunner& TheBlockRunner() {
  static BlockRunner runner;
  return runner;
}

BlockRunner::BlockRunner() {
  if (const char* order = std::getenv("LOCKSTEP_CUDA_THREAD_ORDER"); order != nullptr) {
    SetOrder(std::strtoull(order, nullptr, 10));
  }
}

void BlockRunner::SetOrder(uint64_t seed) {
  order_ = seed;
  random_.seed(seed);
}

std::vector<int> BlockRunner::Order(int count) {
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  if (order_ == 1) std::reverse(order.begin(), order.end());
  if (order_ > 1) std::shuffle(order.begin(), order.end(), random_);
  return order;
}

std::string BlockRunner::Run(const Kernel& kernel) {
  kernel_ = &kernel;
  failure_.clear();
  num_threads_ = static_cast<int>(kernel.block.x * kernel.block.y * kernel.block.z);
  while (static_cast<int>(threads_.size()) < num_threads_) {
    threads_.push_back(std::make_unique<Thread>());
  }
  // Of the exact size, so that AddressSanitizer sees what lies beyond.
  shared_ = {static_cast<char*>(std::malloc(std::max<size_t>(kernel.shared_bytes, 1))), &std::free};
  blockDim = kernel.block;
  gridDim = kernel.grid;
  const int num_blocks = static_cast<int>(kernel.grid.x * kernel.grid.y * kernel.grid.z);
  for (const int block : Order(num_blocks)) {
    blockIdx = IndexIn(kernel.grid, block);
    std::memset(shared_.get(), 0xff, kernel.shared_bytes);
    FillStaticShared(0xff);
    StartThreads();
    while (failure_.empty() && num_returned_ < num_threads_) {
      if (!ready_.empty()) {
        TakeTurn(Next());
      } else if (!ReleaseBarrier()) {
        failure_ = absl::StrCat("a block can go no further: ", DescribeDeadlock());
      }
    }
    if (!failure_.empty()) break;
  }
  shared_.reset();
  return failure_;
}

void BlockRunner::StartThreads() {
  num_returned_ = 0;
  num_at_barrier_ = 0;
  ready_.clear();
  for (std::vector<Meeting>& meetings : meetings_) meetings.clear();
  for (const int index : Order(num_threads_)) {
    Thread& thread = *threads_[index];
    thread.copies.clear();
    thread.copy_group = 0;
    thread.fiber.Start([](void* runner) { static_cast<BlockRunner*>(runner)->kernel_->thread(); },
                       this);
    Ready(index);
  }
}

void BlockRunner::Ready(int thread) {
  threads_[thread]->state = State::kReady;
  ready_.push_back(thread);
}

int BlockRunner::Next() {
  if (order_ > 1) std::swap(ready_.front(), ready_[random_() % ready_.size()]);
  const int next = ready_.front();
  ready_.pop_front();
  return next;
}

void BlockRunner::TakeTurn(int index) {
  current_ = index;
  threadIdx = IndexIn(kernel_->block, index);
  Thread& thread = *threads_[index];
  thread.fiber.Resume();
  if (thread.fiber.ended()) {
    thread.state = State::kReturned;
    ++num_returned_;
  }
}

void BlockRunner::Wait(State state, const Site& site) {
  Thread& mine = *threads_[current_];
  mine.state = state;
  mine.site = site;
  mine.fiber.Suspend();
}

void BlockRunner::Barrier(const Site& site) {
  ++num_at_barrier_;
  Wait(State::kAtBarrier, site);
}

// All threads that have not returned wait at one barrier: they go on.
bool BlockRunner::ReleaseBarrier() {
  if (num_at_barrier_ == 0 || num_at_barrier_ + num_returned_ < num_threads_) return false;
  int first = -1;
  for (int t = 0; t < num_threads_; ++t) {
    if (threads_[t]->state != State::kAtBarrier) continue;
    if (first < 0) first = t;
    if (!SamePlace(threads_[first]->site, threads_[t]->site)) return false;
  }
  num_at_barrier_ = 0;
  for (const int t : Order(num_threads_)) {
    if (threads_[t]->state == State::kAtBarrier) Ready(t);
  }
  return true;
}

uint32_t BlockRunner::LanesOfWarp() const {
  const int lanes = num_threads_ - (current_ - lane());
  return lanes >= warpSize ? 0xffffffffu : (1u << lanes) - 1;
}

// __syncwarp may be met at several places; what exchanges values may not.
BlockRunner::Meeting& BlockRunner::Join(const Meeting& mine) {
  std::vector<Meeting>& meetings = meetings_[current_ / warpSize];
  const auto same = [&](const Meeting& other) {
    return other.mask == mine.mask && other.exchange == mine.exchange &&
           (mine.name == other.name || std::strcmp(mine.name, other.name) == 0) &&
           (std::strcmp(mine.name, "__syncwarp") == 0 || SamePlace(other.site, mine.site));
  };
  const auto found = std::find_if(meetings.begin(), meetings.end(), same);
  return found != meetings.end() ? *found : meetings.emplace_back(mine);
}

void BlockRunner::Exchange(const char* name, uint32_t mask, void* operand,
                           lockstep::cuda_emulation::Exchange exchange, const Site& site) {
  if ((mask >> lane() & 1) == 0) {
    Fail(absl::StrFormat("%s at %s: lane %d is not in its own mask %08x", name, Place(site), lane(),
                         mask));
  }
  if ((mask & ~LanesOfWarp()) != 0) {
    Fail(absl::StrFormat("%s at %s: mask %08x names lanes beyond the block's %d threads", name,
                         Place(site), mask, num_threads_));
  }
  Meeting& meeting = Join({name, mask, exchange, site});
  meeting.here |= 1u << lane();
  meeting.operands[lane()] = operand;
  Thread& mine = *threads_[current_];
  if (meeting.here != mask) {
    mine.name = name;
    mine.mask = mask;
    return Wait(State::kAtExchange, site);
  }
  exchange(meeting.operands.data(), mask);
  std::vector<Meeting>& meetings = meetings_[current_ / warpSize];
  meetings.erase(meetings.begin() + (&meeting - meetings.data()));
  const int first = current_ - lane();
  uint32_t others = mask & ~(1u << lane());
  while (others != 0) {
    const int next = order_ == 1 ? 31 - std::countl_zero(others) : std::countr_zero(others);
    others &= ~(1u << next);
    Ready(first + next);
  }
}

void BlockRunner::Fail(std::string what) {
  failure_ = absl::StrFormat("block (%d, %d, %d) thread (%d, %d, %d): %s", blockIdx.x, blockIdx.y,
                             blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, what);
  std::string().swap(what);  // nothing unwinds this frame
  while (true) threads_[current_]->fiber.Suspend();
}

std::string BlockRunner::Describe(int index) const {
  const Thread& thread = *threads_[index];
  switch (thread.state) {
    case State::kAtBarrier:
      return absl::StrCat("waits at the barrier ", Place(thread.site));
    case State::kAtExchange:
      return absl::StrFormat("waits at %s %s for lanes %08x", thread.name, Place(thread.site),
                             thread.mask);
    case State::kReady:
      return "runs";
    case State::kReturned:
      return "has returned";
  }
  return "";
}

// The threads by what they do, runs of the same kind together.
std::string BlockRunner::DescribeDeadlock() const {
  std::string text;
  int num_runs = 0;
  for (int begin = 0, end; begin < num_threads_; begin = end) {
    const std::string what = Describe(begin);
    for (end = begin + 1; end < num_threads_ && Describe(end) == what;) ++end;
    if (++num_runs > 8) return text + " ...";
    absl::StrAppend(&text, begin > 0 ? "; " : "", "threads ", begin, "-", end - 1, " ", what);
  }
  return absl::StrFormat("block (%d, %d, %d): %s", blockIdx.x, blockIdx.y, blockIdx.z, text);
}

// The destination is unknown from now on until the copy is waited for.
void BlockRunner::IssueCopy(void* shared, const void* global, bool valid) {
  Thread& mine = *threads_[current_];
  std::memset(shared, 0xff, 16);
  mine.copies.push_back({shared, valid ? global : nullptr, mine.copy_group});
}

void BlockRunner::CommitCopies() { ++threads_[current_]->copy_group; }

void BlockRunner::AwaitCopies(int newest) {
  Thread& mine = *threads_[current_];
  const auto arrived = [&](const Copy& copy) { return copy.group < mine.copy_group - newest; };
  for (const Copy& copy : mine.copies) {
    if (!arrived(copy)) continue;
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, 16);
    } else {
      std::memcpy(copy.to, copy.from, 16);
    }
  }
  std::erase_if(mine.copies, arrived);
}

}  // namespace lockstep::cuda_emulation
