// Kernels that begin before those before them have ended give what they give one after the other.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "kernels/cuda/skinny_gemm.h"
#include "tests/kernels/cuda/attention_on_device.h"
#ifdef LOCKSTEP_CUDA_EMULATION
#include "tests/support/cuda_emulation/emulation.h"
#endif

namespace lockstep::testing {
namespace {

using cuda::KernelStream;

constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 64;
constexpr int64_t kHidden = kHeads * kHeadDim;
constexpr int64_t kFfn = 528;
constexpr int kLayers = 2;

// The layers of a small model over one batch, each kernel reading what the one before it wrote, and
// all layers using the same memory.
class Layers {
 public:
  Layers(const PagedWorld& world, int variant)
      : world_(world),
        variant_(variant),
        random_(7),
        batch_(world.flat(), world.shape(), {.split_tokens = 128}) {
    stream_ = KernelStream(NewStream());
  }
  ~Layers() { cudaStreamDestroy(stream_.stream); }

  bool CanOverlap() const { return cuda::KernelsCanOverlap(stream_); }

  // The residual and the cache after a step; as a graph, if so wanted.
  std::vector<float> Run(bool overlaps, bool record) {
    stream_.overlaps = overlaps;
    keys_.Write(world_.RowMajorKeys());
    values_.Write(world_.values());
    if (record) {
      IssueAsGraph();
    } else {
      Issue();
    }
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    std::vector<float> result = residual_.Read();
    for (const DeviceArray<uint8_t>* side : {&keys_, &values_}) {
      for (const uint8_t byte : side->Read()) result.push_back(byte);
    }
    return result;
  }

 private:
  static cudaStream_t NewStream() {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
  }
  DeviceArray<BF16> Weights(int64_t rows, int64_t columns) {
    return DeviceArray<BF16>(Narrowed<BF16>(random_.Normals(rows * columns)));
  }

  void IssueAsGraph() {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    Issue();
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  }

  void Issue() {
    // A step's first kernel waits for all that was issued before.
    EXPECT_EQ(cuda::LaunchGatherRows(embedded_.data(), rows_.data(), num_tokens_, kHidden * 4,
                                     residual_.data(), stream_),
              cudaSuccess);
    for (int layer = 0; layer < kLayers; ++layer) IssueLayer(layer == 0);
    Norm(y_.data());
  }

  void IssueLayer(bool first) {
    Norm(first ? nullptr : y_.data());
    Multiply(x_.data(), qkv_weights_, world_.width(), kHidden, qkv_.data());
    KvCacheView cache = world_.cache();
    cache.k = keys_.data();
    cache.v = values_.data();
    RopeArgs rope = {qkv_.data(), kHeads, cos_.data(), sin_.data(), &batch_.index(), &cache};
    if (!first) rope.adjust = {bias_.data(), head_norm_.data(), head_norm_.data(), 1e-5f};
    EXPECT_EQ(cuda::LaunchRopeAndWriteKv(rope, stream_), cudaSuccess);
    EXPECT_EQ(cuda::LaunchAttention(
                  {qkv_.data(), kHeads, world_.scale(), &batch_.index(), &cache, attended_.data()},
                  DType::kBF16, {workspace_.data(), kWorkspaceBytes}, nullptr, stream_),
              cudaSuccess);
    Multiply(attended_.data(), out_weights_, kHidden, kHidden, y_.data());
    Norm(y_.data());
    Multiply(x_.data(), up_weights_, 2 * kFfn, kHidden, gate_up_.data());
    EXPECT_EQ(cuda::LaunchSiluMul({gate_up_.data(), num_tokens_, kFfn, activated_.data()},
                                  DType::kBF16, stream_),
              cudaSuccess);
    Multiply(activated_.data(), down_weights_, kHidden, kFfn, y_.data());
  }

  void Norm(const float* delta) {
    EXPECT_EQ(cuda::LaunchAddRmsNorm(
                  {residual_.data(), delta, norm_.data(), 1e-5f, num_tokens_, kHidden, x_.data()},
                  DType::kBF16, stream_),
              cudaSuccess);
  }

