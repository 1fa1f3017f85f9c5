#!/usr/bin/env bash
# gpu_bench over the demo model, on the emulation of CUDA: every line is there, what is kept as JSON, and its figures.
#
#   tests/gpu/bench_test.sh GPU_BENCH GPU_FIGURES
set -euo pipefail
bench=${1:?usage: bench_test.sh GPU_BENCH GPU_FIGURES}
figures=${2:?usage: bench_test.sh GPU_BENCH GPU_FIGURES}
model=$(dirname "$0")/../../deploy/demo/model
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "bench_test: $*" >&2; cat "$scratch/said" >&2; exit 1; }

size=(--model "$model" --decode "1,2" --guesses 3 --context 20 --prefill 16 --long-context 0 --repeats 1 --rotate 1)
"$bench" "${size[@]}" --json "$scratch/bench-none.json" >"$scratch/said" 2>&1 || fail "bf16 weights"
"$bench" "${size[@]}" --quantize fp8 --json "$scratch/bench-fp8.json" --compare "$scratch/bench-none.json" >"$scratch/said" 2>&1 ||
  fail "fp8 weights"
"$bench" "${size[@]}" --deterministic --json "$scratch/bench-deterministic.json" --compare "$scratch/bench-none.json" \
  >"$scratch/same" 2>&1 || fail "--deterministic"
grep -q '^decode  *2 sequences  *[0-9.]*,' "$scratch/same" || fail "no line that compares --deterministic"
"$bench" "${size[@]}" --no-overlap --json "$scratch/bench-no-overlap.json" --compare "$scratch/bench-none.json" >"$scratch/same" 2>&1 ||
  fail "--no-overlap"
grep -q '^decode  *2 sequences  *[0-9.]*,' "$scratch/same" || fail "no line that compares --no-overlap"
for line in '^limits ' '^decode  *2 sequences' '^prefill ' '^  with both ' '^  with the head ' \
  '^64 blocks of a KV cache, ' '^  to the host .* of one copy' '^  back to the device ' \
  '^  GPU idle .*between steps .*at copies' '^decode .* sequences .*with LM head and sampling [0-9.]*$' \
  '^2 x 1 tokens at context 20' '^1 x 16 tokens at context 16' '^gate and up product ' '^attention ' '^attention, fp8 cache ' '^LM head ' \
  '^summaries, sampled ' '^largest gaps of a step to the limits: ' '^times as fast as in bench-none.json'; do
  grep -q "$line" "$scratch/said" || fail "no line '$line'"
done
[ "$(grep -c '^  in e4m3 ' "$scratch/said")" = 6 ] || fail "not two kernels in e4m3 in each table"
[ "$(grep -c '"largest_gaps"' "$scratch/bench-fp8.json")" = 3 ] || fail "not every table is kept"
! grep -qi 'nan' "$scratch/bench-fp8.json" || fail "numbers that are none"

"$figures" "$scratch" >"$scratch/said" 2>&1 || fail "figures"
for line in '^bf16 weights$' '^  decode 1 x 20 .*read bandwidth  *>= 85 %  *[a-zA-Z]*$' '^  decode 2 x 20 .*floor$' \
  '^    GPU idle .*< 3 %' '^  prefill 16 .*>= 70 %' '^  attention alone, decode 1 x 20 ' '^    over an fp8 cache, decode 1 x 20 ' '^  attention alone, prefill 16 .*>= 60 %' \
  '^fp8 against bf16' '^what steps cost whose kernels do not overlap' '^what --deterministic costs'; do
  grep -q "$line" "$scratch/said" || fail "no line '$line'"
done
! grep -qi 'nan\|inf ' "$scratch/said" || fail "numbers that are none"
! grep -q 'earlier run' "$scratch/said" || fail "files of this run are taken for older ones"
touch -d '1 hour ago' "$scratch/bench-fp8.json"
"$figures" "$scratch" 60 >"$scratch/said"
grep -q '^bench-fp8.json is of an earlier run' "$scratch/said" || fail "an older file is taken for this run's"
"$figures" >/dev/null 2>&1 && fail "figures of no directory"
echo "passed"
