// Weights mapped from a cache give the bits of weights packed from the checkpoint.
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/llama/pack_weights.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class WeightCacheTest : public ::testing::Test {
 protected:
  WeightCacheTest() : model_(SmallConfig(/*num_kv_heads=*/4), DType::kBF16) {
    cache_ = model_.directory() / "cache";
    options_.make_backend = CpuBackends(1);
    options_.stage.limits = {.max_batched_tokens = 64, .max_num_seqs = 8, .max_model_len = 100};
    options_.stage.on_notice = [this](const std::string& text) { notice_ = text; };
  }

  std::vector<Outcome> Run(const fs::path& cache) {
    options_.stage.weight_cache = cache;
    auto outcomes = Drive(model_.checkpoint(), options_, {{{1, 5, 9, 300, 7}, 4}, {{2}, 6}});
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    return outcomes.ok() ? *std::move(outcomes) : std::vector<Outcome>{};
  }
  LoadStats Load(const LoadProgress& progress = nullptr) const {
    const ProcessGrid grid = *ProcessGrid::Create(1, 1);
    std::vector<RankGroups> groups = MakeInProcessGroups(grid);
    const auto backend = options_.make_backend();
    StageOptions stage_options = options_.stage;
    stage_options.weight_cache = cache_;
    const auto stage = LlamaStage::Load(model_.checkpoint(), grid, 0, *backend, groups[0],
                                        stage_options, progress);
    EXPECT_TRUE(stage.ok()) << stage.status();
    return stage.ok() ? (*stage)->load_stats() : LoadStats{};
  }
  int64_t BytesToCome(int64_t weight_bytes) {
    options_.stage.weight_cache = cache_;
    return *LlamaStage::WeightBytesToCome(model_.checkpoint(), *ProcessGrid::Create(1, 1), 0,
                                          *options_.make_backend(), options_.stage, weight_bytes);
  }
  bool IsCached() { return BytesToCome(1) == 0; }
  int64_t NumFiles() const {
    return std::distance(fs::directory_iterator(cache_), fs::directory_iterator());
  }

  const TemporaryModel model_;
  fs::path cache_;
  DriveOptions options_;
  std::string notice_;
};

TEST_F(WeightCacheTest, GivesTheSameBitsInEveryLayoutAndForm) {
  for (const Quantization quantize :
       {Quantization::kNone, Quantization::kInt8, Quantization::kInt4}) {
    for (const auto& [tp, pp] : {std::pair(1, 1), {2, 3}, {8, 1}}) {
      SCOPED_TRACE(::testing::Message() << "tp " << tp << " pp " << pp);
      options_.stage.quantize = quantize;
      options_.tp = tp;
      options_.pp = pp;
      const std::vector<Outcome> want = Run("");
      EXPECT_TRUE(SameBits(Run(cache_), want));  // packs and keeps
      const int64_t before = model_.checkpoint().bytes_read();
      EXPECT_TRUE(SameBits(Run(cache_), want));  // maps
      EXPECT_EQ(model_.checkpoint().bytes_read(), before);
    }
  }
  EXPECT_EQ(NumFiles(), 3 * (1 + 6 + 8));
  EXPECT_EQ(notice_, "");
}

TEST_F(WeightCacheTest, StatisticsTellWhatWasMapped) {
  EXPECT_FALSE(IsCached());
  const LoadStats first = Load();
  EXPECT_EQ(first.loaded_bytes, first.shard_bytes);
  EXPECT_EQ(first.mapped_bytes, 0);
  EXPECT_TRUE(IsCached());
  const LoadStats second = Load();
  EXPECT_EQ(second.loaded_bytes, 0);
  EXPECT_EQ(second.shard_bytes, first.shard_bytes);
  EXPECT_EQ(second.mapped_bytes, second.weight_bytes);
  EXPECT_EQ(second.weight_bytes, first.weight_bytes);
}

