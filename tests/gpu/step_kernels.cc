#include "tests/gpu/step_kernels.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "kernels/base/check.h"
#include "kernels/cuda/chunk_kernels.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/kernels.h"
#include "kernels/logits_summary.h"
#include "model/llama/device_batch.h"
#include "model/llama/padded_batch.h"
#include "model/llama/uniform_batch.h"
#include "tests/gpu/device_event.h"
#include "tests/gpu/measuring.h"

namespace lockstep::bench {
namespace {

// Calls in a recording; of the long ones, which are longer than kLongSeconds.
constexpr int64_t kNumCalls = 128;
constexpr int64_t kNumLongCalls = 8;
constexpr double kLongSeconds = 1e-4;

class KernelTimer {
 public:
  KernelTimer(const KernelBench& bench, const StepSize& size)
      : bench_(bench), backend_(bench.backend), config_(bench.config), size_(size) {
    const BatchLimits batch_limits{.max_batched_tokens = num_tokens(),
                                   .max_num_seqs = size.num_seqs,
                                   .max_model_len = size.context,
                                   .block_size = size.block_size};
    KvCacheView cache;
    cache.dtype = DType::kBF16;
    cache.num_kv_heads = static_cast<int>(config_.num_kv_heads);
    cache.block_size = size.block_size;
    cache.head_dim = static_cast<int>(config_.head_dim);
    batch_ = Value(
        DeviceBatch::Allocate(backend_, batch_limits, static_cast<int>(config_.num_heads), cache));
    const bool repeats = num_tokens() <= kMaxPaddedChunkTokens || size.new_tokens == 1;
    const StepBatch batch = MakeUniformBatch(
        {size.num_seqs, size.context, size.new_tokens, size.block_size, config_.vocab_size});
    LS_CHECK(batch_.Accept(batch, std::ssize(batch.new_blocks)).ok());
    batch_.CopyFrom(batch, backend_, repeats ? AttentionCut::kBest : AttentionCut::kOnce);
    const int64_t widest = std::max<int64_t>({2 * config_.intermediate_size, qkv_width(),
                                              config_.vocab_size * size.num_seqs / num_tokens()});
    wide_ = Rows(widest, sizeof(float));
    input_ = Rows(std::max(config_.intermediate_size, config_.hidden_size), sizeof(float));
    hidden_ = Rows(config_.hidden_size, sizeof(float));
    weight_ = Value(backend_.Allocate(config_.hidden_size * int64_t{sizeof(float)}));
    bench_.inputs.Fill(weight_);
    MakeCaches();
  }

  void Run() {
    bench_.report.BeginKernels({{"sequences", size_.num_seqs},
                                {"new_tokens", size_.new_tokens},
                                {"context", size_.context}});
    const int64_t layers = config_.num_layers;
    // Where all tokens go on after attention: not in a chunk's last layer, whose few rows are not
    // listed.
    const int64_t whole_layers = layers - (num_tokens() > kMaxPaddedChunkTokens ? 1 : 0);
    FillActivations();
    Time("RMSNorm", layers + whole_layers, hidden_bytes(4 + ProductBytes() + 4 + 2), 0,
         [&](int64_t) { backend_.AddRmsNorm(NormArgs()); });
    TimeInE4m3(config_.hidden_size, 4 + ProductBytes() + 4, [&](const cuda::E4m3Rows& out) {
      return cuda::LaunchAddRmsNormFp8(NormArgs(), DType::kBF16, out, backend_.stream());
    });
    TimeLinear("qkv product", layers, qkv_width(), config_.hidden_size);
    TimeRope(layers);
    TimeAttention("attention", DType::kBF16, layers);
    if (size_.new_tokens > 1) CompareChunkKernels();
    TimeAttention("attention, fp8 cache", DType::kE4M3, 0);
    TimeLinear("attention's output", whole_layers, config_.hidden_size, q_width());
    TimeLinear("gate and up product", whole_layers, 2 * config_.intermediate_size,
               config_.hidden_size);
    TimeSilu(whole_layers);
    TimeLinear("down product", whole_layers, config_.hidden_size, config_.intermediate_size);
    TimeHead();
    if (backend_.SummarizesLogits()) {
      FillLogits();
      TimeSummaries("summaries, sampled", 1, kMaxLargestLogits);
      TimeSummaries("  or greedy", 0, 1);
    }
    bench_.report.EndKernels();
  }

