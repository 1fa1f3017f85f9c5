#!/usr/bin/env bash
# `lockstep serve` inside Slurm allocations of two nodes: salloc, and sbatch with deploy/slurm/serve.sbatch. Slurm is Debian's, its daemons
# run in hosts of the test's own, without systemd.
#
#   tests/e2e/slurm_test.sh LOCKSTEP
set -euo pipefail
lockstep=$(realpath "$1")
# shellcheck source=tests/e2e/hosts.sh
source "$(dirname "$0")/hosts.sh"
server=""
daemons=()
cleanup() {
  for daemon in "${daemons[@]}"; do kill -KILL "$daemon" 2>/dev/null || true; done  # their state goes, too
  for daemon in "${daemons[@]}"; do
    for _ in $(seq 50); do
      kill -0 "$daemon" 2>/dev/null || break
      sleep 0.1
    done
  done
  remove_hosts
}
trap cleanup EXIT
source_dir=$(realpath "$(dirname "$0")/../..")
model=${LOCKSTEP_SHARED:-$source_dir/../shared}/models/stories260K
[ -e "$model" ] || skip "test asset $model is absent (set LOCKSTEP_SHARED)"
model=$(realpath "$model")
for tool in munged slurmctld slurmd salloc srun; do
  command -v "$tool" >/dev/null || skip "no $tool; on Debian: apt-get install munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins"
done
make_hosts
log=$hosts_dir/serve.log
# shellcheck source=tests/e2e/serving.sh
source "$(dirname "$0")/serving.sh"

step "slurmctld on head, slurmd on a and b"
slurm=$hosts_dir/slurm
mkdir -p "$slurm"/{state,munge,spool.a,spool.b,tmp.a,tmp.b}
head -c 1024 /dev/urandom >"$slurm/munge.key"
chmod 400 "$slurm/munge.key"
munged --force --foreground --socket="$slurm/munge/socket" --key-file="$slurm/munge.key" --pid-file="$slurm/munge/pid" \
  --log-file="$slurm/munge/log" --seed-file="$slurm/munge/seed" >"$slurm/munged.log" 2>&1 &
munged=$!
daemons+=("$munged")
cat >"$slurm/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$slurm/munge/socket
CredType=cred/munge
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool.%n
# Slurm's PMIx keeps files here, named by job and step alone.
TmpFS=$slurm/tmp.%n
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/slurmd.%n.pid
SlurmctldLogFile=$slurm/slurmctld.log
SlurmdLogFile=$slurm/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=5
MailProg=/bin/true
NodeName=a,b CPUs=4 State=UNKNOWN
PartitionName=all Nodes=a,b Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$slurm/slurm.conf
for _ in $(seq 1000); do
  if [ -S "$slurm/munge/socket" ]; then break; fi
  kill -0 "$munged" 2>/dev/null || skip "munged does not run here: $(cat "$slurm/munged.log")"
  sleep 0.1
done
on head slurmctld -D >"$slurm/slurmctld.out" 2>&1 &
daemons+=("$!")
for node in a b; do on "$node" slurmd -D -N "$node" >"$slurm/slurmd.$node.out" 2>&1 & done
disown -a
for _ in $(seq 3000); do
  if [ "$( (on head sinfo -h -t idle -o %D) 2>/dev/null)" = 2 ]; then break; fi
  sleep 0.1
done
[ "$( (on head sinfo -h -t idle -o %D) 2>/dev/null)" = 2 ] || skip "Slurm's daemons do not run here: $(tail -n 5 "$slurm"/*.log)"

allocation=(on head salloc --quiet -N2)
server_of() { serve=("${allocation[@]}" "$@" "$lockstep" serve "$model" --threads-per-rank 1 --num-kv-blocks 256 --listen 127.0.0.1:0); }

step "allocations that do not fit are refused with advice"
server_of --ntasks-per-node=2
expect_refusal "split between hosts \(ranks 0-1 on a, ranks 2-3 on b\)" --tp 4
expect_refusal "ask Slurm for --ntasks=8" --tp 2 --pp 4

step "two nodes answer like one host, also where sbatch was told --export=NONE"
NCCL_DEBUG=WARN SLURM_EXPORT_ENV=NONE start_server --tp 2 --pp 2
expect_reference_text
for rank in $(ranks_on b); do
  on b grep -qz '^NCCL_DEBUG=WARN' "/proc/$rank/environ" || fail "rank process $rank on b does not hear this environment"
done
[ "$(ranks_on a | wc -l) $(ranks_on b | wc -l)" = "2 2" ] || fail "ranks are not two and two"
expect_event preflight '"host":"a","ranks":\[0,1\].*"host":"b","ranks":\[2,3\]'

step "a killed rank is a pause"
on b kill -KILL "$(ranks_on b | tail -1)"
await_event ready_again
expect_event restarting "rank [0-3] .* on [ab]"  # srun kills the others before it tells which died first
expect_reference_text

step "an orderly stop leaves nothing, a killed launcher neither"
launcher=$(pgrep -P "$server" -x lockstep)
kill -INT "$launcher"
wait "$server" || fail "salloc ended with $?"
expect_nothing_left a b
start_server --tp 2 --pp 2
launcher=$(pgrep -P "$server" -x lockstep)
kill -KILL "$launcher"
wait "$server" 2>/dev/null || true
server=""
expect_nothing_left a b

step "sbatch with deploy/slurm/serve.sbatch"
port=50051
job=$(on head sbatch --parsable -N2 --ntasks-per-node=2 --output="$log" --export=ALL,LOCKSTEP="$lockstep" \
  "$source_dir/deploy/slurm/serve.sbatch" "$model" --tp 2 --pp 2 --threads-per-rank 1 --num-kv-blocks 256 \
  --listen "127.0.0.1:$port")
for _ in $(seq 3000); do
  if grep -q "^Serving" "$log" 2>/dev/null; then break; fi
  sleep 0.1
done
grep -q "^Serving" "$log" || fail "the batch job does not serve"
(on a "$lockstep" generate --server "127.0.0.1:$port" --quiet --temperature 0 --max-tokens 20 "Once upon a time") >"$hosts_dir/text"
grep -q "there was a little girl named Lily" "$hosts_dir/text" || fail "the batch job answers: $(cat "$hosts_dir/text")"
on head scancel --signal=TERM --batch "$job"
for _ in $(seq 1000); do
  if grep -q "^Stopped after all requests finished" "$log"; then break; fi
  sleep 0.1
done
grep -q "^Stopped after all requests finished" "$log" || fail "SIGTERM does not drain the batch job"
expect_nothing_left a b
echo "slurm_test.sh: passed"
