// What is followed of a tokenizer_config.json, the file beside tokenizer.json: add_bos_token: true,
// bos_token and tokenizer_class. Field names and meanings are those of transformers 4, where
// Llama's tokenizers alone heed add_bos_token; DeepSeek's files leave BOS out of tokenizer.json and
// count on that. (transformers 5 reads tokenizer.json alone, and as here false takes nothing away
// from it.) Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lockstep {

inline constexpr int64_t kMaxTokenizerConfigBytes = int64_t{64} << 20;  // lists added tokens

// The content of bos_token if it is to be added. INVALID_ARGUMENT naming the file and what is
// not strict JSON (strict_json.h) or of another type; bos_token missing where it is to be added.
absl::StatusOr<std::optional<std::string>> ParseAddedBos(std::string_view tokenizer_config_json);

}  // namespace lockstep
