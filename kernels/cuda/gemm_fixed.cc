#include "kernels/cuda/gemm_fixed.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {
namespace {

bool IsPowerOfTwo(int64_t number) { return std::has_single_bit(static_cast<uint64_t>(number)); }

// Grown while weights are allocated.
absl::Status Grow(int64_t bytes, int64_t& held, void** memory, cudaStream_t stream) {
  if (bytes <= held) return absl::OkStatus();
  if (*memory != nullptr) cudaFree(*memory);
  *memory = nullptr;
  held = 0;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(memory, static_cast<size_t>(bytes)), "rows of a product"));
  // Rows that fill up a tile are multiplied, too.
  RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(*memory, 0, static_cast<size_t>(bytes), stream),
                             "rows of a product"));
  held = bytes;
  return absl::OkStatus();
}

}  // namespace

// Made-up rows, and what the reference makes of them with weights that are there.
class Gemm::Fixed::Proof {
 public:
  // Of up to most_rows, whose results go to y [most_rows, out_features].
  Proof(Fixed& fixed, Product& product, const Weight& w, int64_t most_rows, void* y)
      : fixed_(fixed), product_(product), w_(w), y_(y) {
    const Call own = fixed.OwnCall(product, w);
    MakeUp(own.x);
    const auto digests = fixed.Digest(product, *product.reference, own);
    if (digests.has_value()) wanted_ = *digests;
    x_ = own.x;
    if (most_rows > kFixedRows) MakeUpMore(most_rows);
  }
  ~Proof() {
    if (memory_ != nullptr) CudaCheck(cudaFreeAsync(memory_, stream()), "made-up rows");
  }
  Proof(const Proof&) = delete;
  Proof& operator=(const Proof&) = delete;

  bool has_memory() const { return has_memory_; }
  // Rows that are not alike have results that are not.
  bool is_telling() const { return wanted_.size() > 1 && wanted_[0] != wanted_[1]; }
  Call CallOf(int64_t num_rows) const {
    return {.w = w_, .x = {num_rows, x_.data, x_.scales}, .y = y_};
  }
  // Whether the product of so many rows has the reference's bits.
  bool Holds(const Choice& choice, int64_t num_rows) {
    const auto digests = fixed_.Digest(product_, choice, CallOf(num_rows));
    return digests.has_value() && std::equal(digests->begin(), digests->end(), wanted_.begin());
  }

 private:
  cudaStream_t stream() const { return fixed_.gemm_.stream_; }
  void MakeUp(const Input& x) const {
    CudaCheck(LaunchMakeUpRows({.data = const_cast<void*>(x.data),
                                .scales = const_cast<float*>(x.scales),
                                .dtype = fixed_.gemm_.options_.compute,
                                .num_rows = x.num_rows,
                                .width = product_.in_features},
                               stream()),
              "made-up rows");
  }
  void MakeUpMore(int64_t num_rows) {
    const int64_t x_bytes = num_rows * product_.in_features * product_.element_bytes;
    const auto bytes = static_cast<size_t>(x_bytes + num_rows * int64_t{sizeof(float)});
    has_memory_ = cudaMallocAsync(&memory_, bytes, stream()) == cudaSuccess;
    if (!has_memory_) {
      cudaGetLastError();
      memory_ = nullptr;
      return;
    }
    x_.num_rows = num_rows;
    x_.data = memory_;
    if (product_.is_fp8) {
      x_.scales = reinterpret_cast<float*>(static_cast<std::byte*>(memory_) + x_bytes);
    }
    MakeUp(x_);
  }

  Fixed& fixed_;
  Product& product_;
  const Weight& w_;
  void* const y_;
  Input x_;
  void* memory_ = nullptr;
  bool has_memory_ = true;
  std::vector<RowDigest> wanted_;
};

Gemm::Fixed::~Fixed() {
  for (void* memory : {x_, y_, static_cast<void*>(digests_)}) {
    if (memory != nullptr) cudaFree(memory);
  }
}

absl::Status Gemm::Fixed::Start() {
  void* digests = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&digests, kMostRowsAtOnce * sizeof(RowDigest)),
                             "digests of a product"));
  digests_ = static_cast<RowDigest*>(digests);
  host_digests_.resize(kMostRowsAtOnce);
  return absl::OkStatus();
}

absl::Status Gemm::Fixed::Prepare(const Product& product) {
  const int64_t x_bytes =
      kFixedRows * (product.in_features * product.element_bytes + int64_t{sizeof(float)});
  RETURN_IF_ERROR(Grow(x_bytes, x_bytes_, &x_, gemm_.stream_));
  return Grow(kFixedRows * product.out_features * int64_t{sizeof(float)}, y_bytes_, &y_,
              gemm_.stream_);
}

Gemm::Call Gemm::Fixed::OwnCall(const Product& product, const Weight& w) const {
  auto* const scales = reinterpret_cast<float*>(
      static_cast<std::byte*>(x_) + kFixedRows * product.in_features * product.element_bytes);
  return {.w = w, .x = {kFixedRows, x_, product.is_fp8 ? scales : nullptr}, .y = y_};
}

