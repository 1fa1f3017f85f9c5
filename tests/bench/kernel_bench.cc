// How fast the CPU kernels are, and what share of this machine's limits that is.
//
// Limits are measured in the same run with the same number of threads: multiply-adds in registers
// before, and by turns with the runs of each case the read bandwidth over 512 MB, as neighbours
// change it within seconds. Each case is checked against the reference backend, warmed up, and
// timed as the median of its runs; copies of the weights are used in turn, more than any cache
// holds. Shapes are those of Llama 3.2 1B.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "nlohmann/json.hpp"
#include "tests/bench/machine_limits.h"

namespace lockstep {
namespace {

constexpr double kGiga = 1e9;
constexpr int64_t kColdBytes = 192 << 20;  // of weight copies; several times the last cache

struct Options {
  std::vector<int> threads = {1, 2, 4};
  std::string isa = "auto";
  std::string only;
  std::string dtype;                                  // all if empty
  std::vector<int> rows = {1, 2, 4, 8, 16, 64, 512};  // of linear layers
  std::string json;
};

struct Result {
  std::string name;
  std::string dtype;
  int threads;
  double ms;  // median
  double best_ms;
  double rate;  // GB/s or GFLOP/s
  const char* unit;
  double share;  // of the limit, while it ran
  double limit;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Timing {
  double median;
  double best;
  double gb_per_s;        // that the memory gave beside it, median
  double share_per_byte;  // of that speed, for each byte a run reads; median of turns
};

// Seconds of run(i): ten turns of some 40 ms, with a look at the memory's speed after each.
template <typename Run>
Timing Time(const bench::ReadProbe& probe, Run run) {
  constexpr int kTurns = 10;
  run(0);
  std::vector<double> times, bandwidths, ratios;
  double before = probe.Bandwidth(1);
  int next = 1;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<double> mine;
    const double begin = Seconds();
    while (mine.empty() || (Seconds() - begin < 0.04 && mine.size() < 50)) {
      const double start = Seconds();
      run(next++);
      mine.push_back(Seconds() - start);
    }
    const double after = probe.Bandwidth(1);
    bandwidths.push_back((before + after) / 2 / kGiga);
    ratios.push_back(1 / (Median(mine) * (before + after) / 2));
    times.insert(times.end(), mine.begin(), mine.end());
    before = after;
  }
  return {Median(times), *std::min_element(times.begin(), times.end()), Median(bandwidths),
          Median(ratios)};
}

// ---- cases ----

std::vector<float> Normals(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<float> values(count);
  // Cheap and even: the values do not matter to the time.
  for (float& value : values) value = static_cast<float>(static_cast<int32_t>(engine())) * 0x1p-31f;
  return values;
}

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

constexpr int kHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 64;
constexpr int kBlock = 16;

// A batch over paged caches, enough of them to be cold when used in turn.
class PagedBatch {
 public:
  PagedBatch(Backend& backend, DType dtype, int num_seqs, int64_t context, int64_t chunk)
      : dtype_(dtype), num_blocks_(num_seqs * ((context + kBlock - 1) / kBlock)) {
    const int64_t elements = num_blocks_ * kKvHeads * kBlock * kHeadDim;
    side_bytes_ = elements * DTypeBytes(dtype);
    num_copies_ = static_cast<int>(std::clamp<int64_t>(kColdBytes / (2 * side_bytes_), 1, 64));
    for (int i = 0; i < 2 * num_copies_; ++i) AddSide(backend, Normals(elements, 3 + i % 2));
    const int64_t blocks = num_blocks_ / num_seqs;
    for (int s = 0; s < num_seqs; ++s) {
      for (int64_t i = 0; i < chunk; ++i)
        positions_.push_back(static_cast<int32_t>(context - chunk + i));
      starts_.push_back(static_cast<int32_t>(positions_.size()));
      lens_.push_back(static_cast<int32_t>(context));
      rows_.push_back(s);
      for (int64_t b = 0; b < blocks; ++b)
        tables_.push_back(static_cast<int32_t>(b * num_seqs + s));
    }
    slots_.resize(positions_.size());
    batch_ = {static_cast<int64_t>(positions_.size()),
              num_seqs,
              positions_.data(),
              slots_.data(),
              starts_.data(),
              lens_.data(),
              rows_.data(),
              tables_.data(),
              blocks};
    qkv_ = Normals(batch_.num_tokens * (kHeads + 2 * kKvHeads) * kHeadDim, 5);
  }

