#!/usr/bin/env bash
# The plan's calibration over the CUDA backend of the plugin given: a real GPU's, or the emulation's. What was measured is a profile of
# numbers in range, by which `plan` and `serve` predict. Of the emulation they mean nothing.
#
#   tests/e2e/gpu_plan_test.sh LOCKSTEP PLUGIN
set -euo pipefail
lockstep=${1:?usage: gpu_plan_test.sh LOCKSTEP PLUGIN}
plugin=${2:?usage: gpu_plan_test.sh LOCKSTEP PLUGIN}
. "$(dirname "$0")/servers.sh"
export XDG_CONFIG_HOME=$dir/config

fail() {
  echo "gpu_plan_test.sh: $*" >&2
  cat "$dir/out" "$dir/err" >&2 || true
  exit 1
}
# calibrates FLAG...: into calibrate.json, in bounded time.
calibrates() {
  timeout 1500 "$lockstep" plan --calibrate "$dir/calibrate.json" --quick --probe-sizes small --device cuda "$@" \
    >"$dir/out" 2>"$dir/err" </dev/null || fail "plan --calibrate $*: exit code $?"
  cat "$dir/err"
}
# refuses WORDS ARGUMENT...: `plan` fails with one line that holds WORDS.
refuses() {
  local words=$1
  shift
  if "$lockstep" plan "$@" >"$dir/out" 2>"$dir/err" </dev/null; then fail "plan $* did not fail"; fi
  [ "$(wc -l <"$dir/err")" = 1 ] || fail "plan $*: more than a line"
  grep -q -- "$words" "$dir/err" || fail "plan $*: no '$words'"
}
holds() {
  grep -q -- "$2" "$1" || fail "no '$2' in $1: $(cat "$1")"
}

export LOCKSTEP_CUDA_PLUGIN=/nowhere.so
refuses "/nowhere.so" --calibrate --device cuda
export LOCKSTEP_CUDA_PLUGIN=$plugin
export LOCKSTEP_CUDA_DEVICES="2 NVIDIA H100 80GB HBM3" LOCKSTEP_CUDA_MEMORY_GIB=79.2
refuses "tp 4 x pp 1 needs 4 GPUs; there are 2" --calibrate --device cuda --tp 4
refuses "int4 is not held by GPUs: bf16, fp8" --calibrate --device cuda --weights int4
refuses "sizes huge are unknown" --calibrate --device cuda --probe-sizes huge
refuses "no h100-sxm-80g was calibrated on this host" --model llama-3.1-8b --gpu h100 --engine lockstep

calibrates
holds "$dir/calibrate.json" '"name": "NVIDIA H100 80GB HBM3"'
python3 - "$dir/calibrate.json" <<'END'
import json, math, sys
profile = json.load(open(sys.argv[1]))
def check(value, where):
    if isinstance(value, dict):
        for key, inner in value.items(): check(inner, where + "." + key)
    elif isinstance(value, list):
        for index, inner in enumerate(value): check(inner, "%s[%d]" % (where, index))
    elif isinstance(value, float):
        assert math.isfinite(value) and value >= 0, (where, value)
check(profile, "profile")
assert [(speed["tp"], speed["groups"]) for speed in profile["speeds"]] == [(1, 1), (2, 1), (1, 2)]
for speed in profile["speeds"]:
    assert [format["weights"] for format in speed["formats"]] == ["bf16", "fp8"], speed
    assert speed["launched_layer_us"] > 0 and all(format["products_gflop_s"] > 0 for format in speed["formats"])
assert len(profile["speeds"][1]["all_reduces"]) == 3 and profile["speeds"][2]["send_gb_s"] > 0
END
echo "calibrated: two GPUs, alone, as a group and as stages"