// ---- multiplying ----

void Gemm::Fixed::Run(Product& product, const Call& call) {
  if (!product.is_reference_told && !gemm_.IsRecording()) LearnReference(product, call.w);
  LS_CHECK(product.reference.has_value())
      << "no algorithm is known for " << product.out_features << " x " << product.in_features
      << " while a step is recorded";
  Call rest = call;
  while (rest.x.num_rows > 0) {
    Call part = rest;
    part.x.num_rows = RowsAtOnce(product, rest);
    const auto known = product.known.find(part.x.num_rows);
    if (known != product.known.end()) {
      gemm_.Multiply(product, known->second, part);
    } else {
      FillUpAndMultiply(product, part);
    }
    const int64_t rows = part.x.num_rows;
    rest.x.num_rows -= rows;
    rest.x.data = static_cast<const std::byte*>(rest.x.data) +
                  rows * product.in_features * product.element_bytes;
    if (rest.x.scales != nullptr) rest.x.scales += rows;
    rest.y = static_cast<float*>(rest.y) + rows * product.out_features;
  }
}

// All that is left if they are few, else as many as the largest power of two, else a tile.
int64_t Gemm::Fixed::RowsAtOnce(Product& product, const Call& rest) {
  const int64_t left = rest.x.num_rows;
  if (left <= kMostExactRows && Knows(product, rest)) return left;
  Call part = rest;
  part.x.num_rows =
      std::min(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(left))), kMostRowsAtOnce);
  for (; part.x.num_rows > kFixedRows; part.x.num_rows /= 2) {
    if (Knows(product, part)) return part.x.num_rows;
  }
  return std::min(left, kFixedRows);
}

void Gemm::Fixed::FillUpAndMultiply(Product& product, const Call& call) {
  const auto copy = [&](void* to, const void* from, int64_t bytes) {
    CudaCheck(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                              gemm_.stream_),
              "rows of a product");
  };
  const int64_t rows = call.x.num_rows;
  const Call own = OwnCall(product, call.w);
  copy(x_, call.x.data, rows * product.in_features * product.element_bytes);
  if (product.is_fp8) {
    copy(const_cast<float*>(own.x.scales), call.x.scales, rows * int64_t{sizeof(float)});
  }
  gemm_.Multiply(product, product.known.at(kFixedRows), own);
  copy(call.y, y_, rows * product.out_features * int64_t{sizeof(float)});
}

// ---- what has the same bits ----