 private:
  int64_t num_tokens() const { return size_.num_seqs * size_.new_tokens; }
  int64_t qkv_width() const {
    return int64_t{config_.num_heads + 2 * config_.num_kv_heads} * config_.head_dim;
  }
  int64_t q_width() const { return int64_t{config_.num_heads} * config_.head_dim; }
  double attention_flops() const {
    const int64_t twice_seen = 2 * size_.context - size_.new_tokens + 1;  // by a token, on average
    return 2.0 * static_cast<double>(num_tokens() * q_width() * twice_seen);
  }
  // Of what products leave for the kernels that read them.
  DType ProductDType() const { return backend_.ProductDType(num_tokens()); }
  int64_t ProductBytes() const { return DTypeBytes(ProductDType()); }
  double hidden_bytes(int64_t per_element) const {
    return static_cast<double>(num_tokens() * config_.hidden_size * per_element);
  }
  DeviceBuffer Rows(int64_t width, int64_t element_bytes) {
    return Value(backend_.Allocate(num_tokens() * width * element_bytes));
  }

  void MakeCaches() {
    const int64_t blocks =
        size_.num_seqs * ((size_.context + size_.block_size - 1) / size_.block_size);
    const int64_t half = blocks * config_.num_kv_heads * size_.block_size * config_.head_dim * 2;
    for (int64_t i = 0; i < bench_.inputs.NumCopies(2 * half, kNumCalls); ++i) {
      caches_memory_.push_back(Value(backend_.Allocate(2 * half)));
      bench_.inputs.Fill(caches_memory_.back());
      std::byte* k = caches_memory_.back().as<std::byte>();
      caches_.push_back({k, k + half, DType::kBF16, blocks, static_cast<int>(config_.num_kv_heads),
                         size_.block_size, static_cast<int>(config_.head_dim)});
    }
  }

  RmsNormArgs NormArgs() const {
    return {.residual = hidden_.as<float>(),
            .delta = wide_.data(),
            .weight = weight_.as<float>(),
            .eps = 1e-5f,
            .num_tokens = num_tokens(),
            .hidden = config_.hidden_size,
            .out = input_.data(),
            .consumer = nullptr,
            .delta_dtype = ProductDType()};
  }

  // The form of the kernel before it that stands in for it in steps whose products want e4m3; those
  // products, timed below over plain rows, then quantize none.
  void TimeInE4m3(int64_t width, int64_t bytes_read,
                  const std::function<cudaError_t(const cuda::E4m3Rows&)>& launch) {
    if (bench_.quantize != Quantization::kFp8) return;
    const cuda::E4m3Rows out = cuda::E4m3RowsIn(input_.data(), num_tokens(), width);
    const auto bytes = static_cast<double>(num_tokens() * (width * (bytes_read + 1) + 4));
    Time("  in e4m3", 0, bytes, 0,
         [&](int64_t) { cuda::CudaCheck(launch(out), "a kernel in e4m3"); });
  }

  // What products write grows; a step's norms shrink it.
  void FillActivations() {
    for (const DeviceBuffer* buffer : {&wide_, &input_, &hidden_}) bench_.inputs.Fill(*buffer);
  }

  struct Product {
    std::string name;
    int64_t times = 0;
    LinearShape shape;
    int64_t rows = 0;
    int64_t output_bytes = 0;  // of a number
  };

  LinearShape LayerShape(int64_t out_features, int64_t in_features) const {
    return {out_features, in_features, DType::kBF16, 1, bench_.quantize};
  }

