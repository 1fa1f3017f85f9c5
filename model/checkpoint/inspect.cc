#include "model/checkpoint/inspect.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/llama_tensors.h"
#include "model/json/strict_json.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

std::string BytesText(int64_t bytes) {
  if (bytes >= 1'000'000'000) return absl::StrFormat("%.2f GB", bytes * 1e-9);
  if (bytes >= 1'000'000) return absl::StrFormat("%.2f MB", bytes * 1e-6);
  if (bytes >= 1'000) return absl::StrFormat("%.2f kB", bytes * 1e-3);
  return absl::StrFormat("%d bytes", bytes);
}

std::string CountText(int64_t count) {
  if (count >= 1'000'000'000) return absl::StrFormat("%.2f billion", count * 1e-9);
  if (count >= 1'000'000) return absl::StrFormat("%.2f million", count * 1e-6);
  return absl::StrCat(count);
}

std::string ScalingText(const LinearRopeScaling& scaling) {
  return absl::StrFormat("linear (factor %g)", scaling.factor);
}

std::string ScalingText(const Llama3RopeScaling& scaling) {
  return absl::StrFormat("llama3 (factor %g, low %g, high %g, original %d)", scaling.factor,
                         scaling.low_freq_factor, scaling.high_freq_factor,
                         scaling.original_max_position_embeddings);
}

std::string ScalingText(const YarnRopeScaling& scaling) {
  return absl::StrFormat("yarn (factor %g, original %d)", scaling.factor,
                         scaling.original_max_position_embeddings);
}

std::string RopeText(const ModelConfig& config) {
  std::string text = absl::StrFormat("rope_theta %g", config.rope_theta);
  if (!config.rope_scaling.has_value()) return text;
  return absl::StrCat(
      text, ", rope_scaling ",
      std::visit([](const auto& scaling) { return ScalingText(scaling); }, *config.rope_scaling));
}

std::string ConfigText(const ModelConfig& config, int tp) {
  std::string text = absl::StrFormat(
      "  hidden_size %d, intermediate_size %d, %d layers, %d heads (%d KV) of %d, vocab_size %d\n",
      config.hidden_size, config.intermediate_size, config.num_layers, config.num_heads,
      config.num_kv_heads, config.head_dim, config.vocab_size);
  absl::StrAppendFormat(
      &text, "  %d positions%s, %s, rms_norm_eps %g, %s embeddings, declared %s\n",
      config.max_position_embeddings, config.sliding_window ? " (its sliding window)" : "",
      RopeText(config), config.rms_norm_eps, config.tie_word_embeddings ? "tied" : "untied",
      std::string(DTypeName(config.dtype)));
  if (config.stored.has_value()) {
    absl::StrAppendFormat(&text, "  matrices stored as %s\n",
                          config.LoadingText(Quantization::kNone, tp));
  }
  absl::StrAppendFormat(
      &text, "  bos %s, eos %s\n",
      config.bos_token_id ? absl::StrCat(*config.bos_token_id) : "none",
      config.eos_token_ids.empty() ? "none" : absl::StrJoin(config.eos_token_ids, ", "));
  return text;
}

std::string FilesText(const ModelSummary& summary) {
  std::string text;
  for (const FileSummary& file : summary.files) {
    absl::StrAppendFormat(&text, "  %s: %d tensors, %s\n", file.name, file.num_tensors,
                          BytesText(file.tensor_bytes));
  }
  for (const std::string& missing : MissingForTexts(summary)) {
    absl::StrAppend(&text, "  ", missing, "\n");
  }
  for (const std::string& name : summary.unknown_tensors) {
    absl::StrAppend(&text, "  not used: ", UnknownTensorText(name), "\n");
  }
  if (!summary.tensor_check.ok()) {
    absl::StrAppend(&text, "  cannot be served: ", summary.tensor_check.message(), "\n");
  }
  return text;
}

// One line per stage: its tp ranks hold nearly the same.
std::string LayoutText(const ModelSummary& summary) {
  std::string text =
      absl::StrFormat("  tp %d x pp %d = %d rank%s; KV cache %s per token\n", summary.tp,
                      summary.pp, summary.ranks.size(), summary.ranks.size() == 1 ? "" : "s",
                      BytesText(summary.kv_bytes_per_token));
  for (int stage = 0; stage < summary.pp; ++stage) {
    const auto first = summary.ranks.begin() + stage * summary.tp;
    const auto largest = std::max_element(
        first, first + summary.tp,
        [](const RankShard& a, const RankShard& b) { return a.weight_bytes < b.weight_bytes; });
    absl::StrAppendFormat(
        &text,
        "    stage %d: layers %d-%d, at most %s of weights and %s of KV per token and rank\n",
        stage, first->layers.begin, first->layers.end - 1, BytesText(largest->weight_bytes),
        BytesText(largest->kv_bytes_per_token));
  }
  return text;
}

std::string TensorsText(const ModelSummary& summary) {
  std::string text;
  for (const TensorInfo& tensor : summary.tensors) {
    absl::StrAppend(&text, "  ", Quoted(tensor.name), " ", tensor.dtype_name, " [",
                    absl::StrJoin(tensor.shape, ", "), "] ", BytesText(tensor.num_bytes), "\n");
  }
  return text;
}

template <typename T>
ordered_json OrNull(const std::optional<T>& value) {
  return value.has_value() ? ordered_json(*value) : ordered_json(nullptr);
}

ordered_json TensorsJson(const ModelSummary& summary) {
  ordered_json tensors = ordered_json::array();
  for (const TensorInfo& tensor : summary.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"dtype", tensor.dtype_name},
                       {"shape", tensor.shape},
                       {"bytes", tensor.num_bytes},
                       {"file", summary.files[tensor.file_index].name}});
  }
  return tensors;
}

