// Products with `deterministic`: a row's bits depend on that row and on W alone, not on how many
// rows are multiplied with it or where among them it lies.
//
// For each weight shape there is a reference: of the algorithms without split-K that cuBLASLt's
// heuristic finds for kFixedRows rows, those of which give the same bits as most others, the first
// of these. It is the same in every run on the same kind of GPU with the same cuBLAS, as nothing is
// measured for it. Any number of rows is then multiplied by the fastest algorithm that has the
// reference's bits, as far as one is found: on matrix units that is nothing rare, as most kernels
// add up the terms of k in ascending order, in one sum, whatever their tiles are. cuBLASLt promises
// none of that, so that it is tried: made-up rows, the same few again and again, are multiplied,
// and each row of the result must have the bits that its first twin has by the reference, wherever
// it lies. Every number of rows up to kMostExactRows is tried by itself, and above that powers of
// two up to kMostRowsAtOnce, which longer inputs are made of. What has not been seen to be equal is
// multiplied in tiles of kFixedRows, the last one filled up: 64 rows to each reading of W, which
// bounds prompts in bf16 to 64 operations to a byte.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/gemm_product.h"
#include "kernels/cuda/row_digests.h"

namespace lockstep::cuda {

class Gemm::Fixed {
 public:
  static constexpr int64_t kFixedRows = 64;
  static constexpr int64_t kMostRowsAtOnce = 4096;

  explicit Fixed(Gemm& gemm) : gemm_(gemm) {}
  ~Fixed();
  // RESOURCE_EXHAUSTED, both.
  absl::Status Start();
  absl::Status Prepare(const Product& product);
  // y is f32. May try and measure, as Gemm::Run.
  void Run(Product& product, const Call& call);

 private:
  class Proof;
  struct Alike {
    std::vector<RowDigest> digests;
    std::vector<Choice> choices;
  };
  // kFixedRows rows of x, scales behind them, and of y.
  Call OwnCall(const Product& product, const Weight& w) const;
  void LearnReference(Product& product, const Weight& w);
  int64_t RowsAtOnce(Product& product, const Call& rest);
  bool Knows(Product& product, const Call& call);
  void Learn(Product& product, const Call& call);
  void LearnEqual(Product& product, Proof& proof, int64_t num_rows);
  std::optional<Choice> ChooseEqual(Product& product, Proof& proof, int64_t num_rows);
  std::optional<Choice> Fastest(Product& product, const std::vector<Choice>& choices,
                                const Call& call);
  // In cuBLASLt's order.
  std::vector<Choice> Candidates(Product& product, bool is_scaled, const Call& call);
  std::vector<Alike> Compare(Product& product, bool is_scaled, const Call& call);
  std::optional<std::vector<RowDigest>> Digest(Product& product, const Choice& choice,
                                               const Call& call);
  void FillUpAndMultiply(Product& product, const Call& call);
  void TellOfTiles(int64_t num_rows, const char* why);

  Gemm& gemm_;
  bool has_told_of_tiles_ = false;
  void* x_ = nullptr;  // [kFixedRows, the largest in_features], scales
  int64_t x_bytes_ = 0;
  void* y_ = nullptr;  // f32 [kFixedRows, the largest out_features]
  int64_t y_bytes_ = 0;
  RowDigest* digests_ = nullptr;  // [kMostRowsAtOnce]
  std::vector<RowDigest> host_digests_;
};

}  // namespace lockstep::cuda