  void TimeLinear(const std::string& name, int64_t times, int64_t out_features,
                  int64_t in_features) {
    TimeProduct({name, times, LayerShape(out_features, in_features), num_tokens(), ProductBytes()},
                [&](const LinearWeight& weight) {
                  backend_.RoundedLinear(weight, input_.data(), num_tokens(), wide_.data());
                });
  }

  void TimeHead() {
    const LinearShape shape = {config_.vocab_size, config_.hidden_size, DType::kBF16};
    TimeProduct({"LM head", 1, shape, size_.num_seqs, sizeof(float)},
                [&](const LinearWeight& weight) {
                  backend_.Linear(weight, input_.data(), size_.num_seqs, wide_.as<float>());
                });
  }

  void TimeSilu(int64_t times) {
    FillActivations();
    const SiluMulArgs args = {.gate_up = wide_.data(),
                              .num_tokens = num_tokens(),
                              .width = config_.intermediate_size,
                              .out = input_.data(),
                              .gate_up_dtype = ProductDType()};
    const auto gated = static_cast<double>(args.num_tokens * args.width);
    Time("SiLU", times, gated * static_cast<double>(2 * ProductBytes() + 2), 0,
         [&](int64_t) { backend_.SiluMul(args); });
    TimeInE4m3(args.width, 2 * ProductBytes(), [&](const cuda::E4m3Rows& out) {
      return cuda::LaunchSiluMulFp8(args, DType::kBF16, out, backend_.stream());
    });
  }

  void TimeProduct(const Product& product,
                   const std::function<void(const LinearWeight&)>& multiply) {
    const LinearShape& shape = product.shape;
    const bool is_fp8 = shape.quantization == Quantization::kFp8;
    const int64_t weight_bytes = shape.out_features * shape.in_features * (is_fp8 ? 1 : 2);
    const int64_t row_bytes = 2 * shape.in_features + product.output_bytes * shape.out_features;
    const double flops = 2.0 * static_cast<double>(product.rows) *
                         static_cast<double>(shape.out_features * shape.in_features);
    const double rate = is_fp8 ? bench_.limits.fp8_flops_per_s : bench_.limits.bf16_flops_per_s;
    const KernelInputs::Weights& weights = bench_.inputs.WeightsOf(shape, product.rows);
    FillActivations();
    Time(
        product.name, product.times, static_cast<double>(weight_bytes + product.rows * row_bytes),
        flops, [&](int64_t i) { multiply(*weights[static_cast<size_t>(i) % weights.size()]); },
        rate);
  }

  // Spread as a model's are: sums of uniform numbers.
  void FillLogits() {
    std::vector<float> row(static_cast<size_t>(config_.vocab_size));
    std::minstd_rand random(1);
    for (int64_t i = 0; i < size_.num_seqs; ++i) {
      for (float& x : row) {
        x = 0;
        for (int term = 0; term < 4; ++term) x += static_cast<float>(random() % 8192) / 1024 - 4;
      }
      backend_.CopyToDevice(wide_.as<float>() + i * config_.vocab_size, row.data(),
                            config_.vocab_size * int64_t{sizeof(float)});
    }
  }

  void TimeSummaries(const std::string& name, int64_t times, int32_t num_largest) {
    constexpr int kSlices = 8;
    const int64_t slice_width = (config_.vocab_size + kSlices - 1) / kSlices;
    const int64_t result_bytes = LogitsSummaryBytes(kSlices, num_largest);
    const auto num_jobs = static_cast<int>(size_.num_seqs);
    std::vector<LogitsJob> jobs;
    for (int i = 0; i < num_jobs; ++i) {
      jobs.push_back({.row = i,
                      .num_largest = num_largest,
                      .inverse_temperature = num_largest > 1 ? 1.0f : 0.0f,
                      .out_offset = static_cast<int32_t>(i * result_bytes)});
    }
    const auto jobs_bytes = static_cast<int64_t>(jobs.size() * sizeof(LogitsJob));
    const DeviceBuffer device_jobs = Value(backend_.Allocate(jobs_bytes));
    backend_.CopyToDevice(device_jobs.data(), jobs.data(), jobs_bytes);
    const DeviceBuffer workspace =
        Value(backend_.Allocate(LogitsWorkspaceBytes(slice_width, kSlices, num_jobs, num_largest)));
    const DeviceBuffer out = Value(backend_.Allocate(num_jobs * result_bytes));
    Time(name, times, static_cast<double>(num_jobs * (4 * config_.vocab_size + result_bytes)), 0,
         [&](int64_t) {
           backend_.SummarizeLogits({.logits = wide_.as<float>(),
                                     .width = config_.vocab_size,
                                     .slice_width = slice_width,
                                     .num_slices = kSlices,
                                     .jobs = device_jobs.as<LogitsJob>(),
                                     .num_jobs = num_jobs,
                                     .max_largest = num_largest,
                                     .workspace = workspace.data(),
                                     .out = out.as<std::byte>()});
         });
  }

