#!/usr/bin/env bash
# How a server bears time and load: clients that vanish, four times the load it can carry, and a long
# run at 80 % of its peak with a fifth of the requests cancelled and a rank killed or stopped now and
# then. Every answer is compared with what the request returns alone.
#
#   tests/e2e/endurance.sh LOCKSTEP ENDURANCE_CLIENT [SECONDS [KILL_EVERY_SECONDS]]
#
# By hand, ten minutes with a kill a minute: ... 600 60
set -euo pipefail
if [ $# -lt 2 ]; then echo "usage: endurance.sh LOCKSTEP ENDURANCE_CLIENT [SECONDS [KILL_EVERY_SECONDS]]" >&2; exit 2; fi
lockstep=$1 client=$2 seconds=${3:-25} kill_every=${4:-8}
# shellcheck source=tests/e2e/servers.sh
source "$(dirname "$0")/servers.sh"

start reference --max-model-len 256
reference=$address
start loaded --tp 2 --pp 2 --num-kv-blocks 2048 --block-size 4 --max-model-len 256 --max-queue 64 \
  --max-restarts 1000000
"$client" --reference "$reference" --server "$address" --server-pid "$pid" \
  --seconds "$seconds" --kill-every "$kill_every"
grep -c '"event":"restarting"' "$dir/loaded.log" | sed 's/^/restarts: /' || true
