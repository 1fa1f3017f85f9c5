// A matrix as a checkpoint keeps it, read as rows that a weight can be filled with: numbers as they
// lie; or 4- and 8-bit weights of our format, taken as they are, as are those in FP8 if they are to
// be kept so; or those of others, turned into f32.
//
// Thread-safe after Open; the checkpoint must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/linear_weight.h"
#include "model/checkpoint/checkpoint.h"
#include "parallel/partition.h"

namespace lockstep {

// Memory of one loader thread, reused from piece to piece.
struct Staging {
  std::vector<std::byte> stored;     // as read
  std::vector<std::byte> converted;  // as handed on
  // Where rows that are handed on as they were read lie instead, if they fit: memory that a device
  // copies them from (HostRows::is_pinned). Empty: there is none.
  std::span<std::byte> pinned;
};

class RowSource {
 public:
  virtual ~RowSource() = default;
  // About the memory that a row of these columns takes in each part of the staging: pieces are cut
  // by it.
  virtual int64_t StagingRowBytes(Range columns) const = 0;
  // Bytes of the checkpoint that belong to these rows and columns.
  virtual int64_t StoredBytes(Range rows, Range columns) const = 0;
  // The rows lie in staging. UNAVAILABLE on a read error.
  virtual absl::StatusOr<HostRows> Read(Range rows, Range columns, Staging& staging) const = 0;
};

struct StoredMatrix {
  // One, or values and scales of native weights. Columns of all are the matrix's.
  std::vector<std::unique_ptr<RowSource>> sources;
  // The numbers' own: of matrices that are quantized in the checkpoint, what it declares.
  DType dtype = DType::kF32;
  Quantization native = Quantization::kNone;  // what the rows hold, if not numbers
  bool is_converted = false;                  // from another quantized format
  // LinearShape's, of kFp8.
  float activation_bound = kNoActivationBound;
};

// The tensor NAME.weight, or what takes its place in a quantized checkpoint (NAME.weight_packed and
// .weight_scale; NAME.qweight, .qzeros, .scales and .g_idx). num_k_slices: into how many K-slices
// products cut its columns, over all ranks of this layout; weights of our format become numbers
// where slices are not whole groups. INVALID_ARGUMENT naming a tensor that is missing or has
// another shape or dtype than it should.
struct MatrixName {
  std::string name;  // without ".weight"
  int64_t rows = 0;
  int64_t columns = 0;
  int num_k_slices = 1;
  bool keeps_float8 = false;  // FP8 becomes Quantization::kFp8, not numbers
  bool as_numbers = false;    // whatever it is stored as
};
absl::StatusOr<StoredMatrix> OpenMatrix(const Checkpoint& checkpoint, const MatrixName& matrix);

// A tensor of numbers, as it lies. A vector is one row.
std::unique_ptr<RowSource> PlainSource(const Checkpoint& checkpoint, const TensorInfo& tensor);

}  // namespace lockstep
