#include "deploy/plan/measurements.h"

#include <cmath>
#include <fstream>
#include <map>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "deploy/plan/memory_plan.h"
#include "kernels/base/status_macros.h"

namespace lockstep::plan {
namespace {

using Row = std::map<std::string, std::string>;

absl::StatusOr<std::vector<Row>> ReadCsv(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::vector<Row> rows;
  std::vector<std::string> names;
  std::string line;
  while (std::getline(file, line)) {
    std::vector<std::string> fields = absl::StrSplit(absl::StripTrailingAsciiWhitespace(line), ',');
    if (names.empty()) {
      names = std::move(fields);
      continue;
    }
    if (fields.size() != names.size()) {
      return absl::InvalidArgumentError(absl::StrCat(path, " line ", rows.size() + 2, " has ",
                                                     fields.size(), " fields, not ", names.size()));
    }
    Row& row = rows.emplace_back();
    for (size_t i = 0; i < names.size(); ++i) row[names[i]] = std::move(fields[i]);
  }
  return rows;
}

absl::StatusOr<double> Number(const Row& row, const char* name) {
  double value = 0.0;
  const auto found = row.find(name);
  if (found == row.end() || !absl::SimpleAtod(found->second, &value) || !(value > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("no number above zero in ", name));
  }
  return value;
}

std::string Text(const Row& row, const char* name) {
  const auto found = row.find(name);
  return found == row.end() ? "" : found->second;
}

// FNV-1a; its upper bits, the lowest being a mere parity.
bool InFitHalf(const Row& row) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char* name : {"model", "gpu", "engine", "engine_version", "precision", "gemm",
                           "input_tokens", "output_tokens", "concurrency", "tp", "pp"}) {
    for (const char c : absl::StrCat(Text(row, name), "|")) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    }
  }
  return (hash >> 40 & 1) != 0;
}

std::string BuiltInModel(const std::string& repository) {
  if (absl::StrContains(repository, "-70B")) return "llama-3.1-70b";
  if (absl::StrContains(repository, "-8B")) return "llama-3.1-8b";
  return repository;
}

// The cache's format is not among the columns. NVIDIA's quantized checkpoints ask for an fp8 cache,
// and TensorRT-LLM runs quantized models with one; the others keep 16 bits.
std::string KvOf(const Row& row) {
  const bool quantized = !Text(row, "precision").empty();
  const bool nvidia = absl::StartsWith(Text(row, "model"), "nvidia/");
  return nvidia || (quantized && Text(row, "engine") == "trtllm") ? "fp8" : "bf16";
}

absl::StatusOr<Measurement> ToMeasurement(const Row& row) {
  Measurement out;
  out.model = BuiltInModel(Text(row, "model"));
  out.gpu = Text(row, "gpu");
  out.engine = Text(row, "engine");
  out.engine_version = Text(row, "engine_version");
  const std::string precision = Text(row, "precision");
  out.weights = precision == "fp4" ? "nvfp4" : precision.empty() ? "bf16" : precision;
  out.kv = KvOf(row);
  ASSIGN_OR_RETURN(out.input_tokens, Number(row, "input_tokens"));
  ASSIGN_OR_RETURN(out.output_tokens, Number(row, "output_tokens"));
  ASSIGN_OR_RETURN(out.concurrency, Number(row, "concurrency"));
  ASSIGN_OR_RETURN(const double tp, Number(row, "tp"));
  ASSIGN_OR_RETURN(const double pp, Number(row, "pp"));
  out.tp = static_cast<int>(tp);
  out.pp = static_cast<int>(pp);
  out.expert_parallel = Text(row, "expert_parallel") == "1";
  ASSIGN_OR_RETURN(out.ttft_ms, Number(row, "ttft_ms"));
  ASSIGN_OR_RETURN(out.tpot_ms, Number(row, "tpot_ms"));
  out.in_fit_half = InFitHalf(row);
  return out;
}

