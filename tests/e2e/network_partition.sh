#!/usr/bin/env bash
# A network that is cut between the controller and its ranks, for longer than every keepalive, heals
# without split brain: requests wait, the ranks fence themselves, come back with a higher epoch and
# the same weights, and every answer is the one of an undisturbed server.
#
#   tests/e2e/network_partition.sh LOCKSTEP [SECONDS]
set -euo pipefail
lockstep=$1 seconds=${2:-30}
skip() {
  echo "SKIPPED: $*"
  exit 77
}
model=${LOCKSTEP_SHARED:-$(dirname "$0")/../../../shared}/models/stories260K
[ -e "$model" ] || skip "test asset $model is absent (set LOCKSTEP_SHARED)"
model=$(realpath "$model")
command -v ip >/dev/null || skip "no ip command (iproute2)"
tag=ls$$
control=$tag-c workers=$tag-w
ip netns add "$control" 2>/dev/null || skip "this machine forbids network namespaces"

dir=$(mktemp -d)
pids=()
cleanup() {
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  ip netns del "$control" 2>/dev/null || true
  ip netns del "$workers" 2>/dev/null || true
  rm -rf "$dir"
}
trap cleanup EXIT
fail() {
  echo "network_partition.sh: $*" >&2
  tail -n 30 "$dir"/*.log >&2
  exit 1
}
# await WHAT SECONDS COMMAND...: until the command succeeds
await() {
  local what=$1 tries=$(($2 * 10))
  shift 2
  for _ in $(seq "$tries"); do
    if "$@" >/dev/null 2>&1; then return 0; fi
    sleep 0.1
  done
  fail "$what did not happen"
}

ip netns add "$workers"
ip link add "$tag"a netns "$control" type veth peer name "$tag"b netns "$workers"
ip -n "$control" addr add 10.99.0.1/24 dev "$tag"a
ip -n "$workers" addr add 10.99.0.2/24 dev "$tag"b
for end in "$control lo" "$control ${tag}a" "$workers lo" "$workers ${tag}b"; do
  # shellcheck disable=SC2086
  set -- $end
  ip -n "$1" link set "$2" up
done

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
in_control() { ip netns exec "$control" "$@"; }
client() { in_control "$lockstep" "$@" --server 127.0.0.1:50051; }
# Long enough that the network is cut meanwhile, however late this script gets a processor.
generate() {
  client generate "Once upon a time" "Lily and Tom" "There was a dog" "One day" --ignore-eos --max-tokens 450 --n 64 --seed "$1"
}
status() { client status --json; }
epoch() { status | grep -o '"epoch":[0-9]*' | head -1 | tr -dc 0-9; }
serving() { status | grep -q '"state":"STATE_SERVING","detail"'; }
recovering() { status | grep -q '"state":"STATE_RECOVERING"'; }

ip netns exec "$control" "$lockstep" controller "$model" --tp 2 --pp 2 --secret-file "$dir/secret" \
  --worker-listen 10.99.0.1:50052 --json >"$dir/controller.log" 2>&1 &
pids+=($!)
await "the controller's start" 20 test -s "$dir/secret"
ip netns exec "$workers" mpirun --bind-to none --oversubscribe --mca mpi_yield_when_idle 1 \
  --mca btl self,vader --mca btl_vader_single_copy_mechanism none -n 4 \
  "$lockstep" worker "$model" --tp 2 --pp 2 --secret-file "$dir/secret" --threads-per-rank 1 \
  --num-kv-blocks 1024 --controller 10.99.0.1:50052 >"$dir/workers.log" 2>&1 &
pids+=($!)
await "serving" 30 serving
generate 1 >"$dir/undisturbed"
first_epoch=$(epoch)

generate 1 >"$dir/disturbed" 2>"$dir/client.log" &
generation=$!
await "the generation's start" 20 test -s "$dir/disturbed"
ip -n "$control" link set "$tag"a down
cut=$SECONDS
await "the loss" 10 recovering
echo "noticed by the controller after $((SECONDS - cut)) s"
sleep $((seconds - SECONDS + cut))
kill -0 "$generation" || fail "the request ended while its ranks were away"
ip -n "$control" link set "$tag"a up
healed=$SECONDS
await "serving again" 60 serving
echo "served again $((SECONDS - healed)) s after the network came back"
wait "$generation" || fail "the request failed"
cmp "$dir/undisturbed" "$dir/disturbed" || fail "the answer differs"
[ "$(epoch)" -gt "$first_epoch" ] || fail "the epoch did not rise"
[ "$(status | grep -o '"operation":' | wc -l)" = 4 ] || fail "not exactly four ranks"
generate 1 | cmp - "$dir/undisturbed" || fail "a later answer differs"
echo "the answer is the same, epoch $first_epoch -> $(epoch)"
