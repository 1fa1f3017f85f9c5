// The syntax of tokenizer.json: strict JSON, with the two huge members (model.vocab, model.merges)
// read straight into vectors and everything else kept as a small tree. What the members mean is
// tokenizer_spec's business.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace lockstep {

struct TokenizerFile {
  std::vector<std::pair<std::string, int32_t>> vocab;       // token, id >= 0
  std::vector<std::pair<std::string, std::string>> merges;  // most preferred first
  bool has_vocab = false;
  bool has_merges = false;
  nlohmann::json rest;  // an object; its "model" lacks vocab and merges
};

inline constexpr int64_t kMaxTokenizerFileBytes = int64_t{64} << 20;
inline constexpr size_t kMaxTokenBytes = 8192;
inline constexpr int32_t kMaxTokenId = (1 << 22) - 1;  // tables are as long as the largest id

// INVALID_ARGUMENT for anything that is not JSON, repeats a name, nests too deeply, or whose vocab
// is not {token: id} and merges not "a b" or ["a", "b"].
absl::StatusOr<TokenizerFile> ReadTokenizerFile(std::string_view text);

// The id of an added token or, failing that, of one in the vocabulary. Reads no further than it has
// to, and tells nothing of what is malformed.
std::optional<int32_t> FindTokenId(std::string_view tokenizer_json, std::string_view content);

// Text from the file as error messages show it: in quotes, control characters escaped, not long.
std::string Quote(std::string_view text);

}  // namespace lockstep
