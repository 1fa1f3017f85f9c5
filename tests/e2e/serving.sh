# Sourced after hosts.sh by tests of `lockstep serve` over hosts: wants $lockstep, $model, $log and make_hosts; sets $server and $address.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
unset XDG_RUNTIME_DIR

step() { printf '== %s (%ss)\n' "$*" "$SECONDS"; }
fail() {
  echo "$(basename "$0"): $*" >&2
  tail -n 40 "$log" >&2 || true
  exit 1
}
serve=(on head "$lockstep" serve "$model" --threads-per-rank 1 --num-kv-blocks 256 --listen 127.0.0.1:0)

# expect_refusal PATTERN ARGUMENT...: `serve` fails with one line on standard error that matches.
expect_refusal() {
  local pattern=$1
  shift
  if ("${serve[@]}" "$@") >"$log" 2>"$hosts_dir/refusal"; then fail "serve $* did not fail"; fi
  cat "$hosts_dir/refusal" >>"$log"
  grep '^lockstep serve: ' "$hosts_dir/refusal" | grep -qE -- "$pattern" || fail "the reason does not say '$pattern'"
  [ "$(grep -c '^lockstep serve: ' "$hosts_dir/refusal")" = 1 ] || fail "the reason has several lines"
  sed -n 's/^lockstep serve: /   /p' "$hosts_dir/refusal"
}

# await_event EVENT [PATTERN]
await_event() {
  for _ in $(seq 3000); do
    if grep "\"event\":\"$1\"" "$log" | grep -qE -- "${2:-}"; then return; fi
    kill -0 "$server" 2>/dev/null || fail "the server ended; no event $1 ${2:-}"
    sleep 0.1
  done
  fail "no event $1 ${2:-}"
}
expect_event() { grep "\"event\":\"$1\"" "$log" | grep -qE -- "$2" || fail "no event $1 that matches $2"; }

start_server() {
  : >"$log"  # on a busy machine the last server's would be read before the shell has emptied it
  "${serve[@]}" --json "$@" >"$log" 2>&1 &
  server=$!
  await_event ready
  address=$(sed -n 's/.*"event":"ready".*"address":"\([^"]*\)".*/\1/p' "$log" | head -1)
}
# stop_server SIGNAL EXIT-CODE
stop_server() {
  local code=0
  kill -"$1" "$server"
  wait "$server" 2>/dev/null || code=$?
  server=""
  [ "$code" = "$2" ] || fail "the server ended with $code instead of $2"
}
expect_reference_text() {
  (on head "$lockstep" generate --server "$address" --quiet --temperature 0 --max-tokens 200 "Once upon a time") \
    >"$hosts_dir/text" 2>>"$log" || fail "generate failed"
  local length
  length=$(($(stat -c %s "$hosts_dir/text") - 1))
  [ "$length" -gt 300 ] || fail "the text is only $length bytes long"
  cmp -n "$length" "$hosts_dir/text" "$model/expected_greedy_256.txt" || fail "the text is not the reference's"
}
# await_none WHAT HOST...: until the function WHAT prints nothing for any host, within five seconds.
await_none() {
  local what=$1
  shift
  for host in "$@"; do
    for _ in $(seq 50); do
      if [ -z "$($what "$host")" ]; then continue 2; fi
      sleep 0.1
    done
    fail "left on $host: $($what "$host")"
  done
}
expect_nothing_left() { await_none left_on "$@"; }
# Ranks that are killed while MPI starts leave a directory that the next launch on their host removes.
expect_no_processes() { await_none processes_on "$@"; }
