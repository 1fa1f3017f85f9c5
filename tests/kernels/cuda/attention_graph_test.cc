// Attention in a captured graph: what was captured for one batch serves later ones, whose sizes are
// within what the host knew at the capture.
#include <string>
#include <vector>

#include "tests/kernels/cuda/attention_on_device.h"

namespace lockstep::testing {
namespace {

class CapturedGraph {
 public:
  template <typename Issue>
  explicit CapturedGraph(const Issue& issue) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    issue(stream_);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&graph_, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  ~CapturedGraph() {
    cudaGraphExecDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  void Replay() {
    EXPECT_EQ(cudaGraphLaunch(graph_, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
};

// The batch's first sequences; what is left of its sizes is padding without context or cache: of
// chunks, all tokens are the first sequence's that is left, and the others have none.
FlatBatch FirstSequences(const FlatBatch& batch, int num_seqs) {
  const bool has_chunks = batch.positions.size() != batch.context_lens.size();
  FlatBatch padded = batch;
  for (size_t s = num_seqs; s < batch.context_lens.size(); ++s) {
    padded.context_lens[s] = 0;
    if (has_chunks) padded.query_starts[s + 1] = batch.query_starts.back();
  }
  for (size_t t = batch.query_starts[num_seqs]; t < batch.positions.size(); ++t) {
    padded.positions[t] = 0;
    padded.slots[t] = -1;
  }
  return padded;
}

class CudaAttentionGraph : public ::testing::TestWithParam<DType> {};

// Rotation, write and attention of all sequences are captured, then replayed with ever fewer.
void ExpectReplaysEqualLaunches(const PagedShape& shape, const std::vector<SequenceChunk>& chunks,
                                cuda::TensorMapEncoder encode_maps = nullptr) {
  const PagedWorld world(shape, chunks, 42);
  const DeviceArray<uint8_t> keys(world.RowMajorKeys());
  const DeviceArray<uint8_t> values(world.values());
  DeviceArray<float> qkv(world.qkv());
  const DeviceArray<float> cos(world.cos());
  const DeviceArray<float> sin(world.sin());
  DeviceArray<float> out(world.batch().num_tokens * world.out_width());
  // A device that cuts contexts into tiles.
  DeviceBatch batch(world.flat(), shape,
                    {.num_multiprocessors = 132, .wgmma = encode_maps != nullptr});
  KvCacheView cache = world.cache();
  cache.k = keys.data();
  cache.v = values.data();
  const DeviceArray<uint8_t> workspace(cuda::kAttentionWorkspaceBytes);
  const auto issue = [&](cudaStream_t stream) {
    EXPECT_EQ(cuda::LaunchRopeAndWriteKv(
                  {qkv.data(), 4, cos.data(), sin.data(), &batch.index(), &cache}, stream),
              cudaSuccess);
    EXPECT_EQ(cuda::LaunchAttention(
                  {qkv.data(), 4, world.scale(), &batch.index(), &cache, out.data()}, DType::kF32,
                  {workspace.data(), cuda::kAttentionWorkspaceBytes}, encode_maps, stream),
              cudaSuccess);
  };
  CapturedGraph graph(issue);
  const std::vector<float> nothing(world.batch().num_tokens * world.out_width(), NAN);
  for (int num_seqs = static_cast<int>(chunks.size()); num_seqs > 0; --num_seqs) {
    batch.Write(FirstSequences(world.flat(), num_seqs));
    std::vector<float> got[2];
    for (const bool replay : {false, true}) {
      qkv.Write(world.qkv());
      out.Write(nothing);
      if (replay) {
        graph.Replay();
      } else {
        issue(nullptr);
      }
      got[replay] = out.Read();
    }
    ASSERT_TRUE(SameBits(got[1], got[0])) << num_seqs << " sequences";
    const int64_t end = world.flat().query_starts[num_seqs] * world.out_width();
    for (int64_t i = 0; i < end; ++i) ASSERT_TRUE(std::isfinite(got[1][i])) << i;
    for (size_t i = end; i < got[1].size(); ++i) ASSERT_TRUE(std::isnan(got[1][i])) << i;
  }
}

TEST_P(CudaAttentionGraph, ReplaysDecodesOfFewerSequences) {
  ExpectReplaysEqualLaunches({4, 2, 16, 4, GetParam()}, {{200, 1}, {5, 1}, {63, 1}, {64, 1}});
}

TEST_P(CudaAttentionGraph, ReplaysMixedBatchesOfFewerSequences) {
  ExpectReplaysEqualLaunches({4, 2, 16, 4, GetParam()}, {{200, 1}, {0, 30}, {63, 1}, {60, 9}});
}

TEST(CudaAttentionGraphByWgmma, ReplaysMixedBatchesOfFewerSequences) {
  const cuda::TensorMapEncoder encode = AttentionOnDevice::Encoder();
  if (encode == nullptr) GTEST_SKIP() << "no wgmma here";
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    ExpectReplaysEqualLaunches({4, 2, 64, 16, dtype}, {{200, 1}, {0, 30}, {63, 1}, {60, 9}},
                               encode);
  }
}

INSTANTIATE_TEST_SUITE_P(Cache, CudaAttentionGraph,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace lockstep::testing
