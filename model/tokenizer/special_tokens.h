// The special tokens that a checkpoint names by what they are for ("bos_token", "eos_token" and
// such): tokenizer_config.json's, else special_tokens_map.json's, where older tokenizers name them.
// Pure but for reading files; any thread.
// Source: transformers' tokenization_utils_base.py (special_tokens_map).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace lockstep {

using SpecialTokens = std::map<std::string, std::string>;  // what for, the token's text

// Files that are missing name none. INVALID_ARGUMENT naming the file and what is not strict JSON
// (strict_json.h) or no object; UNAVAILABLE.
absl::StatusOr<SpecialTokens> ReadSpecialTokens(const std::filesystem::path& directory);

// The id that tokenizer.json gives "eos_token"; none where the one or the other is missing or
// malformed, which those tell who need more of them than this (Tokenizer::Load).
std::optional<int32_t> FindEndToken(const std::filesystem::path& directory);

}  // namespace lockstep
