#!/bin/bash
# What `plan` predicts for this host is what `serve` allocates, block by block, in several layouts.
#
#   plan_test.sh LOCKSTEP
set -euo pipefail
lockstep=$1
. "$(dirname "$0")/servers.sh"

number() { sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p" "$1" | head -1; }

for layout in "1 1" "2 1" "1 2" "2 2"; do
  read -r tp pp <<<"$layout"
  "$lockstep" plan --model "$model" --gpu cpu --tp "$tp" --pp "$pp" --json >"$dir/plan.json"
  start "serve-$tp-$pp" --tp "$tp" --pp "$pp"
  kill -INT "$pid"
  planned=$(number "$dir/plan.json" num_kv_blocks)
  allocated=$(number "$dir/serve-$tp-$pp.log" num_kv_blocks)
  if [ -z "$planned" ] || [ "$planned" != "$allocated" ]; then
    echo "plan_test.sh: tp $tp x pp $pp: $planned blocks planned, $allocated allocated" >&2
    exit 1
  fi
  echo "tp $tp x pp $pp: $planned blocks planned and allocated"
done
