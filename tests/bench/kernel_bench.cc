// How fast the CPU kernels are, and what share of this machine's limits that is.
//
// Limits are measured in the same run with the same number of threads: multiply-adds in registers
// before, and by turns with the runs of each case the read bandwidth over 512 MB, as neighbours
// change it within seconds. Each case is checked against the reference backend, warmed up, and
// timed as the median of its runs; copies of the weights are used in turn, more than any cache
// holds. Shapes are those of Llama 3.2 1B.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "kernels/cpu_backend_options.h"
#include "tests/bench/kernel_inputs.h"
#include "tests/bench/kernel_report.h"
#include "tests/bench/machine_limits.h"
#include "tests/bench/timing.h"

namespace lockstep::bench {
namespace {

struct Options {
  std::vector<int> threads = {1, 2, 4};
  std::string isa = "auto";
  std::string only;
  std::string dtype;                                  // all if empty
  std::vector<int> rows = {1, 2, 4, 8, 16, 64, 512};  // of linear layers
  std::string json;
};

struct LinearCase {
  const char* name;
  int64_t out_features;
  int64_t in_features;
  int num_k_slices;
};

constexpr LinearCase kLinearCases[] = {
    {"qkv", 3072, 2048, 1},  {"o", 2048, 2048, 8},         {"gate_up", 16384, 2048, 1},
    {"down", 2048, 8192, 8}, {"lm_head", 128256, 2048, 1},
};

// How weights are kept.
struct Format {
  DType dtype = DType::kF32;
  Quantization quantization = Quantization::kNone;
  const char* name() const {
    return quantization == Quantization::kNone ? DTypeName(dtype).data()
                                               : QuantizationName(quantization).data();
  }
};

// 64 rows again and again.
std::unique_ptr<LinearWeight> Weight(Backend& backend, const LinearCase& c, const Format& format,
                                     const std::vector<float>& rows) {
  auto weight = backend.AllocateLinear(
      {c.out_features, c.in_features, format.dtype, c.num_k_slices, format.quantization});
  LS_CHECK(weight.ok()) << weight.status();
  for (int64_t row = 0; row < c.out_features; row += 64) {
    backend.FillLinear(
        **weight, row,
        {rows.data(), DType::kF32, std::min<int64_t>(64, c.out_features - row), c.in_features * 4});
  }
  return *std::move(weight);
}

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {}

  void Run() {
    for (const int threads : options_.threads) {
      Begin(threads);
      LinearLayers();
      AttentionLayers();
      for (const int64_t tokens : {1, 512}) {
        AddRmsNorm(tokens);
        SiluMul(tokens);
      }
    }
    if (!options_.json.empty()) report_.WriteJson(options_.json);
  }

 private:
  void Begin(int threads) {
    auto backend = MakeCpuBackend({threads, options_.isa});
    LS_CHECK(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    probe_ = std::make_unique<ReadProbe>(threads);
    const double bandwidth = probe_->Bandwidth() / kGiga;
    f32_peak_ = FmaPeak(threads) / kGiga;
    bf16_peak_ = Bf16Peak(threads) / kGiga;
    int8_peak_ = Int8Peak(threads) / kGiga;
    std::printf("\n%s: limits %.1f GB/s read, %.0f GFLOP/s f32, %.0f bf16, %.0f int8\n",
                backend_->Description().c_str(), bandwidth, f32_peak_, bf16_peak_, int8_peak_);
    report_.BeginTable(threads);
  }

  void LinearLayers() {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const LinearCase& c : kLinearCases) {
        if (dtype == DType::kBF16 || c.out_features < 20000) Linear(c, {.dtype = dtype});
      }
    }
    for (const Quantization quantization : {Quantization::kInt8, Quantization::kInt4}) {
      for (const LinearCase& c : kLinearCases) Linear(c, {.quantization = quantization});
    }
  }

  void AttentionLayers() {
    for (const DType dtype : {DType::kE4M3, DType::kBF16, DType::kF32}) {
      for (const int64_t context : {512, 4096, 8192}) {
        Attention("attention decode x1", {dtype, 1, context, 1});
        Attention("attention decode x8", {dtype, 8, context, 1});
      }
      Attention("attention prefill", {dtype, 1, 512, 512});
      Attention("attention prefill", {dtype, 1, 4096, 512});
    }
  }

  bool Wanted(const std::string& name, std::string_view dtype) const {
    return name.find(options_.only) != std::string::npos &&
           (options_.dtype.empty() || options_.dtype == dtype);
  }
  void Measure(const KernelCase& what, const std::function<void(int)>& run) {
    report_.Add(what, Time(*probe_, run));
  }

  double PeakOf(const Format& format) const {
    if (format.quantization != Quantization::kNone) return int8_peak_;
    return format.dtype == DType::kBF16 ? bf16_peak_ : f32_peak_;
  }

