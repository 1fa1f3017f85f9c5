#include "kernels/cpu/attention.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu/split_reader.h"

namespace lockstep::cpu {
namespace {

static_assert(kSplitTokens == kAttentionSplit);

// Query rows of an item: enough to share what is read, few enough to keep weights and
// values in the second-level cache.
constexpr int kItemRows = 48;
// Tasks per thread that even out tasks of unequal length.
constexpr int kTasksPerThread = 4;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

SoftmaxRows RowsAt(float* memory, int num_rows) {
  return {memory, memory + num_rows, memory + 2 * num_rows};
}

}  // namespace

struct AttentionRunner::Shape {
  const AttentionArgs& args;
  const BatchIndex& batch;
  const KvCacheView& cache;
  int head_dim;
  int group;  // query heads per KV head
  int64_t qkv_width;
  SplitReader reader;

  int max_rows() const { return std::max(kItemRows, group); }  // of an item's heads together
  int RowsOfHead(const Item& item) const { return item.num_tokens * group; }
  // Memory for so many rows of one head.
  int64_t QueryFloats(int num_rows) const { return RoundUp(int64_t{num_rows} * head_dim, 16); }
  int64_t StateFloats(int num_rows) const {
    return RoundUp(int64_t{num_rows} * (2 + head_dim), 16);
  }
};

struct AttentionRunner::ThreadScratch {
  float* weights;       // [max_rows][128]
  float* q;             // [heads of the item] packed rows
  float* totals;        // [heads of the item] states
  float* next;          // a state
  char* read;           // [2] keys and values of the step at hand and of the next
  SplitGroups* groups;  // likewise [2]
  int32_t* row_lens;    // [max_rows]
};

AttentionRunner::AttentionRunner(const VectorKernels& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), scratch_(pool.num_threads()) {}

void AttentionRunner::Run(const AttentionArgs& args) {
  const KvCacheView& cache = *args.cache;
  LS_CHECK_EQ(args.num_heads % cache.num_kv_heads, 0);
  const Shape shape = {args,
                       *args.batch,
                       cache,
                       cache.head_dim,
                       args.num_heads / cache.num_kv_heads,
                       int64_t{args.num_heads + 2 * cache.num_kv_heads} * cache.head_dim,
                       SplitReader(cache, kernels_)};
  PlanTiles(shape);
  PlanItems(shape);
  PlanTasks(shape);
  ReserveScratch(shape);
  pool_.ParallelFor(static_cast<int64_t>(tasks_.size()), [&](int64_t i, int thread) {
    const Task& task = tasks_[i];
    const Item& item = items_[task.item];
    item.state_offset < 0 ? RunWhole(shape, item, thread) : RunPart(shape, item, task, thread);
  });
  if (divided_.empty()) return;
  pool_.ParallelFor(static_cast<int64_t>(divided_.size()), [&](int64_t i, int) {
    MergeParts(shape, items_[divided_[i].item], divided_[i].head);
  });
}

void AttentionRunner::PlanTiles(const Shape& shape) {
  tiles_.clear();
  const int64_t tile_tokens = shape.max_rows() / shape.group;
  int64_t total_splits = 0;  // of all heads
  for (int64_t seq = 0; seq < shape.batch.num_seqs; ++seq) {
    const int64_t begin = shape.batch.query_starts[seq];
    const int64_t end = shape.batch.query_starts[seq + 1];
    const int64_t num_tiles = (end - begin + tile_tokens - 1) / tile_tokens;
    for (int64_t tile = num_tiles - 1; tile >= 0; --tile) {  // the longest contexts first
      const int64_t first = begin + tile * tile_tokens;
      const auto num_tokens = static_cast<int>(std::min<int64_t>(tile_tokens, end - first));
      const int64_t context = shape.batch.positions[first + num_tokens - 1] + int64_t{1};
      const auto num_splits = static_cast<int>((context + kSplitTokens - 1) / kSplitTokens);
      tiles_.push_back({seq, 0, shape.cache.num_kv_heads, first, num_tokens, num_splits, -1});
      total_splits += int64_t{num_splits} * shape.cache.num_kv_heads;
    }
  }
  const int num_threads = pool_.num_threads();
  task_splits_ = num_threads == 1
                     ? total_splits
                     : std::max<int64_t>(1, total_splits / (kTasksPerThread * num_threads));
}

void AttentionRunner::PlanItems(const Shape& shape) {
  items_.clear();
  for (const Item& tile : tiles_) {
    const int fitting = std::max(1, kItemRows / shape.RowsOfHead(tile));
    const auto heads = static_cast<int>(std::min<int64_t>(fitting, task_splits_));
    for (int head = 0; head < tile.num_heads; head += heads) {
      Item& item = items_.emplace_back(tile);
      item.first_head = head;
      item.num_heads = std::min(heads, tile.num_heads - head);
    }
  }
}

void AttentionRunner::PlanTasks(const Shape& shape) {
  tasks_.clear();
  divided_.clear();
  int64_t state_floats = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(items_.size()); ++i) {
    Item& item = items_[i];
    // At most half a thread's share for one task, else the others wait for it.
    const bool is_short = int64_t{item.num_splits} * item.num_heads <= 2 * task_splits_;
    if (item.num_splits < 2 || is_short) continue;
    item.state_offset = state_floats;
    state_floats +=
        int64_t{item.num_splits} * item.num_heads * shape.StateFloats(shape.RowsOfHead(item));
    for (int head = 0; head < item.num_heads; ++head) divided_.push_back({i, head});
    const auto part = static_cast<int>(task_splits_ / item.num_heads);
    for (int split = 0; split < item.num_splits; split += part)
      tasks_.push_back({i, split, std::min(part, item.num_splits - split)});
  }
  for (int64_t i = 0; i < static_cast<int64_t>(items_.size()); ++i) {
    if (items_[i].state_offset < 0) tasks_.push_back({i, 0, items_[i].num_splits});
  }
  states_.ReserveArray<float>(state_floats);
}

