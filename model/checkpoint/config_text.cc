// Source of the file's form: ModelOpt's unified export (modelopt/torch/export/quant_utils.py),
// {"producer": {"name": "modelopt", ...}, "quantization": {"quant_algo": ..., ...}}.
#include "model/checkpoint/config_text.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<nlohmann::json> ReadModelOpt(const fs::path& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, max_bytes));
  absl::StatusOr<nlohmann::json> quantization = ParseStrictJson(text);
  if (!quantization.ok()) return InFile(path, quantization.status());
  if (!quantization->is_object() || !quantization->contains("quantization")) {
    return absl::InvalidArgumentError(absl::StrCat(
        path.string(), ": not an object with the field \"quantization\", as ModelOpt writes it"));
  }
  (*quantization)["quant_method"] = "modelopt";
  return quantization;
}

}  // namespace

absl::StatusOr<std::string> ReadConfigText(const fs::path& config_json, int64_t max_bytes) {
  ASSIGN_OR_RETURN(std::string text, ReadTextFile(config_json, max_bytes));
  const fs::path beside = config_json.parent_path() / kModelOptFile;
  std::error_code error;
  if (!fs::exists(beside, error)) return text;
  absl::StatusOr<nlohmann::json> config = ParseStrictJson(text);
  if (!config.ok() || !config->is_object()) return text;  // who parses it says so
  for (const char* name : {"quantization_config", "compression_config"}) {
    if (const auto found = config->find(name); found != config->end() && !found->is_null()) {
      return text;
    }
  }
  ASSIGN_OR_RETURN((*config)["quantization_config"], ReadModelOpt(beside, max_bytes));
  return config->dump();
}

}  // namespace lockstep
