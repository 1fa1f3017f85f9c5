#!/usr/bin/env bash
# Installs the packages of Debian 12 or Ubuntu 24.04 that building and testing need, and only those that are missing.
#
#   deploy/packages.sh           install what is missing
#   deploy/packages.sh --list    print the list
#   deploy/packages.sh --hosts   install what tests over several hosts need: iproute2 and Slurm
set -euo pipefail

packages=(
  # build
  ccache cmake g++ ninja-build pkg-config
  # controller, ranks and clients
  libgrpc++-dev libssl-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev
  libopenmpi-dev openmpi-bin libboost-dev libcli11-dev libfmt-dev nlohmann-json3-dev libpcre2-dev
  libutf8proc-dev libxxhash-dev prometheus-cpp-dev
  # tests
  libgtest-dev libgmock-dev libbenchmark-dev clang-format
  libboost-context-dev
  # deploy/bundle.sh and its test
  patchelf debootstrap
)

case "${1:-}" in
  "") ;;
  -h | --help) sed -n '2,6p' "${BASH_SOURCE[0]}" | sed 's/^# \{0,1\}//'; exit 0 ;;
  --list) printf '%s\n' "${packages[@]}"; exit 0 ;;
  --hosts) packages=(iproute2 munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins) ;;
  *) echo "deploy/packages.sh: unknown option '$1' (see --help)" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi

if ! command -v apt-get >/dev/null; then
  echo "deploy/packages.sh: no apt-get here; install by other means: ${missing[*]}" >&2
  exit 1
fi
# Before anything is installed. The C library tells how old a system is, whoever has derived it from which: Debian 12 has 2.36, Ubuntu 22.04 2.35.
glibc=$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)
if [ "$(printf '%s\n' "$glibc" 2.36 | sort -V | head -1)" != 2.36 ]; then
  system=$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' /etc/os-release)
  echo "deploy/packages.sh: $system is too old (glibc $glibc): its CMake is older than 3.25 and its gRPC than 1.51, and with another CMake alone" \
    "the rest would not compile. Build on Debian 12 or Ubuntu 24.04, in a container if need be; what they build needs glibc 2.36 where it runs, too" >&2
  exit 1
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "deploy/packages.sh: run as root, or install sudo, to get: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "Installing ${#missing[@]} packages: ${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=240 -q)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${missing[@]}"
