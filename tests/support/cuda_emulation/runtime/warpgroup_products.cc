#include "tests/support/cuda_emulation/runtime/warpgroup_products.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "tests/support/cuda_emulation/runtime/async_proxy.h"

namespace lockstep::cuda_emulation {

namespace {

constexpr int kWarps = 4;  // of a warpgroup

float Widen(const cuda::emulated::Product& product, uint16_t bits) {
  return product.is_f16 ? ToFloat(F16{bits}) : ToFloat(BF16{bits});
}

// A matrix descriptor's fields.
struct Descriptor {
  uint32_t start;
  uint32_t leading;
  uint32_t stride;

  Descriptor(uint64_t bits, const Site& site)
      : start((bits & 0x3fff) << 4),
        leading((bits >> 16 & 0x3fff) << 4),
        stride((bits >> 32 & 0x3fff) << 4) {
    constexpr uint64_t kNone = uint64_t{0xc000c000} | uint64_t{0x3ff1c000} << 32;
    if ((bits & kNone) != 0) FailThread("wgmma: a descriptor with bits that have no use", site);
    if (bits >> 62 != 1) FailThread("wgmma: only the 128-byte swizzle is emulated", site);
    if ((bits >> 49 & 7) != 0 || start % 1024 >= 128 || stride % 1024 != 0) {
      FailThread("wgmma: a matrix that does not begin where the swizzle repeats", site);
    }
  }