// In a memory file, which does not tell when it was last written.
TEST_F(WeightCacheTest, WhoWaitsForAnothersPackingIsToldOfItsProgress) {
  using std::chrono::milliseconds;
  const int memory = ::memfd_create("weights", MFD_CLOEXEC);
  ASSERT_EQ(::fchmod(memory, 0600), 0);
  cache_ = absl::StrCat("/proc/self/fd/", memory);
  std::atomic<int> num_told{0};
  options_.stage.on_waiting = [&] { ++num_told; };
  options_.stage.num_load_threads = 1;
  const auto wait_until_told = [&](int times) {
    for (int i = 0; i < 5000 && num_told < times; ++i) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_GE(num_told, times);
  };
  std::thread second;
  int num_parts = 0;
  Load([&](int64_t, int64_t) {
    if (++num_parts > 2) return;
    if (num_parts == 1) second = std::thread([&] { EXPECT_GT(Load().mapped_bytes, 0); });
    wait_until_told(num_parts);
    std::this_thread::sleep_for(milliseconds(150));  // the next part is another tenth's
  });
  second.join();
  EXPECT_GT(num_parts, 2);
  ::close(memory);
}

TEST_F(WeightCacheTest, FormsAndChangedCheckpointsHaveFilesOfTheirOwn) {
  Load();
  options_.stage.weights = WeightDType::kF32;
  EXPECT_FALSE(IsCached());
  options_.stage.weights = WeightDType::kAuto;
  EXPECT_TRUE(IsCached());
  const fs::path weights = model_.directory() / "model.safetensors";
  fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(1));
  EXPECT_FALSE(IsCached());
}

// Ranks of two replicas that start together each count what the first has packed once.
TEST_F(WeightCacheTest, WhatIsPackedInMemorySoFarNeedsNoMemoryAnyMore) {
  const int file = ::memfd_create("weights", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  cache_ = "/proc/self/fd/" + std::to_string(file);
  const std::string packed(1 << 20, 'x');
  EXPECT_EQ(BytesToCome(3 << 20), 3 << 20);
  ASSERT_EQ(::write(file, packed.data(), packed.size()), 1 << 20);
  EXPECT_EQ(BytesToCome(3 << 20), 2 << 20);
  EXPECT_EQ(BytesToCome(1000), 0);
  ::close(file);
}

// As copies do that keep times.
TEST_F(WeightCacheTest, OtherNumbersOfTheSameSizeAndTimeHaveAFileOfTheirOwn) {
  Load();
  EXPECT_TRUE(IsCached());
  const fs::path weights = model_.directory() / "model.safetensors";
  const auto written = fs::last_write_time(weights);
  const TensorInfo& norm = **model_.checkpoint().Find("model.norm.weight");
  std::fstream(weights, std::ios::in | std::ios::out | std::ios::binary).seekp(norm.file_offset)
      << std::string(static_cast<size_t>(norm.num_bytes), 'x');
  fs::last_write_time(weights, written);
  EXPECT_FALSE(IsCached());
}

TEST_F(WeightCacheTest, WeightsPackedAheadAreMapped) {
  options_.stage.quantize = Quantization::kInt4;
  const auto backend = options_.make_backend();
  PackOptions pack;
  pack.quantize = Quantization::kInt4;
  std::vector<std::pair<int64_t, int64_t>> seen;
  std::mutex mutex;
  pack.progress = [&](int64_t done, int64_t total) {
    const std::lock_guard lock(mutex);
    seen.emplace_back(done, total);
  };
  for (const auto& [tp, pp] : {std::pair(1, 1), {2, 3}}) {
    SCOPED_TRACE(::testing::Message() << "tp " << tp << " pp " << pp);
    options_.tp = tp;
    options_.pp = pp;
    const std::vector<Outcome> want = Run("");
    const ProcessGrid grid = *ProcessGrid::Create(tp, pp);
    seen.clear();
    const auto packed = PackWeights(model_.checkpoint(), grid, *backend, pack);
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_GT(packed->bytes, 0);
    EXPECT_EQ(packed->bytes_before, 0);
    ASSERT_FALSE(seen.empty());
    for (const auto& [done, total] : seen) EXPECT_LE(done, total);
    const auto again = PackWeights(model_.checkpoint(), grid, *backend, pack);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->bytes_before, packed->bytes);

    const int64_t before = model_.checkpoint().bytes_read();
    EXPECT_TRUE(SameBits(Run(cache_), want));
    EXPECT_EQ(model_.checkpoint().bytes_read(), before);
    EXPECT_FALSE(fs::exists(cache_));
    EXPECT_TRUE(SameBits(Run(""), want));  // who wants no cache has none
    EXPECT_GT(model_.checkpoint().bytes_read(), before);
  }
  options_.tp = 1;
  options_.pp = 1;
  EXPECT_TRUE(IsCached());
  EXPECT_EQ(notice_, "");
}

