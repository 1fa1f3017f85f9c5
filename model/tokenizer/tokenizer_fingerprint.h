// Whether two checkpoints have the same tokenizer.
#pragma once

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace lockstep {

// Of the bytes of directory/tokenizer.json; "none" where there is no such file. Errors as
// ReadTextFile (kernels/base/text_file.h).
absl::StatusOr<std::string> TokenizerFingerprint(const std::filesystem::path& directory);

}  // namespace lockstep
