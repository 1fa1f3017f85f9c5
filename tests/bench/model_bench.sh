#!/usr/bin/env bash
# Prefill and decode of a synthesized llama-3.2-1b in bf16 at 1, 2, 4 threads and tp 1, 2, 4.
#
#   tests/bench/model_bench.sh [BUILD_DIR [MODEL_DIR]] [-- model_bench flags]
#
# MODEL_DIR (default: /tmp/lockstep-bench-1b, 2.5 GB) is synthesized when absent and kept for the next run.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/release}
model=${2:-${TMPDIR:-/tmp}/lockstep-bench-1b}
shift $(($# < 2 ? $# : 2))
if [ "${1:-}" = "--" ]; then shift; fi
[ -d "$model" ] || "$build/bin/lockstep" model synth --shape llama-3.2-1b --dtype bf16 "$model"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for layout in "1 1" "1 2" "1 4" "2 1" "2 2" "4 1"; do
  read -r tp threads <<<"$layout"
  if [ $((tp * threads)) -gt "$(nproc)" ]; then continue; fi
  mpirun.openmpi --oversubscribe --bind-to none --mca btl_vader_single_copy_mechanism none \
    --mca mpi_yield_when_idle 1 -n "$tp" "$build/bin/model_bench" --model "$model" --tp "$tp" \
    --threads "$threads" "$@"
done
