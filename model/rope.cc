#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// Positions whose angles are computed from one of them.
constexpr int64_t kSteps = 64;

// [head_dim / 2]: radians to a position.
std::vector<double> Frequencies(int64_t head_dim, double theta) {
  std::vector<double> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
    frequencies[i] = std::pow(theta, -exponent);
  }
  return frequencies;
}

void Scale(const LinearRopeScaling& scaling, const RopeShape&, std::vector<double>& frequencies) {
  for (double& frequency : frequencies) frequency /= scaling.factor;
}

// Long wavelengths are stretched by factor, short ones are kept, those between are blended. Source:
// apply_scaling in Meta's llama-models (models/llama3/model.py), _compute_llama3_parameters in
// transformers (modeling_rope_utils.py).
double ScaleFrequency(double frequency, const Llama3RopeScaling& scaling) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double original = static_cast<double>(scaling.original_max_position_embeddings);
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth = (original / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
}

void Scale(const Llama3RopeScaling& scaling, const RopeShape&, std::vector<double>& frequencies) {
  for (double& frequency : frequencies) frequency = ScaleFrequency(frequency, scaling);
}

// The place of the pair that turns so many times within the original positions.
double PlaceOfTurns(double turns, const YarnRopeScaling& scaling, const RopeShape& shape) {
  const double original = static_cast<double>(scaling.original_max_position_embeddings);
  return static_cast<double>(shape.head_dim) *
         std::log(original / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(shape.theta));
}

// Source: _compute_yarn_parameters in transformers (modeling_rope_utils.py).
void Scale(const YarnRopeScaling& scaling, const RopeShape& shape,
           std::vector<double>& frequencies) {
  double low = PlaceOfTurns(scaling.beta_fast, scaling, shape);
  double high = PlaceOfTurns(scaling.beta_slow, scaling, shape);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(shape.head_dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] =
        frequencies[i] / scaling.factor * stretched + frequencies[i] * (1.0 - stretched);
  }
}

double Amplitude(const RopeShape& shape) {
  if (!shape.scaling.has_value()) return 1.0;
  const auto* yarn = std::get_if<YarnRopeScaling>(&*shape.scaling);
  return yarn == nullptr ? 1.0 : yarn->attention_factor;
}

}  // namespace

double YarnAttentionFactor(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

RopeAngles::RopeAngles(const RopeShape& shape)
    : frequencies_(Frequencies(shape.head_dim, shape.theta)), amplitude_(Amplitude(shape)) {
  if (shape.scaling.has_value()) {
    std::visit([&](const auto& scaling) { Scale(scaling, shape, frequencies_); }, *shape.scaling);
  }
  steps_ = RotationsOf(0, kSteps, 1.0);
}

RopeAngles::Rotations RopeAngles::RotationsOf(int64_t begin, int64_t end, double amplitude) const {
  Rotations rotations;
  for (int64_t position = begin; position < end; ++position) {
    for (const double frequency : frequencies_) {
      const double angle = static_cast<double>(position) * frequency;
      rotations.cos.push_back(amplitude * std::cos(angle));
      rotations.sin.push_back(amplitude * std::sin(angle));
    }
  }
  return rotations;
}

// Each position is a turn from the last multiple of kSteps, by the sums of angles: a million
// positions take a tenth of the time of a million cosines.
void RopeAngles::Write(int64_t begin, int64_t end, float* cos, float* sin) const {
  LS_CHECK(begin >= 0 && begin <= end) << begin << ", " << end;
  const auto num_pairs = frequencies_.size();
  for (int64_t position = begin; position < end;) {
    const int64_t base = position / kSteps * kSteps;
    const Rotations from = RotationsOf(base, base + 1, amplitude_);
    for (const int64_t next = std::min(end, base + kSteps); position < next; ++position) {
      const double* step_cos = &steps_.cos[static_cast<size_t>(position - base) * num_pairs];
      const double* step_sin = &steps_.sin[static_cast<size_t>(position - base) * num_pairs];
      for (size_t i = 0; i < num_pairs; ++i) {
        *cos++ = static_cast<float>(from.cos[i] * step_cos[i] - from.sin[i] * step_sin[i]);
        *sin++ = static_cast<float>(from.sin[i] * step_cos[i] + from.cos[i] * step_sin[i]);
      }
    }
  }
}

}  // namespace lockstep