// Flips a bit of the last region, and makes the file another boot's.
void Damage(const fs::path& directory) {
  const fs::path file = fs::directory_iterator(directory)->path();
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  std::string begin(4096, '\0');
  stream.read(begin.data(), std::ssize(begin));
  const std::string field = R"("boot_id":")";
  stream.seekp(static_cast<std::streamoff>(begin.find(field) + field.size())) << "another";
  stream.seekg(-1, std::ios::end);
  const char last = static_cast<char>(stream.peek() ^ 1);
  stream.seekp(-1, std::ios::end).put(last);
  ASSERT_TRUE(stream.good());
}

TEST_F(WeightCacheTest, DamagedWeightsArePackedAnew) {
  const std::vector<Outcome> want = Run(cache_);
  Damage(cache_);
  EXPECT_TRUE(SameBits(Run(cache_), want));
  EXPECT_THAT(notice_, HasSubstr("is damaged: "));
  notice_.clear();
  const int64_t before = model_.checkpoint().bytes_read();
  EXPECT_TRUE(SameBits(Run(cache_), want));  // maps what the last run has packed
  EXPECT_EQ(model_.checkpoint().bytes_read(), before);
  EXPECT_EQ(notice_, "");
}

TEST_F(WeightCacheTest, WeightsPackedAheadThatAreDamagedAreNotUsed) {
  const std::vector<Outcome> want = Run("");
  const auto backend = options_.make_backend();
  const auto pack = [&] {
    return PackWeights(model_.checkpoint(), *ProcessGrid::Create(1, 1), *backend, PackOptions());
  };
  ASSERT_TRUE(pack().ok());
  const fs::path packed = model_.directory() / "packed";
  Damage(packed);
  EXPECT_TRUE(SameBits(Run(cache_), want));  // in the cache, those being another's to mend
  EXPECT_THAT(notice_, HasSubstr("is damaged: "));
  EXPECT_EQ(NumFiles(), 1);
  Damage(cache_);
  EXPECT_TRUE(SameBits(Run(cache_), want));
  const auto mended = pack();
  ASSERT_TRUE(mended.ok()) << mended.status();
  EXPECT_EQ(mended->bytes_before, 0);
  notice_.clear();
  EXPECT_TRUE(SameBits(Run(cache_), want));
  EXPECT_EQ(notice_, "");
}

