#include "model/tokenizer/tokenizer_fingerprint.h"

#include "absl/strings/str_format.h"
#include "kernels/base/text_file.h"
#include "model/stable_hash.h"
#include "model/tokenizer/tokenizer_file.h"

namespace lockstep {

absl::StatusOr<std::string> TokenizerFingerprint(const std::filesystem::path& directory) {
  const absl::StatusOr<std::string> text =
      ReadTextFile(directory / "tokenizer.json", kMaxTokenizerFileBytes);
  if (absl::IsNotFound(text.status())) return "none";
  if (!text.ok()) return text.status();
  return absl::StrFormat("%016x", Fnv1a64(*text));
}

}  // namespace lockstep