  const BatchIndex& batch() const { return batch_; }
  int64_t bytes() const { return 2 * side_bytes_; }
  double flops() const {
    double visible = 0;
    for (const int32_t p : positions_) visible += p + 1;
    return 4.0 * visible * kHeads * kHeadDim;
  }
  BatchIndex FirstToken() const {
    static constexpr int32_t kOne[2] = {0, 1};
    BatchIndex first = batch_;
    first.num_tokens = 1;
    first.num_seqs = 1;
    first.query_starts = kOne;
    return first;
  }
  void Attend(Backend& backend, int i, const BatchIndex& batch, float* out) const {
    const int copy = i % num_copies_;
    const KvCacheView cache = {sides_[2 * copy].data(),
                               sides_[2 * copy + 1].data(),
                               dtype_,
                               num_blocks_,
                               kKvHeads,
                               kBlock,
                               kHeadDim};
    backend.Attention({qkv_.data(), kHeads, 0.125f, &batch, &cache, out});
  }

 private:
  void AddSide(Backend& backend, const std::vector<float>& from) {
    auto side = backend.Allocate(side_bytes_);
    LS_CHECK(side.ok()) << side.status();
    sides_.push_back(*std::move(side));
    if (dtype_ == DType::kF32) {
      std::memcpy(sides_.back().data(), from.data(), side_bytes_);
    } else {
      for (size_t j = 0; j < from.size(); ++j) sides_.back().as<BF16>()[j] = ToBF16(from[j]);
    }
  }

  DType dtype_;
  int64_t num_blocks_;
  int64_t side_bytes_;
  int num_copies_;
  std::vector<DeviceBuffer> sides_;  // k and v of each copy
  std::vector<int32_t> positions_, starts_ = {0}, lens_, rows_, tables_;
  std::vector<int64_t> slots_;
  std::vector<float> qkv_;
  BatchIndex batch_;
};

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {}

