# What the CUDA plugin is made of. Compiled by nvcc (kernels/cuda/CMakeLists.txt) and, so that it can be tested where there
# is no GPU, as plain C++ over emulated headers (tests/support/cuda_emulation/CMakeLists.txt).
set(LOCKSTEP_CUDA_SOURCES
  ${PROJECT_SOURCE_DIR}/kernels/cuda/elementwise.cu
  ${PROJECT_SOURCE_DIR}/kernels/cuda/attention.cu)
