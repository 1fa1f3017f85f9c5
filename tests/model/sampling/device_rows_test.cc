// Tokens chosen from logits on a device (the emulation of CUDA), by any number of ranks and for any
// number of rows, against those that the host chooses from the same.
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/sampling/device_choice.h"
#include "tests/model/sampling/device_group.h"
#include "tests/model/sampling/sampling_workload.h"
#include "tests/parallel/run_ranks.h"

namespace lockstep {
namespace {

using testing::DeepWorkload;
using testing::HostileWorkload;
using testing::Penalties;
using testing::PlainSequence;
using testing::RandomWorkload;
using testing::RankWorkload;
using testing::TopP;
using testing::Workload;

ShardedSizes VocabOnly(int64_t vocab_size) {
  ShardedSizes sizes;
  sizes.vocab_size = vocab_size;
  return sizes;
}

// Of more groups than rows could fill otherwise.
constexpr ChoiceLimits kSmallGroups = {.rows = 32, .kept_rows = 4, .gathered_bytes = 0};

struct How {
  int num_candidates = 256;
  int64_t tile_rows = 0;  // logits that are there at once; 0: all
  ChoiceLimits limits = {};
};

struct Run {
  std::vector<RowOutcome> outcomes;
  int64_t num_whole_rows = 0;
  bool decides_all = false;
  int64_t num_gathers = 0;  // of the device's two calls
  int64_t num_exchanges = 0;
};

SamplerOptions OptionsFor(const Workload& workload, const How& how) {
  return {.vocab_size = workload.vocab_size,
          .eos_token_ids = workload.eos_token_ids,
          .num_candidates = how.num_candidates};
}

absl::Status ChooseOnHost(const Workload& workload, const How& how, Communicator& tp, Run& run) {
  const RankWorkload mine(workload, VocabOf(VocabOnly(workload.vocab_size), tp.size(), tp.rank()));
  VocabSampler sampler(OptionsFor(workload, how), tp);
  RETURN_IF_ERROR(sampler.Choose(mine.rows(), mine.logits().data(), run.outcomes));
  run.num_whole_rows = sampler.num_whole_rows_gathered();
  return absl::OkStatus();
}

// A rank's logits on a device, of which a tile at a time is where a stage would have made it.
class TiledLogits {
 public:
  TiledLogits(Backend& backend, const RankWorkload& mine, int64_t tile_rows)
      : backend_(backend),
        num_rows_(std::ssize(mine.rows())),
        row_bytes_(num_rows_ == 0 ? 0 : std::ssize(mine.logits()) * 4 / num_rows_),
        tile_rows_(tile_rows > 0 ? tile_rows : num_rows_) {
    all_ = backend.Allocate(num_rows_ * row_bytes_).value();
    tile_ = backend.Allocate(tile_rows_ * row_bytes_).value();
    numbers_ = backend.Allocate(num_rows_ * 4).value();
    std::vector<int32_t> numbers(mine.rows().size());
    std::iota(numbers.begin(), numbers.end(), 0);
    backend.CopyToDevice(all_.data(), mine.logits().data(), all_.bytes());
    backend.CopyToDevice(numbers_.data(), numbers.data(), numbers_.bytes());
  }

  absl::Status Begin(VocabSampler& sampler, std::span<const LogitsRow> rows) {
    const auto tile = [&](int64_t first, int64_t count) -> absl::StatusOr<const float*> {
      EXPECT_EQ(first % tile_rows_, 0);
      EXPECT_EQ(count, std::min(tile_rows_, num_rows_ - first));
      if (row_bytes_ > 0) {
        backend_.GatherRows(all_.data(), numbers_.as<int32_t>() + first, count, row_bytes_,
                            tile_.data());
      }
      return tile_.as<float>();
    };
    return sampler.Begin(rows, {.logits = tile, .max_rows = tile_rows_});
  }

