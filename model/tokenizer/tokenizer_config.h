// What is followed of a tokenizer_config.json, the file beside tokenizer.json: add_bos_token and
// bos_token. Field names and meanings are those of transformers 4 (LlamaTokenizerFast); DeepSeek's
// files leave BOS out of tokenizer.json and count on them. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lockstep {

inline constexpr int64_t kMaxTokenizerConfigBytes = int64_t{1} << 20;

// The content of bos_token if add_bos_token is true. INVALID_ARGUMENT naming the file and what is
// not strict JSON (strict_json.h) or of another type; bos_token missing where it is to be added.
absl::StatusOr<std::optional<std::string>> ParseAddedBos(std::string_view tokenizer_config_json);

}  // namespace lockstep
