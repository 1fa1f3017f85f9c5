# shellcheck shell=bash
# Functions of tests/gpu/run.sh: where this machine has NCCL and cuBLASLt. Both add to `options` what CMake is to be told.

# A header of one version and a library of another would be worse than none.
# Sets `nccl` (what was found) and `nccl_directory` (of its library).
find_nccl() {
  local home library
  nccl="left to CMake" nccl_directory=""
  for home in "${NCCL_HOME:-}" /usr/local/cuda /usr/local /usr \
    "$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null || true)"; do
    if [ -z "$home" ] || [ ! -e "$home/include/nccl.h" ]; then continue; fi
    for library in "$home"/{lib,lib64,lib/x86_64-linux-gnu}/libnccl.so{,.2}; do
      if [ -e "$library" ]; then
        nccl="$library, header $(awk '/define NCCL_(MAJOR|MINOR|PATCH)/ { printf "%s%s", dot, $3; dot = "." }' "$home/include/nccl.h")"
        nccl_directory=$(dirname "$library")
        options+=("-DLOCKSTEP_NCCL_LIBRARY=$library" "-DLOCKSTEP_NCCL_INCLUDE=$home/include")
        return
      fi
    done
  done
}

# Sets `cublas`, `cublas_directory`, and flags with which compilers find its header: `cxx_include` and `cuda_include`.
# Where the compiler came without it, cuBLASLt may have come with Python's packages, which hold no libcublasLt.so.
find_cublas() {
  local home library
  cublas="left to CMake" cublas_directory="" cxx_include="" cuda_include=""
  home=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")")
  for library in "$home"/{lib64,lib,targets/x86_64-linux/lib}/libcublasLt.so; do
    if [ -e "$library" ] && [ -e "$home/include/cublasLt.h" ]; then cublas=$library; return; fi
  done
  for home in $(python3 -c 'import nvidia; print(*(f"{p}/{n}" for p in nvidia.__path__ for n in ("cu13", "cublas")))' 2>/dev/null || true); do
    for library in "$home"/lib/libcublasLt.so{,.13,.12}; do
      if [ ! -e "$library" ] || [ ! -e "$home/include/cublasLt.h" ]; then continue; fi
      cublas=$library cublas_directory=$(dirname "$library")
      options+=("-DCUDA_cublasLt_LIBRARY=$library")
      # After the compiler's own, of which this directory may hold others; nvcc itself has no such option.
      cxx_include=" -idirafter $home/include" cuda_include=" -Xcompiler=-idirafter,$home/include"
      return
    done
  done
}