 private:
  Backend& backend_;
  const int64_t num_rows_;
  const int64_t row_bytes_;
  const int64_t tile_rows_;
  DeviceBuffer all_;
  DeviceBuffer tile_;
  DeviceBuffer numbers_;
};

absl::Status ChooseOnDevice(const Workload& workload, const How& how, Communicator& tp, Run& run) {
  const RankWorkload mine(workload, VocabOf(VocabOnly(workload.vocab_size), tp.size(), tp.rank()));
  ASSIGN_OR_RETURN(const auto backend, cuda::CudaBackend::Create({}));
  TiledLogits logits(*backend, mine, how.tile_rows);
  testing::DeviceGroup group(tp, *backend);
  ASSIGN_OR_RETURN(const auto device,
                   DeviceChooser::Create(*backend, workload.vocab_size, group,
                                         std::ssize(mine.rows()), {.limits = how.limits}));
  EXPECT_EQ(group.num_gathers(), 0) << "a rank that comes back would wait for others";
  VocabSampler sampler(OptionsFor(workload, how), tp, device.get());
  for (int time = 0; time < 2; ++time) {  // nothing is left over from a call
    RETURN_IF_ERROR(logits.Begin(sampler, mine.rows()));
    RETURN_IF_ERROR(sampler.Finish(run.outcomes));
  }
  run.decides_all = sampler.DecidesAll();
  EXPECT_EQ(sampler.WouldDecideAll(mine.rows()), run.decides_all);
  for (size_t i = 0; i < mine.rows().size() && run.decides_all; ++i) {
    if (mine.rows()[i].prompt_target >= 0) continue;
    EXPECT_TRUE(device->Chosen(static_cast<int64_t>(i)).has_value()) << "row " << i;
  }
  run.num_whole_rows = sampler.num_whole_rows_gathered();
  run.num_gathers = group.num_gathers();
  run.num_exchanges = group.num_exchanges();
  return absl::OkStatus();
}

bool Near(float a, float b) { return a == b || std::abs(a - b) < 1e-5f; }

void ExpectSame(const RowOutcome& got, const RowOutcome& want) {
  EXPECT_EQ(got.token, want.token);
  EXPECT_EQ(got.has_logprobs, want.has_logprobs);
  EXPECT_TRUE(Near(got.logprobs.logprob, want.logprobs.logprob))
      << got.logprobs.logprob << " " << want.logprobs.logprob;
  ASSERT_EQ(got.logprobs.top.size(), want.logprobs.top.size());
  for (size_t k = 0; k < got.logprobs.top.size(); ++k) {
    EXPECT_EQ(got.logprobs.top[k].token, want.logprobs.top[k].token);
    EXPECT_TRUE(Near(got.logprobs.top[k].logprob, want.logprobs.top[k].logprob));
  }
}

struct Runs {
  Run host;  // rank 0's
  Run device;
};

// The device's choices are the host's, on every rank.
Runs ExpectChoices(const Workload& workload, int tp, const How& how = {}) {
  std::vector<Run> host(tp);
  std::vector<Run> device(tp);
  testing::RunRanks(tp, 1, [&](int rank, RankGroups& groups) -> absl::Status {
    RETURN_IF_ERROR(ChooseOnHost(workload, how, *groups.tp, host[rank]));
    return ChooseOnDevice(workload, how, *groups.tp, device[rank]);
  });
  for (int rank = 0; rank < tp; ++rank) {
    EXPECT_EQ(device[rank].decides_all, device[0].decides_all);
    EXPECT_EQ(device[rank].outcomes.size(), workload.logits.size());
    for (size_t i = 0; i < device[rank].outcomes.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "row " << i << " on rank " << rank);
      ExpectSame(device[rank].outcomes[i], host[0].outcomes[i]);
    }
  }
  return {host[0], device[0]};
}

// All of them on the device.
Runs ExpectDecided(const Workload& workload, int tp, const How& how = {}) {
  SCOPED_TRACE(::testing::Message() << "tp " << tp << ", tiles of " << how.tile_rows);
  Runs runs = ExpectChoices(workload, tp, how);
  EXPECT_TRUE(runs.device.decides_all);
  EXPECT_EQ(runs.device.num_whole_rows, 0);
  return runs;
}

TEST(DeviceRows, ChoicesAreTheHosts) {
  for (const int64_t vocab_size : {513, 1100}) {
    for (const int tp : {1, 2, 4}) {
      const auto seed = static_cast<uint32_t>(vocab_size + tp);
      ExpectDecided(RandomWorkload(seed, vocab_size, 80 / tp), tp);
    }
  }
  ExpectDecided(RandomWorkload(9, 32003, 6), 1);
}

// Adjusted ones, with log-probabilities, without top-k or with a large one, and short summaries: as
// many whole rows as there can be, two of some, in several groups.
TEST(DeviceRows, AnyNumberIsDecidedHoweverDeepTheyGo) {
  for (const int tp : {1, 2, 3, 8}) {
    Workload workload = RandomWorkload(53, 701, 12 + 8 * tp);
    for (size_t i = 0; i < workload.sequences.size(); i += 2) {
      workload.sequences[i].params.temperature = 100.0f;
      workload.sequences[i].params.top_k = i % 4 == 0 ? 0 : 600;
    }
    const Runs runs = ExpectDecided(workload, tp, {.num_candidates = 4, .limits = kSmallGroups});
    EXPECT_GT(runs.host.num_whole_rows, std::ssize(workload.logits) / 8);
  }
}

TEST(DeviceRows, OneRankDecidesAnyNumberWithPenalties) {
  const Runs runs =
      ExpectDecided(DeepWorkload(47, 3000, 30, Penalties()), 1, {.limits = kSmallGroups});
  EXPECT_GT(runs.host.num_whole_rows, 10);
}

TEST(DeviceRows, RanksDecideAnyNumberWithTopP) {
  for (const int tp : {2, 3}) {
    const Runs runs =
        ExpectDecided(DeepWorkload(48, 3001, 30, TopP()), tp, {.limits = kSmallGroups});
    EXPECT_GT(runs.host.num_whole_rows, 10);
  }
}

// While they are short, all ranks gather whole rows and choose.
TEST(DeviceRows, RanksGatherFewWholeRowsAndDealOutMany) {
  SamplingParams params = Penalties();
  params.num_logprobs = 2;
  const Workload workload = DeepWorkload(55, 900, 5, params);
  for (const int tp : {2, 3}) {
    const auto few = ExpectDecided(workload, tp).device;
    EXPECT_EQ(few.num_exchanges, 0);
    EXPECT_EQ(few.num_gathers, 2 * 2) << "summaries, rows";
    const auto many = ExpectDecided(workload, tp, {.limits = {.gathered_bytes = 0}}).device;
    EXPECT_EQ(many.num_exchanges, 2);
    EXPECT_EQ(many.num_gathers, 2 * 2) << "summaries, choices";
  }
}

TEST(DeviceRows, LogprobsOfAdjustedRowsAreOfTheirRawLogits) {
  SamplingParams params = Penalties();
  params.num_logprobs = 3;
  for (const int tp : {1, 2, 3}) {
    ExpectDecided(DeepWorkload(49, 1500, 20, params), tp, {.limits = kSmallGroups});
  }
}

// More than fit one group, whatever they are; logits of some at a time.
TEST(DeviceRows, RowsMayComeInTiles) {
  ExpectDecided(RandomWorkload(50, 60, 270), 1);
  for (const int64_t tile_rows : {0, 7, 32}) {
    ExpectDecided(RandomWorkload(50, 100, 45), 1, {.tile_rows = tile_rows, .limits = kSmallGroups});
  }
  ExpectDecided(RandomWorkload(50, 100, 70), 2, {.tile_rows = 32, .limits = kSmallGroups});
  ExpectDecided(DeepWorkload(51, 700, 30, Penalties()), 2,
                {.tile_rows = 12, .limits = kSmallGroups});
}

TEST(DeviceRows, RanksWithoutLogitsChooseForOthers) {
  Workload workload = DeepWorkload(52, 5, 60, TopP());
  workload.eos_token_ids = {4};
  ExpectDecided(workload, 8, {.num_candidates = 1, .limits = kSmallGroups});
}

TEST(DeviceRows, HostileRowsAreTheHosts) {
  const Workload workload = HostileWorkload();
  for (const int tp : {1, 4}) ExpectDecided(workload, tp);
}

// Of ranks, some have no logits at all.
TEST(DeviceRows, TinyVocabulariesAreTheHosts) {
  for (const int64_t vocab_size : {1, 5, 9}) {
    Workload workload = RandomWorkload(static_cast<uint32_t>(vocab_size), vocab_size, 20);
    for (PlainSequence& sequence : workload.sequences) sequence.params.logit_bias.clear();
    workload.eos_token_ids = {static_cast<int32_t>(vocab_size - 1)};
    ExpectDecided(workload, 8);
  }
}

Workload WorkloadWithPenalties(int64_t vocab_size, int num_rows, int32_t num_tokens) {
  Workload workload = RandomWorkload(31, vocab_size, num_rows);
  for (PlainSequence& sequence : workload.sequences) {
    sequence.params.repetition_penalty = 1.3f;
    sequence.params.top_k = 50;
    for (int32_t token = 0; token < num_tokens; ++token) sequence.prompt.push_back(token);
  }
  workload.prompt_targets.assign(workload.prompt_targets.size(), -1);
  return workload;
}

// More tokens with penalties than go to the device at once.
TEST(DeviceRows, AnyNumberOfAdjustmentsIsDecided) {
  ExpectDecided(WorkloadWithPenalties(16000, 36, 8000), 2);
}

TEST(DeviceRows, ARowBeyondAllAdjustmentsIsTheHosts) {
  Workload workload = WorkloadWithPenalties(270000, 3, 0);
  for (int32_t token = 0; token < 265000; ++token) workload.sequences[1].prompt.push_back(token);
  EXPECT_FALSE(ExpectChoices(workload, 1).device.decides_all);
  ExpectDecided(workload, 2);  // each has half of the vocabulary
}

// Holds up a stream.
class Gate {
 public:
  void Close(cudaStream_t stream) {
    EXPECT_EQ(cudaLaunchHostFunc(stream, Await, this), cudaSuccess);
  }
  void Open() { is_open_ = true; }
  // Rather than by those who would not wait any longer.
  bool was_opened() const { return was_opened_; }

