#include "deploy/plan/gpu_calibration.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "deploy/plan/host_prediction.h"
#include "deploy/plan/units.h"

namespace lockstep::plan {
namespace {

constexpr double kMemoryBand = 0.05;
constexpr double kHiddenStateBytes = 4.0;  // f32

std::string BareName(const std::string& driver_name) {
  const std::string lower = absl::AsciiStrToLower(driver_name);
  return std::string(absl::StripPrefix(lower, "nvidia "));
}

// Where ranks disturb each other least.
const RankSpeed& FewestRanks(const HostProfile& profile) {
  return *std::min_element(
      profile.speeds.begin(), profile.speeds.end(), [](const RankSpeed& a, const RankSpeed& b) {
        return std::make_tuple(a.ranks(), a.tp) < std::make_tuple(b.ranks(), b.tp);
      });
}

const FormatSpeed* FormatOf(const RankSpeed& speed, const char* weights) {
  for (const FormatSpeed& format : speed.formats) {
    if (format.weights == weights) return &format;
  }
  return nullptr;
}

double ReadGbPerSecond(const FormatSpeed& format) {
  return 1.0 / format.linear.front().ns_per_byte;
}

double ShareOf(double gflop_s, const Gpu& gpu, Operands operands) {
  return gflop_s * kGiga / gpu.FlopsOf(operands);
}

// One all-reduce curve for each number of ranks: from the job that had no others beside them.
MeasuredLinks LinksOf(const HostProfile& profile) {
  MeasuredLinks links;
  links.source = profile.source();
  for (const RankSpeed& speed : profile.speeds) {
    if (speed.groups == 1 && !speed.all_reduces.empty()) {
      links.all_reduces.push_back({speed.tp, speed.all_reduces});
    }
    if (speed.groups > 1 && links.message_gb_s == 0) {
      links.message_us = speed.send_us;
      links.message_gb_s = speed.send_gb_s;
    }
  }
  return links;
}

// The kernels of a layer beside its matrices; its all-reduces are counted by their size.
double LayerUs(const RankSpeed& speed) {
  constexpr double kAllReducesOfLayer = 2.0;
  if (speed.all_reduces.empty()) return speed.layer_us;
  return std::max(0.0, speed.layer_us - kAllReducesOfLayer * speed.all_reduces.front().us);
}

void TakeRates(const RankSpeed& speed, const std::string& source, CalibratedGpu& out) {
  Gpu& gpu = out.gpu;
  EngineProfile& engine = out.engine;
  const FormatSpeed& first = speed.formats.front();
  engine.weight_bandwidth = ReadGbPerSecond(first) / gpu.bandwidth_gb_s;
  engine.kv_bandwidth = first.kv_gb_s / gpu.bandwidth_gb_s;
  gpu.sources["bandwidth_gb_s"] =
      absl::StrFormat("%s: weights %.4g GB/s, KV cache %.4g (datasheet: %.0f)", source,
                      ReadGbPerSecond(first), first.kv_gb_s, gpu.bandwidth_gb_s);
  const auto products = [&](const char* weights, const char* field, Operands operands) {
    const FormatSpeed* format = FormatOf(speed, weights);
    if (format == nullptr || format->products_gflop_s <= 0) return 0.0;
    gpu.sources[field] =
        absl::StrFormat("%s: %.4g TFLOP/s (datasheet: %.0f)", source,
                        1e-3 * format->products_gflop_s, 1e-12 * gpu.FlopsOf(operands));
    return ShareOf(format->products_gflop_s, gpu, operands);
  };
  if (const double share = products("bf16", "bf16_tflops", Operands::k16Bits); share > 0) {
    engine.flops_16 = share;
  }
  if (const double share = products("fp8", "fp8_tflops", Operands::kFp8); share > 0) {
    engine.flops_8 = share;
  }
  engine.attention_share =
      ShareOf(first.attention_gflop_s, gpu, Operands::k16Bits) / engine.flops_16;
}

std::string SourceOf(const HostProfile& profile, const RankSpeed& speed,
                     const EngineProfile& rest) {
  std::string missing = "4-bit products";
  for (const char* weights : {"fp8", "bf16"}) {
    const FormatSpeed* format = FormatOf(speed, weights);
    if (format == nullptr || format->products_gflop_s <= 0) {
      missing = absl::StrCat(weights, " and ", missing);
    }
  }
  return absl::StrCat(profile.source(), " (", profile.device_text(),
                      "): reading, products, attention, layers, steps, requests; ", missing, " as ",
                      rest.name, ": ", rest.source);
}

}  // namespace

bool IsProfileOf(const HostProfile& profile, const Gpu& gpu) {
  if (!profile.device.is_gpu() || gpu.driver_name.empty()) return false;
  const double gib = static_cast<double>(profile.device.memory_bytes) / 0x1p30;
  return BareName(profile.device.name) == BareName(gpu.driver_name) &&
         std::abs(gib / gpu.memory_gib - 1.0) <= kMemoryBand;
}

absl::Status CheckProfileOf(const HostProfile& profile, const Gpu& gpu) {
  if (IsProfileOf(profile, gpu)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "was measured on %s, not on %s (%s of %.1f GiB)", profile.device_text(), gpu.name,
      gpu.driver_name.empty() ? gpu.title : gpu.driver_name, gpu.memory_gib));
}

std::string CatalogNameOf(const HostProfile& profile) {
  for (const std::string& name : GpuNames()) {
    if (IsProfileOf(profile, *FindGpu(name))) return name;
  }
  return "";
}

CalibratedGpu Calibrated(const HostProfile& profile, const Gpu& gpu, const EngineProfile& rest) {
  const HostLimits serve;
  const RankSpeed& speed = FewestRanks(profile);
  CalibratedGpu out{gpu, rest};
  EngineProfile& engine = out.engine;
  engine.name = kOwnEngine;
  engine.source = SourceOf(profile, speed, rest);
  engine.max_batched_tokens = serve.max_batched_tokens;
  engine.tpot_band = kHostTpotBand;
  engine.ttft_band = kHostTtftBand;
  engine.step_us = profile.step_us;
  engine.sequence_us = profile.sequence_us;
  engine.request_ms = profile.request_ms;
  engine.layer_us = LayerUs(speed);
  engine.prefill_layer_us = std::max(engine.layer_us, speed.launched_layer_us);
  engine.hidden_state_bytes = kHiddenStateBytes;
  engine.leaves_tokens_without_logits = true;
  engine.links = LinksOf(profile);
  TakeRates(speed, profile.source(), out);
  if (engine.links.message_gb_s > 0) {
    out.gpu.sources["link_gb_s"] =
        absl::StrFormat("%s: %.4g GB/s from stage to stage (datasheet: %.0f)", profile.source(),
                        engine.links.message_gb_s, gpu.link_gb_s);
  }
  return out;
}

}  // namespace lockstep::plan