  // Of 8 elements: k running, of one row or column; 64 k lie in a line of 128 bytes.
  uint32_t RunningK(int row, int k) const {
    return start + row / 8 * stride + row % 8 * 128 + k * 2;
  }
  // Columns running, of one k; 64 columns lie in a line.
  uint32_t RunningColumns(int column, int k) const {
    return start + column / 64 * leading + column % 64 * 2 + k / 8 * stride + k % 8 * 128;
  }
};

}  // namespace

WarpgroupProducts::WarpgroupProducts(BlockRunner& runner, const AsyncProxy& memory)
    : runner_(runner),
      memory_(memory),
      threads_(runner.num_threads()),
      groups_(runner.num_threads() / (kWarps * warpSize) + 1) {}

int WarpgroupProducts::Warp() const { return runner_.thread() / warpSize; }

WarpgroupProducts::Group& WarpgroupProducts::MyGroup() { return groups_[Warp() / kWarps]; }

// Whoever comes first says what the group's next instruction is.
void WarpgroupProducts::Execute(const Instruction& mine) {
  std::vector<Instruction>& all = MyGroup().instructions;
  const size_t index = threads_[runner_.thread()].executed++;
  if (index == all.size()) all.push_back(mine);
  const Instruction& first = all[index];
  if (std::strcmp(first.name, mine.name) == 0 && first.newest == mine.newest &&
      SamePlace(first.site, mine.site)) {
    return;
  }
  const auto describe = [](const Instruction& one) {
    return absl::StrFormat("%s at %s:%d", one.name, one.site.file_name(), one.site.line());
  };
  std::string what =
      absl::StrFormat("threads of a warpgroup execute different instructions: %s, %s",
                      describe(first), describe(mine));
  runner_.Fail(std::move(what));  // this frame is not unwound
}

void WarpgroupProducts::Fence(const Site& site) { Execute({"wgmma.fence", 0, site}); }

void WarpgroupProducts::FenceRegisters(const void* registers, int count) {
  const auto* words = static_cast<const uint32_t*>(registers);
  threads_[runner_.thread()].fenced[words].assign(words, words + count);
}

// Some range that was fenced holds them, and they have not changed since.
bool WarpgroupProducts::IsFenced(const Thread& thread, const uint32_t* registers, int count) const {
  for (const auto& [begin, values] : thread.fenced) {
    const auto offset = registers - begin;
    if (offset < 0 || offset + count > static_cast<int64_t>(values.size())) continue;
    return std::memcmp(values.data() + offset, registers, count * sizeof(uint32_t)) == 0;
  }
  return false;
}

void WarpgroupProducts::Issue(const cuda::emulated::Product& product, const Site& site) {
  Execute({"wgmma.mma_async", 0, site});
  Thread& mine = threads_[runner_.thread()];
  const int count = product.columns / 2;
  if (!mine.pending.contains(product.sums)) {
    if (!IsFenced(mine, reinterpret_cast<const uint32_t*>(product.sums), count)) {
      FailThread("wgmma: sums that were not fenced, or changed since", site);
    }
    mine.pending[product.sums].assign(product.sums, product.sums + count);
    std::memset(product.sums, 0xff, count * sizeof(float));
  }
  if (product.a_registers != nullptr && !IsFenced(mine, product.a_registers, 4)) {
    FailThread("wgmma: factors that were not fenced, or changed since", site);
  }
  mine.issued.push_back({product, mine.group, site});
}

void WarpgroupProducts::Commit(const Site& site) {
  Execute({"wgmma.commit_group", 0, site});
  ++threads_[runner_.thread()].group;
}

void WarpgroupProducts::Wait(int newest, const float* sums, const Site& site) {
  Execute({"wgmma.wait_group", newest, site});
  Thread& mine = threads_[runner_.thread()];
  mine.newest = newest;
  mine.products = this;
  WarpExchange("wgmma.wait_group", 0xffffffffu, &mine, &DoCommitted, site);
  if (mine.pending.contains(const_cast<float*>(sums))) {
    FailThread("wgmma.wait_group: these sums belong to a later group", site);
  }
}

void WarpgroupProducts::DoCommitted(void* const operands[32], uint32_t) {
  Thread* lanes[32];
  for (int lane = 0; lane < warpSize; ++lane) lanes[lane] = static_cast<Thread*>(operands[lane]);
  lanes[0]->products->DoWarp(lanes, lanes[0]->newest);
}

void WarpgroupProducts::DoWarp(Thread* const (&lanes)[32], int newest) {
  const int end = lanes[0]->group - newest;
  size_t count = 0;
  while (count < lanes[0]->issued.size() && lanes[0]->issued[count].group < end) ++count;
  for (size_t i = 0; i < count; ++i) {
    OfLanes product;
    for (int l = 0; l < warpSize; ++l) {
      const Thread& lane = *lanes[l];
      if (lane.issued.size() <= i || lane.newest != newest || lane.group != lanes[0]->group) {
        FailThread("wgmma: lanes have issued different products", lanes[0]->issued[i].site);
      }
      product[l] = &lane.issued[i];
    }
    Do(product, lanes);
  }
  for (Thread* lane : lanes) {
    lane->issued.erase(lane->issued.begin(), lane->issued.begin() + static_cast<int64_t>(count));
    GiveBack(*lane);
  }
}

void WarpgroupProducts::CheckAgreement(const OfLanes& product) {
  const auto step = [](const Issued& issued) {
    const cuda::emulated::Product& p = issued.product;
    return Step{p.is_f16, p.a_registers != nullptr, p.a, p.b, p.columns, p.accumulate};
  };
  const Step mine = step(*product[0]);
  for (const Issued* other : product) {
    if (step(*other) != mine || other->group != product[0]->group) {
      FailThread("wgmma: lanes have issued different products", other->site);
    }
  }
  Group& group = MyGroup();
  size_t& done = group.done[Warp() % kWarps];
  if (done == group.steps.size()) group.steps.push_back(mine);
  if (group.steps[done++] != mine) {
    FailThread("wgmma: warps of a group have issued different products", product[0]->site);
  }
}

const char* WarpgroupProducts::Chunk(uint32_t address, const Site& site) const {
  const char* chunk = memory_.Read16(address);
  if (chunk == nullptr) {
    FailThread("wgmma: reads beyond shared memory, or what was written without fence.proxy.async",
               site);
  }
  return chunk;
}

void WarpgroupProducts::ReadA(const OfLanes& product, Matrices& matrices) const {
  const cuda::emulated::Product& first = product[0]->product;
  if (first.a_registers == nullptr) {
    const Descriptor descriptor(first.a, product[0]->site);
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < 16; k += 8) {
        uint16_t chunk[8];
        const uint32_t address = descriptor.RunningK(Warp() % kWarps * 16 + row, k);
        std::memcpy(chunk, Chunk(address, product[0]->site), sizeof(chunk));
        for (int i = 0; i < 8; ++i) matrices.a[row][k + i] = Widen(first, chunk[i]);
      }
    }
    return;
  }
  for (int lane = 0; lane < warpSize; ++lane) {
    const uint32_t* a = product[lane]->product.a_registers;
    for (int i = 0; i < 8; ++i) {
      const int row = lane / 4 + i / 2 % 2 * 8;
      const int k = lane % 4 * 2 + i % 2 + i / 4 * 8;
      matrices.a[row][k] = Widen(first, static_cast<uint16_t>(a[i / 2] >> i % 2 * 16));
    }
  }
}

void WarpgroupProducts::ReadB(const Issued& issued, Matrices& matrices) const {
  const Descriptor descriptor(issued.product.b, issued.site);
  const bool transposed = issued.product.a_registers != nullptr;  // as the wrappers are
  uint16_t chunk[8];
  if (transposed) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < issued.product.columns; column += 8) {
        std::memcpy(chunk, Chunk(descriptor.RunningColumns(column, k), issued.site), sizeof(chunk));
        for (int i = 0; i < 8; ++i) matrices.b[k][column + i] = Widen(issued.product, chunk[i]);
      }
    }
    return;
  }
  for (int column = 0; column < issued.product.columns; ++column) {
    for (int k = 0; k < 16; k += 8) {
      std::memcpy(chunk, Chunk(descriptor.RunningK(column, k), issued.site), sizeof(chunk));
      for (int i = 0; i < 8; ++i) matrices.b[k + i][column] = Widen(issued.product, chunk[i]);
    }
  }
}

void WarpgroupProducts::Do(const OfLanes& product, Thread* const (&lanes)[32]) {
  CheckAgreement(product);
  for (int lane = 0; lane < warpSize; ++lane) {
    const uint32_t* a = product[lane]->product.a_registers;
    if (a != nullptr && !IsFenced(*lanes[lane], a, 4)) {
      FailThread("wgmma: factors changed before the wait", product[lane]->site);
    }
  }
  Matrices matrices;
  ReadA(product, matrices);
  ReadB(*product[0], matrices);
  const int columns = product[0]->product.columns;
  float sums[16][128];
  // `store`: from here to the lanes.
  const auto exchange = [&](bool store) {
    for (int lane = 0; lane < warpSize; ++lane) {
      float* of_lane = lanes[lane]->pending.at(product[lane]->product.sums).data();
      for (int i = 0; i < columns / 2; ++i) {
        float& here = sums[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2];
        if (store) {
          of_lane[i] = here;
        } else {
          here = product[0]->product.accumulate ? of_lane[i] : 0.0f;
        }
      }
    }
  };
  exchange(false);
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      const float a = matrices.a[row][k];
      for (int column = 0; column < columns; ++column) {
        sums[row][column] += a * matrices.b[k][column];
      }
    }
  }
  exchange(true);
}

// Sums that no product is on its way to any more.
void WarpgroupProducts::GiveBack(Thread& thread) {
  std::erase_if(thread.pending, [&](const auto& pending) {
    const auto& [sums, values] = pending;
    for (const Issued& issued : thread.issued) {
      if (issued.product.sums == sums) return false;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::bit_cast<uint32_t>(sums[i]) != 0xffffffffu) {
        runner_.FailBlock("wgmma: sums were written before the wait");
        return false;
      }
    }
    std::copy(values.begin(), values.end(), sums);
    thread.fenced.erase(reinterpret_cast<const uint32_t*>(sums));
    return true;
  });
}

std::string WarpgroupProducts::Leftover() const {
  for (const Thread& thread : threads_) {
    if (!thread.issued.empty()) return "a block ended with products that nobody waited for";
  }
  for (size_t t = 0; t < threads_.size(); ++t) {
    if (threads_[t].executed != groups_[t / (kWarps * warpSize)].instructions.size()) {
      return "not all threads of a warpgroup have executed its instructions";
    }
  }
  return "";
}

}  // namespace lockstep::cuda_emulation
