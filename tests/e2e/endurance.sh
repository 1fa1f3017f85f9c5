#!/usr/bin/env bash
# How a server bears time and load: clients that vanish, four times the load it can carry, and a long
# run at 80 % of its peak with a fifth of the requests cancelled and a rank killed or stopped now and
# then. Every answer is compared with what the request returns alone.
#
#   tests/e2e/endurance.sh LOCKSTEP ENDURANCE_CLIENT [SECONDS [KILL_EVERY_SECONDS]]
#
# By hand, ten minutes with a kill a minute: ... 600 60
set -euo pipefail
lockstep=$1 client=$2 seconds=${3:-25} kill_every=${4:-8}
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
  echo "endurance.sh: the $name server did not become ready" >&2
  exit 1
}

start reference --max-model-len 256
reference=$address
start loaded --tp 2 --pp 2 --num-kv-blocks 2048 --block-size 4 --max-model-len 256 --max-queue 64 \
  --max-restarts 1000000
"$client" --reference "$reference" --server "$address" --server-pid "$pid" \
  --seconds "$seconds" --kill-every "$kill_every"
grep -c '"event":"restarting"' "$dir/loaded.log" | sed 's/^/restarts: /' || true