// Of each row, if all have what their first twin has and the algorithm runs.
std::optional<std::vector<RowDigest>> Gemm::Fixed::Digest(Product& product, const Choice& choice,
                                                          const Call& call) {
  if (gemm_.TryMultiply(product, choice, call) != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  const auto rows = static_cast<size_t>(call.x.num_rows);
  CudaCheck(LaunchDigestRows(static_cast<const float*>(call.y), call.x.num_rows,
                             product.out_features, digests_, gemm_.stream_),
            "digests of a product");
  CudaCheck(cudaMemcpyAsync(host_digests_.data(), digests_, rows * sizeof(RowDigest),
                            cudaMemcpyDeviceToHost, gemm_.stream_),
            "digests of a product");
  CudaCheck(cudaStreamSynchronize(gemm_.stream_), "digests of a product");
  for (size_t row = kMadeUpRows; row < rows; ++row) {
    if (host_digests_[row] != host_digests_[row - kMadeUpRows]) return std::nullopt;
  }
  const auto end = static_cast<std::ptrdiff_t>(std::min<size_t>(rows, kMadeUpRows));
  return std::vector<RowDigest>(host_digests_.begin(), host_digests_.begin() + end);
}

std::vector<Gemm::Choice> Gemm::Fixed::Candidates(Product& product, bool is_scaled,
                                                  const Call& call) {
  std::vector<Choice> choices;
  for (const cublasLtMatmulAlgo_t& algorithm : gemm_.FindAlgorithms(product, is_scaled, call)) {
    choices.push_back({.algorithm = algorithm, .is_scaled = is_scaled});
  }
  return choices;
}

// Those that give the same bits, by the first of them.
std::vector<Gemm::Fixed::Alike> Gemm::Fixed::Compare(Product& product, bool is_scaled,
                                                     const Call& call) {
  std::vector<Alike> all;
  for (const Choice& choice : Candidates(product, is_scaled, call)) {
    const auto digests = Digest(product, choice, call);
    if (!digests.has_value()) continue;
    const auto same = std::find_if(all.begin(), all.end(),
                                   [&](auto& alike) { return alike.digests == *digests; });
    if (same != all.end()) {
      same->choices.push_back(choice);
    } else {
      all.push_back({*digests, {choice}});
    }
  }
  return all;
}

void Gemm::Fixed::LearnReference(Product& product, const Weight& w) {
  const Call call = OwnCall(product, w);
  CudaCheck(LaunchMakeUpRows({.data = x_,
                              .scales = const_cast<float*>(call.x.scales),
                              .dtype = gemm_.options_.compute,
                              .num_rows = kFixedRows,
                              .width = product.in_features},
                             gemm_.stream_),
            "made-up rows");
  std::vector<Alike> all;
  if (product.is_fp8 && gemm_.scaled_ != nullptr) all = Compare(product, true, call);
  if (all.empty()) {
    if (product.is_fp8) gemm_.TellWhoScales(product, kFixedRows);
    all = Compare(product, false, call);
  }
  const auto most = std::max_element(
      all.begin(), all.end(), [](auto& a, auto& b) { return a.choices.size() < b.choices.size(); });
  LS_CHECK(most != all.end()) << "cuBLASLt has no algorithm for " << product.out_features << " x "
                              << product.in_features
                              << " whose results do not depend on where a row lies";
  product.reference = most->choices.front();
  product.is_reference_told = most->digests[0] != most->digests[1];
  const Scratch scratch(gemm_, gemm_.scratch_bytes_);
  const std::optional<Choice> fastest = Fastest(product, most->choices, call);
  product.known[kFixedRows] = fastest.value_or(*product.reference);
}

std::optional<Gemm::Choice> Gemm::Fixed::Fastest(Product& product,
                                                 const std::vector<Choice>& choices,
                                                 const Call& call) {
  if (choices.size() == 1) return choices.front();
  std::optional<Choice> best;
  float least = 0.0f;
  for (const Choice& choice : choices) {
    const std::optional<float> milliseconds = gemm_.Measure(product, choice, call);
    if (!milliseconds.has_value() || (best.has_value() && *milliseconds >= least)) continue;
    best = choice;
    least = *milliseconds;
  }
  return best;
}

bool Gemm::Fixed::Knows(Product& product, const Call& call) {
  const int64_t rows = call.x.num_rows;
  if (product.known.contains(rows)) return true;
  if (product.refused.contains(rows) || !product.is_reference_told || gemm_.IsRecording()) {
    return false;
  }
  Learn(product, call);
  return product.known.contains(rows);
}

// Powers of two bring the multiples of 8 that lie between them and the last one, as their y has
// room for these: who has warmed up with those meets nothing to measure later. What lies between
// them takes one product to try when it comes.
void Gemm::Fixed::Learn(Product& product, const Call& call) {
  const int64_t rows = call.x.num_rows;
  Proof proof(*this, product, call.w, rows, call.y);
  if (!proof.has_memory()) {
    product.refused.insert(rows);
    return TellOfTiles(rows, "there is no memory to try");
  }
  if (!proof.is_telling()) return;  // other weights will be
  const Scratch scratch(gemm_, gemm_.scratch_bytes_);
  LearnEqual(product, proof, rows);
  if (!IsPowerOfTwo(rows) || rows > kMostExactRows) return;
  for (int64_t fewer = rows - 8; fewer > rows / 2; fewer -= 8) LearnEqual(product, proof, fewer);
}

void Gemm::Fixed::LearnEqual(Product& product, Proof& proof, int64_t num_rows) {
  if (product.known.contains(num_rows) || product.refused.contains(num_rows)) return;
  if (const std::optional<Choice> choice = ChooseEqual(product, proof, num_rows)) {
    product.known[num_rows] = *choice;
    return;
  }
  product.refused.insert(num_rows);
  if (IsPowerOfTwo(num_rows)) TellOfTiles(num_rows, "no algorithm has the same bits for");
}

std::optional<Gemm::Choice> Gemm::Fixed::ChooseEqual(Product& product, Proof& proof,
                                                     int64_t num_rows) {
  const auto shared = product.shared.find(SharedRows(num_rows));
  if (shared != product.shared.end() && proof.Holds(shared->second, num_rows)) {
    return shared->second;
  }
  const Call call = proof.CallOf(num_rows);
  std::vector<Choice> choices = Candidates(product, product.reference->is_scaled, call);
  if (gemm_.Takes(product, *product.reference, call)) choices.push_back(*product.reference);
  const size_t most = num_rows > kMostExactRows ? kCandidates
                      : IsPowerOfTwo(num_rows)  ? kMostCandidates
                                                : kFewCandidates;
  std::vector<Choice> equal;
  for (const Choice& choice : choices) {
    if (equal.size() == most) break;
    if (proof.Holds(choice, num_rows)) equal.push_back(choice);
  }
  const std::optional<Choice> best = Fastest(product, equal, call);
  if (best.has_value()) product.shared.try_emplace(SharedRows(num_rows), *best);
  return best;
}

void Gemm::Fixed::TellOfTiles(int64_t num_rows, const char* why) {
  if (num_rows <= kFixedRows || std::exchange(has_told_of_tiles_, true)) return;
  if (gemm_.options_.notice == nullptr) return;
  gemm_.options_.notice(absl::StrCat(
      "--deterministic: ", why, " ", num_rows, " rows of a product as for ", kFixedRows,
      ": longer prompts are multiplied in pieces, each of which reads the weights again (in pieces "
      "of ",
      kFixedRows, " rows a prompt may take about three times as long)"));
}

}  // namespace lockstep::cuda
