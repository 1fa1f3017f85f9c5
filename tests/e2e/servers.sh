# Sourced by tests that compare one server's answers with another's: serves the small model of the shared assets on this host, skips (exit 77)
# without it. Wants $lockstep; whatever it started ends with the test.
#
#   start NAME FLAG...   serves at $listen, if that is set, sets $address and $pid; the log is $dir/NAME.log
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

start() {
  local name=$1
  shift
  : >"$dir/$name.log"  # on a busy machine it is read before the server's shell has made it
  "$lockstep" serve "$model" --listen "${listen:-127.0.0.1:0}" --threads-per-rank 1 --json "$@" \
    >"$dir/$name.log" 2>&1 &
  pid=$!
  pids+=("$pid")
  for _ in $(seq 3000); do
    address=$(sed -n '/"event":"ready"/{s/.*"address":"\([^"]*\)".*/\1/p;q}' "$dir/$name.log")
    if [ -n "$address" ]; then return; fi
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  cat "$dir/$name.log" >&2
  echo "$(basename "$0"): the $name server did not become ready" >&2
  exit 1
}
