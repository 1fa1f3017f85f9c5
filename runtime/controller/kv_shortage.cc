#include "runtime/controller/kv_shortage.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/engine/spare_memory.h"

namespace lockstep {
namespace {

constexpr double kHighestUtilization = 0.97;   // beyond it the driver itself is short of memory
constexpr int64_t kFewestBatchedTokens = 256;  // with fewer, prompts are slow
constexpr int64_t kBatchedTokensStep = 64;

std::string Size(double bytes) {
  return bytes < 0x1p30 ? absl::StrFormat("%.2f MiB", bytes / 0x1p20)
                        : absl::StrFormat("%.2f GiB", bytes / 0x1p30);
}

double Bytes(const KvShortage& shortage, int64_t blocks) {
  return static_cast<double>(blocks) * static_cast<double>(shortage.block_bytes);
}

// More than is left, which may be less than nothing, with what is spared. At least one byte: what
// is there is not enough.
double MissingBytes(const KvShortage& shortage) {
  constexpr double kMost = 0x1p62;  // of any GPU's memory, by far
  const auto cache = static_cast<int64_t>(std::min(Bytes(shortage, shortage.needed_blocks), kMost));
  const auto left = static_cast<double>(shortage.memory->device.left_bytes);
  return std::max(static_cast<double>(LeftBytesFor(cache)) - left, 1.0);
}

// Where what others take of the GPU sets the limit, or nobody knows what the rank takes, a larger
// part of it would not help.
std::optional<std::string> HigherUtilization(const KvShortage& shortage) {
  const DeviceMemory& memory = shortage.memory->device;
  if (memory.other_bytes == 0 || memory.is_limited_by_others()) return std::nullopt;
  const double needed = static_cast<double>(memory.budget_bytes) + MissingBytes(shortage);
  const double share = std::ceil(100 * needed / static_cast<double>(memory.total_bytes)) / 100;
  if (share > kHighestUtilization) return std::nullopt;
  return absl::StrFormat("raise --gpu-memory-utilization to %.2f", share);
}

std::optional<std::string> FewerBatchedTokens(const KvShortage& shortage) {
  const auto of_token = static_cast<double>(shortage.memory->batched_token_bytes);
  const auto tokens = static_cast<double>(shortage.max_batched_tokens);
  if (of_token <= 0 || of_token * tokens < MissingBytes(shortage)) return std::nullopt;
  const auto enough = static_cast<int64_t>(tokens - std::ceil(MissingBytes(shortage) / of_token));
  const int64_t rounded = enough / kBatchedTokensStep * kBatchedTokensStep;
  if (rounded < std::max(kFewestBatchedTokens, shortage.max_num_seqs)) return std::nullopt;
  return absl::StrCat("lower --max-batched-tokens to ", rounded);
}

std::optional<std::string> Fp8Cache(const KvShortage& shortage) {
  if (shortage.is_fp8 || 2 * shortage.fitting_blocks < shortage.needed_blocks) return std::nullopt;
  return "keep the cache in 8 bits (--kv-cache-dtype fp8)";
}

std::optional<std::string> ShorterSequences(const KvShortage& shortage) {
  if (shortage.max_model_len == 0 || shortage.fitting_blocks == 0) return std::nullopt;
  return absl::StrCat("lower --max-model-len to ", shortage.fitting_blocks * shortage.block_size);
}

std::string WhatIsMissing(const KvShortage& shortage) {
  const std::string needed = absl::StrCat(
      shortage.needed_blocks, " KV block", shortage.needed_blocks == 1 ? "" : "s", " of ",
      shortage.block_size, " tokens (", Size(Bytes(shortage, shortage.needed_blocks)), ")");
  const std::string who = shortage.max_model_len == 0
                              ? "a model needs at least "
                              : absl::StrCat("max_model_len ", shortage.max_model_len, " needs ");
  return absl::StrCat(who, needed, ", but only ", shortage.fitting_blocks, " (",
                      Size(Bytes(shortage, shortage.fitting_blocks)), ") fit ", shortage.rank);
}

std::string WhatIsTaken(const RankMemory& memory) {
  const auto size = [](int64_t bytes) { return Size(static_cast<double>(bytes)); };
  const DeviceMemory& device = memory.device;
  return absl::StrCat(
      ", whose part of its GPU's ", size(device.total_bytes), " is ", size(device.budget_bytes),
      ": weights take ", size(memory.weight_bytes), ", buffers of steps ",
      size(memory.step_bytes()),
      device.other_bytes > 0
          ? absl::StrCat(", libraries and recorded steps ", size(device.other_bytes))
          : "",
      device.is_limited_by_others() ? absl::StrCat(", and other programs and the driver hold ",
                                                   size(device.foreign_bytes), " (see nvidia-smi)")
                                    : "");
}

}  // namespace

std::string DescribeKvShortage(const KvShortage& shortage) {
  const bool on_gpu = shortage.memory.has_value();
  std::vector<std::string> changes;
  const auto add = [&changes](const std::optional<std::string>& change) {
    if (change.has_value()) changes.push_back(*change);
  };
  if (on_gpu && !shortage.is_asked_for) {
    add(HigherUtilization(shortage));
    add(FewerBatchedTokens(shortage));
  } else {
    changes.push_back("give the KV cache more memory (--kv-cache-gib, --num-kv-blocks)");
  }
  add(Fp8Cache(shortage));
  add(ShorterSequences(shortage));
  if (changes.empty()) changes.push_back("use more GPUs");
  return absl::StrCat(WhatIsMissing(shortage), on_gpu ? WhatIsTaken(*shortage.memory) : "",
                      on_gpu ? "; " : ": ", absl::StrJoin(changes, ", or "));
}

}  // namespace lockstep
