// Loading to a GPU: files are read to where the device copies from, each rank's own bytes, whatever
// the dtypes; and what becomes of a file that ends too soon.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <list>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_rows.h"
#include "model/llama/llama_stage.h"
#include "model/llama/pinned_slots.h"
#include "tests/model/llama/temporary_model.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::testing {
namespace {

using cuda::DeviceRows;
using ::testing::HasSubstr;

const std::vector<DType> kDTypes = {DType::kF32, DType::kF16, DType::kBF16};

// Sees what it is given: rows that do not lie in its pinned memory, and how much of that there is.
class WatchedBackend final : public cuda::CudaBackend {
 public:
  static std::unique_ptr<WatchedBackend> Create(DType compute, bool takes_pinned_rows = true) {
    std::unique_ptr<WatchedBackend> backend(
        new WatchedBackend({.compute = compute, .deterministic = true}, takes_pinned_rows));
    EXPECT_TRUE(backend->Start().ok());
    return backend;
  }

  bool TakesPinnedRows() const override { return takes_pinned_rows_; }
  absl::StatusOr<DeviceBuffer> AllocateOnHost(int64_t bytes) override {
    absl::StatusOr<DeviceBuffer> memory = CudaBackend::AllocateOnHost(bytes);
    if (!memory.ok()) return memory;
    auto* const owned = new DeviceBuffer(*std::move(memory));
    const std::lock_guard lock(mutex_);
    pinned_[owned->as<std::byte>()] = bytes;
    held_ += bytes;
    most_held_ = std::max(most_held_, held_);
    const auto release = [this, owned, bytes](void* at) {
      {
        const std::lock_guard lock(mutex_);
        pinned_.erase(static_cast<std::byte*>(at));
        held_ -= bytes;
      }
      delete owned;
    };
    return DeviceBuffer(std::shared_ptr<void>(owned->data(), release), bytes);
  }
  absl::StatusOr<std::unique_ptr<LinearWeight>> AllocateLinear(const LinearShape& shape) override {
    auto weight = CudaBackend::AllocateLinear(shape);
    if (weight.ok()) weights_.push_back(static_cast<const DeviceRows*>(weight->get()));
    return weight;
  }
  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override {
    auto memory = CudaBackend::Allocate(bytes);
    if (memory.ok()) tables_.emplace_back(memory->as<std::byte>(), bytes, false);
    return memory;
  }
  void FillLinear(LinearWeight& weight, int64_t first_row, const HostRows& rows) override {
    Look(rows, weight.shape().in_features *
                   (rows.content == RowContent::kValues ? DTypeBytes(rows.dtype) : 1));
    CudaBackend::FillLinear(weight, first_row, rows);
  }
  void FillTable(void* table, DType dtype, int64_t width, const HostRows& rows) override {
    Look(rows, width * DTypeBytes(rows.dtype));
    for (Table& one : tables_) {
      if (table >= one.data && table < one.data + one.bytes) one.is_filled = true;
    }
    CudaBackend::FillTable(table, dtype, width, rows);
  }

  // Of everything allocated as weights, in that order.
  std::vector<std::vector<std::byte>> Contents() {
    std::vector<std::vector<std::byte>> all;
    const auto add = [&](const void* device, int64_t bytes) {
      CopyToHost(all.emplace_back(static_cast<size_t>(bytes)).data(), device, bytes);
    };
    for (const DeviceRows* weight : weights_) {
      const int64_t rows = weight->shape().out_features;
      add(weight->row(0), rows * weight->row_bytes());
      if (weight->scales() != nullptr) add(weight->scales(), rows * 4);
    }
    for (const Table& table : tables_) {
      if (table.is_filled) add(table.data, table.bytes);
    }
    return all;
  }
  int64_t unpinned_bytes() const { return unpinned_bytes_; }
  int64_t held() const { return held_; }
  int64_t most_held() const { return most_held_; }
  int64_t fills() const { return fills_; }
  int64_t fills_behind_waiting_copies() const { return fills_behind_waiting_copies_; }

 private:
  struct Table {
    std::byte* data;
    int64_t bytes;
    std::atomic<bool> is_filled;
  };

  WatchedBackend(const AcceleratorOptions& options, bool takes_pinned_rows)
      : CudaBackend(options), takes_pinned_rows_(takes_pinned_rows) {}

