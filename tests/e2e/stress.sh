#!/usr/bin/env bash
# 200 random requests at once, on ranks whose cache is far too small for them, must return what each
# returns alone on one rank; ten rounds; no block left in use, no process that grows.
#
#   tests/e2e/stress.sh LOCKSTEP STRESS_CLIENT [REQUESTS [ROUNDS]]
set -euo pipefail
lockstep=$1 client=$2 requests=${3:-200} rounds=${4:-10}
# shellcheck source=tests/e2e/servers.sh
source "$(dirname "$0")/servers.sh"

start reference --max-model-len 256
reference=$address
start crowded --tp 2 --pp 2 --num-kv-blocks 80 --block-size 4 --max-model-len 256 --max-num-seqs 64 \
  --max-batched-tokens 256
"$client" --reference "$reference" --server "$address" --server-pid "$pid" \
  --requests "$requests" --rounds "$rounds"
