// Which algorithm multiplies: those that cuBLASLt's heuristic finds and, of few rows, our own
// kernels, chosen by measurement. (With `deterministic`: gemm_fixed.cc.)
#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gemm_product.h"

namespace lockstep::cuda {
namespace {

constexpr size_t kMeasurements = 5;  // of each, but once they have taken
constexpr float kMostMilliseconds = 1.0f;
constexpr size_t kLeastMeasurements = 3;  // no more than these
// Of a block of decodes' attention over long contexts with heads of 128 (attention_mma.cuh: three
// stages of 64 keys and values). Of many sequences two lie on a multiprocessor, one after another,
// of few there may be none.
constexpr int kAttentionSharedBytes = 96 << 10;

int NumCandidates(bool is_fp8, int64_t shared_rows) {
  const bool are_all = shared_rows <= kMostExactRows || (is_fp8 && shared_rows >= kLeastLongRows);
  return are_all ? kMostCandidates : kCandidates;
}

}  // namespace

const Gemm::Choice& Gemm::Learn(Product& product, const Call& call) {
  const int64_t rows = call.x.num_rows;
  const auto [shared, is_new] = product.shared.try_emplace(SharedRows(rows));
  if (is_new) {
    const Scratch scratch(*this, scratch_bytes_);
    LearnSmaller(product, call);
    shared->second = Choose(product, call, NumCandidates(product.is_fp8, SharedRows(rows)));
    return product.known[rows] = shared->second;
  }
  // Kernels, of e4m3 above all, may be made for multiples of some number of rows. What says that it
  // takes them is tried all the same: once it is known, a failure would be the end.
  const bool is_taken = Takes(product, shared->second, call) &&
                        TryMultiply(product, shared->second, call) == CUBLAS_STATUS_SUCCESS;
  return product.known[rows] = is_taken ? shared->second : Choose(product, call, 1);
}

// Rows bring those that lie between them and the last power of two, as their x and y have room for
// these: who has warmed up with powers of two and the most there are meets nothing to measure
// later.
void Gemm::LearnSmaller(Product& product, const Call& call) {
  const int64_t rows = call.x.num_rows;
  if (rows <= 1 || rows > kMostExactRows) return;
  const auto last = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(rows - 1)));
  Call smaller = call;
  for (smaller.x.num_rows = SharedRows(last + 1); smaller.x.num_rows < rows;
       smaller.x.num_rows += 8) {
    const auto [shared, is_new] = product.shared.try_emplace(smaller.x.num_rows);
    if (!is_new) continue;
    shared->second = Choose(product, smaller, kFewCandidates);
    product.known[smaller.x.num_rows] = shared->second;
  }
}

Gemm::Choice Gemm::Choose(Product& product, const Call& call, int num_measured) {
  std::optional<Timed> best;
  if (product.is_fp8 && scaled_ != nullptr) best = BestOf(product, true, call, num_measured);
  if (!best.has_value()) {
    if (product.is_fp8) TellWhoScales(product, call.x.num_rows);
    best = BestOf(product, false, call, num_measured);
  }
  if (num_measured > 1 || !best.has_value()) TakeFasterSkinny(product, call, best);
  LS_CHECK(best.has_value()) << "cuBLASLt has no algorithm for " << product.out_features << " x "
                             << product.in_features << " with " << call.x.num_rows << " rows";
  return best->choice;
}

void Gemm::TakeFasterSkinny(Product& product, const Call& call, std::optional<Timed>& best) {
  if (!TakesSkinny(product, call)) return;
  for (int variant = 0; variant < NumSkinnyVariants(call.x.num_rows); ++variant) {
    const Choice choice{.skinny_variant = variant};
    const std::optional<float> milliseconds = Measure(product, choice, call);
    if (!milliseconds.has_value()) continue;
    if (!best.has_value() || *milliseconds < best->milliseconds) best = {choice, *milliseconds};
  }
}

// Of some shapes it has them for many rows only (pytorch/ao issue 4582).
void Gemm::TellWhoScales(const Product& product, int64_t num_rows) {
  if (std::exchange(has_told_who_scales_, true) || options_.notice == nullptr) return;
  const std::string whose =
      scaled_ == nullptr ? "here"
                         : absl::StrCat("of ", num_rows, " rows by ", product.out_features, " x ",
                                        product.in_features, ", perhaps of others, too");
  options_.notice("cuBLASLt has no fp8 products with a scale for each row " + whose +
                  ": a kernel multiplies by the scales afterwards, which takes longer");
}