ordered_json RanksJson(const ModelSummary& summary) {
  ordered_json ranks = ordered_json::array();
  for (const RankShard& shard : summary.ranks) {
    ranks.push_back({{"rank", shard.rank},
                     {"stage", shard.stage},
                     {"tp_rank", shard.tp_rank},
                     {"layers", {shard.layers.begin, shard.layers.end}},
                     {"weight_bytes", shard.weight_bytes},
                     {"kv_bytes_per_token", shard.kv_bytes_per_token}});
  }
  return ranks;
}

ordered_json FilesJson(const ModelSummary& summary) {
  ordered_json files = ordered_json::array();
  for (const FileSummary& file : summary.files) {
    files.push_back(
        {{"name", file.name}, {"tensors", file.num_tensors}, {"tensor_bytes", file.tensor_bytes}});
  }
  return files;
}

ordered_json GenerationJson(const GenerationDefaults& defaults) {
  return {{"do_sample", OrNull(defaults.do_sample)},
          {"temperature", OrNull(defaults.temperature)},
          {"top_p", OrNull(defaults.top_p)},
          {"top_k", OrNull(defaults.top_k)},
          {"min_p", OrNull(defaults.min_p)},
          {"repetition_penalty", OrNull(defaults.repetition_penalty)}};
}

void AddTensors(const Checkpoint& checkpoint, ModelSummary& summary) {
  for (const auto& file : checkpoint.files()) {
    FileSummary& added = summary.files.emplace_back();
    added.name = file->path().filename().string();
    added.num_tensors = static_cast<int64_t>(file->tensors().size());
    for (const TensorInfo& tensor : file->tensors()) added.tensor_bytes += tensor.num_bytes;
  }
  for (const std::string& name : checkpoint.tensor_names()) {
    const TensorInfo& tensor = **checkpoint.Find(name);
    summary.bytes_by_dtype[tensor.dtype_name] += tensor.num_bytes;
    summary.tensors.push_back(tensor);
  }
}

}  // namespace

absl::StatusOr<ModelSummary> InspectModel(const fs::path& directory, int tp, int pp) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(directory));
  ModelSummary summary;
  summary.directory = directory.string();
  summary.config = checkpoint->config();
  ASSIGN_OR_RETURN(summary.fingerprint, checkpoint->Fingerprint());
  summary.generation_defaults = checkpoint->generation_defaults();
  summary.num_parameters = summary.config.num_parameters();
  summary.tensor_bytes = checkpoint->total_bytes();
  summary.unknown_tensors = UnknownTensors(*checkpoint);
  summary.tensor_check = CheckLlamaTensors(*checkpoint);
  std::error_code error;
  summary.has_tokenizer = fs::exists(directory / "tokenizer.json", error);
  summary.kv_bytes_per_token = KvBytesPerToken(summary.config, summary.config.dtype);
  summary.tp = tp;
  summary.pp = pp;
  ASSIGN_OR_RETURN(summary.ranks, HeldShards(summary.config, tp, pp, {summary.config.dtype}));
  AddTensors(*checkpoint, summary);
  return summary;
}

std::vector<std::string> MissingForTexts(const ModelSummary& summary) {
  std::vector<std::string> missing;
  if (!summary.has_tokenizer) missing.push_back("no tokenizer.json: prompts must be token ids");
  if (summary.config.eos_token_ids.empty()) {
    missing.push_back(
        "no end token (eos_token_id in config.json or generation_config.json, eos_token in "
        "tokenizer_config.json): texts end at max_tokens or a client's stop alone");
  }
  return missing;
}

std::string SummaryText(const ModelSummary& summary, bool list_tensors) {
  std::vector<std::string> dtypes;
  for (const auto& [name, bytes] : summary.bytes_by_dtype) {
    dtypes.push_back(absl::StrCat(name, " ", BytesText(bytes)));
  }
  std::string text =
      absl::StrFormat("%s: %s, %s parameters, %s (%s)\n", summary.directory,
                      TraitsOf(summary.config.family).name, CountText(summary.num_parameters),
                      BytesText(summary.tensor_bytes), absl::StrJoin(dtypes, ", "));
  absl::StrAppend(&text, ConfigText(summary.config, summary.tp), "  fingerprint ",
                  summary.fingerprint, "\n", FilesText(summary), LayoutText(summary));
  if (list_tensors) text += TensorsText(summary);
  return text;
}

std::string SummaryJson(const ModelSummary& summary) {
  const ordered_json out = {
      {"directory", summary.directory},
      {"config", ordered_json::parse(ModelConfigJson(summary.config))},
      {"fingerprint", summary.fingerprint},
      {"generation_defaults", GenerationJson(summary.generation_defaults)},
      {"num_parameters", summary.num_parameters},
      {"tensor_bytes", summary.tensor_bytes},
      {"bytes_by_dtype", summary.bytes_by_dtype},
      {"files", FilesJson(summary)},
      {"unknown_tensors", summary.unknown_tensors},
      {"problem", summary.tensor_check.ok()
                      ? ordered_json(nullptr)
                      : ordered_json(std::string(summary.tensor_check.message()))},
      {"has_tokenizer", summary.has_tokenizer},
      {"kv_bytes_per_token", summary.kv_bytes_per_token},
      {"tp", summary.tp},
      {"pp", summary.pp},
      {"ranks", RanksJson(summary)},
      {"tensors", TensorsJson(summary)},
  };
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep
