// The text of a model's config.json. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/statusor.h"

namespace lockstep {

// NVIDIA's ModelOpt leaves config.json as it was and says how it has quantized in a file beside it.
inline constexpr char kModelOptFile[] = "hf_quant_config.json";

// config_json: the file, of that name or another. Where it does not say how matrices are quantized
// and kModelOptFile lies beside it, that is its quantization_config. Errors as ReadTextFile;
// INVALID_ARGUMENT naming kModelOptFile where it is none of ModelOpt's.
absl::StatusOr<std::string> ReadConfigText(const std::filesystem::path& config_json,
                                           int64_t max_bytes = 16 << 20);

}  // namespace lockstep
