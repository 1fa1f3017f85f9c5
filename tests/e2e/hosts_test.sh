#!/usr/bin/env bash
# `lockstep serve` over two hosts with mpirun: tensor parallel ranks inside a host, stages across.
#
#   tests/e2e/hosts_test.sh LOCKSTEP
set -euo pipefail
lockstep=$(realpath "$1")
# shellcheck source=tests/e2e/hosts.sh
source "$(dirname "$0")/hosts.sh"
server=""
cleanup() {
  if [ -n "$server" ]; then kill -KILL "$server" 2>/dev/null || true; fi
  remove_hosts
}
trap cleanup EXIT
model=${LOCKSTEP_SHARED:-$(dirname "$0")/../../../shared}/models/stories260K
[ -e "$model" ] || skip "test asset $model is absent (set LOCKSTEP_SHARED)"
model=$(realpath "$model")
command -v mpirun.openmpi >/dev/null || command -v mpirun >/dev/null || skip "no mpirun"
make_hosts
log=$hosts_dir/serve.log
# shellcheck source=tests/e2e/serving.sh
source "$(dirname "$0")/serving.sh"
over_hosts=(--tp 2 --pp 2 --rsh-agent "$rsh_agent")

step "a group that two hosts would share is refused before anything starts"
expect_refusal "rank 0 on a, rank 1 on b" "${over_hosts[@]}" --hosts a:1,b:3
expect_refusal "the hosts have 3" "${over_hosts[@]}" --hosts a:2,b:1

step "a host that cannot be reached is named"
expect_refusal "nowhere" "${over_hosts[@]}" --hosts a:2,nowhere:2
echo 4000000 >"$hosts_dir/gone.pid"
echo "10.77.0.9 gone" >>"$hosts_dir/hosts"
expect_refusal "mpirun could not start ranks on all hosts" "${over_hosts[@]}" --hosts a:2,gone:2

step "two hosts answer like one"
printf '# two ranks each\na slots=2\nb:2\n' >"$hosts_dir/hostfile"
LD_LIBRARY_PATH=/nowhere NCCL_P2P_DISABLE=1 CUDA_VISIBLE_DEVICES=0 start_server "${over_hosts[@]}" --hostfile "$hosts_dir/hostfile" \
  --network 10.77.0.0/24 --mpi-ports 20000-20023
expect_reference_text
expect_event preflight '"host":"a","ranks":\[0,1\].*"host":"b","ranks":\[2,3\].*"to_next_stage":{"latency_us"'
[ "$(ranks_on a | wc -l) $(ranks_on b | wc -l)" = "2 2" ] || fail "ranks are not two and two"

step "hidden states cross the network once, not from every tensor parallel rank"
sent_by_a() { on a ip -s -j link | grep -oP '"tx":\{"bytes":\K[0-9]+' | awk '{ sum += $1 } END { print sum }'; }
prompt=$(printf 'Once upon a time there was a little girl who liked to play. %.0s' {1..24})
before=$(sent_by_a)
(on head "$lockstep" generate --server "$address" --quiet --temperature 0 --max-tokens 1 "$prompt") >/dev/null 2>>"$log"
bytes=$(($(sent_by_a) - before))
# Some 450 tokens of 64 numbers: 115 KB, and as much again had both ranks sent all of them.
[ "$bytes" -gt 90000 ] && [ "$bytes" -lt 180000 ] || fail "host a sent $bytes bytes"

step "ranks on other hosts hear what NCCL is told and where libraries are, and nothing of this host's GPUs"
for rank in $(ranks_on b); do
  on b grep -qz '^NCCL_P2P_DISABLE=1' "/proc/$rank/environ" || fail "rank process $rank on b does not hear NCCL_P2P_DISABLE"
  on b grep -qz '^LD_LIBRARY_PATH=.*/nowhere' "/proc/$rank/environ" || fail "rank process $rank on b does not hear LD_LIBRARY_PATH"
  ! on b grep -qz '^CUDA_VISIBLE_DEVICES=' "/proc/$rank/environ" || fail "rank process $rank on b hears CUDA_VISIBLE_DEVICES"
  on b grep -qz -- '^10.77.0.0/24' "/proc/$rank/cmdline" || fail "rank process $rank on b does not hear of the network"
done

step "MPI listens where it was told, and nothing shows the secret"
for host in a b head; do
  others=$( (on "$host" ss -Hltn) | awk '{ print $4 }' | grep -vE '^127\.0\.0\.1:|^\[::ffff:(127\.0\.0\.1|10\.77\.0\.1)\]:|:200(0[0-9]|1[0-9]|2[0-3])$' || true)
  [ -z "$others" ] || fail "undeclared listeners on $host: $others"
done
for rank in $(ranks_on a); do
  on a grep -qz -- --secret-stdin "/proc/$rank/cmdline" || fail "ranks do not read the secret from standard input"
done

