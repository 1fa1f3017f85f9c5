// A byte-level BPE tokenizer for models with random weights, in Hugging Face's format: every id
// below vocab_size decodes, any text encodes.
//
// Ids that are not special hold, in ascending order: the 256 bytes, prefixes of common English
// words with the merges that build them, and pronounceable filler words. Pure and deterministic;
// any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "model/model_config.h"

namespace lockstep {

struct SyntheticTokenizer {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
};

// Special tokens are config's bos and eos ids, and, where bos lies in the vocabulary's last tenth,
// all from bos on (Llama 3's layout and names). INVALID_ARGUMENT if fewer than 256 ids remain for
// the bytes.
absl::StatusOr<SyntheticTokenizer> MakeSyntheticTokenizer(const ModelConfig& config);

}  // namespace lockstep