void AttentionRunner::ReserveScratch(const Shape& shape) {
  for (int thread = 0; thread < pool_.num_threads(); ++thread) ScratchOf(shape, thread);
}

AttentionRunner::ThreadScratch AttentionRunner::ScratchOf(const Shape& shape, int thread) {
  // Heads have a row each at least, so rounding for each row is room for all of them.
  const int64_t weights = int64_t{shape.max_rows()} * kSplitTokens;
  const int64_t q = shape.max_rows() * shape.QueryFloats(1);
  const int64_t states = shape.max_rows() * shape.StateFloats(1);
  const int64_t float_bytes = (weights + q + 2 * states) * static_cast<int64_t>(sizeof(float));
  const int64_t read_bytes = 2 * shape.reader.memory_bytes();
  const int64_t groups_bytes = 2 * static_cast<int64_t>(sizeof(SplitGroups));
  const int64_t lens_bytes = shape.max_rows() * static_cast<int64_t>(sizeof(int32_t));
  char* const memory = static_cast<char*>(
      scratch_[thread].Reserve(float_bytes + read_bytes + groups_bytes + lens_bytes));
  ThreadScratch scratch = {};
  scratch.weights = reinterpret_cast<float*>(memory);
  scratch.q = scratch.weights + weights;
  scratch.totals = scratch.q + q;
  scratch.next = scratch.totals + states;
  scratch.read = memory + float_bytes;
  scratch.groups = reinterpret_cast<SplitGroups*>(scratch.read + read_bytes);
  scratch.row_lens = reinterpret_cast<int32_t*>(scratch.groups + 2);
  return scratch;
}

// Of each KV head: rows are (token, head of the group), tokens outermost, in tiles as the kernels
// pack them.
void AttentionRunner::PackQueries(const Shape& shape, const Item& item, float* packed) const {
  const int num_rows = shape.RowsOfHead(item);
  const float* const qkv = AsF32(shape.args.qkv, shape.args.qkv_dtype);
  const auto pack = shape.reader.bf16() ? kernels_.pack_queries_bf16 : kernels_.pack_queries_f32;
  for (int head = 0; head < item.num_heads; ++head) {
    const int64_t first_head = int64_t{item.first_head + head} * shape.group;
    float* const packed_head = packed + head * shape.QueryFloats(num_rows);
    for (int first = 0; first < num_rows; first += kernels_.tile_rows) {
      const int rows = std::min(kernels_.tile_rows, num_rows - first);
      const float* q[kMaxTileRows];
      for (int r = 0; r < rows; ++r) {
        const int64_t token = item.first_token + (first + r) / shape.group;
        const int64_t query_head = first_head + (first + r) % shape.group;
        q[r] = qkv + token * shape.qkv_width + query_head * shape.head_dim;
      }
      pack(q, rows, shape.head_dim, shape.args.scale * shape.cache.k_scale,
           packed_head + int64_t{first} * shape.head_dim);
    }
  }
}

const SplitGroups& AttentionRunner::GroupsOf(const Shape& shape, const Item& item, const Step& step,
                                             const ThreadScratch& scratch) const {
  SplitGroups& groups = scratch.groups[step.index % 2];
  const int64_t begin = int64_t{step.split} * kSplitTokens;
  const int64_t last = shape.batch.positions[item.first_token + item.num_tokens - 1];
  const auto count = static_cast<int>(std::clamp<int64_t>(last + 1 - begin, 0, kSplitTokens));
  const int32_t* const blocks = shape.batch.BlockTable(item.seq);
  shape.reader.Read({blocks, item.first_head + step.head, begin, count},
                    scratch.read + step.index % 2 * shape.reader.memory_bytes(), groups);
  return groups;
}