step "a killed rank is a pause, and nothing of its job is left"
before=$(ranks_on a; ranks_on b)
on b kill -KILL "$(ranks_on b | tail -1)"
await_event ready_again
expect_event restarting "rank 3 .* on b.*killed by signal 9"
expect_reference_text
[ "$(ranks_on a | wc -l) $(ranks_on b | wc -l)" = "2 2" ] || fail "ranks are not two and two after the restart"
for rank in $before; do
  for host in a b; do
    if ranks_on "$host" | grep -qx "$rank" && [ "$(ranks_on "$host" | wc -l)" != 2 ]; then fail "rank process $rank survived"; fi
  done
done

step "a killed rank is told of by another of its host, where mpirun sees others end before"
on b pkill -STOP orted
on b kill -KILL "$(ranks_on b | tail -1)"
sleep 1 # on a busy machine mpirun may be the first all the same
on b pkill -CONT orted
await_event restarting '"epoch":3.*rank 3 .* on b.*killed by signal 9'
await_event ready_again '"epoch":3'

step "an orderly stop leaves nothing on any host"
[[ "$(left_on a)" == *ompi.a.* ]] || fail "mpirun's directories are not where the test looks for them"
stop_server INT 0
expect_nothing_left a b

step "a killed launcher leaves nothing on any host"
start_server "${over_hosts[@]}" --hosts b:2,a:2
expect_reference_text
[ -n "$(ranks_on b)" ] || fail "no ranks on b"
stop_server KILL 137
expect_nothing_left a b

step "ranks elsewhere find out themselves what they have, and how much cache it holds"
pinned=("${serve[@]}")
serve=(on head "$lockstep" serve "$model" --threads-per-rank 1 --listen 127.0.0.1:0 --max-num-seqs 4)
expect_refusal "rank [0-3] .* on [ab]\).*fp8 weights are multiplied by GPUs" "${over_hosts[@]}" --hosts a:2,b:2 --quantize fp8
for device in auto cpu; do
  start_server "${over_hosts[@]}" --hosts a:2,b:2 --device "$device"
  expect_event plan '"num_kv_blocks":0'
  expect_event ready '"num_kv_blocks":128,' # of 16 tokens: 4 sequences of 512
  expect_reference_text
  stop_server INT 0
done
serve=("${pinned[@]}")

step "a cut-off host's ranks end too"
start_server "${over_hosts[@]}" --hosts a:2,b:2
on head ip link set to_b down
for _ in $(seq 3000); do
  if [ -z "$(ranks_on b)" ]; then break; fi
  sleep 0.1
done
[ -z "$(ranks_on b)" ] || fail "ranks live on the host that was cut off"
stop_server KILL 137
on head ip link set to_b up
expect_nothing_left a b

step "ranks that are lost one after the other find ports of the fewest that may be given"
start_server --tp 1 --pp 2 --rsh-agent "$rsh_agent" --hosts a:1,b:1 --mpi-ports 20100-20111
for epoch in 2 3 4 5 6; do
  on a kill -KILL "$(ranks_on a)"
  for _ in $(seq 600); do
    if grep -q "\"event\":\"ready_again\".*\"epoch\":$epoch," "$log"; then continue 2; fi
    kill -0 "$server" 2>/dev/null || fail "the server ended"
    sleep 0.1
  done
  fail "epoch $epoch does not serve"
done
stop_server INT 0
expect_nothing_left a b

step "mpirun's end is seen at once, though something holds its output"
cat >"$hosts_dir/agent_that_leaves" <<END
#!/bin/sh
if [ "\$1" = b ]; then echo "ssh: connect to host b port 22: Connection refused" >&2; exit 255; fi
sleep 20 &
exec "$rsh_agent" "\$@"
END
chmod +x "$hosts_dir/agent_that_leaves"
expect_refusal "serve: mpirun could not start ranks on all hosts: .*Connection refused" --tp 1 --pp 2 \
  --rsh-agent "$hosts_dir/agent_that_leaves" --hosts a:1,b:1 --preflight-seconds 30
expect_no_processes a b

step "ranks that do not start are named with their host"
printf '#!/bin/sh\nexec sleep 60\n' >"$hosts_dir/sleeper"
chmod +x "$hosts_dir/sleeper"
on b mount --bind "$hosts_dir/sleeper" "$lockstep"
expect_refusal "after 15s ranks 2-3 on b did not start" "${over_hosts[@]}" --hosts a:2,b:2 --preflight-seconds 15
on b umount "$lockstep"
expect_no_processes a b

step "a link that is dead is named with its ranks"
on b ip neigh replace 10.77.0.2 lladdr 02:00:00:00:00:99 nud permanent dev eth0
expect_refusal "on [ab].*see --network" "${over_hosts[@]}" --hosts a:2,b:2 --preflight-seconds 15
expect_no_processes a b
echo "hosts_test.sh: passed"
