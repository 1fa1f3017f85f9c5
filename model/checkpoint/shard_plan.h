// Which tensors of a model go into which safetensors file, and the bytes of the files' headers.
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/checkpoint/llama_tensors.h"

namespace lockstep {

struct PlannedTensor {
  TensorSpec spec;
  int64_t file_offset = 0;
  int64_t num_elements = 0;
  std::string dtype_name;  // safetensors': "BF16", "I32"
  int64_t num_bytes = 0;
};

// With everything but its place.
PlannedTensor TensorToWrite(const TensorSpec& spec, const std::string& dtype_name,
                            int64_t element_bytes);
std::string FileDTypeName(DType dtype);

struct PlannedFile {
  std::string name;    // "model.safetensors" or "model-00001-of-00003.safetensors"
  std::string header;  // length prefix and JSON, padded to 8 bytes
  std::vector<PlannedTensor> tensors;
  int64_t file_bytes = 0;
};

// Tensors in order, a new file when the next one would exceed max_shard_bytes (as transformers
// does).
std::vector<PlannedFile> PlanShards(const std::vector<TensorSpec>& specs, DType dtype,
                                    int64_t max_shard_bytes);

// The same for tensors of any dtypes.
std::vector<PlannedFile> PlanFiles(std::vector<PlannedTensor> tensors, int64_t max_shard_bytes);

// model.safetensors.index.json for several files.
std::string ShardIndexJson(const std::vector<PlannedFile>& files);

}  // namespace lockstep