void AttentionRunner::AttendSplits(const Shape& shape, const Item& item, const Task& task,
                                   const ThreadScratch& scratch, const auto& state_of,
                                   const auto& done) const {
  const int num_rows = shape.RowsOfHead(item);
  const int num_steps = task.num_splits * item.num_heads;
  const auto step_at = [&](int index) {
    return Step{task.first_split + index / item.num_heads, index % item.num_heads, index};
  };
  const int64_t last = shape.batch.positions[item.first_token + item.num_tokens - 1];
  const SplitGroups* groups = &GroupsOf(shape, item, step_at(0), scratch);
  for (int i = 0; i < num_steps; ++i) {
    const Step step = step_at(i);
    const SplitGroups* next =
        i + 1 < num_steps ? &GroupsOf(shape, item, step_at(i + 1), scratch) : groups;
    const int64_t begin = int64_t{step.split} * kSplitTokens;
    for (int t = 0; step.head == 0 && t < item.num_tokens; ++t) {
      const int64_t seen = shape.batch.positions[item.first_token + t] + int64_t{1} - begin;
      std::fill_n(scratch.row_lens + t * shape.group, shape.group,
                  static_cast<int32_t>(std::clamp<int64_t>(seen, 0, kSplitTokens)));
    }
    const SoftmaxRows state = state_of(step);
    kernels_.attend_split({scratch.q + step.head * shape.QueryFloats(num_rows), num_rows,
                           scratch.row_lens, groups, next, shape.reader.key_line_bytes(),
                           static_cast<int>(std::clamp<int64_t>(last + 1 - begin, 0, kSplitTokens)),
                           shape.head_dim, shape.reader.bf16(), scratch.weights, state});
    done(step);
    groups = next;
  }
}

// total = merge(total, next) for the rows that see any of the split; the first split is the total.
void AttentionRunner::MergeSplit(const Shape& shape, const Item& item, int split,
                                 const SoftmaxRows& total, const SoftmaxRows& next) const {
  const int32_t* const positions = shape.batch.positions + item.first_token;
  int token = 0;
  while (positions[token] < int64_t{split} * kSplitTokens) ++token;
  const int row = token * shape.group;
  const auto from_row = [&](const SoftmaxRows& rows) {
    return SoftmaxRows{rows.max + row, rows.sum + row, rows.values + int64_t{row} * shape.head_dim};
  };
  kernels_.merge_softmax(from_row(total), from_row(next), shape.RowsOfHead(item) - row,
                         shape.head_dim);
}

void AttentionRunner::RunWhole(const Shape& shape, const Item& item, int thread) {
  const ThreadScratch scratch = ScratchOf(shape, thread);
  const int num_rows = shape.RowsOfHead(item);
  const auto total_of = [&](int head) {
    return RowsAt(scratch.totals + head * shape.StateFloats(num_rows), num_rows);
  };
  const SoftmaxRows next = RowsAt(scratch.next, num_rows);
  PackQueries(shape, item, scratch.q);
  AttendSplits(
      shape, item, {0, 0, item.num_splits}, scratch,
      [&](const Step& step) { return step.split == 0 ? total_of(step.head) : next; },
      [&](const Step& step) {
        if (step.split > 0) MergeSplit(shape, item, step.split, total_of(step.head), next);
      });
  for (int head = 0; head < item.num_heads; ++head) WriteOut(shape, item, head, total_of(head));
}

SoftmaxRows AttentionRunner::DividedState(const Shape& shape, const Item& item, int split,
                                          int head) {
  const int num_rows = shape.RowsOfHead(item);
  const int64_t index = int64_t{split} * item.num_heads + head;
  float* const states = static_cast<float*>(states_.Reserve(0)) + item.state_offset;
  return RowsAt(states + index * shape.StateFloats(num_rows), num_rows);
}

void AttentionRunner::RunPart(const Shape& shape, const Item& item, const Task& task, int thread) {
  const ThreadScratch scratch = ScratchOf(shape, thread);
  PackQueries(shape, item, scratch.q);
  AttendSplits(
      shape, item, task, scratch,
      [&](const Step& step) { return DividedState(shape, item, step.split, step.head); },
      [](const Step&) {});
}

void AttentionRunner::MergeParts(const Shape& shape, const Item& item, int head) {
  const SoftmaxRows total = DividedState(shape, item, 0, head);
  for (int split = 1; split < item.num_splits; ++split)
    MergeSplit(shape, item, split, total, DividedState(shape, item, split, head));
  WriteOut(shape, item, head, total);
}

void AttentionRunner::WriteOut(const Shape& shape, const Item& item, int head,
                               const SoftmaxRows& state) const {
  const int64_t first_head = int64_t{item.first_head + head} * shape.group;
  for (int row = 0; row < shape.RowsOfHead(item); ++row) {
    const int64_t token = item.first_token + row / shape.group;
    const int64_t query_head = first_head + row % shape.group;
    float* out = static_cast<float*>(shape.args.out) +
                 (token * shape.args.num_heads + query_head) * shape.head_dim;
    kernels_.normalise(state.values + int64_t{row} * shape.head_dim,
                       state.sum[row] / shape.cache.v_scale, shape.head_dim, out);
  }
}

}  // namespace lockstep::cpu
