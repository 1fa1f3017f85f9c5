#!/usr/bin/env bash
# gpu_bench over the demo model, on the emulation of CUDA: every line is there, and what is kept as JSON.
#
#   tests/gpu/bench_test.sh GPU_BENCH
set -euo pipefail
bench=${1:?usage: bench_test.sh GPU_BENCH}
model=$(dirname "$0")/../../deploy/demo/model
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "bench_test: $*" >&2; cat "$scratch/said" >&2; exit 1; }

size=(--model "$model" --decode 2 --context 20 --prefill 16 --long-context 0 --repeats 1 --rotate 1)
"$bench" "${size[@]}" --json "$scratch/none.json" >"$scratch/said" 2>&1 || fail "bf16 weights"
"$bench" "${size[@]}" --quantize fp8 --json "$scratch/fp8.json" --compare "$scratch/none.json" >"$scratch/said" 2>&1 ||
  fail "fp8 weights"
"$bench" "${size[@]}" --deterministic --compare "$scratch/none.json" >"$scratch/same" 2>&1 || fail "--deterministic"
grep -q '^decode  *2 sequences  *[0-9.]*$' "$scratch/same" || fail "no line that compares --deterministic"
for line in '^limits ' '^decode  *2 sequences' '^prefill ' 'GPU idle between steps' \
  '^2 x 1 tokens at context 20' '^1 x 16 tokens at context 16' '^gate and up product ' '^attention ' '^LM head ' \
  '^summaries, sampled ' '^largest gaps of a step to the limits: ' '^times as fast as in none.json'; do
  grep -q "$line" "$scratch/said" || fail "no line '$line'"
done
[ "$(grep -c '^  in e4m3 ' "$scratch/said")" = 4 ] || fail "not two kernels in e4m3 in each table"
[ "$(grep -c '"largest_gaps"' "$scratch/fp8.json")" = 2 ] || fail "not every table is kept"
! grep -qi 'nan' "$scratch/fp8.json" || fail "numbers that are none"
echo "passed"
