// What `lockstep model inspect` says about a checkpoint: sizes, files, tensors and how a layout
// would share it out.
//
// Reads headers only. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/shard_sizes.h"

namespace lockstep {

struct FileSummary {
  std::string name;
  int64_t tensor_bytes = 0;
  int64_t num_tensors = 0;
};

struct ModelSummary {
  std::string directory;
  ModelConfig config;
  std::string fingerprint;  // Checkpoint::Fingerprint: what servers and ranks compare
  GenerationDefaults generation_defaults;
  int64_t num_parameters = 0;  // that the architecture has
  int64_t tensor_bytes = 0;    // that the files hold
  std::map<std::string, int64_t> bytes_by_dtype;
  std::vector<FileSummary> files;
  std::vector<TensorInfo> tensors;           // by name
  std::vector<std::string> unknown_tensors;  // present but not part of a Llama
  absl::Status tensor_check;                 // CheckLlamaTensors
  bool has_tokenizer = false;                // tokenizer.json is there
  int64_t kv_bytes_per_token = 0;            // whole model, at the checkpoint's dtype
  int tp = 1;
  int pp = 1;
  std::vector<RankShard> ranks;
};

// Errors of Checkpoint::Open and ShardsOfLayout. A checkpoint that lacks tensors is summarized; see
// tensor_check.
absl::StatusOr<ModelSummary> InspectModel(const std::filesystem::path& directory, int tp, int pp);

// What it does without and who serves it may miss, a line each.
std::vector<std::string> MissingForTexts(const ModelSummary& summary);
// Several lines for people; the tensors one per line if wanted.
std::string SummaryText(const ModelSummary& summary, bool list_tensors);
// One JSON object, sizes in bytes, the tensors always listed.
std::string SummaryJson(const ModelSummary& summary);

}  // namespace lockstep