  void Linear(const LinearCase& c, const Format& format) {
    const std::string shape = std::string(c.name) + " " + std::to_string(c.out_features) + "x" +
                              std::to_string(c.in_features);
    if (!Wanted(shape, format.name())) return;
    const std::vector<float> rows = RandomFloats(64 * c.in_features, 1);
    std::vector<std::unique_ptr<LinearWeight>> copies = {};
    copies.push_back(Weight(*backend_, c, format, rows));
    const int64_t bytes = copies[0]->bytes();
    for (int64_t held = bytes; held < kColdBytes; held += bytes)
      copies.push_back(Weight(*backend_, c, format, rows));
    const std::vector<float> x = RandomFloats(512 * c.in_features, 2);
    std::vector<float> y(512 * c.out_features);
    Verify(c, format, rows, *copies[0], x);
    for (const int64_t m : options_.rows) {
      if (m == 512 && c.out_features > 100000) continue;  // prefill needs one row of logits
      Measure({.name = shape + " M=" + std::to_string(m),
               .dtype = format.name(),
               .bytes = static_cast<double>(bytes),
               .flops = 2.0 * static_cast<double>(m * c.out_features * c.in_features),
               .peak = PeakOf(format)},
              [&](int i) { backend_->Linear(*copies[i % copies.size()], x.data(), m, y.data()); });
    }
  }

  void Verify(const LinearCase& c, const Format& format, const std::vector<float>& rows,
              const LinearWeight& weight, const std::vector<float>& x) {
    const auto reference = MakeReferenceBackend();
    const auto plain =
        Weight(*reference, {c.name, 64, c.in_features, c.num_k_slices}, format, rows);
    std::vector<float> want(7 * 64);
    std::vector<float> got(7 * c.out_features);
    reference->Linear(*plain, x.data(), 7, want.data());
    backend_->Linear(weight, x.data(), 7, got.data());
    for (int64_t t = 0; t < 7; ++t) {
      LS_CHECK(std::memcmp(&want[t * 64], &got[t * c.out_features], 64 * sizeof(float)) == 0)
          << c.name;
    }
  }

  void Attention(const std::string& kind, const PagedBatchShape& shape) {
    const std::string name =
        kind + " " + std::to_string(shape.chunk) + "@" + std::to_string(shape.context);
    const std::string dtype(DTypeName(shape.dtype));
    if (!Wanted(name, dtype)) return;
    const PagedBatch paged(*backend_, shape);
    constexpr int kWidth = PagedBatch::kHeads * PagedBatch::kHeadDim;
    std::vector<float> out(paged.batch().num_tokens * kWidth);
    paged.Attend(*backend_, 0, paged.batch(), out.data());
    std::vector<float> want(kWidth);
    paged.Attend(*MakeReferenceBackend(), 0, paged.FirstToken(), want.data());
    LS_CHECK(std::memcmp(want.data(), out.data(), want.size() * sizeof(float)) == 0) << name;
    Measure({.name = name,
             .dtype = dtype,
             .bytes = static_cast<double>(paged.bytes()),
             .flops = paged.flops(),
             .peak = f32_peak_},
            [&](int i) { paged.Attend(*backend_, i, paged.batch(), out.data()); });
  }

  void AddRmsNorm(int64_t tokens) {
    constexpr int64_t kHidden = 2048;
    if (!Wanted("add_rms_norm", "f32")) return;
    std::vector<float> x = RandomFloats(tokens * kHidden, 6), delta = x, out = x;
    const std::vector<float> weight = RandomFloats(kHidden, 7);
    Measure(Elementwise("add_rms_norm", tokens, 16 * tokens * kHidden), [&](int) {
      backend_->AddRmsNorm(
          {x.data(), delta.data(), weight.data(), 1e-5f, tokens, kHidden, out.data()});
    });
  }

  void SiluMul(int64_t tokens) {
    constexpr int64_t kWidth = 8192;
    if (!Wanted("silu_mul", "f32")) return;
    const std::vector<float> gate_up = RandomFloats(tokens * 2 * kWidth, 8);
    std::vector<float> product(tokens * kWidth);
    Measure(Elementwise("silu_mul", tokens, 12 * tokens * kWidth), [&](int) {
      backend_->SiluMul({gate_up.data(), tokens, kWidth, product.data()});
    });
  }

  KernelCase Elementwise(const std::string& name, int64_t tokens, int64_t bytes) const {
    return {.name = name + " M=" + std::to_string(tokens),
            .dtype = "f32",
            .bytes = static_cast<double>(bytes),
            .flops = 0,
            .peak = f32_peak_};
  }

  const Options options_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ReadProbe> probe_;
  double f32_peak_ = 0;
  double bf16_peak_ = 0;
  double int8_peak_ = 0;
  KernelReport report_;
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Speed of the CPU kernels, each checked against the reference, beside this machine's "
      "limits."};
  app.add_option("--threads", options.threads, "Thread counts to run everything with")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--isa", options.isa,
                 "Highest instruction set: auto, scalar, avx2, avxvnni, avx512, avx512vnni, "
                 "avx512bf16, amx")
      ->capture_default_str();
  app.add_option("--only", options.only, "Cases whose name holds this");
  app.add_option("--dtype", options.dtype, "Cases of this dtype alone")
      ->check(CLI::IsMember({"bf16", "f32", "fp8", "int8", "int4"}));
  app.add_option("--rows", options.rows, "Rows of linear layers' inputs")
      ->delimiter(',')
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app.add_option("--json", options.json, "Write the results to this file, too");
  CLI11_PARSE(app, argc, argv);
  if (const auto backend = MakeCpuBackend({1, options.isa}); !backend.ok()) {
    std::fprintf(stderr, "%s\n", std::string(backend.status().message()).c_str());
    return 1;
  }
  Bench(options).Run();
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }
