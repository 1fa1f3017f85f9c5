#include "deploy/plan/catalog.h"

#include <filesystem>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "deploy/plan/json_fields.h"
#include "deploy/plan/tables.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/checkpoint/config_text.h"
#include "model/checkpoint/nearest_name.h"
#include "model/json/strict_json.h"

namespace lockstep::plan {
namespace {

using nlohmann::json;

bool IsNamed(const json& entry, const std::string& wanted) {
  if (entry["name"] == json(wanted)) return true;
  for (const json& alias : entry["aliases"]) {
    if (alias == json(wanted)) return true;
  }
  return false;
}

std::vector<std::string> NamesOf(const json& entries) {
  std::vector<std::string> names;
  for (const json& entry : entries) names.push_back(entry["name"].get<std::string>());
  return names;
}

// [number, source]
double Number(const json& table, const json& entry, const char* field, Sources& sources) {
  const auto found = entry.find(field);
  if (found == entry.end()) return 0.0;
  const json& source = table["sources"][(*found)[1].get<std::string>()];
  LS_CHECK(source.is_object()) << field << " has no source";
  sources[field] = absl::StrCat(source["title"].get<std::string>(), " (",
                                source["date"].get<std::string>(), ")");
  return (*found)[0].get<double>();
}

Gpu ToGpu(const json& table, const json& entry) {
  Gpu gpu;
  gpu.name = entry["name"].get<std::string>();
  gpu.title = entry["title"].get<std::string>();
  gpu.driver_name = entry.value("driver_name", "");
  gpu.has_cuda = entry.value("cuda", true);
  gpu.link = entry["link"].get<std::string>();
  const auto number = [&](const char* field) { return Number(table, entry, field, gpu.sources); };
  gpu.memory_gib = number("memory_gib");
  gpu.bandwidth_gb_s = number("bandwidth_gb_s");
  gpu.f32_tflops = number("f32_tflops");
  gpu.bf16_tflops = number("bf16_tflops");
  gpu.fp8_tflops = number("fp8_tflops");
  gpu.int8_tops = number("int8_tops");
  gpu.fp4_tflops = number("fp4_tflops");
  gpu.link_gb_s = number("link_gb_s");
  gpu.nic_gb_s = number("nic_gb_s");
  gpu.link_gpus = static_cast<int>(number("link_gpus"));
  gpu.mesh_links = static_cast<int>(number("mesh_links"));
  gpu.pcie_gb_s = number("pcie_gb_s");
  gpu.gpus_per_node = static_cast<int>(number("gpus_per_node"));
  return gpu;
}

absl::StatusOr<Prices> ToPrices(const json& table) {
  if (!table.is_object() || !table.contains("prices") || !table["prices"].is_array()) {
    return absl::InvalidArgumentError("has no array \"prices\"");
  }
  Prices prices;
  for (const json& entry : table["prices"]) {
    if (!entry.is_object() || !entry.contains("gpu") || !entry["gpu"].is_string() ||
        !entry.contains("usd_per_gpu_hour") || !entry["usd_per_gpu_hour"].is_number()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a price needs \"gpu\" and \"usd_per_gpu_hour\": ", QuotedJson(entry)));
    }
    const double usd = entry["usd_per_gpu_hour"].get<double>();
    if (!(usd >= 0.0 && usd <= 1e6)) {
      return absl::InvalidArgumentError(
          absl::StrCat("usd_per_gpu_hour = ", usd, " is not in [0, 1000000]"));
    }
    const auto text = [&](const char* field) {
      const auto found = entry.find(field);
      return found != entry.end() && found->is_string() ? found->get<std::string>() : "";
    };
    ASSIGN_OR_RETURN(const Gpu gpu, FindGpu(entry["gpu"].get<std::string>()));
    const bool is_new =
        prices.insert({gpu.name, {usd, absl::StrCat(text("source"), " (", text("date"), ")")}})
            .second;
    if (!is_new) return absl::InvalidArgumentError(absl::StrCat(gpu.name, " has two prices"));
  }
  return prices;
}

