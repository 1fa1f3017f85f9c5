// Some published measurements that no coefficient was fitted to: closed loops, TTFT and TPOT in ms.
// Facts out of NVIDIA AIConfigurator's collection (github.com/ai-dynamo/aiconfigurator, 2026-08),
// one drawn at random for each model, GPU, engine and precision.
#pragma once

#include <vector>

#include "deploy/plan/measurements.h"

namespace lockstep::plan {

// Models with experts or latent attention.
inline const std::vector<Measurement> kMeasuredExperts = {
    {"deepseek-v3", "b200_sxm", "sglang", "", "nvfp4", "bf16", 1024, 8192, 16, 4, 1, true, 346.9,
     12.75},
    {"deepseek-v3", "b200_sxm", "sglang", "", "fp8", "bf16", 8192, 1024, 4, 8, 1, false, 490.4,
     6.772},
    {"deepseek-v3", "b200_sxm", "trtllm", "", "nvfp4", "fp8", 1024, 8192, 256, 4, 1, false, 2593,
     33.68},
    {"deepseek-v3", "h200_sxm", "sglang", "", "fp8", "bf16", 1024, 8192, 16, 8, 1, false, 264.9,
     15.86},
    {"deepseek-v3", "h200_sxm", "trtllm", "", "fp8", "fp8", 1024, 1024, 8, 8, 1, false, 292.9,
     16.39},
    {"kimi-k2", "b200_sxm", "vllm", "", "nvfp4", "bf16", 8192, 1024, 4, 4, 1, true, 232.1, 8.834},
    {"minimax-m2.5", "b200_sxm", "vllm", "", "nvfp4", "bf16", 8192, 1024, 4, 4, 1, false, 138.2,
     6.424},
    {"minimax-m2.5", "b200_sxm", "vllm", "", "fp8", "bf16", 1024, 1024, 32, 4, 1, false, 100.6,
     12.15},
    {"minimax-m2.5", "h100_sxm", "vllm", "", "fp8", "bf16", 8192, 1024, 4, 4, 1, true, 461.7,
     13.67},
    {"minimax-m2.5", "h200_sxm", "vllm", "", "fp8", "bf16", 1024, 8192, 8, 4, 1, false, 104.8,
     13.64},
    {"qwen3-235b-a22b", "h100_sxm", "trtllm", "1.0.0rc3", "fp8", "fp8", 128, 256, 16, 4, 1, true,
     234.2, 17.73},
    {"qwen3-235b-a22b", "h200_sxm", "sglang", "0.5.6.post2", "fp8", "bf16", 1000, 1000, 9, 4, 1,
     false, 362.2, 15.9},
};

// Dense models: GPUs, releases and models that are in no fit.
inline const std::vector<Measurement> kMeasuredDense = {
    {"llama-3.1-70b", "b200_sxm", "trtllm", "", "nvfp4", "fp8", 1024, 8192, 128, 1, 1, false, 67160,
     25.56},
    {"llama-3.1-70b", "b200_sxm", "trtllm", "", "fp8", "fp8", 8192, 1024, 8, 8, 1, false, 273.6,
     7.068},
    {"llama-3.1-70b", "b200_sxm", "vllm", "", "nvfp4", "bf16", 1024, 8192, 4, 8, 1, false, 89.35,
     6.577},
    {"llama-3.1-70b", "b200_sxm", "vllm", "", "fp8", "bf16", 1024, 1024, 4, 1, 1, false, 122.4,
     16.34},
    {"llama-3.1-70b", "h100_sxm", "vllm", "", "fp8", "bf16", 8192, 1024, 4, 8, 1, false, 300.8,
     10.22},
    {"llama-3.1-70b", "h200_sxm", "trtllm", "", "fp8", "fp8", 1024, 1024, 16, 2, 1, false, 427,
     13.39},
    {"llama-3.1-70b", "h200_sxm", "vllm", "", "fp8", "bf16", 1024, 1024, 32, 2, 1, false, 271.6,
     20.35},
    {"llama-3.1-8b", "h100_sxm", "trtllm", "1.0.0rc3", "bf16", "bf16", 4096, 128, 16, 2, 1, false,
     240.3, 12.14},
    {"llama-3.1-8b", "h200_sxm", "sglang", "0.5.6.post2", "fp8", "bf16", 2000, 500, 512, 4, 1,
     false, 1868, 34.27},
    {"qwen3-32b", "h100_sxm", "sglang", "0.5.1.post1", "bf16", "bf16", 1024, 128, 128, 2, 1, false,
     4358, 48.49},
    {"qwen3-32b", "h100_sxm", "trtllm", "1.0.0rc3", "fp8", "fp8", 1024, 256, 64, 1, 1, false, 457.1,
     38.53},
    {"qwen3-32b", "h100_sxm", "vllm", "0.12.0", "bf16", "bf16", 1024, 1024, 8, 2, 1, false, 154.3,
     15.9},
};

}  // namespace lockstep::plan
