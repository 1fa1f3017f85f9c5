#include "tests/support/cuda_emulation/runtime/matrix_product.h"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/dtype.h"

namespace lockstep::cuda_emulation {

namespace {

float DecodeE4m3(int bits) {
  const int exponent = bits >> 3 & 15;
  const int mantissa = bits & 7;
  const float sign = bits & 0x80 ? -1.0f : 1.0f;
  if (exponent == 15 && mantissa == 7) return NAN;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

}  // namespace

float FromE4m3(uint8_t bits) {
  static const auto decoded = [] {
    std::array<float, 256> numbers;
    for (int i = 0; i < 256; ++i) numbers[i] = DecodeE4m3(i);
    return numbers;
  }();
  return decoded[bits];
}

namespace {

float Load(cudaDataType type, const void* data, int64_t index) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[index];
  if (type == CUDA_R_8F_E4M3) return FromE4m3(static_cast<const uint8_t*>(data)[index]);
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return type == CUDA_R_16F ? ToFloat(F16{bits}) : ToFloat(BF16{bits});
}

void Store(cudaDataType type, void* data, int64_t index, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[index] = value;
    return;
  }
  const uint16_t bits = type == CUDA_R_16F ? ToF16(value).bits : ToBF16(value).bits;
  static_cast<uint16_t*>(data)[index] = std::isnan(value) ? 0x7fff : bits;
}

float Rounded(cudaDataType type, float value) {
  float rounded = 0;
  Store(type, &rounded, 0, value);
  return Load(type, &rounded, 0);
}

// op(matrix) of a batch as rows (or columns, for B) that run over K.
std::vector<float> Gather(const Matrix& matrix, const void* data, int batch, bool k_is_row) {
  const int64_t base = batch * matrix.batch_stride;
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.columns));
  const bool k_runs_along_columns = matrix.transposed != k_is_row;
  for (int64_t column = 0; column < matrix.columns; ++column) {
    for (int64_t row = 0; row < matrix.rows; ++row) {
      const int64_t to =
          k_runs_along_columns ? column * matrix.rows + row : row * matrix.columns + column;
      values[to] = Load(matrix.type, data, base + column * matrix.ld + row);
    }
  }
  return values;
}

template <int num_lanes>
float DotInLanes(const float* a, const float* b, int64_t count) {
  float lanes[num_lanes] = {};
  int64_t k = 0;
  for (; k + num_lanes <= count; k += num_lanes) {
    for (int lane = 0; lane < num_lanes; ++lane) lanes[lane] += a[k + lane] * b[k + lane];
  }
  for (; k < count; ++k) lanes[k % num_lanes] += a[k] * b[k];
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

float Dot(const float* a, const float* b, int64_t count, int num_lanes) {
  switch (num_lanes) {
    case 4:
      return DotInLanes<4>(a, b, count);
    case 8:
      return DotInLanes<8>(a, b, count);
    case 16:
      return DotInLanes<16>(a, b, count);
    default:
      return DotInLanes<32>(a, b, count);
  }
}

float SumSplits(const Product& product, const float* a, const float* b, int64_t element) {
  const int64_t depth = product.depth();
  const int num_splits = product.summation.num_splits;
  int num_lanes = product.summation.num_lanes;
  if (element / product.rows() >= product.summation.other_from) {
    num_lanes = num_lanes <= 8 ? 32 : num_lanes / 2;
  }
  if (num_splits == 1) return Dot(a, b, depth, num_lanes);
  const int64_t size = product.rows() * product.columns();
  float sum = 0;
  for (int split = 0; split < num_splits; ++split) {
    const int64_t begin = depth * split / num_splits;
    const int64_t end = depth * (split + 1) / num_splits;
    float& part = product.workspace[split * size + element];
    part = Dot(a + begin, b + begin, end - begin, num_lanes);
    sum += part;
    if (product.summation.adds_in_output) sum = Rounded(product.d.type, sum);
  }
  return sum;
}

void ComputeBatch(const Product& product, int batch) {
  const std::vector<float> a = Gather(product.a, product.a_data, batch, false);
  const std::vector<float> b = Gather(product.b, product.b_data, batch, true);
  const int64_t depth = product.depth();
  const auto scale_of = [&](const float* scales, int64_t index) {
    return scales == nullptr ? 1.0f : scales[product.scales_are_vectors ? index : 0];
  };
  for (int64_t column = 0; column < product.columns(); ++column) {
    for (int64_t row = 0; row < product.rows(); ++row) {
      const float scale =
          product.alpha * scale_of(product.a_scale, row) * scale_of(product.b_scale, column);
      float value = scale * SumSplits(product, &a[row * depth], &b[column * depth],
                                      column * product.rows() + row);
      if (product.beta != 0) {
        value += product.beta * Load(product.c.type, product.c_data,
                                     batch * product.c.batch_stride + column * product.c.ld + row);
      }
      Store(product.d.type, product.d_data,
            batch * product.d.batch_stride + column * product.d.ld + row, value);
    }
  }
}

}  // namespace

int64_t BytesPerElement(cudaDataType type) {
  switch (type) {
    case CUDA_R_32F:
      return 4;
    case CUDA_R_16BF:
    case CUDA_R_16F:
      return 2;
    case CUDA_R_8F_E4M3:
      return 1;
    default:
      return 0;
  }
}

int64_t Matrix::span_bytes() const {
  return ((batch_count - 1) * batch_stride + (columns - 1) * ld + rows) * BytesPerElement(type);
}

void Compute(const Product& product) {
  for (int batch = 0; batch < product.d.batch_count; ++batch) ComputeBatch(product, batch);
}

}  // namespace lockstep::cuda_emulation
