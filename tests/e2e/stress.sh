#!/usr/bin/env bash
# 200 random requests at once, on ranks whose cache is far too small for them, must return what each
# returns alone on one rank; ten rounds; no block left in use, no process that grows.
#
#   tests/e2e/stress.sh LOCKSTEP STRESS_CLIENT [REQUESTS [ROUNDS]]
set -euo pipefail
lockstep=$1 client=$2 requests=${3:-200} rounds=${4:-10}
model=${LOCKSTEP_SHARED:-$(dirname "$0")/../../../shared}/models/stories260K
if [ ! -e "$model" ]; then
  echo "SKIPPED: test asset $model is absent (set LOCKSTEP_SHARED)"
  exit 77
fi

dir=$(mktemp -d)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill -INT "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$dir"
}
trap cleanup EXIT

# start NAME FLAG...: serves the model, sets `address` and `pid`.
start() {
  local name=$1
  shift
  "$lockstep" serve "$model" --listen 127.0.0.1:0 --threads-per-rank 1 --json "$@" \
    >"$dir/$name.log" 2>&1 &
  pid=$!
  pids+=("$pid")
  for _ in $(seq 300); do
    address=$(sed -n 's/.*"event":"ready".*"address":"\([^"]*\)".*/\1/p' "$dir/$name.log")
    if [ -n "$address" ]; then return; fi
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  cat "$dir/$name.log" >&2
  echo "stress.sh: the $name server did not become ready" >&2
  exit 1
}

start reference --max-model-len 256
reference=$address
start crowded --tp 2 --pp 2 --num-kv-blocks 80 --block-size 4 --max-model-len 256 --max-num-seqs 64 \
  --max-batched-tokens 256
"$client" --reference "$reference" --server "$address" --server-pid "$pid" \
  --requests "$requests" --rounds "$rounds"