  void TimeRope(int64_t times) {
    const int64_t half = config_.head_dim / 2;
    // The angle is 0: heads, which are turned in place again and again, stay as they are.
    const std::vector<float> ones(static_cast<size_t>(size_.context * half), 1.0f);
    const auto bytes = static_cast<int64_t>(ones.size() * sizeof(float));
    const DeviceBuffer cosines = Value(backend_.Allocate(bytes));
    const DeviceBuffer sines = Value(backend_.Allocate(bytes));
    backend_.CopyToDevice(cosines.data(), ones.data(), bytes);
    FillActivations();
    // q is read and written, k and v are read and cached; an angle has a cosine and a sine.
    const int64_t head_bytes = 2 * ProductBytes() * config_.num_heads +
                               (ProductBytes() + 2) * 2 * config_.num_kv_heads + 4;
    const auto moved = static_cast<double>(num_tokens() * config_.head_dim * head_bytes);
    Time("RoPE, cache write", times, moved, 0, [&](int64_t i) {
      backend_.RopeAndWriteKv({wide_.data(), static_cast<int>(config_.num_heads),
                               cosines.as<float>(), sines.as<float>(), &batch_.index(), &Cache(i),
                               ProductDType()});
    });
  }

  void TimeAttention(const std::string& name, DType kv_dtype, int64_t times) {
    if (!cuda::AttentionSupports(kv_dtype, static_cast<int>(config_.head_dim))) return;
    const int64_t cache_bytes = 2 * DTypeBytes(kv_dtype) * size_.num_seqs * size_.context *
                                config_.num_kv_heads * config_.head_dim;
    const int64_t moved = cache_bytes + num_tokens() * q_width() * (ProductBytes() + 2);
    FillActivations();
    const auto scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
    Time(name, times, static_cast<double>(moved), attention_flops(), [&](int64_t i) {
      KvCacheView cache = Cache(i);
      cache.dtype = kv_dtype;
      backend_.Attention({wide_.data(), static_cast<int>(config_.num_heads), scale, &batch_.index(),
                          &cache, input_.data(), ProductDType()});
    });
  }

  // The two kernels for chunks, whichever of them the backend has chosen: over a batch as large, of
  // other numbers.
  void CompareChunkKernels() {
    cudaDeviceProp device = {};
    cuda::CudaCheck(cudaGetDeviceProperties(&device, 0), "asking a GPU");
    const auto head_dim = static_cast<int>(config_.head_dim);
    const cuda::TensorMapEncoder encode = cuda::FindTensorMapEncoder(device);
    if (encode == nullptr || (head_dim != 64 && head_dim != 128)) return;
    const cuda::ChunkTrial trial = {.head_dim = head_dim,
                                    .num_kv_heads = static_cast<int>(config_.num_kv_heads),
                                    .chunk = static_cast<int>(size_.new_tokens),
                                    .context = static_cast<int>(size_.context),
                                    .repeats = 5};
    constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;
    const DeviceBuffer workspace = Value(backend_.Allocate(kWorkspaceBytes));
    backend_.Synchronize();
    const cuda::ChunkVerdict verdict =
        Value(cuda::TryWgmma(trial, {encode, {workspace.data(), kWorkspaceBytes}, nullptr}));
    if (!verdict.wrong.empty()) {
      fmt::print(stderr, "gpu_bench: attention by wgmma {}\n", verdict.wrong);
      return;
    }
    AddChunkKernel("  by wgmma", verdict.wgmma_flops_per_s);
    AddChunkKernel("  by mma.sync", verdict.mma_flops_per_s);
  }

