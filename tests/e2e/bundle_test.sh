#!/usr/bin/env bash
# The bundle of deploy/bundle.sh on a machine with nothing installed: a bare Debian 12 in a chroot, without a network. Everything but glibc
# must come from the bundle, and 2 x 2 ranks must print the reference text.
#
#   tests/e2e/bundle_test.sh BUILD_DIR
#
# The bare system is made once by debootstrap and kept in BUILD_DIR/bundle_test/.
set -euo pipefail
build=$1
source=$(cd "$(dirname "$0")/../.." && pwd)
model=${LOCKSTEP_SHARED:-$source/../shared}/models/stories260K
base=$build/bundle_test/bookworm.tar

skip() { echo "SKIPPED: $*"; exit 77; }
[ -e "$model" ] || skip "test asset $model is absent (set LOCKSTEP_SHARED)"
[ "$(id -u)" -eq 0 ] || skip "only root can make and enter a chroot"
[ "$(dpkg --print-architecture 2>/dev/null)" ] || skip "this is not a Debian system, which bundles are made on"
unshare --mount --pid --net --fork mount --make-rprivate / 2>/dev/null || skip "this machine forbids mount, process and network namespaces"

dir=$(mktemp -d)
trap 'rm -rf --one-file-system "$dir"' EXIT

if [ ! -e "$base" ]; then
  command -v debootstrap >/dev/null || skip "debootstrap is not installed"
  mkdir -p "$dir/bookworm" "$(dirname "$base")"
  debootstrap --variant=minbase bookworm "$dir/bookworm" >"$dir/log" 2>&1 ||
    skip "debootstrap cannot make a Debian 12 here: $(tail -1 "$dir/log")"
  tar -C "$dir/bookworm" --exclude='./dev/*' --exclude='./var/cache/apt/*' -cf "$base.part" .
  mv "$base.part" "$base"
  rm -rf --one-file-system "$dir/bookworm"
  echo "made a bare Debian 12 in $SECONDS s"
fi

"$source/deploy/bundle.sh" --build "$build" -o "$dir/bundle.tar.gz" | tee "$dir/said"
# Whether GPUs can be used with it, and with what on the host, is the last that is said.
if [ -e "$build/lib/liblockstep_cuda.so" ]; then
  gpus='GPU plugin: needs libcublasLt\.so\.[0-9]+ and libnccl\.so\.2'
else
  gpus='GPU plugin: none, ranks compute on CPUs .*'
fi
tail -1 "$dir/said" | grep -qxE "$gpus" || { echo "the last line is not '$gpus'" >&2; exit 1; }
root=$dir/root
mkdir -p "$root/opt"
tar -C "$root" -xf "$base"
tar -C "$root/opt" -xf "$dir/bundle.tar.gz"
cp -r "$model" "$root/model"
mv "$root"/opt/lockstep-* "$root/opt/moved"
glibc=$(sed -n 's/^The host must have glibc \([0-9.]*\) .*/\1/p' "$root/opt/moved/README")
[ "$(printf '%s\n' "$glibc" 2.36 | sort -V | tail -1)" = 2.36 ] || skip "the bundle needs glibc $glibc, which Debian 12 does not have"

cat >"$root/check.sh" <<'EOS'
set -euo pipefail
shopt -s nullglob
lockstep=/opt/moved/bin/lockstep
foreign=$(cd /opt/moved && ldd libexec/* lib/*.so* lib/*/*.so |
  awk '($2 == "=>" && $3 !~ /^\/opt\/moved\//) || /not found/' |
  grep -vE '^\s*(libc|libm|libdl|librt|libpthread|libresolv|libutil)\.so' |
  grep -vE '^\s*lib(cublasLt|nccl)\.so' | sort -u || true)  # a GPU host's own
[ -z "$foreign" ] || { echo "not from the bundle: $foreign" >&2; exit 1; }
"$lockstep" --help >/dev/null

: >/log  # there before the server writes it
"$lockstep" serve /model --tp 2 --pp 2 --threads-per-rank 1 --num-kv-blocks 64 --listen 127.0.0.1:0 --json >/log 2>&1 &
server=$!
address=""
for _ in $(seq 3000); do
  address=$(sed -n 's/.*"event":"ready".*"address":"\([^"]*\)".*/\1/p' /log)
  [ -z "$address" ] && kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
[ -n "$address" ] || { cat /log >&2; echo "the bundle's server did not become ready" >&2; exit 1; }
"$lockstep" generate --server "$address" --quiet --temperature 0 --max-tokens 200 "Once upon a time" >/text
kill -INT "$server"
wait "$server"
if grep '"event":"output"' /log; then echo "the server of the bundle printed more than its events" >&2; exit 1; fi
EOS
unshare --mount --pid --net --fork --kill-child bash -euc '
  root=$1
  mount --make-rprivate /
  mount --bind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys" 2>/dev/null || mount --rbind /sys "$root/sys"
  PATH=/usr/sbin:/usr/bin:/sbin:/bin
  ip link set lo up
  exec env -i PATH="$PATH" HOME=/root chroot "$root" /bin/bash /check.sh' - "$root"

text=$(cat "$root/text")
expected=$(head -c "${#text}" "$model/expected_greedy_256.txt")
if [ "${#text}" -lt 300 ] || [ "$text" != "$expected" ]; then
  printf 'the bundle printed:\n%s\n' "$text" >&2
  exit 1
fi
echo "the bundle served the reference text in a bare Debian 12"
