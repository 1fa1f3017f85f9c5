# What the CUDA plugin is made of. Compiled by nvcc (kernels/cuda/CMakeLists.txt) and, so that it can be tested where there
# is no GPU, as plain C++ over emulated headers (tests/support/cuda_emulation/CMakeLists.txt).
set(LOCKSTEP_CUDA_SOURCES
  ${PROJECT_SOURCE_DIR}/kernels/cuda/attention.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/attention_plan.cc
  ${PROJECT_SOURCE_DIR}/kernels/cuda/attention_wgmma.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/chunk_kernels.cc
  ${PROJECT_SOURCE_DIR}/kernels/cuda/cuda_backend.cc
  ${PROJECT_SOURCE_DIR}/kernels/cuda/cuda_backend_weights.cc
  ${PROJECT_SOURCE_DIR}/kernels/cuda/elementwise.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/fp8.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/fused_fp8.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/gemm.cc
  ${PROJECT_SOURCE_DIR}/kernels/cuda/gemm_choice.cc
  ${PROJECT_SOURCE_DIR}/kernels/cuda/host_staging.cc
  ${PROJECT_SOURCE_DIR}/kernels/cuda/kernel_stream.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/logits_summary.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/made_up_batch.cc
  ${PROJECT_SOURCE_DIR}/kernels/cuda/plugin.cc
  ${PROJECT_SOURCE_DIR}/kernels/cuda/skinny_gemm.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/step_recorder.cc
  ${PROJECT_SOURCE_DIR}/kernels/cuda/stored_rows.cc
  ${PROJECT_SOURCE_DIR}/kernels/cuda/token_choice.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/whole_row_choice.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/work_mark.cc
  ${PROJECT_SOURCE_DIR}/parallel/cuda/nccl_communicator.cc
  ${PROJECT_SOURCE_DIR}/parallel/cuda/nccl_group.cc
  ${PROJECT_SOURCE_DIR}/parallel/cuda/nccl_tree_sums.cc
  ${PROJECT_SOURCE_DIR}/parallel/cuda/one_shot_gather.cu
  ${PROJECT_SOURCE_DIR}/parallel/cuda/one_shot_sum.cu
  ${PROJECT_SOURCE_DIR}/parallel/cuda/two_shot_sum.cu
  ${PROJECT_SOURCE_DIR}/parallel/cuda/peer_collectives.cc
  ${PROJECT_SOURCE_DIR}/parallel/cuda/peer_memory.cc
  ${PROJECT_SOURCE_DIR}/parallel/cuda/pipeline_communicator.cc
  ${PROJECT_SOURCE_DIR}/parallel/cuda/tree_sum_kernel.cu
  # of the program's, in the plugin once more
  ${PROJECT_SOURCE_DIR}/kernels/cpu/linear_shape.cc
  ${PROJECT_SOURCE_DIR}/parallel/self_communicator.cc)
