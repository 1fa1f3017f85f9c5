#!/usr/bin/env bash
# One GoogleTest program of tests/gpu under one tool of compute-sanitizer: passes where tests ran, passed, and nothing was
# found in a kernel of ours (those of libraries are not looked into).
#
#   tests/gpu/sanitize.sh TOOL PROGRAM FILTER
#   tests/gpu/sanitize.sh --list              what is to be run, a line each: TOOL PROGRAM FILTER LABEL..., of each tool
#                                             what most may be wrong with first
# Status 3: the tool found something. 4: tests fail, or none ran, and the tool found nothing. 5: the tool tells no summary.
set -euo pipefail

# memcheck of all kernels; racecheck and synccheck of those whose threads share memory. The smallest tests that launch
# each kernel: tools take 10 to 100 times as long.
few_rows="SkinnyGemmTest.Bf16:SkinnyGemmTest.Fp8WeightsByBf16"
attention="IsNearItsTwinForEveryBlockSize IsNearItsTwinForEveryHeadSize IsNearItsTwinInManySplits"
attention_of() {  # the kernels' suffixes
  local test suffix filter=""
  for test in $attention; do
    for suffix in "$@"; do filter+=":Cache/CudaAttention.$test/$suffix"; done
  done
  echo "${filter#:}"
}
e4m3="QuantizeFp8Test.RoundsToTheNearestNumber:FusedFp8Test.*:Fp8ProductTest.IsTheSumOfTheRoundedNumbers"
choice="DeviceChoice.IsTheHostsFromTheSameSummaries:DeviceChoice.GoesOnInWholeRowsAsTheHostDoes"
choice+=":DeviceChoice.ChosenTokensBecomeTheNextInput:DeviceRows.OneRankDecidesAnyNumberWithPenalties"
stage="Numbers/CudaPaddedStepsTest.ReplaysComputeWhatStepsAsTheyAreDo/bf16Deterministic"
stage+=":Numbers/CudaPaddedStepsTest.ReplaysComputeWhatStepsAsTheyAreDo/bf16DeterministicFp8"
list() {
  local tool
  for tool in memcheck racecheck synccheck; do
    echo "$tool gpu_kernel_test $(attention_of bf16_wgmma f16_wgmma) attention by wgmma"
    # Peers' kernels share no memory of a block.
    if [ $tool != racecheck ]; then echo "$tool gpu_sums_test Ranks/DeviceRanksTest.*/0 sums and gatherings over 2 ranks"; fi
    echo "$tool gpu_kernel_test $few_rows products of few rows"
    if [ $tool = memcheck ]; then echo "$tool gpu_kernel_test CudaOverlap.*AreTheSame kernels that begin early"; fi
    echo "$tool gpu_kernel_test $(attention_of f32 bf16 f16 fp8) attention"
    echo "$tool gpu_stage_test $choice choice of tokens, in whole rows too"
    echo "$tool gpu_kernel_test $e4m3 norms, SiLU and products in e4m3"
    echo "$tool gpu_kernel_test CudaLogitsSummary.* summaries of logits"
    echo "$tool gpu_kernel_test CudaElementwise.* embedding, norms, RoPE, SiLU, gathering"
    if [ $tool != synccheck ]; then echo "$tool gpu_stage_test $stage a stage with recorded steps"; fi
  done
}
if [ "${1:-}" = --list ]; then list; exit 0; fi
tool=${1:?usage: sanitize.sh TOOL PROGRAM FILTER}
program=${2:?usage: sanitize.sh TOOL PROGRAM FILTER}
filter=${3:?usage: sanitize.sh TOOL PROGRAM FILTER}

log=$(mktemp)
trap 'rm -rf "$log"' EXIT
trap 'cat "$log"; exit 143' TERM  # at a time limit what has been found so far counts
# Calls that fail are the programs' own matter. Of programs that start ranks the first process uses no GPU.
options=(--tool "$tool" --error-exitcode 1 --report-api-errors no --target-processes all --print-limit 20)
help=$(compute-sanitizer --help 2>&1 || true)
knows() { grep -q -- "$1" <<<"$help"; }
if knows '--require-cuda-init'; then options+=(--require-cuda-init no); fi
for name in --kernel-name --kernel-regex --filter; do  # as versions call it
  if knows "$name "; then options+=("$name" kns=lockstep); break; fi
done
export LOCKSTEP_RANKS_TIMEOUT_S=100  # under a tool they are slow
status=0
compute-sanitizer "${options[@]}" "$program" --gtest_brief=1 "--gtest_filter=$filter" >"$log" 2>&1 || status=$?
cat "$log"
summary=$(grep -aE '(ERROR|RACECHECK) SUMMARY: ' "$log" || true)
# Of several processes each may have one.
found=$(grep -aE 'SUMMARY: [1-9]' <<<"$summary" || true)
if [ -n "$found" ]; then
  echo "$found"
  exit 3
fi
if [ -z "$summary" ]; then
  echo "sanitize.sh: no summary of $tool; the status is $status" >&2
  exit 5
fi
if [ "$status" -ne 0 ]; then
  echo "sanitize.sh: $tool found nothing, but tests fail: status $status" >&2
  exit 4
fi
if ! grep -aqE '^\[  PASSED  \] [1-9]' "$log"; then
  echo "sanitize.sh: no test of $filter ran" >&2
  exit 4
fi
tail -n 1 <<<"$summary"
