#!/bin/bash
# What `plan` predicts for this host is what `serve` allocates, block by block, in several layouts; speeds are predicted where the host was
# calibrated, and only there.
#
#   plan_test.sh LOCKSTEP
set -euo pipefail
lockstep=$1
. "$(dirname "$0")/servers.sh"

number() { sed -n "s/.*\"$2\": *\([0-9]*\).*/\1/p" "$1" | head -1; }
export XDG_CONFIG_HOME=$dir/config  # nothing is calibrated there yet

for layout in "1 1" "2 1" "1 2" "2 2"; do
  read -r tp pp <<<"$layout"
  "$lockstep" plan --model "$model" --gpu cpu --tp "$tp" --pp "$pp" --json >"$dir/plan.json"
  start "serve-$tp-$pp" --device cpu --tp "$tp" --pp "$pp"
  kill -INT "$pid"
  planned=$(number "$dir/plan.json" num_kv_blocks)
  allocated=$(number "$dir/serve-$tp-$pp.log" num_kv_blocks)
  if [ -z "$planned" ] || [ "$planned" != "$allocated" ]; then
    echo "plan_test.sh: tp $tp x pp $pp: $planned blocks planned, $allocated allocated" >&2
    exit 1
  fi
  echo "tp $tp x pp $pp: $planned blocks planned and allocated"
done

# holds FILE WORDS: the file does.
holds() {
  grep -q "$2" "$1" || {
    echo "plan_test.sh: no $2 in $1:" >&2
    cat "$1" >&2
    exit 1
  }
}

# refuses WORDS ARGUMENT...: `plan` ends with 2 and one line that holds WORDS.
refuses() {
  local words=$1 code=0
  shift
  "$lockstep" plan "$@" >"$dir/out" 2>"$dir/err" || code=$?
  if [ $code != 2 ] || [ "$(wc -l <"$dir/err")" != 1 ] || ! grep -q -- "$words" "$dir/err"; then
    echo "plan_test.sh: plan $*: exit code $code, said: $(cat "$dir/err")" >&2
    exit 1
  fi
}

"$lockstep" plan --model "$model" --gpu cpu --json >"$dir/plan.json"
if grep -q tpot_ms "$dir/plan.json"; then
  echo "plan_test.sh: a speed is predicted, but nothing was calibrated" >&2
  exit 1
fi
refuses "cannot read" --model "$model" --gpu cpu --profile "$dir/nowhere.json"
echo '{"kind": "lockstep host profile", "version": 9}' >"$dir/bad.json"
refuses "version is 9; it must be" --model "$model" --gpu cpu --profile "$dir/bad.json"
refuses "is a directory" --calibrate "$dir" --quick
# fails WORDS ARGUMENT...: with exit code 1, which says that nothing is known to hold.
fails() {
  local words=$1 code=0
  shift
  "$lockstep" plan "$@" >"$dir/out" 2>&1 || code=$?
  [ "$code" = 1 ] || { echo "plan_test.sh: plan $*: exit code $code" >&2; exit 1; }
  grep -q -- "$words" "$dir/out" || { echo "plan_test.sh: plan $*: no '$words'" >&2; exit 1; }
}
"$lockstep" plan --list >"$dir/list"
grep -q '^  llama-3.1-8b *8b, llama-3.1-8b-instruct$' "$dir/list" && grep -q '^  h200-sxm-141g .*NVIDIA H200.* h200, ' "$dir/list" \
  || { echo "plan_test.sh: --list says: $(cat "$dir/list")" >&2; exit 1; }
refuses "--ttft-p95 5 has no unit: write 5s or 5ms" --model 8b --rate 2 --ttft-p95 5
fails "nothing was calibrated" --model "$model" --gpu cpu --rate 1000/s --ttft-p95 1ms
fails "it does not fit" --model llama-3.1-405b --gpu cpu

if "$lockstep" plan --model "$model" --gpu h100 >/dev/full 2>"$dir/err"; then
  echo "plan_test.sh: a plan that nobody can read is no success" >&2
  exit 1
fi
holds "$dir/err" "cannot write standard output"

# Ranks that hang are ended, and nothing is kept.
mkdir "$dir/probe"
code=0
XDG_RUNTIME_DIR=$dir/probe timeout 60 "$lockstep" plan --calibrate "$dir/never.json" --device cpu --quick --tp 2 --probe-seconds 0.05 \
  2>"$dir/err" || code=$?
