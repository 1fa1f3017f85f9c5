#!/usr/bin/env bash
# Collects, for a machine that has a GPU, CUDA, CMake and a compiler but no network, the libraries that tests/gpu/run.sh
# builds against: Debian's packages, unpacked; and the small models that its tests generate with.
#
#   tests/gpu/dependencies.sh DIR        then, there: tests/gpu/run.sh --dependencies DIR
# LOCKSTEP_SHARED names the directory of test assets (default: ../shared beside the checkout).
set -euo pipefail
usage="usage: dependencies.sh DIR"
case ${1:-} in
  "") echo "$usage" >&2; exit 2 ;;
  -*) echo "$usage"; [[ $1 == -h || $1 == --help ]] && exit 0; exit 2 ;;
esac
directory=$1
shared=${LOCKSTEP_SHARED:-$(dirname "$0")/../../../shared}
packages=(libabsl-dev libabsl20220623 nlohmann-json3-dev libgtest-dev libgmock-dev libcli11-dev libfmt-dev libfmt9
  libpcre2-dev libpcre2-8-0 libutf8proc-dev libutf8proc2 libxxhash-dev)
mkdir -p "$directory"
directory=$(realpath "$directory")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
(cd "$scratch" && apt-get -q download "${packages[@]}" && for package in *.deb; do dpkg -x "$package" "$directory"; done)
rm -rf "$directory"/usr/share/doc "$directory"/shared
mkdir -p "$directory"/shared/models
for model in stories260K tiny-llama31; do
  cp -r "$shared/models/$model" "$directory/shared/models/" || echo "dependencies.sh: no $shared/models/$model" >&2
done
chmod -R u+w "$directory"/shared
du -sh "$directory"