 private:
  static void Await(void* gate) {
    auto* mine = static_cast<Gate*>(gate);
    for (int i = 0; i < 3000 && !mine->is_open_; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    mine->was_opened_ = mine->is_open_.load();
  }

  std::atomic<bool> is_open_ = false;
  std::atomic<bool> was_opened_ = false;
};

TEST(DeviceRows, NobodyWaitsWhileTheyAreIssued) {
  const Workload workload = DeepWorkload(54, 700, 50, Penalties());
  testing::RunRanks(1, 1, [&](int, RankGroups& groups) -> absl::Status {
    const RankWorkload mine(workload, {0, workload.vocab_size});
    ASSIGN_OR_RETURN(const auto backend, cuda::CudaBackend::Create({}));
    TiledLogits logits(*backend, mine, 20);
    ASSIGN_OR_RETURN(const auto device,
                     DeviceChooser::Create(*backend, workload.vocab_size, *groups.tp,
                                           std::ssize(mine.rows()), {.limits = kSmallGroups}));
    VocabSampler sampler(OptionsFor(workload, {}), *groups.tp, device.get());
    Gate gate;
    gate.Close(backend->stream());
    for (int call = 0; call < DeviceChooser::kMaxInFlight; ++call) {
      RETURN_IF_ERROR(logits.Begin(sampler, mine.rows()));
    }
    gate.Open();
    std::vector<RowOutcome> outcomes;
    for (int call = 0; call < DeviceChooser::kMaxInFlight; ++call) {
      RETURN_IF_ERROR(sampler.Finish(outcomes));
    }
    EXPECT_TRUE(gate.was_opened());
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace lockstep
