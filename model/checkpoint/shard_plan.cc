#include "model/checkpoint/shard_plan.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/check.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

int64_t NumElements(const TensorSpec& spec) {
  int64_t count = 1;
  for (const int64_t extent : spec.shape) count *= extent;
  return count;
}

std::string LittleEndian64(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

// Written by hand: names are plain ASCII of ours, and a library's map would sort them.
std::string HeaderJson(const std::vector<PlannedTensor>& tensors) {
  std::string text = R"({"__metadata__":{"format":"pt"})";
  int64_t offset = 0;
  for (const PlannedTensor& tensor : tensors) {
    const int64_t end = offset + tensor.num_bytes;
    absl::StrAppend(&text, ",\"", tensor.spec.name, "\":{\"dtype\":\"", tensor.dtype_name,
                    "\",\"shape\":[", absl::StrJoin(tensor.spec.shape, ","), "],\"data_offsets\":[",
                    offset, ",", end, "]}");
    offset = end;
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

void FinishFile(PlannedFile& file) {
  const std::string json = HeaderJson(file.tensors);
  file.header = LittleEndian64(json.size()) + json;
  file.file_bytes = static_cast<int64_t>(file.header.size());
  for (PlannedTensor& tensor : file.tensors) {
    tensor.file_offset = file.file_bytes;
    file.file_bytes += tensor.num_bytes;
  }
}

}  // namespace

std::string FileDTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kE4M3:
      return "F8_E4M3";
  }
  return "?";
}

PlannedTensor TensorToWrite(const TensorSpec& spec, const std::string& dtype_name,
                            int64_t element_bytes) {
  const int64_t num_elements = NumElements(spec);
  return {spec, 0, num_elements, dtype_name, num_elements * element_bytes};
}

std::vector<PlannedFile> PlanShards(const std::vector<TensorSpec>& specs, DType dtype,
                                    int64_t max_shard_bytes) {
  std::vector<PlannedTensor> tensors;
  for (const TensorSpec& spec : specs) {
    tensors.push_back(TensorToWrite(spec, FileDTypeName(dtype), DTypeBytes(dtype)));
  }
  return PlanFiles(std::move(tensors), max_shard_bytes);
}

std::vector<PlannedFile> PlanFiles(std::vector<PlannedTensor> tensors, int64_t max_shard_bytes) {
  LS_CHECK_GT(max_shard_bytes, 0);
  std::vector<PlannedFile> files(1);
  int64_t shard_bytes = 0;
  for (PlannedTensor& tensor : tensors) {
    if (!files.back().tensors.empty() && tensor.num_bytes > max_shard_bytes - shard_bytes) {
      files.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += tensor.num_bytes;
    files.back().tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].name = files.size() == 1
                        ? "model.safetensors"
                        : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, files.size());
    FinishFile(files[i]);
  }
  return files;
}

std::string ShardIndexJson(const std::vector<PlannedFile>& files) {
  nlohmann::json weight_map = nlohmann::json::object();
  int64_t total_bytes = 0;
  for (const PlannedFile& file : files) {
    for (const PlannedTensor& tensor : file.tensors) {
      weight_map[tensor.spec.name] = file.name;
      total_bytes += tensor.num_bytes;
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}},
                                {"weight_map", std::move(weight_map)}};
  return index.dump(1) + "\n";
}

}  // namespace lockstep
