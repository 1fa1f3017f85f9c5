// A checkpoint in FP8 in a temporary directory, and its twin: the same numbers as they are.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint/checkpoint.h"
#include "model/model_config.h"
#include "nlohmann/json_fwd.hpp"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {

// quantization_config of checkpoints like Meta's, which do not convert such modules; and like those
// of llm-compressor.
nlohmann::json FbgemmFp8(const std::vector<std::string>& not_converted,
                         std::optional<float> activation_scale_ub = 1200.0f);
nlohmann::json FloatQuantized(const std::vector<std::string>& ignored);

// All matrices of a model's layers, by their names (LayerMatrixName).
std::vector<std::string> MatrixNames(const ModelConfig& config);
// Those that Meta's FP8 checkpoint of the 405B has in 16 bits: attention's, and the MLPs' of the
// first and the last layer.
std::vector<std::string> SparedByMeta(const ModelConfig& config);

struct StoredTensor {
  std::string dtype;  // as safetensors names it
  std::vector<int64_t> shape;
  std::string bytes;
};
using StoredTensors = std::vector<std::pair<std::string, StoredTensor>>;
// Into a directory that need not be there. Fails the test when the checkpoint cannot be opened.
std::unique_ptr<Checkpoint> WriteCheckpoint(const std::filesystem::path& directory,
                                            const nlohmann::json& config,
                                            const StoredTensors& tensors);

class Float8Model {
 public:
  // Matrices lie in FP8 but for those of these names; quantization_config need not agree. Numbers,
  // and what config.json declares, are in dtype. With outliers matrices are larger and a number of
  // each norm far larger. Fails the test when it cannot be opened.
  Float8Model(ModelConfig config, DType dtype, const std::vector<std::string>& spared,
              const nlohmann::json& quantization_config, bool has_outliers = false);

  const Checkpoint& checkpoint() const { return *float8_; }
  const Checkpoint& plain() const { return *plain_; }
  const std::map<std::string, std::vector<float>>& numbers() const { return numbers_; }

 private:
  const TempDirectory directory_;
  std::unique_ptr<Checkpoint> float8_;
  std::unique_ptr<Checkpoint> plain_;
  std::map<std::string, std::vector<float>> numbers_;  // by their tensors' names
};

}  // namespace lockstep::testing