holds "$dir/err" "the ranks were not done after 50ms"
if [ $code != 1 ] || [ -e "$dir/never.json" ] || pgrep -f "calibrate-rank .*$dir/probe" >&2; then
  echo "plan_test.sh: exit code $code; a profile or ranks are left of a calibration that took too long" >&2
  exit 1
fi

"$lockstep" plan --calibrate --device cpu --quick --tp 2 --weights f32 2>"$dir/calibrate.log" || {
  cat "$dir/calibrate.log" >&2
  exit 1
}
"$lockstep" plan --model "$model" --gpu cpu --tp 2 --pp 1 --json >"$dir/plan.json"
for field in tpot_ms ttft_ms "calibrated .* on $(uname -n)"; do
  holds "$dir/plan.json" "$field"
done
"$lockstep" plan --model "$model" --gpu cpu --tp 2 --pp 1 --input 16 --output 16 --rate 1/min >"$dir/rate.txt"
holds "$dir/rate.txt" "^Queueing .*simulated with the engine's scheduler"
printf '0,16,16\n0.5,32,8\n60,16,16\n' >"$dir/trace.csv"
"$lockstep" plan --model "$model" --gpu cpu --tp 2 --pp 1 --trace "$dir/trace.csv" >"$dir/trace.txt"
holds "$dir/trace.txt" "requests to a replica"
refuses "contradict each other" --model "$model" --gpu cpu --rate 1/s --concurrency 2
refuses "--svg is not for --gpu cpu" --model "$model" --gpu cpu --svg "$dir/chart.svg"
refuses "leave out --input and --output" --model "$model" --gpu cpu --trace "$dir/trace.csv" --input 16
refuses "context 10 is less than the 40 tokens of a request" --model "$model" --gpu h100 --trace "$dir/trace.csv" --context 10
refuses "rate: the value is empty" --model "$model" --gpu h100 --rate ""
refuses "rate 1e-300/s is outside" --model "$model" --gpu h100 --rate 1e-300/s
refuses "calibrate" --model "$model" --quick
# A usual request shrinks to the model's context; what is named does not.
"$lockstep" plan --model "$model" --gpu h100 --json >"$dir/plan.json"
refuses "input 512 and output 1 together exceed the 512 positions" --model "$model" --gpu h100 --input 512
# What no queue holds within the limits is no answer, and fails.
code=0
"$lockstep" plan --model 405b --weights fp8 --rate 1/s --ttft-p95 500ms --nodes 1 >"$dir/none.txt" || code=$?
holds "$dir/none.txt" "^Answer    none within 1 node of 8: time to first token"
if [ $code != 1 ]; then
  echo "plan_test.sh: exit code $code of a plan that has no answer" >&2
  exit 1
fi
# `serve` knows every flag of a launch command, in every range that `plan` takes: only the model is missing.
for flags in "" "--block-size 1024 --utilization 0.99" "--rate 1/min --block-size 1 --utilization 0.05" "--weights f32 --concurrency 2000"; do
  launch=$("$lockstep" plan --model llama-3.2-1b --gpu h100 $flags | sed -n 's/^Launch *lockstep //p')
  code=0
  "$lockstep" $launch 2>"$dir/err" || code=$?
  if [ $code != 1 ] || ! grep -q "/models/llama-3.2-1b" "$dir/err"; then
    echo "plan_test.sh: $launch: exit code $code, said: $(cat "$dir/err")" >&2
    exit 1
  fi
done
refuses "utilization: 1 is not a number from 0.05 to 0.99" --model "$model" --gpu h100 --utilization 1
echo "calibrated and predicted"

# A calibrated server says what is predicted, and at the end what was measured.
start serve-predicted --device cpu
holds "$dir/serve-predicted.log" '"event":"predicted".*"tpot_ms":.*calibrated'
"$lockstep" bench --server "$address" --num-requests 4 --concurrency 2 --input-len 16 --output-len 32 --json -q >/dev/null
"$lockstep" status --server "$address" --json >"$dir/status.json"
holds "$dir/status.json" '"predicted_tpot_ms":'
kill -INT "$pid"
wait "$pid" || true
holds "$dir/serve-predicted.log" '"event":"served".*"num_outputs":6.*"predicted_tpot_ms":'
echo "predicted, served and compared"
