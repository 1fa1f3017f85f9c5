#include "tests/model/llama/stage_driver.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu_backend_options.h"
#include "parallel/communicator.h"
#include "parallel/partition.h"

namespace lockstep::testing {
namespace {

struct Sequence {
  std::vector<int32_t> tokens;  // known so far
  int64_t num_computed = 0;
  int num_to_generate = 0;
  std::vector<int32_t> blocks = {};

  int64_t num_left() const { return std::ssize(tokens) - num_computed; }
  bool finished() const { return num_left() == 0 && num_to_generate == 0; }
};

struct Work {
  size_t sequence = 0;
  int64_t num_tokens = 0;
};

std::vector<Sequence> MakeSequences(const std::vector<Request>& requests, int block_size,
                                    uint32_t seed) {
  std::vector<Sequence> sequences;
  std::vector<int64_t> needs;
  for (const Request& request : requests) {
    const int64_t length = std::ssize(request.prompt) + request.num_greedy;
    sequences.push_back({.tokens = request.prompt, .num_to_generate = request.num_greedy});
    needs.push_back((length + block_size - 1) / block_size);
  }
  std::vector<int32_t> pool(static_cast<size_t>(std::accumulate(needs.begin(), needs.end(), 0)));
  std::iota(pool.begin(), pool.end(), 0);
  std::mt19937 random(seed);
  std::shuffle(pool.begin(), pool.end(), random);
  auto next = pool.begin();
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].blocks.assign(next, next + needs[i]);
    next += needs[i];
  }
  return sequences;
}

int64_t NumBlocks(const std::vector<Sequence>& sequences) {
  int64_t count = 0;
  for (const Sequence& sequence : sequences) count += std::ssize(sequence.blocks);
  return count;
}

// One rank's side of a run. All ranks take the same decisions from the same tokens.
class RankDriver {
 public:
  RankDriver(LlamaStage& stage, RankGroups& groups, const ModelConfig& config,
             const DriveOptions& options, std::vector<Sequence> sequences)
      : stage_(stage),
        groups_(groups),
        config_(config),
        options_(options),
        limits_(options.stage.limits),
        sequences_(std::move(sequences)),
        outcomes_(sequences_.size()) {}

  absl::StatusOr<std::vector<Outcome>> Run() {
    for (int64_t step = 0;; ++step) {
      const std::vector<Work> work = ChooseWork(step);
      if (work.empty() && AllFinished()) return std::move(outcomes_);
      if (!work.empty()) RETURN_IF_ERROR(RunStep(work));
    }
  }

 private:
  bool AllFinished() const {
    return std::all_of(sequences_.begin(), sequences_.end(),
                       [](const Sequence& sequence) { return sequence.finished(); });
  }
  std::vector<Work> ChooseWork(int64_t step) const;
  bool WantsLogits(const Sequence& sequence, int64_t position) const {
    return !options_.only_needed_logits || position + 1 == std::ssize(sequence.tokens);
  }
  StepBatch MakeBatch(const std::vector<Work>& work) const;
  absl::Status RunStep(const std::vector<Work>& work);
  absl::Status CollectLogits(const std::vector<Work>& work, int64_t num_rows);
  absl::StatusOr<std::vector<float>> GatherVocabulary(const float* mine);
  absl::StatusOr<int32_t> NextToken(size_t sequence);

  LlamaStage& stage_;
  RankGroups& groups_;
  const ModelConfig& config_;
  const DriveOptions& options_;
  const BatchLimits& limits_;
  std::vector<Sequence> sequences_;
  std::vector<Outcome> outcomes_;
};

std::vector<Work> RankDriver::ChooseWork(int64_t step) const {
  std::vector<Work> work;
  int64_t budget = limits_.max_batched_tokens;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const bool has_joined = !options_.staggered || step >= 2 * static_cast<int64_t>(i);
    const int64_t count = std::min({sequences_[i].num_left(), options_.chunk, budget});
    if (!has_joined || count == 0 || std::ssize(work) == limits_.max_num_seqs) continue;
    work.push_back({i, count});
    budget -= count;
  }
  return work;
}

