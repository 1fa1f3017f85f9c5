// The small synthetic models that a calibration runs, how their weights are held, and the sizes of
// the steps that it takes. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "kernels/quantization.h"

namespace lockstep {

// How much is measured. Steps must take long enough to be told apart from what surrounds them, and
// read more than caches hold; devices differ in that by orders of magnitude.
struct ProbeSizes {
  const char* name;
  const char* shape;  // whose layers are measured
  int num_layers;
  int num_layers_quick;
  int num_overhead_layers;     // of a model whose matrices take next to no time
  int vocab_size;              // of the layers' model: next to none
  int64_t max_tokens;          // of a step
  int64_t tokens_factor;       // from one of the numbers of tokens that are measured to the next
  int64_t most_decodes;        // of a step whose contexts are short; others are of prompts
  int64_t long_context;        // tokens, more than a step's
  int64_t long_seqs;           // that decode at that context
  int64_t most_reduced_bytes;  // by an all-reduce
  int64_t served_tokens;       // of an answer, to learn what serving adds to a step
};

// "cpu" and "cuda", for such devices; "small", for trying the measurement itself where a device is
// slow: rates then say nothing. INVALID_ARGUMENT naming them.
absl::StatusOr<ProbeSizes> FindProbeSizes(const std::string& name);

// How weights are held, with the keys and values beside them.
struct ProbeFormat {
  const char* name;
  DType dtype;  // of keys and values, too
  Quantization quantization;
};
// Those that CPUs hold, or GPUs; bf16 is the first.
std::span<const ProbeFormat> ProbeFormatsOf(bool on_gpus);

struct ProbeModels {
  std::filesystem::path layers;    // a few, in bf16, with next to no vocabulary
  std::filesystem::path overhead;  // many, of next to no bytes
};
// Writes both below directory. Errors as SynthesizeModel's.
absl::StatusOr<ProbeModels> MakeProbeModels(const std::filesystem::path& directory,
                                            const ProbeSizes& sizes, bool quick);

}  // namespace lockstep
