// Paged attention on the CPU: which thread takes which piece, and the merging of splits in order.
//
// An item is a tile of consecutive query tokens of one sequence with all query heads of some KV
// heads, so that each key and value is read once per tile. Few rows, a decode's, take several KV
// heads: these lie one after the other in a block of the cache, and split by split memory is read
// as it lies (of one thread, a fifth faster than head by head). An item is normally one task; one
// whose context is long beside all the others' together is divided into tasks of some splits each,
// whose states are kept and merged in ascending order afterwards: the same operations in the same
// order either way.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend_args.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {

// One caller at a time.
class AttentionRunner {
 public:
  AttentionRunner(const VectorKernels& kernels, ThreadPool& pool);
  void Run(const AttentionArgs& args);

 private:
  struct Item {
    int64_t seq;
    int first_head;  // KV heads
    int num_heads;
    int64_t first_token;  // in the batch
    int num_tokens;
    int num_splits;
    int64_t state_offset;  // floats into states_, for divided items; else -1
  };
  struct Task {
    int64_t item;
    int first_split;
    int num_splits;
  };
  struct DividedHead {
    int64_t item;
    int head;  // of the item
  };
  // What the kernels do at a time: one split of one head.
  struct Step {
    int split;
    int head;   // of the item
    int index;  // of the task
  };
  struct Shape;          // sizes common to the whole call
  struct ThreadScratch;  // pointers into one thread's scratch

  void PlanTiles(const Shape& shape);
  void PlanItems(const Shape& shape);
  void PlanTasks(const Shape& shape);
  void ReserveScratch(const Shape& shape);
  ThreadScratch ScratchOf(const Shape& shape, int thread);
  void PackQueries(const Shape& shape, const Item& item, float* packed) const;
  const SplitGroups& GroupsOf(const Shape& shape, const Item& item, const Step& step,
                              const ThreadScratch& scratch) const;
  // state_of(step): where its result goes; done(step): it is there.
  void AttendSplits(const Shape& shape, const Item& item, const Task& task,
                    const ThreadScratch& scratch, const auto& state_of, const auto& done) const;
  void RunWhole(const Shape& shape, const Item& item, int thread);
  void RunPart(const Shape& shape, const Item& item, const Task& task, int thread);
  SoftmaxRows DividedState(const Shape& shape, const Item& item, int split, int head);
  void MergeParts(const Shape& shape, const Item& item, int head);
  void MergeSplit(const Shape& shape, const Item& item, int split, const SoftmaxRows& total,
                  const SoftmaxRows& next) const;
  void WriteOut(const Shape& shape, const Item& item, int head, const SoftmaxRows& state) const;

  const VectorKernels& kernels_;
  ThreadPool& pool_;
  int64_t task_splits_ = 0;  // splits times heads that make a task, about
  std::vector<Item> tiles_;  // of all heads
  std::vector<Item> items_;
  std::vector<Task> tasks_;
  std::vector<DividedHead> divided_;
  std::vector<Scratch> scratch_;  // per thread
  Scratch states_;                // of divided items, split after split, in each head after head
};

}  // namespace lockstep::cpu
