#include "deploy/plan/serve_memory.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/workspaces.h"
#include "model/llama/stage_memory.h"
#include "model/sampling/device_choice.h"
#include "model/sampling/token_return.h"
#include "parallel/process_grid.h"

namespace lockstep::plan {
namespace {

StageShape ShapeOf(const ModelConfig& config, const Layout& layout, int stage) {
  const auto grid = ProcessGrid::Create(layout.tp, layout.pp);
  LS_CHECK(grid.ok()) << grid.status().message();
  const auto shape = MakeStageShape(config, *grid, stage * layout.tp);
  LS_CHECK(shape.ok()) << shape.status().message();
  return *shape;
}

// Where tokens are chosen and come back to, as RankModel has it.
int64_t ChoiceBytes(const MemoryInputs& inputs, const Layout& layout, const StageShape& shape) {
  const MemoryOptions& options = inputs.options;
  int64_t bytes = 0;
  if (shape.is_last) {
    bytes += DeviceChooser::DeviceBytes(
        {.vocab_size = inputs.model.vocab_size,
         .tp = layout.tp,
         .max_rows = DeviceChooser::MaxRows(options.max_batched_tokens, options.max_num_seqs)});
  }
  if (shape.is_first != shape.is_last) {
    bytes += TokenReturn::DeviceBytes(options.max_num_seqs, layout.pp, shape.is_first);
  }
  return bytes;
}

// Of layers whose matrices are all in e4m3, or, as the format has it, the MLP's alone.
int64_t ProductBytes(const MemoryInputs& inputs, const StageShape& shape) {
  if (inputs.weights.operands != Operands::kFp8) return 0;
  return cuda::QuantizedInputBytes(
      {.num_rows = inputs.options.max_batched_tokens,
       .width = inputs.weights.only_mlp ? 0 : shape.q_width(),
       .consumer_width = std::max(shape.hidden, shape.intermediate.size())});
}

}  // namespace

ServeMemory MemoryOfServe(const MemoryInputs& inputs, const Layout& layout, int stage) {
  const MemoryOptions& options = inputs.options;
  const StageShape shape = ShapeOf(*inputs.model.runtime_config, layout, stage);
  const bool is_f32 = inputs.weights.operands == Operands::k32Bits;
  ServeMemory memory;
  memory.buffers = BytesOf({.shape = shape,
                            .tp = layout.tp,
                            .limits = {.max_batched_tokens = options.max_batched_tokens,
                                       .max_num_seqs = options.max_num_seqs,
                                       .max_model_len = options.max_model_len,
                                       .block_size = static_cast<int>(options.block_size)},
                            .input = is_f32 ? DType::kF32 : DType::kBF16,
                            .product_bytes = ProductBytes(inputs, shape)}) +
                   ChoiceBytes(inputs, layout, shape);
  memory.workspaces = cuda::WorkspaceBytes(/*deterministic=*/false);
  return memory;
}

}  // namespace lockstep::plan