// A line for each: its name and, of GPUs, what it is; then its aliases.
void AddNames(const json& entries, std::string& out) {
  for (const json& entry : entries) {
    absl::StrAppendFormat(&out, "  %-18s", entry["name"].get<std::string>());
    if (entry.contains("title")) {
      absl::StrAppendFormat(&out, " %-36s", entry["title"].get<std::string>());
    }
    const auto aliases = entry["aliases"].get<std::vector<std::string>>();
    absl::StrAppend(&out, aliases.empty() ? "" : " ", absl::StrJoin(aliases, ", "));
    absl::StripTrailingAsciiWhitespace(&out);
    out += "\n";
  }
}

}  // namespace

double Gpu::TeraflopsOf(Operands operands) const {
  switch (operands) {
    case Operands::k32Bits:
      return f32_tflops;
    case Operands::k16Bits:
      return bf16_tflops;
    case Operands::kFp8:
      return fp8_tflops;
    case Operands::kInt8:
      return int8_tops;
    case Operands::kFp4:
      return fp4_tflops;
  }
  return 0.0;
}

bool Gpu::Multiplies(Operands operands) const { return TeraflopsOf(operands) > 0; }

double Gpu::FlopsOf(Operands operands) const {
  return 1e12 * (Multiplies(operands) ? TeraflopsOf(operands) : bf16_tflops);
}

absl::StatusOr<Gpu> FindGpu(const std::string& name) {
  const json table = BuiltInTable(GpusJson());
  const std::string wanted = absl::AsciiStrToLower(name);
  for (const json& entry : table["gpus"]) {
    if (IsNamed(entry, wanted)) return ToGpu(table, entry);
  }
  return UnknownName("gpu", name, GpuNames());
}

std::vector<std::string> GpuNames() { return NamesOf(BuiltInTable(GpusJson())["gpus"]); }

absl::StatusOr<Model> LoadModel(const std::string& name_or_path) {
  const json table = BuiltInTable(ModelsJson());
  const std::string wanted = absl::AsciiStrToLower(name_or_path);
  for (const json& entry : table["models"]) {
    if (!IsNamed(entry, wanted)) continue;
    auto architecture = ParseArchitecture(entry["config"].dump());
    LS_CHECK(architecture.ok()) << architecture.status().message();
    return Model{entry["name"].get<std::string>(),
                 absl::StrCat(entry["source"].get<std::string>(), " (",
                              entry["date"].get<std::string>(), ")"),
                 "", *std::move(architecture)};
  }
  std::filesystem::path path(name_or_path);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    if (absl::StrContains(name_or_path, '/') || path.extension() == ".json") {
      return absl::NotFoundError(absl::StrCat("cannot read ", name_or_path, ": no such file"));
    }
    const absl::Status unknown = UnknownName("model", name_or_path, ModelNames());
    return absl::NotFoundError(
        absl::StrCat(unknown.message(), ", or the path of a config.json or its directory"));
  }
  if (std::filesystem::is_directory(path, error)) path /= "config.json";
  ASSIGN_OR_RETURN(const std::string text, ReadConfigText(path));
  auto architecture = ParseArchitecture(text);
  if (!architecture.ok()) return InFile(path, architecture.status());
  std::string name = std::filesystem::absolute(path).parent_path().filename().string();
  const std::string directory = path.has_parent_path() ? path.parent_path().string() : ".";
  return Model{std::move(name), path.string(), directory, *std::move(architecture)};
}

std::vector<std::string> ModelNames() { return NamesOf(BuiltInTable(ModelsJson())["models"]); }

std::string CatalogText() {
  std::string out =
      "Models (--model; or any config.json, or its directory) and their other names\n";
  AddNames(BuiltInTable(ModelsJson())["models"], out);
  out += "GPUs (--gpu; or cpu: this host) and their other names\n";
  AddNames(BuiltInTable(GpusJson())["gpus"], out);
  return out;
}

Prices BuiltInPrices() {
  auto prices = ToPrices(BuiltInTable(PricesJson()));
  LS_CHECK(prices.ok()) << prices.status().message();
  return *std::move(prices);
}

absl::StatusOr<Prices> LoadPrices(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  auto table = ParseStrictJson(text);
  if (!table.ok()) return InFile(path, table.status());
  auto prices = ToPrices(*table);
  if (!prices.ok()) return InFile(path, prices.status());
  return prices;
}

}  // namespace lockstep::plan