  void Multiply(const BF16* x, const DeviceArray<BF16>& weights, int64_t out_features,
                int64_t in_features, float* y) {
    EXPECT_EQ(cuda::LaunchSkinnyGemm(variant_,
                                     {.num_rows = num_tokens_,
                                      .out_features = out_features,
                                      .in_features = in_features,
                                      .x = x,
                                      .w = weights.data(),
                                      .y = y,
                                      .prefetched_bytes = x == attended_.data() ? 4096 : 1024,
                                      .num_multiprocessors = 6,
                                      .partial_sums = partial_sums_.data(),
                                      .partial_sums_bytes = kPartialSums * int64_t{sizeof(float4)},
                                      .arrivals = arrivals_.data()},
                                     stream_),
              cudaSuccess);
  }

  static constexpr int64_t kWorkspaceBytes = 1 << 20;
  static constexpr int64_t kPartialSums = 1 << 15;

  const PagedWorld& world_;
  const int variant_;
  Random random_;
  KernelStream stream_ = nullptr;
  const DeviceBatch batch_;
  const int64_t num_tokens_ = world_.batch().num_tokens;
  DeviceArray<uint8_t> keys_{static_cast<int64_t>(world_.values().size())};
  DeviceArray<uint8_t> values_{static_cast<int64_t>(world_.values().size())};
  const DeviceArray<float> cos_{world_.cos()};
  const DeviceArray<float> sin_{world_.sin()};
  const DeviceArray<float> bias_{random_.Normals(world_.width())};
  const DeviceArray<float> head_norm_{random_.Normals(kHeadDim)};
  const DeviceArray<float> embedded_{random_.Normals(num_tokens_ * kHidden)};
  const DeviceArray<int32_t> rows_{std::vector<int32_t>(static_cast<size_t>(num_tokens_), 0)};
  const DeviceArray<float> norm_{random_.Normals(kHidden)};
  const DeviceArray<BF16> qkv_weights_ = Weights(world_.width(), kHidden);
  const DeviceArray<BF16> out_weights_ = Weights(kHidden, kHidden);
  const DeviceArray<BF16> up_weights_ = Weights(2 * kFfn, kHidden);
  const DeviceArray<BF16> down_weights_ = Weights(kHidden, kFfn);
  const DeviceArray<float> residual_{num_tokens_ * kHidden};
  const DeviceArray<BF16> x_{num_tokens_ * kHidden};
  const DeviceArray<float> qkv_{num_tokens_ * world_.width()};
  const DeviceArray<BF16> attended_{num_tokens_ * kHidden};
  const DeviceArray<float> gate_up_{num_tokens_ * 2 * kFfn};
  const DeviceArray<BF16> activated_{num_tokens_ * kFfn};
  const DeviceArray<float> y_{num_tokens_ * kHidden};
  const DeviceArray<uint8_t> workspace_{kWorkspaceBytes};
  const DeviceArray<float4> partial_sums_{kPartialSums};
  const DeviceArray<uint32_t> arrivals_{std::vector<uint32_t>(cuda::kSkinnyMaxArrivals)};
};

int64_t NumBegunEarly() {
#ifdef LOCKSTEP_CUDA_EMULATION
  return cuda_emulation::NumKernelsBegunEarly();
#else
  return 0;
#endif
}

void ExpectTheSame(const std::vector<SequenceChunk>& chunks, int variant,
                   DType kv_dtype = DType::kBF16) {
  const PagedWorld world({kHeads, kKvHeads, kHeadDim, 16, kv_dtype}, chunks, 11);
  Layers layers(world, variant);
  if (!layers.CanOverlap()) GTEST_SKIP() << "kernels do not overlap here";
  const std::vector<float> want = layers.Run(/*overlaps=*/false, /*record=*/false);
  const int64_t none_early = NumBegunEarly();
  for (const bool record : {false, true}) {
    EXPECT_TRUE(SameBits(layers.Run(/*overlaps=*/true, record), want)) << "recorded: " << record;
  }
#ifdef LOCKSTEP_CUDA_EMULATION
  EXPECT_GE(NumBegunEarly() - none_early, 2 * kLayers * 8) << "nothing was tried";
#else
  EXPECT_EQ(none_early, 0);
#endif
}

TEST(CudaOverlap, DecodesAreTheSame) {
  for (int variant = 0; variant < cuda::NumSkinnyVariants(3); ++variant) {
    ExpectTheSame({{300, 1}, {128, 1}, {5, 1}}, variant);  // of one and of several splits
  }
}

TEST(CudaOverlap, ChunksAreTheSame) {
  for (const int variant : {0, cuda::kFewRowsVariants}) {
    ExpectTheSame({{200, 5}, {0, 9}, {63, 1}}, variant);
  }
}

TEST(CudaOverlap, OverE4m3CachesAllAreTheSame) {
  ExpectTheSame({{300, 1}, {128, 1}, {5, 1}}, 0, DType::kE4M3);
  ExpectTheSame({{200, 5}, {0, 9}, {63, 1}}, 0, DType::kE4M3);
}

// Of more rows, where blocks always share sums in memory that the next product uses as well.
TEST(CudaOverlap, ChunksOfMoreRowsAreTheSame) {
  for (int variant = 0; variant < cuda::NumSkinnyVariants(40); ++variant) {
    ExpectTheSame({{200, 25}, {0, 14}, {63, 1}}, variant);
  }
}

// A later kernel takes this one's end for that of all before it, though no block has work.
TEST(CudaOverlap, AttentionWithoutContextsWaits) {
  const PagedWorld world({kHeads, kKvHeads, kHeadDim, 16, DType::kBF16}, {{5, 1}, {9, 1}}, 11);
  FlatBatch nothing = world.flat();
  std::fill(nothing.context_lens.begin(), nothing.context_lens.end(), 0);
  const DeviceBatch batch(nothing, world.shape(), {.num_multiprocessors = 132});
  const DeviceArray<float> qkv(world.qkv());
  const DeviceArray<uint8_t> keys(world.RowMajorKeys());
  const DeviceArray<float> out(world.batch().num_tokens * world.out_width());
  KvCacheView cache = world.cache();
  cache.k = cache.v = keys.data();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const bool overlaps = cuda::KernelsCanOverlap(stream);
  EXPECT_EQ(
      cuda::LaunchAttention({qkv.data(), kHeads, world.scale(), &batch.index(), &cache, out.data()},
                            DType::kF32, {}, nullptr, KernelStream(stream, overlaps)),
      cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  for (const float x : out.Read()) EXPECT_TRUE(std::isnan(x));
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// Rows in e4m3 and the scales they leave, each from what the kernel before made of y.
std::vector<float> QuantizeRound(const KernelStream& stream) {
  constexpr int64_t kRows = 3, kWidth = 272;
  Random random(5);
  const DeviceArray<float> y(random.Normals(kRows * kWidth));
  const DeviceArray<float> residual(random.Normals(kRows * kWidth));
  const DeviceArray<float> columns(random.Normals(kWidth));
  const int64_t bytes = cuda::E4m3RowsBytes(kRows, kWidth);
  const std::vector<uint8_t> zeros(static_cast<size_t>(bytes), 0);
  const DeviceArray<uint8_t> normed(zeros), gated(zeros), quantized(zeros);
  const auto rows_in = [&](const DeviceArray<uint8_t>& memory, int64_t width) {
    return cuda::E4m3RowsIn(memory.data(), kRows, width);
  };
  EXPECT_EQ(cuda::LaunchAdd(y.data(), residual.data(), DType::kF32, kRows * kWidth, stream),
            cudaSuccess);
  for (int round = 0; round < 2; ++round) {
    const cuda::E4m3Rows norms = rows_in(normed, kWidth);
    EXPECT_EQ(cuda::LaunchAddRmsNormFp8(
                  {residual.data(), y.data(), columns.data(), 1e-5f, kRows, kWidth, normed.data()},
                  DType::kBF16, norms, stream),
              cudaSuccess);
    EXPECT_EQ(cuda::LaunchScaleRowsAndColumns({y.data(), DType::kF32, kRows, kWidth}, norms.scales,
                                              columns.data(), stream),
              cudaSuccess);
    const cuda::E4m3Rows gates = rows_in(gated, kWidth / 2);
    EXPECT_EQ(
        cuda::LaunchSiluMulFp8({y.data(), kRows, kWidth / 2, nullptr}, DType::kBF16, gates, stream),
        cudaSuccess);
    EXPECT_EQ(cuda::LaunchScaleRowsAndColumns({y.data(), DType::kF32, kRows, kWidth}, gates.scales,
                                              columns.data(), stream),
              cudaSuccess);
    const cuda::E4m3Rows wide = rows_in(quantized, kWidth);
    EXPECT_EQ(cuda::LaunchQuantizeFp8(y.data(), DType::kF32, kRows, kWidth, wide, stream),
              cudaSuccess);
    EXPECT_EQ(cuda::LaunchScaleRowsAndColumns({y.data(), DType::kF32, kRows, kWidth}, wide.scales,
                                              columns.data(), stream),
              cudaSuccess);
  }
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  std::vector<float> results = y.Read();
  for (const DeviceArray<uint8_t>* rows : {&normed, &gated, &quantized}) {
    for (const uint8_t byte : rows->Read()) results.push_back(byte);
  }
  return results;
}

TEST(CudaOverlap, QuantizingIsTheSame) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  if (cuda::KernelsCanOverlap(stream)) {
    EXPECT_TRUE(SameBits(QuantizeRound(KernelStream(stream, true)), QuantizeRound(stream)));
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

#ifdef LOCKSTEP_CUDA_EMULATION
// Whichever it is; those behind it do.
TEST(CudaOverlap, AStepsFirstKernelDoesNot) {
  bool holds_next = false;
  KernelStream stream(nullptr, true);
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream.stream, cudaStreamNonBlocking), cudaSuccess);
  stream.holds_next = &holds_next;
  const DeviceArray<float> numbers(std::vector<float>{1, 2});
  const DeviceArray<int32_t> ids(std::vector<int32_t>{0});
  const DeviceArray<float> out(2);
  const auto norm = [&] {
    EXPECT_EQ(
        cuda::LaunchAddRmsNorm({numbers.data(), nullptr, numbers.data(), 1e-5f, 1, 2, out.data()},
                               DType::kF32, stream),
        cudaSuccess);
  };
  const auto embed = [&] {
    EXPECT_EQ(cuda::LaunchEmbed({numbers.data(), DType::kF32, 1, 0, 2, ids.data(), 1, out.data()},
                                stream),
              cudaSuccess);
  };
  for (const std::function<void()>& first : {std::function<void()>(norm), {embed}}) {
    const int64_t before = NumBegunEarly();
    norm();
    stream.HoldNext();
    first();
    norm();
    norm();
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(NumBegunEarly() - before, 2);
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(CudaOverlap, OrdersOfThreadsAreAllTheSame) {
  for (const uint64_t order : {1, 2, 3}) {
    cuda_emulation::SetThreadOrder(order);
    ExpectTheSame({{300, 1}, {5, 1}}, 0);
  }
  cuda_emulation::SetThreadOrder(0);
}

TEST(CudaOverlap, OlderDevicesDoWithout) {
  cuda_emulation::SetDevice({.compute_major = 8});
  std::string refused;
  EXPECT_FALSE(cuda::KernelsCanOverlap(nullptr, &refused));
  EXPECT_EQ(refused, "");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  cuda_emulation::SetDevice({});
}

// Steps are recorded without it then, by the same stream.
TEST(CudaOverlap, WhatRecordingsRefuseIsNotUsed) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_TRUE(cuda::KernelsCanOverlap(stream));
  cuda_emulation::SetDevice({.records_overlaps = false});
  std::string refused;
  EXPECT_FALSE(cuda::KernelsCanOverlap(stream, &refused));
  EXPECT_NE(refused, "");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
  EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  cuda_emulation::SetDevice({});
}
#endif

}  // namespace
}  // namespace lockstep::testing