  void Look(const HostRows& rows, int64_t row_bytes) {
    ++fills_;
    if (cuda_emulation::NumWorkInStreams() > 0) ++fills_behind_waiting_copies_;
    const auto* const begin = static_cast<const std::byte*>(rows.data);
    const int64_t bytes = (rows.num_rows - 1) * rows.row_stride_bytes + row_bytes;
    const std::lock_guard lock(mutex_);
    auto at = pinned_.upper_bound(begin);
    const bool lies_there =
        at != pinned_.begin() && begin + bytes <= std::prev(at)->first + std::prev(at)->second;
    if (!lies_there || !rows.is_pinned) unpinned_bytes_ += rows.num_rows * row_bytes;
  }

  const bool takes_pinned_rows_;
  std::mutex mutex_;
  std::map<const std::byte*, int64_t> pinned_;
  std::vector<const DeviceRows*> weights_;
  std::list<Table> tables_;  // and what else is allocated
  int64_t held_ = 0;
  int64_t most_held_ = 0;
  std::atomic<int64_t> unpinned_bytes_{0};
  std::atomic<int64_t> fills_{0};
  std::atomic<int64_t> fills_behind_waiting_copies_{0};
};

class CudaLoadingTest : public ::testing::Test {
 protected:
  CudaLoadingTest() {
    options_.num_load_threads = 3;
    options_.limits = {.max_batched_tokens = 8, .max_num_seqs = 2};
  }
  absl::StatusOr<std::unique_ptr<LlamaStage>> Load(WatchedBackend& backend,
                                                   const Checkpoint& checkpoint, int tp = 1,
                                                   int rank = 0) {
    const ProcessGrid grid = *ProcessGrid::Create(tp, 1);
    groups_ = MakeInProcessGroups(grid);
    return LlamaStage::Load(checkpoint, grid, rank, backend, groups_[static_cast<size_t>(rank)],
                            options_, nullptr);
  }

  std::vector<RankGroups> groups_;
  StageOptions options_;
};

// Wide enough that matrices come in several pieces, few of whose lengths are multiples of a vector.
ModelConfig WideConfig() {
  ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
  config.hidden_size = 648;
  config.intermediate_size = 1208;
  config.num_layers = 1;
  config.head_dim = 24;
  return config;
}

// As by the way through memory that is not pinned.
TEST_F(CudaLoadingTest, EveryByteIsReadToWhereTheDeviceCopiesFrom) {
  for (const DType stored : kDTypes) {
    const TemporaryModel model(WideConfig(), stored);
    for (const DType compute : kDTypes) {
      for (const auto& [tp, rank] : {std::pair(1, 0), {2, 1}, {4, 2}}) {
        SCOPED_TRACE(::testing::Message() << DTypeName(stored) << " as " << DTypeName(compute)
                                          << ", rank " << rank << " of " << tp);
        const auto pinned = WatchedBackend::Create(compute);
        const auto plain = WatchedBackend::Create(compute, /*takes_pinned_rows=*/false);
        const int64_t before = model.checkpoint().bytes_read();
        const auto stage = Load(*pinned, model.checkpoint(), tp, rank);
        ASSERT_TRUE(stage.ok()) << stage.status();
        const LoadStats& stats = (*stage)->load_stats();
        EXPECT_EQ(model.checkpoint().bytes_read() - before, stats.shard_bytes);
        EXPECT_EQ(stats.loaded_bytes, stats.shard_bytes);
        EXPECT_EQ(stats.pinned_bytes, stats.shard_bytes);
        EXPECT_EQ(pinned->unpinned_bytes(), 0);
        const auto groups = std::move(groups_);
        const auto other = Load(*plain, model.checkpoint(), tp, rank);
        ASSERT_TRUE(other.ok()) << other.status();
        EXPECT_EQ((*other)->load_stats().pinned_bytes, 0);
        EXPECT_EQ(plain->unpinned_bytes(), stats.shard_bytes);
        EXPECT_TRUE(pinned->Contents() == plain->Contents());
      }
    }
  }
}

// Where attention has no kernel for a model's heads, no weight is read.
TEST_F(CudaLoadingTest, ACacheOfUnusualHeadsIsRefused) {
  ModelConfig config = WideConfig();
  config.head_dim = 20;
  const TemporaryModel model(config, DType::kBF16);
  const auto backend = WatchedBackend::Create(DType::kBF16);
  const int64_t before = model.checkpoint().bytes_read();
  const absl::Status refused = Load(*backend, model.checkpoint()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("a KV cache in bf16 of heads of 20"));
  EXPECT_EQ(model.checkpoint().bytes_read(), before);
}

// Copies are done as late as possible: all but the one whose memory a thread needs wait.
TEST_F(CudaLoadingTest, ThreadsReadOnWhileTheirLastPieceIsCopied) {
  const TemporaryModel model(WideConfig(), DType::kBF16);
  options_.num_load_threads = 1;
  const auto backend = WatchedBackend::Create(DType::kBF16);
  backend->Synchronize();
  const auto stage = Load(*backend, model.checkpoint());
  ASSERT_TRUE(stage.ok()) << stage.status();
  EXPECT_GT(backend->fills(), 12);
  EXPECT_EQ(backend->fills_behind_waiting_copies(), backend->fills());
}

TEST_F(CudaLoadingTest, PinnedMemoryIsTwoSlotsToAThreadAndGoesWhenAllIsLoaded) {
  ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
  config.num_layers = 8;  // more tensors than there are slots
  const TemporaryModel model(config, DType::kBF16);
  for (const auto& [num_threads, num_slots] : {std::pair(1, 2), {3, 6}, {1000, 64}}) {
    options_.num_load_threads = num_threads;
    const auto idle = WatchedBackend::Create(DType::kBF16, /*takes_pinned_rows=*/false);
    const auto unloaded = Load(*idle, model.checkpoint());
    ASSERT_TRUE(unloaded.ok()) << unloaded.status();
    const auto groups = std::move(groups_);
    const auto backend = WatchedBackend::Create(DType::kBF16);
    const auto stage = Load(*backend, model.checkpoint());
    ASSERT_TRUE(stage.ok()) << stage.status();
    EXPECT_LE(backend->most_held() - idle->held(), num_slots * (int64_t{1} << 20));
    EXPECT_EQ(backend->held(), idle->held());
  }
}

TEST_F(CudaLoadingTest, AFileThatEndsTooSoonIsToldAndNothingIsLeftBehind) {
  const TemporaryModel whole(WideConfig(), DType::kBF16);
  const auto backend = WatchedBackend::Create(DType::kBF16);
  for (const int num_threads : {1, 3, 40}) {
    options_.num_load_threads = num_threads;
    const TemporaryModel model(WideConfig(), DType::kBF16);
    const auto path = model.directory() / "model.safetensors";
    std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
    const int64_t held = backend->held();
    const absl::Status failed = Load(*backend, model.checkpoint()).status();
    EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr("truncated while in use"));
    EXPECT_EQ(backend->held(), held);
  }
  const auto stage = Load(*backend, whole.checkpoint());
  EXPECT_TRUE(stage.ok()) << stage.status();
}

