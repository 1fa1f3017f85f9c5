#!/usr/bin/env bash
# Quantized checkpoints as the libraries make them that people use, against what these say they are worth: quantized/oracle.py.
#
#   LOCKSTEP_QUANTIZED_PACKAGES=DIR tests/e2e/quantized_checkpoints_test.sh LOCKSTEP
#
# The libraries (with PyTorch 6 GB) are installed once, into DIR; without one the test is skipped.
set -euo pipefail
lockstep=$1
here=$(cd "$(dirname "$0")" && pwd)/quantized
skip() { echo "SKIPPED: $*"; exit 77; }

[ -n "${LOCKSTEP_QUANTIZED_PACKAGES:-}" ] || skip "LOCKSTEP_QUANTIZED_PACKAGES names no directory for 6 GB of Python libraries to compare with"
python3 -m pip --version >/dev/null 2>&1 || skip "python3 with pip is not installed"
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$version" = 3.11 ] || skip "the libraries are pinned for Python 3.11, this is $version"
packages=$LOCKSTEP_QUANTIZED_PACKAGES/$(sha256sum "$here/requirements.txt" | cut -c1-16)
if [ ! -d "$packages" ]; then
  mkdir -p "$(dirname "$packages")"
  free_gb=$(($(df --output=avail -k "$(dirname "$packages")" | tail -1) >> 20))
  [ "$free_gb" -ge 16 ] || skip "$free_gb GiB are free at $(dirname "$packages"), 16 are needed to install the libraries"
  rm -rf "$packages.part"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --target "$packages.part" \
    -r "$here/requirements.txt" >"$packages.log" 2>&1 || skip "pip cannot install quantized/requirements.txt: $(tail -1 "$packages.log")"
  mv "$packages.part" "$packages"
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# What the libraries have to say while they work is shown only where something is wrong.
PYTHONPATH=$packages CUDA_VISIBLE_DEVICES='' python3 "$here/oracle.py" "$lockstep" 2>"$packages.log" || { tail -40 "$packages.log"; exit 1; }
