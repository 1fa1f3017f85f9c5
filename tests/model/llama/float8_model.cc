#include "tests/model/llama/float8_model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>

#include "kernels/base/check.h"
#include "model/checkpoint/float8_sources.h"
#include "model/checkpoint/llama_tensors.h"
#include "nlohmann/json.hpp"

namespace lockstep::testing {
namespace {

// A matrix of finite e4m3 numbers, the largest of them in each row, by scales that are powers of
// two: quantizing the numbers it stands for, which both other dtypes hold, gives it back.
struct Float8Matrix {
  std::vector<uint8_t> values;
  std::vector<float> scales;
  std::vector<float> numbers;
};
Float8Matrix DrawFloat8(int64_t rows, int64_t columns, int exponent, std::mt19937& random) {
  Float8Matrix matrix;
  for (int64_t row = 0; row < rows; ++row) {
    matrix.scales.push_back(std::ldexp(1.0f, exponent - static_cast<int>(random() % 3)));
    for (int64_t column = 0; column < columns; ++column) {
      const auto sign = static_cast<uint8_t>(random() % 2 << 7);
      const auto magnitude = static_cast<uint8_t>(column == row % columns ? 0x7e : random() % 0x7f);
      matrix.values.push_back(sign | magnitude);
      matrix.numbers.push_back(ToFloat(E4M3{matrix.values.back()}) * matrix.scales.back());
    }
  }
  return matrix;
}

template <typename T>
std::string BytesOf(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string BytesIn(DType dtype, const std::vector<float>& numbers) {
  if (dtype == DType::kF32) return BytesOf(numbers);
  std::vector<uint16_t> bits;
  for (const float number : numbers) {
    bits.push_back(dtype == DType::kF16 ? ToF16(number).bits : ToBF16(number).bits);
  }
  return BytesOf(bits);
}

const char* NameIn(DType dtype) {
  if (dtype == DType::kF32) return "F32";
  return dtype == DType::kF16 ? "F16" : "BF16";
}

}  // namespace

nlohmann::json FbgemmFp8(const std::vector<std::string>& not_converted,
                         std::optional<float> activation_scale_ub) {
  nlohmann::json config = {{"quant_method", "fbgemm_fp8"},
                           {"modules_to_not_convert", not_converted}};
  if (activation_scale_ub.has_value()) config["activation_scale_ub"] = *activation_scale_ub;
  return config;
}

nlohmann::json FloatQuantized(const std::vector<std::string>& ignored) {
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"ignore", ignored},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}}}}}}};
}

std::vector<std::string> MatrixNames(const ModelConfig& config) {
  std::vector<std::string> names;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const LayerMatrix matrix : kLayerMatrices) names.push_back(LayerMatrixName(layer, matrix));
  }
  return names;
}

std::vector<std::string> SparedByMeta(const ModelConfig& config) {
  std::vector<std::string> names;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const LayerMatrix matrix : kLayerMatrices) {
      const bool is_edge = layer == 0 || layer == config.num_layers - 1;
      const bool is_attention = matrix <= LayerMatrix::kO;
      if (is_edge || is_attention) names.push_back(LayerMatrixName(layer, matrix));
    }
  }
  return names;
}

Float8Model::Float8Model(ModelConfig config, DType dtype, const std::vector<std::string>& spared,
                         const nlohmann::json& quantization_config, bool has_outliers) {
  std::mt19937 random(3);
  const std::vector<std::string> matrices = MatrixNames(config);
  const auto has = [](const std::vector<std::string>& names, const std::string& tensor) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return tensor == name + ".weight"; });
  };
  StoredTensors float8, plain;
  for (const TensorSpec& tensor : LlamaTensors(config)) {
    const int64_t rows = tensor.shape[0];
    const int64_t columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    const Float8Matrix matrix = DrawFloat8(rows, columns, has_outliers ? -5 : -11, random);
    std::vector<float> numbers = matrix.numbers;
    if (tensor.shape.size() == 1) numbers.assign(static_cast<size_t>(rows), 1.0f);
    if (tensor.shape.size() == 1 && has_outliers) numbers[5] = 300.0f;
    numbers_[tensor.name] = numbers;
    plain.emplace_back(tensor.name,
                       StoredTensor{NameIn(dtype), tensor.shape, BytesIn(dtype, numbers)});
    if (!has(matrices, tensor.name) || has(spared, tensor.name)) {
      float8.push_back(plain.back());
      continue;
    }
    float8.emplace_back(tensor.name, StoredTensor{"F8_E4M3", tensor.shape, BytesOf(matrix.values)});
    float8.emplace_back(tensor.name + "_scale",
                        StoredTensor{"F32", {rows, 1}, BytesOf(matrix.scales)});
  }
  config.dtype = dtype;
  nlohmann::json json = nlohmann::json::parse(ModelConfigJson(config));
  plain_ = WriteCheckpoint(directory_ / "plain", json, plain);
  json["quantization_config"] = quantization_config;
  float8_ = WriteCheckpoint(directory_ / "float8", json, float8);
}

std::unique_ptr<Checkpoint> WriteCheckpoint(const std::filesystem::path& directory,
                                            const nlohmann::json& config,
                                            const StoredTensors& tensors) {
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << config.dump();
  nlohmann::ordered_json header;
  size_t offset = 0;
  for (const auto& [tensor, stored] : tensors) {
    header[tensor] = {{"dtype", stored.dtype},
                      {"shape", stored.shape},
                      {"data_offsets", {offset, offset + stored.bytes.size()}}};
    offset += stored.bytes.size();
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(directory / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text;
  for (const auto& tensor : tensors) file << tensor.second.bytes;
  file.close();
  auto opened = Checkpoint::Open(directory);
  LS_CHECK(opened.ok()) << opened.status();
  return *std::move(opened);
}

}  // namespace lockstep::testing