  void AddChunkKernel(const std::string& name, double flops_per_s) {
    bench_.report.AddKernel({{"name", name},
                             {"times", 0},
                             {"seconds", attention_flops() / flops_per_s},
                             {"gb_per_s", 0.0},
                             {"tflop_per_s", 1e-12 * flops_per_s},
                             {"share_of_limit", flops_per_s / bench_.limits.bf16_flops_per_s}});
  }

  const KvCacheView& Cache(int64_t i) const {
    return caches_[static_cast<size_t>(i) % caches_.size()];
  }

  // flops_per_s: the limit of such arithmetic; 0: of bf16 products.
  void Time(const std::string& name, int64_t times, double bytes, double flops,
            const std::function<void(int64_t)>& kernel, double flops_per_s = 0) {
    const double seconds = SecondsOf(kernel);
    if (flops_per_s == 0) flops_per_s = bench_.limits.bf16_flops_per_s;
    const double floor = std::max(bytes / bench_.limits.read_bytes_per_s, flops / flops_per_s);
    bench_.report.AddKernel({{"name", name},
                             {"times", times},
                             {"seconds", seconds},
                             {"gb_per_s", 1e-9 * bytes / seconds},
                             {"tflop_per_s", 1e-12 * flops / seconds},
                             {"share_of_limit", floor / seconds}});
  }

  double SecondsOf(const std::function<void(int64_t)>& kernel) {
    const int64_t num_calls = EagerSeconds(kernel) > kLongSeconds ? kNumLongCalls : kNumCalls;
    const auto calls = [&]() -> absl::Status {
      for (int64_t i = 0; i < num_calls; ++i) kernel(i);
      return absl::OkStatus();
    };
    constexpr uint64_t kKey = 1;
    backend_.ForgetSteps();
    for (int i = 0; i < 3; ++i) LS_CHECK(backend_.Repeat(kKey, calls).ok());  // the third replays
    std::vector<DeviceEvent> marks(static_cast<size_t>(bench_.num_replays) + 1);
    marks[0].Record(backend_.stream());
    for (size_t i = 1; i < marks.size(); ++i) {
      LS_CHECK(backend_.Repeat(kKey, calls).ok());
      marks[i].Record(backend_.stream());
    }
    backend_.Synchronize();
    std::vector<double> seconds;
    for (size_t i = 1; i < marks.size(); ++i)
      seconds.push_back(marks[i].SecondsSince(marks[i - 1]));
    backend_.ForgetSteps();
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2] / static_cast<double>(num_calls);
  }

  // Roughly, and warm.
  double EagerSeconds(const std::function<void(int64_t)>& kernel) {
    constexpr int kNumTries = 4;
    for (int64_t i = 0; i < 2; ++i) kernel(i);
    backend_.Synchronize();
    const double begin = Seconds();
    for (int64_t i = 0; i < kNumTries; ++i) kernel(i);
    backend_.Synchronize();
    return (Seconds() - begin) / kNumTries;
  }

  const KernelBench bench_;
  cuda::CudaBackend& backend_;
  const ModelConfig& config_;
  const StepSize size_;
  DeviceBatch batch_;
  DeviceBuffer wide_;    // f32, the widest of what a step's kernels write
  DeviceBuffer input_;   // of a product
  DeviceBuffer hidden_;  // f32 [num_tokens, hidden]
  DeviceBuffer weight_;
  std::vector<DeviceBuffer> caches_memory_;
  std::vector<KvCacheView> caches_;
};

}  // namespace

void TimeKernels(const KernelBench& bench, const StepSize& size) { KernelTimer(bench, size).Run(); }

}  // namespace lockstep::bench
