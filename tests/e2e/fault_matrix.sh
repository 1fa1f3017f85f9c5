#!/usr/bin/env bash
# Every kind of failure of every rank of 2 x 2, under the load of ten clients: see fault_matrix.cc.
#
#   tests/e2e/fault_matrix.sh LOCKSTEP FAULT_MATRIX EXIT_ON_SIGNAL [FLAG...]
#
# Without flags the whole matrix, by hand; continuous integration runs a few cases with fewer requests. The model is made on the spot, large
# enough that loading and prefill take a while. LOCKSTEP, FAULT_MATRIX and the library EXIT_ON_SIGNAL are the build's.
set -euo pipefail
if [ $# -lt 3 ]; then echo "usage: fault_matrix.sh LOCKSTEP FAULT_MATRIX EXIT_ON_SIGNAL [FLAG...]" >&2; exit 2; fi
lockstep=$1 matrix=$2 preload=$3
shift 3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$lockstep" model synth --quiet --shape tiny --layers 24 "$dir/model"
"$matrix" --lockstep "$lockstep" --model "$dir/model" --preload "$preload" "$@"