StepBatch RankDriver::MakeBatch(const std::vector<Work>& work) const {
  StepBatch batch;
  batch.query_starts.push_back(0);
  for (const Work& item : work) {
    const Sequence& sequence = sequences_[item.sequence];
    for (int64_t i = 0; i < item.num_tokens; ++i) {
      const int64_t position = sequence.num_computed + i;
      const int64_t block = sequence.blocks[static_cast<size_t>(position / limits_.block_size)];
      if (WantsLogits(sequence, position)) {
        batch.logits_rows.push_back(static_cast<int32_t>(batch.token_ids.size()));
      }
      batch.token_ids.push_back(sequence.tokens[static_cast<size_t>(position)]);
      batch.positions.push_back(static_cast<int32_t>(position));
      batch.slot_mapping.push_back(block * limits_.block_size + position % limits_.block_size);
    }
    batch.query_starts.push_back(static_cast<int32_t>(batch.positions.size()));
    batch.context_lens.push_back(static_cast<int32_t>(sequence.num_computed + item.num_tokens));
    AddBlockTable(sequence.blocks, batch);
  }
  return batch;
}

absl::Status RankDriver::RunStep(const std::vector<Work>& work) {
  const StepBatch batch = MakeBatch(work);
  RETURN_IF_ERROR(stage_.Forward(batch));
  if (stage_.is_last()) RETURN_IF_ERROR(CollectLogits(work, std::ssize(batch.logits_rows)));
  for (const Work& item : work) {
    Sequence& sequence = sequences_[item.sequence];
    sequence.num_computed += item.num_tokens;
    if (sequence.num_left() > 0 || sequence.num_to_generate == 0) continue;
    ASSIGN_OR_RETURN(const int32_t token, NextToken(item.sequence));
    outcomes_[item.sequence].greedy.push_back(token);
    --sequence.num_to_generate;
    if (sequence.num_to_generate > 0)
      sequence.tokens.push_back(token);  // the last is chosen, not computed
  }
  return absl::OkStatus();
}

absl::Status RankDriver::CollectLogits(const std::vector<Work>& work, int64_t num_rows) {
  std::vector<std::vector<float>> rows;
  for (int64_t first = 0; first < num_rows; first += LlamaStage::kMaxLogitsRows) {
    const int64_t count = std::min(LlamaStage::kMaxLogitsRows, num_rows - first);
    ASSIGN_OR_RETURN(const float* mine, stage_.Logits(first, count));
    for (int64_t row = 0; row < count; ++row) {
      ASSIGN_OR_RETURN(std::vector<float> logits,
                       GatherVocabulary(mine + row * stage_.shape().vocab.size()));
      rows.push_back(std::move(logits));
    }
  }
  auto next = rows.begin();
  for (const Work& item : work) {
    const Sequence& sequence = sequences_[item.sequence];
    for (int64_t i = 0; i < item.num_tokens; ++i) {
      if (!WantsLogits(sequence, sequence.num_computed + i)) continue;
      outcomes_[item.sequence].logits.push_back(std::move(*next++));
    }
  }
  return absl::OkStatus();
}

// Shards may differ in size: each rank sends as much as the first, the largest, holds.
absl::StatusOr<std::vector<float>> RankDriver::GatherVocabulary(const float* mine) {
  const ShardedSizes sizes = config_.sharded_sizes();
  const int tp = groups_.tp->size();
  const int64_t widest = VocabOf(sizes, tp, 0).size();
  std::vector<float> padded(static_cast<size_t>(widest));
  std::copy_n(mine, stage_.shape().vocab.size(), padded.begin());
  std::vector<float> all(static_cast<size_t>(widest * tp));
  RETURN_IF_ERROR(
      groups_.tp->AllGather(padded.data(), widest * int64_t{sizeof(float)}, all.data()));
  std::vector<float> logits;
  for (int rank = 0; rank < tp; ++rank) {
    const auto shard = all.begin() + rank * widest;
    logits.insert(logits.end(), shard, shard + VocabOf(sizes, tp, rank).size());
  }
  return logits;
}

// The last stage tells the others.
absl::StatusOr<int32_t> RankDriver::NextToken(size_t sequence) {
  const int last = groups_.pp->size() - 1;
  int32_t token = 0;
  if (!stage_.is_last()) {
    RETURN_IF_ERROR(groups_.pp->Recv(last, &token, sizeof(token)));
    return token;
  }
  const std::vector<float>& logits = outcomes_[sequence].logits.back();
  token = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  for (int stage = 0; stage < last; ++stage) {
    RETURN_IF_ERROR(groups_.pp->Send(stage, &token, sizeof(token)));
  }
  return token;
}

}  // namespace

