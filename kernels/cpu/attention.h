// Paged attention on the CPU: which thread takes which piece, and the merging of splits in order.
//
// An item is a tile of consecutive query tokens of one sequence with all query heads of one KV
// head, so that each key and value is read once per tile. An item is normally one task; one whose
// context is long beside all the others' together is divided into tasks of some splits each, whose
// states are kept and merged in ascending order afterwards: the same operations in the same order
// either way.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {

// One caller at a time.
class AttentionRunner {
 public:
  AttentionRunner(const VectorKernels& kernels, ThreadPool& pool);
  void Run(const Backend::AttentionArgs& args);

 private:
  struct Item {
    int64_t seq;
    int kv_head;
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
  struct Shape;          // sizes common to the whole call
  struct ThreadScratch;  // pointers into one thread's scratch

  void PlanItems(const Shape& shape);
  void PlanTasks(const Shape& shape);
  void ReserveScratch(const Shape& shape);
  ThreadScratch ScratchOf(const Shape& shape, int thread);
  void PackQueries(const Shape& shape, const Item& item, float* packed) const;
  const SplitGroups& GroupsOf(const Shape& shape, const Item& item, int split,
                              const ThreadScratch& scratch) const;
  void GatherGroups(const Shape& shape, const Item& item, int64_t begin, int count, char* memory,
                    SplitGroups& groups) const;
  // state_of(split): where its result goes; done(split): it is there.
  void AttendSplits(const Shape& shape, const Item& item, const Task& task,
                    const ThreadScratch& scratch, const auto& state_of, const auto& done) const;
  void RunWhole(const Shape& shape, const Item& item, int thread);
  void RunPart(const Shape& shape, const Item& item, const Task& task, int thread);
  void MergeParts(const Shape& shape, const Item& item, int thread);
  void MergeSplit(const Shape& shape, const Item& item, int split, const SoftmaxRows& total,
                  const SoftmaxRows& next) const;
  void WriteOut(const Shape& shape, const Item& item, const SoftmaxRows& state) const;

  const VectorKernels& kernels_;
  ThreadPool& pool_;
  std::vector<Item> items_;
  std::vector<Task> tasks_;
  std::vector<int64_t> divided_;  // indices into items_
  std::vector<Scratch> scratch_;  // per thread
  Scratch states_;                // of divided items, split after split
};

}  // namespace lockstep::cpu
