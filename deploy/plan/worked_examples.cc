#include "deploy/plan/worked_examples.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/plan/catalog.h"
#include "deploy/plan/kv_bytes.h"
#include "deploy/plan/planner.h"
#include "deploy/plan/weight_bytes.h"
#include "kernels/base/check.h"
#include "model/checkpoint/nearest_name.h"

namespace lockstep::plan {
namespace {

constexpr int64_t kContext = 128000;  // "128k" of the slides
constexpr double kGiB = 0x1p30;

Architecture ModelOf(const char* name) {
  auto model = LoadModel(name);
  LS_CHECK(model.ok()) << model.status().message();
  return std::move(model)->architecture;
}

double KvGiB(const Architecture& model, const char* format, int64_t tokens) {
  const auto kv = FindKvFormat(format);
  return static_cast<double>(KvBytesPerToken({model, *kv, 1, 0, {0, model.num_layers}})) *
         static_cast<double>(tokens) / kGiB;
}

// 405B as first released: 16 KV heads, of which today's checkpoint has 8.
Architecture First405b() {
  Architecture model = ModelOf("llama-3.1-405b");
  model.num_kv_heads = 16;
  model.runtime_config.reset();
  return model;
}

// What a plan answers for one request of 128,000 tokens on H100s: "3 as tp 1 x pp 3".
std::string PlanOfOneRequest(const char* name) {
  PlanRequest request;
  request.model = *LoadModel(name);
  request.gpu = *FindGpu("h100");
  request.weights = *FindWeightFormat("bf16");
  request.kv = *FindKvFormat("bf16");
  request.engine = *FindEngine("vllm");
  request.context = kContext;
  request.concurrency = 1;
  const auto plan = MakePlan(request);
  LS_CHECK(plan.ok() && plan->answer() != nullptr) << name;
  const Layout& layout = plan->answer()->layout;
  return absl::StrFormat("%d as tp %d x pp %d", plan->answer()->reserved_gpus, layout.tp,
                         layout.pp);
}

struct Size {
  const char* model;
  const char* title;
  double nominal;        // billions of parameters, as its name says
  double weights_gb[3];  // quoted: 16, 8 and 4 bits
  double real_bf16_gb;
  double kv_gib;  // quoted, of 128,000 tokens
  double h100s;   // quoted
};
constexpr Size kSizes[] = {{"llama-3.1-8b", "8B", 8, {16, 8, 4}, 16.06, 15.62, 1},
                           {"llama-3.1-70b", "70B", 70, {140, 70, 35}, 141.1, 39.06, 2.24},
                           {"llama-3.1-405b", "405B", 405, {810, 405, 203}, 811.7, 123.05, 11.66}};

void AddWeights(std::vector<Figure>& figures) {
  const char* section = "Weights, decimal GB of nominal parameters";
  for (const Size& size : kSizes) {
    const int bits[] = {16, 8, 4};
    for (int i = 0; i < 3; ++i) {
      figures.push_back({section, absl::StrFormat("%s in %d bits", size.title, bits[i]),
                         size.weights_gb[i], size.nominal * bits[i] / 8, "GB", ""});
    }
    figures.push_back(
        {section, absl::StrFormat("%s in bf16, parameters counted", size.title), size.real_bf16_gb,
         TotalWeightBytes(ModelOf(size.model), *FindWeightFormat("bf16")) * 1e-9, "GB",
         "embedding and LM head included; quantized checkpoints keep both in "
         "16 bits"});
  }
}

void AddKv(std::vector<Figure>& figures) {
  const char* section = "KV cache of one request of 128,000 tokens, bf16";
  for (const Size& size : kSizes) {
    const bool first = size.nominal > 100;
    figures.push_back({section, absl::StrCat(size.title, first ? ", 16 KV heads" : ""), size.kv_gib,
                       KvGiB(first ? First405b() : ModelOf(size.model), "bf16", kContext), "GiB",
                       first ? "of its first release; replaced by 8 heads in September 2024" : ""});
  }
  const Architecture today = ModelOf("llama-3.1-405b");
  figures.push_back(
      {section, "405B, 8 KV heads as today", 61.5, KvGiB(today, "bf16", kContext), "GiB", ""});
  const auto kv = FindKvFormat("bf16");
  figures.push_back(
      {section, "405B, 8 KV heads, over tp 16", 123,
       16.0 * static_cast<double>(KvBytesPerToken({today, *kv, 16, 0, {0, 126}})) * kContext / kGiB,
       "GiB",
       "16 ranks share 8 heads: each is stored twice, so the old figure is "
       "real there"});
}

void AddGpus(std::vector<Figure>& figures) {
  const char* section = "H100s of 80 GB for weights and one such request";
  for (const Size& size : kSizes) {
    const double quotient = (size.weights_gb[0] + size.kv_gib) / 80;
    figures.push_back(
        {section, size.title, size.h100s, std::max(1.0, quotient), "GPUs",
         absl::StrCat("adds GB to GiB and reserves nothing; really ", PlanOfOneRequest(size.model),
                      ": 71.3 GiB of 79.2 usable, activations, whole ranks")});
  }
}

void AddSmall(std::vector<Figure>& figures) {
  const char* section = "KV cache of the 8B";
  const Architecture model = ModelOf("llama-3.1-8b");
  figures.push_back({section, "per token", 128, KvGiB(model, "bf16", 1) * kGiB / 1024, "KiB",
                     "2 x 32 layers x 8 heads x 128 x 2 bytes"});
  const std::pair<int64_t, double> contexts[] = {{4096, 0.5}, {8192, 1}, {32768, 4}, {131072, 16}};
  for (const auto& [tokens, quoted] : contexts) {
    figures.push_back({section, absl::StrFormat("of %d tokens", tokens), quoted,
                       KvGiB(model, "bf16", tokens), "GiB", ""});
  }
  MemoryOptions options;
  const auto bf16 = FindWeightFormat("bf16");
  const auto kv = FindKvFormat("bf16");
  const KvPolicy policy;
  const MemoryPlan memory = PlanMemory(
      {model, *bf16, *kv, policy, options, std::llround(FindGpu("h100")->memory_gib * kGiB), 4096},
      {});
  figures.push_back({section, "requests of 4,096 tokens on 80 GB", 128, (80.0 - 16.0) / 0.5, "",
                     absl::StrFormat("with utilization 0.9, activations and the driver's own "
                                     "memory %d",
                                     memory.max_requests)});
}

void AddWide(std::vector<Figure>& figures) {
  const char* section = "KV cache without grouped heads: 70B, 64 heads, f32";
  Architecture model = ModelOf("llama-3.1-70b");
  model.num_kv_heads = 64;
  model.runtime_config.reset();
  figures.push_back({section, "8,192 tokens", 40, KvGiB(model, "f32", 8192), "GiB", ""});
  figures.push_back({section, "128,000 tokens", 671, KvGiB(model, "f32", kContext) * kGiB * 1e-9,
                     "GB", "8 heads in bf16 take a sixteenth"});
}

void AddIntensity(std::vector<Figure>& figures) {
  const char* section = "Arithmetic intensity";
  const Gpu a100 = *FindGpu("a100");
  figures.push_back(
      {section, "A100 balance, 312 TFLOP/s over 2.0 TB/s", 156, 312.0 / 2.0, "FLOP/byte",
       absl::StrFormat("with the datasheet's %.0f GB/s %.0f", a100.bandwidth_gb_s,
                       a100.FlopsOf(Operands::k16Bits) / (a100.bandwidth_gb_s * 1e9))});
  figures.push_back({section, "decode, linear layers, batch 16: 2 B / 2 bytes", 16, 2.0 * 16 / 2,
                     "FLOP/byte", "B: memory-bound until the batch reaches the balance"});
  const Architecture model = ModelOf("llama-3.1-70b");
  figures.push_back({section, "decode, attention of the 70B: query heads per KV head", 8,
                     static_cast<double>(model.num_heads) / static_cast<double>(model.num_kv_heads),
                     "FLOP/byte", "independent of the batch: every sequence reads its own cache"});
  figures.push_back({section, "decode floor: 80 GB at 3 TB/s", 26.7, 80.0 / 3.0, "ms",
                     "no token comes sooner than its weights are read"});
}

struct RooflineRow {
  const char* name;
  double flops;  // per token of the step
  double weight_bytes;
  double other_bytes;  // per token
};

// One layer of the 8B at 2,048 tokens, on an A100: where each operation is bound.
std::string RooflineTable(const char* title, double tokens, double context) {
  const Architecture m = ModelOf("llama-3.1-8b");
  const double h = static_cast<double>(m.hidden_size);
  const double kv = static_cast<double>(m.num_kv_heads * m.head_dim);
  const double q = static_cast<double>(m.num_heads * m.head_dim);
  const double heads = static_cast<double>(m.num_heads);
  const double inner = static_cast<double>(m.intermediate_size);
  const double cache = kv * context * 2 / tokens;  // read once for all tokens of the step
  const RooflineRow rows[] = {
      {"q, k, v projections", 2 * h * (q + 2 * kv), 2 * h * (q + 2 * kv), 2 * (h + q + 2 * kv)},
      {"q k'", 2 * q * context, 0, 2 * q + cache + 2 * heads * context},
      {"softmax", 5 * heads * context, 0, 4 * heads * context},
      {"probabilities v", 2 * q * context, 0, 2 * q + cache + 2 * heads * context},
      {"output projection", 2 * h * q, 2 * h * q, 2 * (h + q)},
      {"gate and up", 4 * h * inner, 4 * h * inner, 2 * (h + 2 * inner)},
      {"down", 2 * h * inner, 2 * h * inner, 2 * (h + inner)}};
  const Gpu gpu = *FindGpu("a100");
  std::string out = absl::StrFormat("\n%s\n  %-22s %10s %10s %10s  %-8s %9s\n", title, "operation",
                                    "MFLOP", "MB", "FLOP/byte", "bound by", "us");
  for (const RooflineRow& row : rows) {
    const double flops = row.flops * tokens;
    const double bytes = row.weight_bytes + row.other_bytes * tokens;
    const double compute = flops / gpu.FlopsOf(Operands::k16Bits);
    const double memory = bytes / (gpu.bandwidth_gb_s * 1e9);
    absl::StrAppendFormat(&out, "  %-22s %10.1f %10.2f %10.2f  %-8s %9.2f\n", row.name,
                          flops * 1e-6, bytes * 1e-6, flops / bytes,
                          compute > memory ? "compute" : "memory", 1e6 * std::max(compute, memory));
  }
  return out;
}

std::string TokensPerDollar() {
  std::string out = "\nTokens per dollar, 64 requests of 2,000 tokens in and 500 out\n";
  const Prices prices = BuiltInPrices();
  for (const auto& [model, weights] :
       {std::pair("llama-3.1-8b", "bf16"), std::pair("llama-3.1-70b", "fp8"),
        std::pair("llama-3.1-405b", "fp8")}) {
    PlanRequest request;
    request.model = *LoadModel(model);
    request.gpu = *FindGpu("h100");
    request.weights = *FindWeightFormat(weights);
    request.kv = *FindKvFormat("bf16");
    request.engine = *FindEngine("vllm");
    request.usd_per_gpu_hour = prices.at(request.gpu.name).usd_per_gpu_hour;
    const auto plan = MakePlan(request);
    if (!plan.ok() || plan->answer() == nullptr) continue;
    absl::StrAppendFormat(
        &out,
        "  %-15s %-5s %2d H100 at $%.2f: %.0f thousand output tokens per dollar ($%.2f per "
        "million)\n",
        model, weights, plan->answer()->layout.gpus(), *request.usd_per_gpu_hour,
        1e3 / *plan->answer()->usd_per_million_tokens, *plan->answer()->usd_per_million_tokens);
  }
  return out;
}

}  // namespace

std::vector<Figure> FiguresOf405bSlides() {
  std::vector<Figure> figures;
  AddWeights(figures);
  AddKv(figures);
  AddGpus(figures);
  AddSmall(figures);
  AddWide(figures);
  AddIntensity(figures);
  return figures;
}

absl::StatusOr<std::string> ExplainText(const std::string& name) {
  if (name != "405b-slides") return UnknownName("set of examples", name, {"405b-slides"});
  std::string out = "Figures people quote, and the same by this planner's arithmetic\n";
  std::string section;
  for (const Figure& figure : FiguresOf405bSlides()) {
    if (figure.section != section) {
      section = figure.section;
      absl::StrAppendFormat(&out, "\n%s\n  %-52s %9s %9s\n", section, "", "quoted", "computed");
    }
    absl::StrAppendFormat(&out, "  %-52s %9.6g %9.5g %s\n", figure.question, figure.quoted,
                          figure.computed, figure.unit);
    if (!figure.remark.empty()) absl::StrAppendFormat(&out, "      %s\n", figure.remark);
  }
  out += RooflineTable("Roofline of one layer of the 8B on an A100: prefill of 2,048 tokens", 2048,
                       2048);
  out += RooflineTable("The same: decode of one token at 2,048 tokens", 1, 2048);
  return out + TokensPerDollar();
}

}  // namespace lockstep::plan