# Older GPUs do not compute in 8 bits: left out, unless it is asked for.
( # of its own
  export LOCKSTEP_CUDA_DEVICES="1 NVIDIA A100-SXM4-80GB" LOCKSTEP_CUDA_CAPABILITY=8.0 LOCKSTEP_CUDA_MEMORY_GIB=79.15
  cp "$dir/calibrate.json" "$dir/h100.json"
  calibrates
  mv "$dir/calibrate.json" "$dir/a100.json"
  if "$lockstep" plan --calibrate "$dir/calibrate.json" --quick --probe-sizes small --device cuda --weights fp8 \
    >"$dir/out" 2>"$dir/err" </dev/null; then
    fail "fp8 was calibrated on a GPU that lacks it"
  fi
  holds <(tail -n 1 "$dir/err") "compute capability 8.9 or later; NVIDIA A100-SXM4-80GB has 8.0"
  [ ! -e "$dir/calibrate.json" ] || fail "a calibration that failed left a profile"
  mv "$dir/h100.json" "$dir/calibrate.json"
)
[ "$(grep -c '"weights": "bf16"' "$dir/a100.json")" = 1 ] || fail "no bf16 in a100.json"
if grep -q fp8 "$dir/a100.json"; then fail "fp8 was measured on a GPU that lacks it"; fi
"$lockstep" plan --model llama-3.1-8b --gpu a100 --weights fp8 --profile "$dir/a100.json" >"$dir/out" 2>"$dir/err" || true
holds "$dir/out" "engine  *lockstep: calibrated .* (1 x NVIDIA A100-SXM4-80GB"
echo "an older GPU was calibrated without fp8"

"$lockstep" plan --model llama-3.1-8b --gpu h100 --profile "$dir/calibrate.json" >"$dir/out" 2>"$dir/err" || true
holds "$dir/out" "engine  *lockstep: calibrated .* on $(uname -n) (2 x NVIDIA H100 80GB HBM3"
holds "$dir/out" "all-reduce  *calibrated .* (tp 2); else public measurements"
refuses "calibrate.json: was measured on 2 x NVIDIA H100 .*, not on a100-sxm-80g" --model llama-3.1-8b --gpu a100 \
  --profile "$dir/calibrate.json"
refuses "not on what --gpu cpu asks for" --model "$model" --gpu cpu --profile "$dir/calibrate.json"
refuses "leave out one of them" --model llama-3.1-8b --gpu h100 --engine vllm --profile "$dir/calibrate.json"

# On the host itself plans and servers find it without being told.
mkdir -p "$XDG_CONFIG_HOME/lockstep"
cp "$dir/calibrate.json" "$XDG_CONFIG_HOME/lockstep/$(uname -n).cuda.json"
"$lockstep" plan --model llama-3.1-8b --gpu h100 --json >"$dir/out" 2>"$dir/err" || true
holds "$dir/out" '"engine": "lockstep"'
"$lockstep" plan --model llama-3.1-8b --gpu h100 --engine vllm --json >"$dir/vllm.json" || true
# Memory, too, is then that of `serve`, whose ranks size their KV cache themselves.
for json in "$dir/out" "$dir/vllm.json"; do
  grep activation_bytes "$json" >"$json.activations" || fail "no activations in $json"
  if grep '"launch"' "$json" | grep -e --num-kv-blocks; then fail "the launch command of $json pins the KV cache"; fi
done
if cmp -s "$dir/out.activations" "$dir/vllm.json.activations"; then fail "a calibrated plan has another engine's activations"; fi
"$lockstep" plan --model llama-3.1-8b --gpu a100 --json >"$dir/out" 2>"$dir/err" || true
holds "$dir/out" '"engine": "vllm"'
start serve-predicted --device cuda --dtype bf16 --num-kv-blocks 64 --max-num-seqs 4 --max-batched-tokens 64
holds "$dir/serve-predicted.log" '"event":"predicted".*"tpot_ms":.*calibrated'
kill -INT "$pid"
wait "$pid" || true
echo "planned and served by what was calibrated"