absl::StatusOr<std::vector<Outcome>> DriveRank(const Checkpoint& checkpoint,
                                               const ProcessGrid& grid, int rank,
                                               RankGroups& groups, const DriveOptions& options,
                                               const std::vector<Request>& requests) {
  const std::unique_ptr<Backend> backend = options.make_backend();
  if (options.stages_lie_apart) {
    groups.most_whole_bytes_from_previous = 0;
    groups.most_whole_bytes_to_next = 0;
  }
  RankGroups device;
  if (options.make_device_groups != nullptr) {
    ASSIGN_OR_RETURN(device, options.make_device_groups(*backend, groups));
  }
  RankGroups& of_stage = device.tp != nullptr ? device : groups;
  of_stage.most_undivided_bytes =
      options.most_undivided_bytes.value_or(of_stage.most_undivided_bytes);
  ASSIGN_OR_RETURN(const std::unique_ptr<LlamaStage> stage,
                   LlamaStage::Load(checkpoint, grid, rank, *backend, of_stage, options.stage,
                                    /*progress=*/nullptr));
  std::vector<Sequence> sequences =
      MakeSequences(requests, options.stage.limits.block_size, options.block_seed);
  RETURN_IF_ERROR(stage->AllocateKvCache(NumBlocks(sequences)));
  RankDriver driver(*stage, groups, checkpoint.config(), options, std::move(sequences));
  return driver.Run();
}

absl::StatusOr<std::vector<Outcome>> Drive(const Checkpoint& checkpoint,
                                           const DriveOptions& options,
                                           const std::vector<Request>& requests) {
  ASSIGN_OR_RETURN(const ProcessGrid grid, ProcessGrid::Create(options.tp, options.pp));
  std::vector<RankGroups> ranks = MakeInProcessGroups(grid);
  std::vector<absl::StatusOr<std::vector<Outcome>>> results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] =
          DriveRank(checkpoint, grid, static_cast<int>(rank), ranks[rank], options, requests);
      if (!results[rank].ok()) ranks[rank].tp->Abort();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A rank that was aborted says so; the one that caused it says why.
  absl::Status failure;
  for (const auto& result : results) {
    if (failure.ok() || absl::IsUnavailable(failure))
      failure = result.ok() ? failure : result.status();
  }
  RETURN_IF_ERROR(failure);
  for (int tp_rank = 1; tp_rank < grid.tp(); ++tp_rank) {
    const auto& other = results[static_cast<size_t>(grid.rank_of(grid.pp() - 1, tp_rank))];
    if (!SameBits(*other, *results[static_cast<size_t>(grid.rank_of(grid.pp() - 1, 0))])) {
      return absl::InternalError("ranks of the last stage disagree");
    }
  }
  return *std::move(results.back());
}

std::vector<Outcome> OfNeededLogits(std::vector<Outcome> outcomes) {
  for (Outcome& outcome : outcomes) {
    const auto num_needed = static_cast<std::ptrdiff_t>(outcome.greedy.size());
    outcome.logits.erase(outcome.logits.begin(), outcome.logits.end() - num_needed);
  }
  return outcomes;
}

double Distance(const std::vector<Outcome>& got, const std::vector<Outcome>& want) {
  double difference = 0;
  double length = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    for (size_t t = 0; t < got[i].logits.size() - got[i].greedy.size(); ++t) {
      for (size_t v = 0; v < got[i].logits[t].size(); ++v) {
        difference += std::pow(got[i].logits[t][v] - want[i].logits[t][v], 2);
        length += std::pow(want[i].logits[t][v], 2);
      }
    }
  }
  return std::sqrt(difference / length);
}

bool SameBits(const std::vector<Outcome>& a, const std::vector<Outcome>& b) {
  const auto same_row = [](const std::vector<float>& x, const std::vector<float>& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  };
  const auto same = [&](const Outcome& x, const Outcome& y) {
    return x.greedy == y.greedy &&
           std::equal(x.logits.begin(), x.logits.end(), y.logits.begin(), y.logits.end(), same_row);
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

std::function<std::unique_ptr<Backend>()> CpuBackends(int num_threads) {
  return [num_threads] {
    auto backend = MakeCpuBackend({.num_threads = num_threads});
    LS_CHECK(backend.ok()) << backend.status();
    return *std::move(backend);
  };
}

}  // namespace lockstep::testing