std::string LinkOf(const std::string& gpu) {
  if (absl::StrContains(gpu, "A100")) return "NVLink 3";
  return absl::StrContains(gpu, "B200") ? "NVLink 5" : "NVLink 4";
}

}  // namespace

absl::StatusOr<std::vector<Measurement>> LoadMeasurements(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<Row> rows, ReadCsv(path));
  std::vector<Measurement> measurements;
  for (const Row& row : rows) {
    auto measurement = ToMeasurement(row);
    if (!measurement.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, " line ", measurements.size() + 2, ": ",
                                                     measurement.status().message()));
    }
    measurements.push_back(*std::move(measurement));
  }
  return measurements;
}

absl::StatusOr<MeasuredCase> MeasuredCase::Create(const Measurement& measurement) {
  MeasuredCase out;
  out.measurement_ = measurement;
  ASSIGN_OR_RETURN(out.model_, LoadModel(measurement.model));
  ASSIGN_OR_RETURN(out.gpu_, FindGpu(measurement.gpu));
  ASSIGN_OR_RETURN(out.weights_, FindWeightFormat(measurement.weights));
  ASSIGN_OR_RETURN(out.kv_, FindKvFormat(measurement.kv));
  const Layout layout = measurement.layout();
  RETURN_IF_ERROR(CheckModelLayout(out.model_.architecture, layout));
  const MemoryPlan memory =
      PlanMemory({out.model_.architecture, out.weights_, out.kv_, out.policy_, MemoryOptions(),
                  std::llround(out.gpu_.memory_gib * 0x1p30),
                  std::llround(measurement.input_tokens + measurement.output_tokens / 2),
                  out.gpu_.gpus_per_node},
                 layout);
  out.max_requests_ = std::max<int64_t>(1, memory.max_requests);
  out.stages_ = WorkOfStages(out.model_.architecture, out.weights_, layout);
  out.net_ = InterconnectOf(out.gpu_, out.gpu_.gpus_per_node);
  return out;
}

Prediction MeasuredCase::PredictWith(const EngineProfile& engine,
                                     const LoadPattern& pattern) const {
  const Deployment deployment{model_.architecture,   weights_,          kv_, policy_, gpu_, engine,
                              measurement_.layout(), gpu_.gpus_per_node};
  const Load load{measurement_.input_tokens, measurement_.output_tokens, measurement_.concurrency,
                  pattern};
  return Predict(Roofline(deployment, stages_, net_), engine, load, max_requests_);
}

double MeasuredCase::PromptFlopsShare() const {
  const double request_s =
      (measurement_.ttft_ms + measurement_.output_tokens * measurement_.tpot_ms) * 1e-3;
  const double parameters = static_cast<double>(model_.architecture.num_active_parameters());
  return 2.0 * parameters * measurement_.input_tokens * measurement_.concurrency / request_s /
         (measurement_.tp * measurement_.pp * gpu_.FlopsOf(weights_.operands));
}

absl::StatusOr<std::vector<MeasuredAllReduce>> LoadAllReduces(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<Row> rows, ReadCsv(path));
  std::map<std::tuple<std::string, double, double>, double> fastest;
  for (const Row& row : rows) {
    if (Text(row, "op") != "all_reduce" || Text(row, "implementation") == "vllm_eager") continue;
    ASSIGN_OR_RETURN(const double ranks, Number(row, "num_gpus"));
    ASSIGN_OR_RETURN(const double bytes, Number(row, "bytes"));
    ASSIGN_OR_RETURN(const double microseconds, Number(row, "latency_us"));
    const auto key = std::make_tuple(LinkOf(Text(row, "gpu")), ranks, bytes);
    const auto [place, is_new] = fastest.emplace(key, microseconds);
    if (!is_new) place->second = std::min(place->second, microseconds);
  }
  std::vector<MeasuredAllReduce> out;
  for (const auto& [key, microseconds] : fastest) {
    out.push_back({std::get<0>(key), static_cast<int>(std::get<1>(key)), std::get<2>(key),
                   microseconds * 1e-6});
  }
  return out;
}

}  // namespace lockstep::plan
