#include "launcher/serving/controller_options.h"

#include "kernels/base/status_macros.h"
#include "kernels/base/version.h"
#include "model/checkpoint/model_name.h"

namespace lockstep {

absl::StatusOr<ModelSummary> InspectServedModel(const ModelFlags& flags) {
  absl::StatusOr<ModelSummary> summary = InspectModel(flags.model, flags.tp, flags.pp);
  if (!summary.ok()) {
    // By one rank any model can be served: then the layout is at fault.
    const bool is_layout = InspectModel(flags.model, 1, 1).ok();
    return is_layout ? UsageError(summary.status()) : summary.status();
  }
  RETURN_IF_ERROR(summary->tensor_check);
  return summary;
}

absl::StatusOr<ControllerOptions> MakeControllerOptions(const ModelFlags& model,
                                                        const ModelConfig& config,
                                                        const ControllerFlags& controller) {
  ControllerOptions options;
  options.model_dir = model.model;
  options.model_name = controller.served_model_name.empty() ? ModelNameOf(model.model)
                                                            : controller.served_model_name;
  options.quantize = QuantizationOf(model.quantize).value_or(Quantization::kNone);
  options.tensor_parallel = model.tp;
  options.pipeline_parallel = model.pp;
  options.max_num_seqs = model.max_num_seqs;
  options.max_batched_tokens = model.max_batched_tokens;
  options.max_model_len = model.max_model_len;
  options.block_size = model.block_size;
  options.max_queued_requests = controller.max_queue;
  options.speculative_tokens = controller.speculative_tokens;
  options.enable_prefix_cache = !controller.no_prefix_cache;
  options.chat_template = controller.chat_template;
  options.listen = controller.listen;
  options.num_replicas = controller.replicas;
  options.journal = controller.journal;
  options.reattach_window = absl::Seconds(controller.reattach_seconds);
  options.lease = absl::Seconds(controller.rank_timeout_seconds);
  options.version = Version();
  RETURN_IF_ERROR(ApplySecurity(controller.security, options));
  RETURN_IF_ERROR(CheckControllerOptions(options, config));
  return options;
}

}  // namespace lockstep
