// A checkpoint of any shape in a temporary directory, written by hand, tensor by tensor: random
// weights large enough for decided logits, unlike a synthesized model's. Tests may leave tensors
// out or change them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/dtype.h"
#include "model/checkpoint/checkpoint.h"
#include "model/model_config.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {

// Three layers, 8 query heads of 8 over num_kv_heads, hidden size 64, 176 intermediate, and a
// vocabulary of 515, which no tensor parallel size divides.
ModelConfig SmallConfig(int64_t num_kv_heads);

struct WrittenTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// What an element of a tensor is; asked for in order.
using WeightNumber = std::function<float(const WrittenTensor& tensor, int64_t element)>;
// Norms near 1, biases large enough to matter; matrices' elements have that deviation.
WeightNumber RandomNumbers(float deviation);

class TemporaryModel {
 public:
  // Of matrices' elements. Attention of wide heads looks at few tokens, and small errors grow.
  static constexpr float kDeviation = 0.15f;
  // The tensors that config implies, in dtype.
  TemporaryModel(const ModelConfig& config, DType dtype, float deviation = kDeviation);
  TemporaryModel(const ModelConfig& config, DType dtype, const std::vector<WrittenTensor>& tensors,
                 float deviation = kDeviation);
  // The tensors that config implies, of these numbers.
  TemporaryModel(const ModelConfig& config, DType dtype, const WeightNumber& number);
  TemporaryModel(const ModelConfig& config, DType dtype, const std::vector<WrittenTensor>& tensors,
                 const WeightNumber& number);
  TemporaryModel(const TemporaryModel&) = delete;
  TemporaryModel& operator=(const TemporaryModel&) = delete;

  // Opened. Fails the test when it cannot be.
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const std::filesystem::path& directory() const { return directory_.path(); }

  static std::vector<WrittenTensor> TensorsOf(const ModelConfig& config);

 private:
  void Write(const ModelConfig& config, DType dtype, const std::vector<WrittenTensor>& tensors,
             const WeightNumber& number);

  const TempDirectory directory_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

}  // namespace lockstep::testing