TEST_F(CudaLoadingTest, WithoutPinnedMemoryLoadingIsRefused) {
  class Short final : public cuda::CudaBackend {
   public:
    Short() : CudaBackend({}) { EXPECT_TRUE(Start().ok()); }
    absl::StatusOr<DeviceBuffer> AllocateOnHost(int64_t bytes) override {
      if (bytes >= 1 << 20) return absl::ResourceExhaustedError("no pinned memory");
      return CudaBackend::AllocateOnHost(bytes);
    }
  } backend;
  const TemporaryModel model(WideConfig(), DType::kBF16);
  groups_ = MakeInProcessGroups(*ProcessGrid::Create(1, 1));
  const absl::Status refused = LlamaStage::Load(model.checkpoint(), *ProcessGrid::Create(1, 1), 0,
                                                backend, groups_[0], options_, nullptr)
                                   .status();
  EXPECT_EQ(refused, absl::ResourceExhaustedError("no pinned memory"));
}

// Each writes its own numbers; a slot that is handed out too soon would send those of another.
TEST(PinnedSlotsTest, MoreThreadsThanSlotsTakeTurns) {
  constexpr int kThreads = 8, kTurns = 20;
  constexpr int64_t kNumbers = 256;
  const auto backend = WatchedBackend::Create(DType::kBF16);
  const DeviceBuffer table = backend->Allocate(kThreads * kTurns * kNumbers * 4).value();
  for (const int num_slots : {1, 2, 5}) {
    const auto slots = PinnedSlots::Create(*backend, num_slots, kNumbers * 4).value();
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int turn = 0; turn < kTurns; ++turn) {
          const int64_t place = thread * kTurns + turn;
          const PinnedSlots::Slot slot = slots->Take();
          auto* const numbers = reinterpret_cast<float*>(slot.memory().data());
          std::fill_n(numbers, kNumbers, static_cast<float>(place * num_slots));
          backend->FillTable(table.as<float>() + place * kNumbers, DType::kF32, kNumbers,
                             {.data = numbers,
                              .num_rows = 1,
                              .row_stride_bytes = kNumbers * 4,
                              .is_pinned = true});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<float> got(kThreads * kTurns * kNumbers);
    backend->CopyToHost(got.data(), table.data(), table.bytes());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], static_cast<float>(static_cast<int>(i) / kNumbers * num_slots)) << i;
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
