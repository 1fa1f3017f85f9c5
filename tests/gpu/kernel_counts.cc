// What the compiled kernels of a step do, counted on the emulated GPU: beside the bytes that must
// be moved, how long an H100's other parts have to work for them. Where one of them has more to do
// than memory, memory is not the limit that a kernel can be brought to. Counts are exact, of PTX;
// times are counts over what the parts can do at best, and say nothing of waiting.
//
//   kernel_counts [--decode 1,64] [--context 1024] [--prefill 512] [--no-products]
//
// LOCKSTEP_CUDA_COMPILED names other PTX than what the build has made for compute capability 9.0.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/skinny_gemm.h"
#include "model/llama/uniform_batch.h"
#include "tests/support/cuda_emulation/compiled/counts.h"
#include "tests/support/cuda_emulation/compiled/kernels.h"

namespace lockstep::bench {
namespace {

using cuda_emulation::ptx::LaunchCounts;

// Of an H100 SXM. Source: NVIDIA H100 Tensor Core GPU Architecture (whitepaper), table 3 and "H100
// SM Architecture"; CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions" and
// "Shared Memory". The share of the matrix units' rate that mma.sync reaches: Luo et al. 2024,
// "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking". Of the
// second-level cache, whose rate NVIDIA does not give, 7 TB/s are taken to reach all
// multiprocessors.
constexpr double kClock = 1.755e9;
constexpr double kMultiprocessors = 132;
constexpr double kMemoryBytes = 3.35e12;
constexpr double kIssued = 4;                // instructions of warps a cycle
constexpr double kSpecialCycles = 2;         // of one that needs the special function units
constexpr double kProductCycles = 1 / 0.62;  // of m16n8k16, all matrix units together
constexpr double kSectors = 1;               // of the second-level cache a cycle

constexpr int64_t kPartialBytes = int64_t{64} << 20;  // of products that share k

struct Shape {
  int hidden = 4096;
  int num_heads = 32;
  int num_kv_heads = 8;
  int head_dim = 128;
  int intermediate = 14336;
  int block_size = 16;
};

struct Time {
  const char* part;
  double seconds;
};
std::vector<Time> TimesOf(const LaunchCounts& counts) {
  // What few blocks do is not shared by all multiprocessors.
  const double busy = std::min<double>(kMultiprocessors, static_cast<double>(counts.blocks));
  const double cycle = 1 / (kClock * busy);
  const double bytes = 32.0 * static_cast<double>(counts.sectors_read + counts.sectors_written);
  return {{"memory", bytes / kMemoryBytes},
          {"issue", counts.instructions / kIssued * cycle},
          {"cache", static_cast<double>(counts.sectors) / kSectors * cycle},
          {"shared", static_cast<double>(counts.turns) * cycle},
          {"special", counts.special * kSpecialCycles * cycle},
          {"products", counts.products * kProductCycles * cycle}};
}

void PrintHeader() {
  fmt::print("{:34} {:>7} {:>9} {:>8}", "kernel", "blocks", "MB", "memory");
  for (const char* part : {"issue", "cache", "shared", "special", "products"}) {
    fmt::print(" {:>8}", part);
  }
  fmt::print(" {:>8} {:>8}  (us; sectors, turns: times the fewest)\n", "sectors", "turns");
}

double Ratio(int64_t is, int64_t fewest) {
  return fewest == 0 ? 1.0 : static_cast<double>(is) / static_cast<double>(fewest);
}

void Print(const std::string& name, const LaunchCounts& counts) {
  const double bytes = 32.0 * static_cast<double>(counts.sectors_read + counts.sectors_written);
  fmt::print("{:34} {:>7} {:>9.3f}", name, counts.blocks, 1e-6 * bytes);
  for (const Time& time : TimesOf(counts)) fmt::print(" {:>8.2f}", 1e6 * time.seconds);
  fmt::print(" {:>8.2f} {:>8.2f}\n", Ratio(counts.sectors, counts.fewest_sectors),
             Ratio(counts.turns, counts.fewest_turns));
  std::fflush(stdout);
}

// Launches and prints each kernel of it.
template <typename Launch>
void Count(const std::string& name, const Launch& launch) {
  cuda::CudaCheck(launch(), "a kernel that is counted");
  cuda::CudaCheck(cudaDeviceSynchronize(), "a kernel that is counted");
  int part = 0;
  for (const LaunchCounts& counts : cuda_emulation::ptx::TakeLaunchCounts()) {
    Print(part++ == 0 ? name : "  and merge", counts);
  }
}

// On the device: numbers that are small in all types, or what is given.
class Memory {
 public:
  explicit Memory(int64_t bytes, int byte = 0x3c) {
    cuda::CudaCheck(cudaMalloc(&data_, static_cast<size_t>(bytes)), "memory");
    cuda::CudaCheck(cudaMemset(data_, byte, static_cast<size_t>(bytes)), "memory");
  }
  template <typename T>
  explicit Memory(const std::vector<T>& values)
      : Memory(static_cast<int64_t>(values.size() * sizeof(T))) {
    cuda::CudaCheck(
        cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
        "memory");
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  template <typename T = uint8_t>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class StepCounter {
 public:
  StepCounter(const Shape& shape, int64_t num_seqs, int64_t context, int64_t new_tokens)
      : shape_(shape),
        tokens_(num_seqs * new_tokens),
        context_(context),
        batch_(MakeUniformBatch({num_seqs, context, new_tokens, shape.block_size, 1000})),
        qkv_(tokens_ * QkvWidth() * 4),
        wide_(tokens_ * 2 * shape.intermediate * 4),
        narrow_(tokens_ * shape.intermediate * 4),
        residual_(tokens_ * shape.hidden * 4),
        positions_(batch_.positions),
        slots_(batch_.slot_mapping),
        starts_(batch_.query_starts),
        lens_(batch_.context_lens),
        tables_(TablesOf(batch_)) {
    index_.num_tokens = tokens_;
    index_.num_seqs = num_seqs;
    index_.positions = positions_.as<int32_t>();
    index_.slot_mapping = slots_.as<int64_t>();
    index_.query_starts = starts_.as<int32_t>();
    index_.context_lens = lens_.as<int32_t>();
    index_.block_tables = tables_.as<int32_t>();
    index_.max_blocks_per_seq = MaxBlocksPerSeq();
    const int64_t blocks = num_seqs * ((context + shape.block_size - 1) / shape.block_size) + 1;
    const int64_t half = blocks * shape.num_kv_heads * shape.block_size * shape.head_dim * 2;
    cache_memory_ = std::make_unique<Memory>(2 * half);
    cache_ = {cache_memory_->as(), cache_memory_->as() + half, DType::kBF16,  blocks,
              shape.num_kv_heads,  shape.block_size,           shape.head_dim};
  }

  void Run(bool products) {
    CountElementwise();
    CountGated();
    CountAttention("attention", nullptr);
    cache_.dtype = DType::kE4M3;
    CountAttention("attention, fp8 cache", nullptr);
    cache_.dtype = DType::kBF16;
    if (tokens_ > index_.num_seqs) {
      CountAttention("attention by wgmma", &cuTensorMapEncodeTiled);
    }
    if (!products || tokens_ > cuda::kSkinnyMaxRows) return;
    const int64_t q_width = int64_t{shape_.num_heads} * shape_.head_dim;
    CountProduct("qkv", QkvWidth(), shape_.hidden, false);
    CountProduct("attention's output", shape_.hidden, q_width, false);
    CountProduct("down", shape_.hidden, shape_.intermediate, false);
    CountProduct("attention's output, e4m3", shape_.hidden, q_width, true);
  }

 private:
  int64_t QkvWidth() const {
    return int64_t{shape_.num_heads + 2 * shape_.num_kv_heads} * shape_.head_dim;
  }

  int64_t MaxBlocksPerSeq() const { return std::ssize(batch_.new_blocks) / batch_.num_seqs(); }
  static std::vector<int32_t> TablesOf(const StepBatch& batch) {
    std::vector<int32_t> tables;
    for (const NewBlock& block : batch.new_blocks) tables.push_back(block.block);
    return tables;
  }

  void CountElementwise() {
    const Memory weight(shape_.hidden * 4);
    const RmsNormArgs norm = {.residual = residual_.as<float>(),
                              .delta = wide_.as(),
                              .weight = weight.as<float>(),
                              .eps = 1e-5f,
                              .num_tokens = tokens_,
                              .hidden = shape_.hidden,
                              .out = narrow_.as(),
                              .consumer = nullptr,
                              .delta_dtype = DType::kF32};
    const cuda::KernelStream stream(nullptr);
    Count("RMSNorm", [&] { return cuda::LaunchAddRmsNorm(norm, DType::kBF16, stream); });
    Count("RMSNorm in e4m3", [&] {
      return cuda::LaunchAddRmsNormFp8(norm, DType::kBF16, E4m3Rows(shape_.hidden), stream);
    });
    const Memory angles((context_ + 1) * shape_.head_dim * 2);
    RopeArgs rope = {qkv_.as(), shape_.num_heads, angles.as<float>(), angles.as<float>(),
                     &index_,   &cache_,          DType::kF32};
    Count("RoPE, cache write", [&] { return cuda::LaunchRopeAndWriteKv(rope, stream); });
    // As Qwen3 and Qwen2 have it.
    rope.adjust = {.bias = nullptr, .q_norm = weight.as<float>(), .k_norm = weight.as<float>()};
    Count("RoPE of normed heads", [&] { return cuda::LaunchRopeAndWriteKv(rope, stream); });
    const Memory bias((shape_.num_heads + 2 * shape_.num_kv_heads) * shape_.head_dim * 4);
    rope.adjust = {.bias = bias.as<float>()};
    Count("RoPE with a bias", [&] { return cuda::LaunchRopeAndWriteKv(rope, stream); });
  }

  void CountGated() {
    const SiluMulArgs args = {.gate_up = wide_.as(),
                              .num_tokens = tokens_,
                              .width = shape_.intermediate,
                              .out = narrow_.as(),
                              .gate_up_dtype = DType::kF32};
    const cuda::KernelStream stream(nullptr);
    Count("SiLU", [&] { return cuda::LaunchSiluMul(args, DType::kBF16, stream); });
    Count("SiLU in e4m3", [&] {
      return cuda::LaunchSiluMulFp8(args, DType::kBF16, E4m3Rows(shape_.intermediate), stream);
    });
    Count("quantizing to e4m3", [&] {
      return cuda::LaunchQuantizeFp8(residual_.as(), DType::kBF16, tokens_, shape_.hidden,
                                     E4m3Rows(shape_.hidden), stream);
    });
  }
  cuda::E4m3Rows E4m3Rows(int64_t width) const {
    return cuda::E4m3RowsIn(narrow_.as(), tokens_, width);
  }

  void CountAttention(const std::string& name, cuda::TensorMapEncoder encode) {
    cuda::AttentionWork work;
    work.LayOut(
        {batch_.query_starts, batch_.context_lens, batch_.table_rows, MaxBlocksPerSeq()},
        {shape_.num_heads, shape_.num_kv_heads, shape_.head_dim}, cache_.dtype,
        {.num_multiprocessors = static_cast<int>(kMultiprocessors), .wgmma = encode != nullptr});
    const Memory on_device(std::vector<std::byte>(work.bytes().begin(), work.bytes().end()));
    index_.attention_work = on_device.as<std::byte>();
    index_.attention_form = work.form().Packed();
    const Memory workspace(cuda::kAttentionWorkspaceBytes);
    const AttentionArgs args = {qkv_.as(), shape_.num_heads, 0.088f,     &index_,
                                &cache_,   narrow_.as(),     DType::kF32};
    Count(fmt::format("{}, splits of {}", name, work.split_tokens()), [&] {
      return cuda::LaunchAttention(args, DType::kBF16,
                                   {workspace.as(), cuda::kAttentionWorkspaceBytes}, encode,
                                   cuda::KernelStream(nullptr));
    });
  }

  void CountProduct(const std::string& name, int64_t out_features, int64_t in_features,
                    bool is_fp8) {
    const Memory w(out_features * in_features * (is_fp8 ? 1 : 2));
    const Memory scales(out_features * 4);
    const Memory partial(kPartialBytes);
    const Memory arrivals(cuda::kSkinnyMaxArrivals * int64_t{sizeof(uint32_t)}, 0);
    const cuda::SkinnyProduct product = {.num_rows = tokens_,
                                         .out_features = out_features,
                                         .in_features = in_features,
                                         .dtype = DType::kBF16,
                                         .x = narrow_.as(),
                                         .w = w.as(),
                                         .scales = is_fp8 ? scales.as<float>() : nullptr,
                                         .y = wide_.as<float>(),
                                         .num_multiprocessors = static_cast<int>(kMultiprocessors),
                                         .partial_sums = partial.as<float4>(),
                                         .partial_sums_bytes = kPartialBytes,
                                         .arrivals = arrivals.as<uint32_t>()};
    for (int variant = 0; variant < cuda::NumSkinnyVariants(tokens_); ++variant) {
      Count(fmt::format("{}, variant {}", name, variant),
            [&] { return cuda::LaunchSkinnyGemm(variant, product, cuda::KernelStream(nullptr)); });
    }
  }

  const Shape shape_;
  const int64_t tokens_;
  const int64_t context_;
  const StepBatch batch_;
  const Memory qkv_;
  const Memory wide_;
  const Memory narrow_;
  const Memory residual_;
  const Memory positions_;
  const Memory slots_;
  const Memory starts_;
  const Memory lens_;
  const Memory tables_;
  BatchIndex index_;
  std::unique_ptr<Memory> cache_memory_;
  KvCacheView cache_;
};

int Main(int argc, char** argv) {
  std::vector<int64_t> decode = {1, 64};
  int64_t context = 1024;
  int64_t prefill = 512;
  bool products = true;
  CLI::App app{"What the compiled kernels of a step of llama-3.1-8b do, counted."};
  app.add_option("--decode", decode, "sequences in a decode step")
      ->delimiter(',')
      ->check(CLI::Range(1, 256));
  app.add_option("--context", context, "of decoding sequences")->check(CLI::Range(1, 1 << 16));
  app.add_option("--prefill", prefill, "prompt tokens in one step; 0: none")
      ->check(CLI::Range(0, 1 << 13));
  app.add_flag("!--no-products", products,
               "leaves out products of few rows, whose counting takes longest");
  CLI11_PARSE(app, argc, argv);
  setenv("LOCKSTEP_CUDA_COMPILED", LOCKSTEP_COMPILED_KERNELS, 0);
  cuda_emulation::ptx::CountLaunches(true);
  PrintHeader();
  for (const int64_t seqs : decode) {
    fmt::print("{} x 1 tokens at context {}\n", seqs, context);
    StepCounter(Shape(), seqs, context, 1).Run(products);
  }
  if (prefill > 0) {
    fmt::print("1 x {} tokens\n", prefill);
    StepCounter(Shape(), 1, prefill, prefill).Run(products);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }
