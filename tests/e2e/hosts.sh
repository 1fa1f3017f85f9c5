# Sourced by tests: several hosts on one machine. Each has a network, a name, processes, /dev/shm and /run of its own, and dies with the
# test; files are shared, but for temporary ones, for an earlier test's "a" may have left some. "head" is where `lockstep serve` runs (its
# processes are the machine's, so that the test can watch them), a and b are where ranks run; 10.77.0.1, .2 and .3 on one network.
# rsh_agent is what ssh would be.
#
#   make_hosts              skips (exit 77) where the machine forbids namespaces
#   on HOST COMMAND...      runs it there; with & its process id is the command's own, $!
#   ranks_on HOST           process ids, as seen there
#   processes_on HOST       of a launch
#   left_on HOST            what a launch may not leave behind: those, shared memory, mpirun's directories
skip() { echo "SKIPPED: $*"; exit 77; }

declare -A host_init
host_outers=()
hosts_dir=$(mktemp -d /tmp/lockstep_hosts_XXXXXX)
chmod 755 "$hosts_dir"
rsh_agent=$hosts_dir/agent

# start_host NAME [UNSHARE-OPTION...]: its first process sleeps until the test ends.
start_host() {
  local name=$1
  shift
  mkdir "$hosts_dir/$name.tmp"
  setpriv --pdeathsig KILL unshare --net --uts --ipc --mount --propagation private --kill-child=SIGKILL --fork "$@" \
    bash -c '
      if [ $$ = 1 ]; then mount -t proc proc /proc; fi
      mount -t tmpfs none /dev/shm && mount -t tmpfs none /run && mount --bind "$2/hosts" /etc/hosts &&
        hostname "$1" && ip link set lo up || exit 1
      touch "$2/$1.up"
      if [ $$ != 1 ]; then exec sleep infinity; fi
      trap : CHLD
      while :; do sleep 3600 & wait $!; done' host "$name" "$hosts_dir" 2>"$hosts_dir/$name.log" &
  local outer=$!
  host_outers+=("$outer")
  disown "$outer"  # nobody wants to read that it was killed
  for _ in $(seq 1000); do
    if [ -e "$hosts_dir/$name.up" ]; then break; fi
    kill -0 "$outer" 2>/dev/null || skip "this machine forbids namespaces: $(cat "$hosts_dir/$name.log")"
    sleep 0.05
  done
  host_init[$name]=$(cat "/proc/$outer/task/$outer/children")
  host_init[$name]=${host_init[$name]% }
  echo "${host_init[$name]}" >"$hosts_dir/$name.pid"
}

on() {
  local name=$1 pid_namespace=--pid
  shift
  if [ "$name" = head ]; then pid_namespace=""; fi
  # shellcheck disable=SC2086
  set -- nsenter -t "${host_init[$name]}" --net --uts --ipc --mount $pid_namespace -- env TMPDIR="$hosts_dir/$name.tmp" "$@"
  if [ "$BASHPID" = "$$" ]; then "$@"; else exec "$@"; fi
}

remove_hosts() {
  for outer in "${host_outers[@]}"; do kill -KILL "$outer" 2>/dev/null || true; done
  # What was killed may still be writing.
  rm -rf "$hosts_dir" 2>/dev/null || { sleep 1; rm -rf "$hosts_dir" || true; }
}

make_hosts() {
  for tool in ip nsenter unshare setpriv; do
    command -v "$tool" >/dev/null || skip "no $tool command (iproute2 and util-linux have it)"
  done
  [ "$(id -u)" = 0 ] || skip "only root may make network namespaces"
  printf '127.0.0.1 localhost\n10.77.0.1 head\n10.77.0.2 a\n10.77.0.3 b\n' >"$hosts_dir/hosts"
  start_host head
  on head ip link add bridge type bridge 2>/dev/null || skip "this machine forbids network bridges"
  on head ip addr add 10.77.0.1/24 dev bridge
  on head ip link set bridge up
  local address=2
  for name in a b; do
    start_host "$name" --pid
    on head ip link add "to_$name" type veth peer name eth0 netns "${host_init[$name]}"
    on head ip link set "to_$name" master bridge up
    on "$name" ip addr add "10.77.0.$address/24" dev eth0
    on "$name" ip link set eth0 up
    address=$((address + 1))
  done
  cat >"$rsh_agent" <<AGENT
#!/bin/sh
# HOST COMMAND... The caller's environment stays behind, as it does with ssh.
host=\$1
shift
read -r init <"$hosts_dir/\$host.pid" || exit 255
exec env -i PATH="\$PATH" HOME="\$HOME" TMPDIR="$hosts_dir/\$host.tmp" \\
  LSAN_OPTIONS="${LSAN_OPTIONS:-}" TSAN_OPTIONS="${TSAN_OPTIONS:-}" \\
  nsenter -t "\$init" --net --uts --ipc --mount --pid -- /bin/sh -c "\$*"
AGENT
  chmod +x "$rsh_agent"
}

ranks_on() { (on "$1" pgrep -x lockstep) || true; }

processes_on() { (on "$1" ps -eo pid=,comm=,args=) | awk '$2 ~ /^(lockstep|orted|slurmstepd|sleeper)$/'; }

left_on() {
  processes_on "$1"
  (on "$1" ls /dev/shm)
  # Slurm's ranks have the head's variables.
  find "$hosts_dir"/*.tmp -path "*/ompi.$1.*" 2>/dev/null || true
}
