// A stage's weights from a checkpoint: which part of which tensor goes where.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/stored_matrix.h"
#include "model/llama/shard_reader.h"
#include "model/llama/weights.h"

namespace lockstep {

// "model.layers.3.self_attn.q_proj".
std::string LayerTensor(int64_t layer, const std::string& name);
// f32 where they differ, so that nothing is lost.
DType CommonDType(std::initializer_list<DType> dtypes);

// Allocates the stage's weights and notes which part of which tensor goes where; then reads
// everything at once. The weights' addresses must not change in between. One thread.
class StageLoader {
 public:
  StageLoader(const WeightSource& source, Backend& backend, Communicator& tp_group,
              StageWeights& weights)
      : source_(source),
        config_(source.checkpoint.config()),
        shape_(source.shape),
        backend_(backend),
        tp_group_(tp_group),
        weights_(weights) {}

  absl::Status Allocate();
  absl::Status Read(const LoadProgress& progress, LoadStats& stats);
  void Count(LoadStats& stats) const;

 private:
  absl::Status AddVocabulary();
  absl::Status AddLayer(int64_t layer, LayerWeights& weights);
  absl::Status AddAttention(int64_t layer, LayerWeights& weights);
  absl::Status AddMlp(int64_t layer, LayerWeights& weights);
  absl::Status AddHeadVectors(int64_t layer, LayerWeights& weights);
  absl::Status AddNorm(const std::string& name, int64_t size, DeviceBuffer& norm);
  absl::Status AllocateVector(int64_t size, DeviceBuffer& vector);
  // Some of a vector of `size` numbers, to place `first` of what is kept.
  absl::Status AddVector(const std::string& name, int64_t size, Range some, int64_t first,
                         DeviceBuffer& vector);

  // The outputs of these heads.
  Range RowsOf(Range heads) const {
    return {heads.begin * shape_.head_dim, heads.end * shape_.head_dim};
  }
  absl::StatusOr<const TensorInfo*> Find(std::string_view name,
                                         const std::vector<int64_t>& shape) const;
  absl::StatusOr<const StoredMatrix*> Open(const MatrixName& name);
  const RowSource* Plain(const TensorInfo* tensor);
  // Rows of a matrix, all columns of them or some.
  template <typename Layer>
  void AddRows(const StoredMatrix* matrix, Range rows, Range columns, Layer& layer,
               int64_t first_row);
  DType KeptDType(std::initializer_list<DType> dtypes) const;
  // Of matrices that are multiplied as one: the checkpoint spares some of them but not all, and
  // nobody asks for less than it has. Then all are held as numbers.
  bool SparesSome(int64_t layer, std::initializer_list<const char*> names) const;
  // What matrices that are multiplied as one become: `shape`, as those of this form are held.
  LinearShape Kept(std::initializer_list<const StoredMatrix*> matrices, LinearShape shape) const;

  const WeightSource& source_;
  const ModelConfig& config_;
  const StageShape& shape_;
  Backend& backend_;
  Communicator& tp_group_;
  StageWeights& weights_;
  std::vector<std::unique_ptr<StoredMatrix>> matrices_;
  std::vector<std::unique_ptr<RowSource>> plain_;
  std::vector<TensorPart> parts_;
  int64_t vector_bytes_ = 0;  // held
};

}  // namespace lockstep
