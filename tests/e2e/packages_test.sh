#!/usr/bin/env bash
# deploy/packages.sh on a system that is too old says so before it installs anything.
set -euo pipefail
packages=$(cd "$(dirname "$0")/../.." && pwd)/deploy/packages.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "packages_test.sh: $*" >&2; exit 1; }

# A system without any of the packages, whose C library is of a version, and whose apt-get notes that it was called.
system() { # glibc
  printf '#!/bin/sh\necho "glibc %s"\n' "$1" >"$scratch/getconf"
  printf '#!/bin/sh\nexit 1\n' >"$scratch/dpkg-query"
  printf '#!/bin/sh\ntouch %s/installed\n' "$scratch" >"$scratch/apt-get"
  printf '#!/bin/sh\nexec "$@"\n' >"$scratch/sudo"
  chmod +x "$scratch"/*
}

system 2.35
if PATH=$scratch:$PATH "$packages" 2>"$scratch/said"; then fail "packages are installed on a system that is too old"; fi
[ ! -e "$scratch/installed" ] || fail "packages were installed before the system was refused"
grep -q "too old (glibc 2.35).*Build on Debian 12 or Ubuntu 24.04" "$scratch/said" || fail "the reason: $(cat "$scratch/said")"
for glibc in 2.36 2.41; do
  system "$glibc"
  rm -f "$scratch/installed"
  PATH=$scratch:$PATH "$packages" >/dev/null || fail "glibc $glibc is refused"
  [ -e "$scratch/installed" ] || fail "nothing was installed with glibc $glibc"
done
echo "packages_test.sh: passed"
