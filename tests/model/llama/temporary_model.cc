#include "tests/model/llama/temporary_model.h"

#include <cstdlib>
#include <fstream>
#include <random>

#include "kernels/base/check.h"
#include "model/checkpoint/llama_tensors.h"
#include "nlohmann/json.hpp"

namespace lockstep::testing {
namespace {

int64_t NumElements(const WrittenTensor& tensor) {
  int64_t count = 1;
  for (const int64_t extent : tensor.shape) count *= extent;
  return count;
}

void WriteElement(std::ofstream& file, float value, DType dtype) {
  const F16 half = ToF16(value);
  const BF16 brain = ToBF16(value);
  const void* data = &value;
  if (dtype == DType::kF16) data = &half;
  if (dtype == DType::kBF16) data = &brain;
  file.write(static_cast<const char*>(data), DTypeBytes(dtype));
}

const char* SafetensorsName(DType dtype) {
  if (dtype == DType::kF32) return "F32";
  return dtype == DType::kF16 ? "F16" : "BF16";
}

void WriteSafetensors(const std::filesystem::path& path, const std::vector<WrittenTensor>& tensors,
                      DType dtype, const WeightNumber& number) {
  nlohmann::ordered_json header;
  int64_t offset = 0;
  for (const WrittenTensor& tensor : tensors) {
    const int64_t end = offset + NumElements(tensor) * DTypeBytes(dtype);
    header[tensor.name] = {{"dtype", SafetensorsName(dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text;
  for (const WrittenTensor& tensor : tensors) {
    for (int64_t i = 0; i < NumElements(tensor); ++i) WriteElement(file, number(tensor, i), dtype);
  }
  LS_CHECK(file.good());
}

}  // namespace

WeightNumber RandomNumbers(float deviation) {
  return [deviation, random = std::mt19937(7), normal = std::normal_distribution<float>()](
             const WrittenTensor& tensor, int64_t) mutable {
    if (tensor.shape.size() > 1) return deviation * normal(random);
    return tensor.name.ends_with(".bias") ? 0.5f * normal(random) : 1.0f + 0.1f * normal(random);
  };
}

ModelConfig SmallConfig(int64_t num_kv_heads) {
  ModelConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 176;
  config.num_layers = 3;
  config.num_heads = 8;
  config.num_kv_heads = num_kv_heads;
  config.head_dim = 8;
  config.vocab_size = 515;
  config.max_position_embeddings = 512;
  return config;
}

std::vector<WrittenTensor> TemporaryModel::TensorsOf(const ModelConfig& config) {
  std::vector<WrittenTensor> tensors;
  for (const TensorSpec& spec : LlamaTensors(config)) tensors.push_back({spec.name, spec.shape});
  return tensors;
}

TemporaryModel::TemporaryModel(const ModelConfig& config, DType dtype, float deviation)
    : TemporaryModel(config, dtype, TensorsOf(config), deviation) {}

TemporaryModel::TemporaryModel(const ModelConfig& config, DType dtype,
                               const std::vector<WrittenTensor>& tensors, float deviation)
    : TemporaryModel(config, dtype, tensors, RandomNumbers(deviation)) {}

TemporaryModel::TemporaryModel(const ModelConfig& config, DType dtype, const WeightNumber& number)
    : TemporaryModel(config, dtype, TensorsOf(config), number) {}

TemporaryModel::TemporaryModel(const ModelConfig& config, DType dtype,
                               const std::vector<WrittenTensor>& tensors,
                               const WeightNumber& number) {
  Write(config, dtype, tensors, number);
}

void TemporaryModel::Write(const ModelConfig& config, DType dtype,
                           const std::vector<WrittenTensor>& tensors, const WeightNumber& number) {
  ModelConfig written = config;
  written.dtype = dtype;
  std::ofstream(directory_ / "config.json") << ModelConfigJson(written);
  WriteSafetensors(directory_ / "model.safetensors", tensors, dtype, number);
  auto checkpoint = Checkpoint::Open(directory());
  LS_CHECK(checkpoint.ok()) << checkpoint.status();
  checkpoint_ = *std::move(checkpoint);
}

}  // namespace lockstep::testing