  void Run() {
    for (const int threads : options_.threads) {
      auto backend = MakeCpuBackend({threads, options_.isa});
      LS_CHECK(backend.ok()) << backend.status();
      backend_ = *std::move(backend);
      threads_ = threads;
      probe_ = std::make_unique<bench::ReadProbe>(threads);
      const double bandwidth = probe_->Bandwidth() / kGiga;
      f32_peak_ = bench::FmaPeak(threads) / kGiga;
      bf16_peak_ = bench::Bf16Peak(threads) / kGiga;
      int8_peak_ = bench::Int8Peak(threads) / kGiga;
      std::printf("\n%s: limits %.1f GB/s read, %.0f GFLOP/s f32, %.0f bf16, %.0f int8\n",
                  backend_->Description().c_str(), bandwidth, f32_peak_, bf16_peak_, int8_peak_);
      std::printf("%-34s %5s %9s %9s %7s %7s %6s %6s\n", "case", "dtype", "ms", "best ms", "rate",
                  "unit", "share", "of");
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        for (const LinearCase& c : kLinearCases) {
          if (dtype == DType::kBF16 || c.out_features < 20000) Linear(c, {.dtype = dtype});
        }
      }
      for (const Quantization quantization : {Quantization::kInt8, Quantization::kInt4}) {
        for (const LinearCase& c : kLinearCases) Linear(c, {.quantization = quantization});
      }
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        for (const int64_t context : {512, 4096, 8192}) {
          Attention("attention decode x1", dtype, 1, context, 1);
          Attention("attention decode x8", dtype, 8, context, 1);
        }
        Attention("attention prefill", dtype, 1, 512, 512);
        Attention("attention prefill", dtype, 1, 4096, 512);
      }
      Elementwise();
    }
    if (!options_.json.empty()) WriteJson();
  }

 private:
  bool Wanted(const std::string& name, std::string_view dtype) const {
    return name.find(options_.only) != std::string::npos &&
           (options_.dtype.empty() || options_.dtype == dtype);
  }

  // peak: of the instructions that this case is made of.
  void Report(const std::string& name, const char* dtype, const Timing& timing, double bytes,
              double flops, double peak) {
    // Bound by whichever limit takes longer.
    const bool memory = bytes / timing.gb_per_s > flops / peak;
    const double rate = (memory ? bytes : flops) / timing.median / kGiga;
    const Result result = {name,
                           dtype,
                           threads_,
                           timing.median * 1e3,
                           timing.best * 1e3,
                           rate,
                           memory ? "GB/s" : "GFLOP/s",
                           memory ? bytes * timing.share_per_byte : rate / peak,
                           memory ? timing.gb_per_s : peak};
    std::printf("%-34s %5s %9.3f %9.3f %7.1f %7s %5.0f%% %6.0f\n", name.c_str(), dtype, result.ms,
                result.best_ms, rate, result.unit, result.share * 100, result.limit);
    std::fflush(stdout);
    results_.push_back(result);
  }

  // How weights are kept.
  struct Format {
    DType dtype = DType::kF32;
    Quantization quantization = Quantization::kNone;
    const char* name() const {
      return quantization == Quantization::kNone ? DTypeName(dtype).data()
                                                 : QuantizationName(quantization).data();
    }
  };

  double PeakOf(const Format& format) const {
    if (format.quantization != Quantization::kNone) return int8_peak_;
    return format.dtype == DType::kBF16 ? bf16_peak_ : f32_peak_;
  }

  void Linear(const LinearCase& c, const Format& format) {
    const std::string shape = std::string(c.name) + " " + std::to_string(c.out_features) + "x" +
                              std::to_string(c.in_features);
    if (!Wanted(shape, format.name())) return;
    const std::vector<float> rows = Normals(64 * c.in_features, 1);
    std::vector<std::unique_ptr<LinearWeight>> copies = {};
    copies.push_back(Weight(*backend_, c, format, rows));
    const int64_t bytes = copies[0]->bytes();
    for (int64_t held = bytes; held < kColdBytes; held += bytes)
      copies.push_back(Weight(*backend_, c, format, rows));
    const std::vector<float> x = Normals(512 * c.in_features, 2);
    std::vector<float> y(512 * c.out_features);
    Verify(c, format, rows, *copies[0], x, y);
    for (const int64_t m : options_.rows) {
      if (m == 512 && c.out_features > 100000) continue;  // prefill needs one row of logits
      const Timing timing = Time(*probe_, [&](int i) {
        backend_->Linear(*copies[i % copies.size()], x.data(), m, y.data());
      });
      Report(shape + " M=" + std::to_string(m), format.name(), timing, static_cast<double>(bytes),
             2.0 * static_cast<double>(m * c.out_features * c.in_features), PeakOf(format));
    }
  }

  // 64 rows again and again.
  static std::unique_ptr<LinearWeight> Weight(Backend& backend, const LinearCase& c,
                                              const Format& format,
                                              const std::vector<float>& rows) {
    auto weight = backend.AllocateLinear(
        {c.out_features, c.in_features, format.dtype, c.num_k_slices, format.quantization});
    LS_CHECK(weight.ok()) << weight.status();
    for (int64_t row = 0; row < c.out_features; row += 64) {
      backend.FillLinear(**weight, row,
                         {rows.data(), DType::kF32, std::min<int64_t>(64, c.out_features - row),
                          c.in_features * 4});
    }
    return *std::move(weight);
  }

  void Verify(const LinearCase& c, const Format& format, const std::vector<float>& rows,
              const LinearWeight& weight, const std::vector<float>& x, std::vector<float>& y) {
    const auto reference = MakeReferenceBackend();
    const auto plain =
        Weight(*reference, {c.name, 64, c.in_features, c.num_k_slices}, format, rows);
    std::vector<float> want(7 * 64);
    reference->Linear(*plain, x.data(), 7, want.data());
    backend_->Linear(weight, x.data(), 7, y.data());
    for (int64_t t = 0; t < 7; ++t) {
      LS_CHECK(std::memcmp(&want[t * 64], &y[t * c.out_features], 64 * sizeof(float)) == 0)
          << c.name;
    }
  }

  // num_seqs sequences of `context` tokens, the last `chunk` of each being the batch.
  void Attention(const std::string& kind, DType dtype, int num_seqs, int64_t context,
                 int64_t chunk) {
    const std::string name = kind + " " + std::to_string(chunk) + "@" + std::to_string(context);
    if (!Wanted(name, DTypeName(dtype))) return;
    const PagedBatch paged(*backend_, dtype, num_seqs, context, chunk);
    std::vector<float> out(paged.batch().num_tokens * kHeads * kHeadDim);
    paged.Attend(*backend_, 0, paged.batch(), out.data());
    std::vector<float> want(kHeads * kHeadDim);
    paged.Attend(*MakeReferenceBackend(), 0, paged.FirstToken(), want.data());
    LS_CHECK(std::memcmp(want.data(), out.data(), want.size() * sizeof(float)) == 0) << name;
    const Timing timing =
        Time(*probe_, [&](int i) { paged.Attend(*backend_, i, paged.batch(), out.data()); });
    Report(name, DTypeName(dtype).data(), timing, static_cast<double>(paged.bytes()), paged.flops(),
           f32_peak_);
  }

  void Elementwise() {
    for (const int64_t tokens : {1, 512}) {
      constexpr int64_t kHidden = 2048, kWidth = 8192;
      std::vector<float> x = Normals(tokens * kHidden, 6), delta = x, weight = Normals(kHidden, 7),
                         out = x;
      const std::string suffix = " M=" + std::to_string(tokens);
      if (Wanted("add_rms_norm", "f32")) {
        const Timing norm = Time(*probe_, [&](int) {
          backend_->AddRmsNorm(
              {x.data(), delta.data(), weight.data(), 1e-5f, tokens, kHidden, out.data()});
        });
        Report("add_rms_norm" + suffix, "f32", norm, static_cast<double>(16 * tokens * kHidden), 0,
               f32_peak_);
      }
      if (Wanted("silu_mul", "f32")) {
        const std::vector<float> gate_up = Normals(tokens * 2 * kWidth, 8);
        std::vector<float> product(tokens * kWidth);
        const Timing silu = Time(*probe_, [&](int) {
          backend_->SiluMul({gate_up.data(), tokens, kWidth, product.data()});
        });
        Report("silu_mul" + suffix, "f32", silu, static_cast<double>(12 * tokens * kWidth), 0,
               f32_peak_);
      }
    }
  }

  void WriteJson() const {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const Result& r : results_) {
      all.push_back({{"case", r.name},
                     {"dtype", r.dtype},
                     {"threads", r.threads},
                     {"ms", r.ms},
                     {"best_ms", r.best_ms},
                     {"rate", r.rate},
                     {"unit", r.unit},
                     {"share", r.share},
                     {"limit", r.limit}});
    }
    std::ofstream file(options_.json);
    file << all.dump(2) << "\n";
    file.close();
    LS_CHECK(file.good()) << "cannot write " << options_.json;
  }

  Options options_;
  std::unique_ptr<Backend> backend_;
  int threads_ = 1;
  std::unique_ptr<bench::ReadProbe> probe_;
  double f32_peak_ = 0;
  double bf16_peak_ = 0;
  double int8_peak_ = 0;
  std::vector<Result> results_;
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
      ->check(CLI::IsMember({"bf16", "f32", "int8", "int4"}));
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
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
