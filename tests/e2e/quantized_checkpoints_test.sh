#!/usr/bin/env bash
# Quantized checkpoints as the libraries make them that people use, against what these say they are worth: quantized/oracle.py.
#
#   LOCKSTEP_QUANTIZED_PACKAGES=DIR tests/e2e/quantized_checkpoints_test.sh LOCKSTEP
#
# The libraries (with PyTorch 6 GB) are installed once, into DIR; without one the test is skipped.
set -euo pipefail
lockstep=$1
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/e2e/python_package.sh
source "$here/python_package.sh"

python_libraries LOCKSTEP_QUANTIZED_PACKAGES "$here/quantized/requirements.txt"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# What the libraries have to say while they work is shown only where something is wrong.
PYTHONPATH=$packages CUDA_VISIBLE_DEVICES='' python3 "$here/quantized/oracle.py" "$lockstep" 2>"$packages.log" || { tail -40 "$packages.log"; exit 1; }
