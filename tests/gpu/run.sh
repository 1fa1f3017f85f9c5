#!/usr/bin/env bash
# Builds kernels, model and parallel for this machine's GPU, without gRPC and MPI; checks them against their twins on the
# CPU and golden models, also as several ranks (processes, which share the GPU if there is only one); measures. The table
# comes last.
#
#   tests/gpu/run.sh [--dependencies DIR] [--shape NAME] [--no-bench] [--sanitizer]
#
#   --dependencies DIR   libraries collected by tests/gpu/dependencies.sh
#   --shape NAME         of the model that is measured (default llama-3.1-8b; its weights are made up, in /dev/shm)
#   --sanitizer          kernels also under compute-sanitizer's memcheck and racecheck
# LOCKSTEP_SHARED names the directory of test assets (default: ../shared beside the checkout).
set -euo pipefail
cd "$(dirname "$0")/../.."
dependencies="" shape=llama-3.1-8b bench=1 sanitizer=0
while [ $# -gt 0 ]; do
  case "$1" in
    --dependencies) dependencies=$(realpath "${2:?--dependencies needs a directory}"); shift ;;
    --shape) shape=${2:?--shape needs a name}; shift ;;
    --no-bench) bench=0 ;;
    --sanitizer) sanitizer=1 ;;
    -h | --help) sed -n '2,12p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "tests/gpu/run.sh: unknown option '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
step() { printf '\n== %s (%ss elapsed)\n' "$*" "$SECONDS"; }

options=()
if [ -n "$dependencies" ]; then
  options+=("-DCMAKE_PREFIX_PATH=$dependencies/usr" "-DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu")
  export LD_LIBRARY_PATH=$dependencies/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export PKG_CONFIG_PATH=$dependencies/usr/lib/x86_64-linux-gnu/pkgconfig
  export LIBRARY_PATH=$dependencies/usr/lib/x86_64-linux-gnu
fi
if [ -z "${NCCL_HOME:-}" ] && [ ! -e /usr/local/cuda/include/nccl.h ]; then
  NCCL_HOME=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null || true)
  export NCCL_HOME
fi
build=build/gpu
mkdir -p build
step "build"
cmake -G Ninja -S . -B "$build" -DLOCKSTEP_CUDA=ON -DLOCKSTEP_RUNTIME=OFF -DLOCKSTEP_MPI=OFF -DLOCKSTEP_BENCHMARKS=OFF \
  "${options[@]}" >"$build.cmake.log" 2>&1 || { tail -40 "$build.cmake.log"; exit 1; }
ninja -C "$build" lockstep_cuda gpu_bench gpu_kernel_test gpu_stage_test gpu_sums_test gpu_ranks_test \
  >"$build.log" 2>&1 || { grep -A10 -m3 FAILED "$build.log"; exit 1; }

failed=()
check() {
  step "$1"
  shift
  "$@" >"$build.check.log" 2>&1 || { failed+=("$1"); grep -E "FAILED|Failure|error" -A4 "$build.check.log" | head -60; }
  tail -2 "$build.check.log"
}
check "kernels against their twins" "$build/bin/gpu_kernel_test" --gtest_brief=1
check "whole generations" "$build/bin/gpu_stage_test" --gtest_brief=1
check "sums over 2 to 8 ranks" timeout 900 "$build/bin/gpu_sums_test" --gtest_brief=1
check "generations over ranks" timeout 900 "$build/bin/gpu_ranks_test" --gtest_brief=1
if [ "$sanitizer" = 1 ]; then
  for tool in memcheck racecheck; do
    check "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$build/bin/gpu_kernel_test" --gtest_brief=1 \
      "--gtest_filter=*EveryHeadSize*:*EveryBlockSize*:*RmsNorm*:*Rope*:*LogitsSummary*"
  done
fi
if [ "$bench" = 1 ]; then
  step "speed"
  for ranks in 2 4; do
    timeout 300 "$build/bin/gpu_sums_test" --latencies "$ranks" 2>"$build.bench.log" ||
      { failed+=("latencies of $ranks ranks"); tail -5 "$build.bench.log"; }
  done
  for quantize in none fp8; do
    echo "weights: $quantize"
    "$build/bin/gpu_bench" --shape "$shape" --quantize "$quantize" 2>"$build.bench.log" ||
      { failed+=("gpu_bench $quantize"); tail -5 "$build.bench.log"; }
  done
fi
if [ ${#failed[@]} -gt 0 ]; then echo "FAILED: ${failed[*]}"; exit 1; fi
echo "all passed (${SECONDS}s)"