// Of the first num_measured that run, or nothing when none does.
std::optional<Gemm::Timed> Gemm::BestOf(Product& product, bool is_scaled, const Call& call,
                                        int num_measured) {
  std::optional<Timed> best;
  int num_running = 0;
  for (const cublasLtMatmulAlgo_t& algorithm : FindAlgorithms(product, is_scaled, call)) {
    const Choice choice{.algorithm = algorithm, .is_scaled = is_scaled};
    if (num_measured == 1) {
      if (TryMultiply(product, choice, call) == CUBLAS_STATUS_SUCCESS) return Timed{choice};
      continue;
    }
    const std::optional<float> milliseconds = Measure(product, choice, call);
    if (!milliseconds.has_value()) continue;
    if (!best.has_value() || *milliseconds < best->milliseconds) best = {choice, *milliseconds};
    if (++num_running == num_measured) break;
  }
  return best;
}

// In the order in which cuBLASLt expects them to be fast.
std::vector<cublasLtMatmulAlgo_t> Gemm::FindAlgorithms(Product& product, bool is_scaled,
                                                       const Call& call) {
  std::array<cublasLtMatmulHeuristicResult_t, kMostCandidates> results = {};
  int num_found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, SetUp(product, is_scaled, call), product.w, product.x, product.y, product.y,
      product.y_dtype == DType::kF32 ? preference_ : rounded_preference_, kMostCandidates,
      results.data(), &num_found);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  if (status != CUBLAS_STATUS_SUCCESS) return algorithms;
  for (const auto& result : std::span(results).first(static_cast<size_t>(num_found))) {
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  }
  return algorithms;
}

bool Gemm::Takes(Product& product, const Choice& choice, const Call& call) {
  if (choice.skinny_variant.has_value()) return TakesSkinny(product, call);
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_, SetUp(product, choice.is_scaled, call), product.w, product.x,
                              product.y, product.y, &choice.algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes;
}

// Milliseconds, or nothing where it does not run: the median of a few, after one that loads the
// code. Before each the cache is emptied: of weights, which a step finds in memory too; by reading,
// as what is written would still be on its way to memory while the product reads. The device is
// busy with that while the host issues the rest, so that no time of the host's counts. Where
// kernels overlap there is one before the product, as in a step, in whose time ours fetch weights:
// of what follows attention, as far as they find room beside a block of attention's on each
// multiprocessor.
std::optional<float> Gemm::Measure(Product& product, const Choice& choice, const Call& call) {
  if (TryMultiply(product, choice, call) != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  std::array<float, kMeasurements> times = {};
  size_t num_times = 0;
  for (float sum = 0.0f;
       num_times < kLeastMeasurements || (num_times < times.size() && sum < kMostMilliseconds);
       ++num_times) {
    if (scratch_ != nullptr) {
      CudaCheck(LaunchRead(scratch_, scratch_bytes_, stream_), "emptying the cache");
    }
    CudaCheck(cudaEventRecord(begin_, stream_), "measuring a product");
    if (stream_.overlaps) {
      CudaCheck(call.x.origin == Origin::kAttention
                    ? LaunchStandIn(num_multiprocessors_, kAttentionSharedBytes, stream_)
                    : LaunchStandIn(1, 0, stream_),
                "measuring a product");
    }
    if (TryMultiply(product, choice, call) != CUBLAS_STATUS_SUCCESS) return std::nullopt;
    CudaCheck(cudaEventRecord(end_, stream_), "measuring a product");
    CudaCheck(cudaEventSynchronize(end_), "measuring a product");
    CudaCheck(cudaEventElapsedTime(&times[num_times], begin_, end_), "measuring a product");
    sum += times[num_times];
  }
  const auto median = times.begin() + static_cast<std::ptrdiff_t>(num_times / 2);
  std::nth_element(times.begin(), median, times.begin() + static_cast<std::ptrdiff_t>(num_times));
  return *median;
}

}  // namespace lockstep::cuda
