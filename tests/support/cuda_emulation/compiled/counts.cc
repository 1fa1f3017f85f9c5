#include "tests/support/cuda_emulation/compiled/counts.h"

#include <algorithm>
#include <utility>

namespace lockstep::cuda_emulation::ptx {

namespace {

constexpr uint64_t kSectorBytes = 32;
constexpr uint64_t kBankBytes = 4;
constexpr uint64_t kNumBanks = 32;

struct Ledger {
  bool counts = false;
  std::vector<LaunchCounts> launches;
};
Ledger& TheLedger() {
  static auto* ledger = new Ledger;
  return *ledger;
}

int64_t CeilDiv(uint64_t a, uint64_t b) { return static_cast<int64_t>((a + b - 1) / b); }

// The multiples of `unit` in which some of a range lies.
template <typename Use>
void ForEach(uint64_t address, uint64_t bytes, uint64_t unit, const Use& use) {
  for (uint64_t i = address / unit; i <= (address + bytes - 1) / unit; ++i) use(i);
}

void SortAndKeepEachOnce(std::vector<uint64_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

}  // namespace

LaunchCounter::LaunchCounter(const Program& program, int64_t blocks, int threads) {
  counts_.kernel = program.name;
  counts_.blocks = blocks;
  counts_.threads = threads;
}

LaunchCounter::~LaunchCounter() {
  EndBlock();
  const auto of_warps = [&](Unit unit) {
    return static_cast<double>(executed_[static_cast<size_t>(unit)]) / 32;
  };
  for (size_t unit = 0; unit < kNumUnits; ++unit) {
    counts_.instructions += of_warps(static_cast<Unit>(unit));
  }
  counts_.products = of_warps(Unit::kProduct);
  counts_.special = of_warps(Unit::kSpecial);
  counts_.sectors_read = static_cast<int64_t>(read_.size());
  counts_.sectors_written = static_cast<int64_t>(written_.size());
  TheLedger().launches.push_back(std::move(counts_));
}

void LaunchCounter::BeginThread(int64_t block) {
  if (block != block_) EndBlock();
  block_ = block;
}

void LaunchCounter::Add(const Access& access) {
  if (!access.is_shared) {
    auto& sectors = access.is_write ? written_ : read_;
    ForEach(access.address, access.bytes, kSectorBytes, [&](uint64_t i) { sectors.insert(i); });
  }
  const uint64_t key = static_cast<uint64_t>(access.warp) << 56 |
                       static_cast<uint64_t>(access.index) << 32 | access.time;
  WarpAccess& of_warp = accesses_[key];
  of_warp.bytes = access.bytes;
  of_warp.is_shared = access.is_shared;
  of_warp.lanes |= 1u << access.lane;
  of_warp.addresses[access.lane] = access.address;
  if (of_warp.lanes != 0xffffffffu) return;
  of_warp.is_shared ? CountShared(of_warp) : CountGlobal(of_warp);
  accesses_.erase(key);
}

void LaunchCounter::AddBulkRead(uint64_t address, uint32_t bytes) {
  ForEach(address, bytes, kSectorBytes, [&](uint64_t i) { read_.insert(i); });
  const int64_t sectors = CeilDiv(bytes, kSectorBytes);
  counts_.sectors += sectors;
  counts_.fewest_sectors += sectors;
}

// Those of which some lanes were left out.
void LaunchCounter::EndBlock() {
  for (const auto& [key, access] : accesses_) {
    access.is_shared ? CountShared(access) : CountGlobal(access);
  }
  accesses_.clear();
}

// Accesses of 8 bytes take a half of the warp at a time, those of 16 a quarter; lanes that want the
// same word get it together.
void LaunchCounter::CountShared(const WarpAccess& access) {
  const int lanes_at_once = access.bytes == 16 ? 8 : access.bytes == 8 ? 16 : 32;
  std::vector<uint64_t> all;
  for (int first = 0; first < 32; first += lanes_at_once) {
    std::vector<uint64_t> words;
    for (int lane = first; lane < first + lanes_at_once; ++lane) {
      if ((access.lanes >> lane & 1) == 0) continue;
      ForEach(access.addresses[lane], access.bytes, kBankBytes,
              [&](uint64_t i) { words.push_back(i); });
    }
    SortAndKeepEachOnce(words);
    std::array<int64_t, kNumBanks> of_bank = {};
    for (const uint64_t word : words) ++of_bank[word % kNumBanks];
    counts_.turns += *std::max_element(of_bank.begin(), of_bank.end());
    all.insert(all.end(), words.begin(), words.end());
  }
  SortAndKeepEachOnce(all);
  counts_.fewest_turns += CeilDiv(all.size(), kNumBanks);
}

void LaunchCounter::CountGlobal(const WarpAccess& access) {
  std::vector<uint64_t> sectors;
  std::vector<uint64_t> words;
  for (int lane = 0; lane < 32; ++lane) {
    if ((access.lanes >> lane & 1) == 0) continue;
    const uint64_t address = access.addresses[lane];
    ForEach(address, access.bytes, kSectorBytes, [&](uint64_t i) { sectors.push_back(i); });
    ForEach(address, access.bytes, kBankBytes, [&](uint64_t i) { words.push_back(i); });
  }
  SortAndKeepEachOnce(sectors);
  SortAndKeepEachOnce(words);
  counts_.sectors += static_cast<int64_t>(sectors.size());
  counts_.fewest_sectors += CeilDiv(words.size() * kBankBytes, kSectorBytes);
}

void CountLaunches(bool count) { TheLedger().counts = count; }
bool LaunchesAreCounted() { return TheLedger().counts; }
std::vector<LaunchCounts> TakeLaunchCounts() { return std::exchange(TheLedger().launches, {}); }

}  // namespace lockstep::cuda_emulation::ptx