TEST_F(WeightCacheTest, WhoWaitsForAnothersPackingAheadIsTold) {
  const auto pack = [&](const PackOptions& options) {
    const auto packed = PackWeights(model_.checkpoint(), *ProcessGrid::Create(1, 1),
                                    *options_.make_backend(), options);
    EXPECT_TRUE(packed.ok()) << packed.status();
    return packed.ok() && packed->bytes_before == packed->bytes;
  };
  std::atomic<bool> is_told = false;
  std::thread second;
  PackOptions options;
  options.progress = [&](int64_t, int64_t) {
    if (second.joinable()) return;
    second = std::thread(
        [&] { EXPECT_TRUE(pack({.progress = nullptr, .on_waiting = [&] { is_told = true; }})); });
    for (int i = 0; i < 5000 && !is_told; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  EXPECT_FALSE(pack(options));
  second.join();
  EXPECT_TRUE(is_told);
}

mode_t ModeOf(const fs::path& path) {
  struct stat info = {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

TEST_F(WeightCacheTest, WhoMayReadTheCheckpointMayUseWhatIsPackedOfIt) {
  const ProcessGrid grid = *ProcessGrid::Create(1, 1);
  const auto backend = options_.make_backend();
  const fs::path packed = model_.directory() / "packed";
  for (const auto& [directory_mode, file_mode] :
       {std::pair(0700, 0600), {0750, 0640}, {0755, 0644}}) {
    SCOPED_TRACE(directory_mode);
    ASSERT_EQ(::chmod(model_.directory().c_str(), directory_mode), 0);
    for (const auto& file : model_.checkpoint().files()) {
      ASSERT_EQ(::chmod(file->path().c_str(), file_mode), 0);
    }
    ASSERT_TRUE(PackWeights(model_.checkpoint(), grid, *backend, PackOptions()).ok());
    EXPECT_EQ(ModeOf(packed), directory_mode);
    EXPECT_EQ(ModeOf(*fs::directory_iterator(packed)), file_mode);
  }
  if (::geteuid() != 0) return;
  ASSERT_EQ(::seteuid(65534), 0);
  const LoadStats stats = Load();
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(stats.mapped_bytes, stats.weight_bytes);
  EXPECT_EQ(notice_, "");
}

TEST_F(WeightCacheTest, PackedWeightsThatMayNotBeReadAreTold) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may become another user";
  const auto backend = options_.make_backend();
  ASSERT_TRUE(
      PackWeights(model_.checkpoint(), *ProcessGrid::Create(1, 1), *backend, PackOptions()).ok());
  ASSERT_EQ(::chmod(model_.directory().c_str(), 0755), 0);
  ASSERT_EQ(::chmod((model_.directory() / "packed").c_str(), 0700), 0);
  cache_ = "/proc/no-cache";
  std::vector<std::string> notices;
  options_.stage.on_notice = [&](const std::string& text) { notices.push_back(text); };
  ASSERT_EQ(::seteuid(65534), 0);
  const LoadStats stats = Load();
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(stats.mapped_bytes, 0);
  EXPECT_THAT(notices, ::testing::Contains(HasSubstr("packed ahead may not be read")));
}

TEST_F(WeightCacheTest, PackingOnAFullDiskLeavesNoFile) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto backend = options_.make_backend();
  EXPECT_FALSE(
      PackWeights(model_.checkpoint(), *ProcessGrid::Create(1, 1), *backend, PackOptions()).ok());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(fs::is_empty(model_.directory() / "packed"));
}

TEST_F(WeightCacheTest, PackingSaysWhyItCannot) {
  const auto backend = options_.make_backend();
  std::ofstream(model_.directory() / "packed") << "x";
  const auto packed =
      PackWeights(model_.checkpoint(), *ProcessGrid::Create(1, 1), *backend, PackOptions());
  EXPECT_THAT(std::string(packed.status().message()), HasSubstr("packed"));
  EXPECT_EQ(PackWeights(model_.checkpoint(), *ProcessGrid::Create(3, 1), *backend, PackOptions())
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(WeightCacheTest, ARankWithoutItsCacheLoadsAllTheSame) {
  std::ofstream(model_.directory() / "file") << "x";
  cache_ = model_.directory() / "file" / "cache";
  EXPECT_GT(Load().loaded_bytes, 0);
  EXPECT_THAT(notice_, HasSubstr("not kept in"));
  EXPECT_THAT(notice_, HasSubstr("Not a directory"));
}

}  // namespace
}  // namespace lockstep::testing
