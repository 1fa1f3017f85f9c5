// Rotary position embedding: how checkpoints scale its frequencies, and its tables. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace lockstep {

// Every position is divided by a factor (Chen, Wong, Chen, Tian: Extending Context Window of Large
// Language Models via Positional Interpolation, 2023; rope_type "linear").
struct LinearRopeScaling {
  double factor = 1.0;
};

// Frequency-dependent RoPE interpolation of Llama 3.1 (config.json, rope_scaling of rope_type
// "llama3").
struct Llama3RopeScaling {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
};

// YaRN (Peng, Quesnelle, Fan, Shippole: YaRN: Efficient Context Window Extension of Large Language
// Models, 2023): pairs that turn more than beta_fast times within the original positions are kept,
// those that turn less than beta_slow times are stretched, those between are blended by their
// place.
struct YarnRopeScaling {
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 1.0;  // of cosines and sines
  int64_t original_max_position_embeddings = 0;
  bool truncate = true;  // the places between which pairs are blended are whole numbers
};

// What YaRN makes attention_factor where a file does not say: 0.1 ln(factor) mscale + 1.
double YarnAttentionFactor(double factor, double mscale = 1.0);

using RopeScaling = std::variant<LinearRopeScaling, Llama3RopeScaling, YarnRopeScaling>;

struct RopeShape {
  int64_t head_dim = 0;  // even
  double theta = 10000.0;
  std::optional<RopeScaling> scaling;
};

// The cosines and sines of RoPE's angles, computed in double and rounded once. Immutable; any
// thread.
class RopeAngles {
 public:
  explicit RopeAngles(const RopeShape& shape);

  int64_t width() const { return static_cast<int64_t>(frequencies_.size()); }  // head_dim / 2
  // Of positions [begin, end), begin >= 0. cos, sin: [end - begin, width].
  void Write(int64_t begin, int64_t end, float* cos, float* sin) const;

 private:
  struct Rotations {  // [num_rotations, width]
    std::vector<double> cos;
    std::vector<double> sin;
  };
  Rotations RotationsOf(int64_t begin, int64_t end, double amplitude) const;

  std::vector<double> frequencies_;  // radians to a position
  double amplitude_;
  Rotations steps_;  // by 0, 1, ... positions
};

}  // namespace lockstep
