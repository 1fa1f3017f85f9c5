#!/usr/bin/env bash
# The demo model's answers: right often enough, the same under every layout, and what quantization costs.
#
#   tests/e2e/demo_model_test.sh LOCKSTEP [MODEL]
set -euo pipefail
lockstep=${1:?usage: demo_model_test.sh LOCKSTEP [MODEL]}
model=${2:-$(dirname "$0")/../../deploy/demo/model}
if [ ! -f "$model/model.safetensors" ]; then
  echo "SKIPPED: $model has no weights (deploy/demo/README.md says how to train them)"
  exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# ask NAME EVAL-FLAG...: the scores and wrong replies, without the layout.
ask() {
  local name=$1
  shift
  "$lockstep" eval "$model" --threads-per-rank 1 --quiet --json "$@" |
    python3 -c 'import json, sys; r = json.load(sys.stdin); print(json.dumps([r["tasks"], r["wrong"]], indent=1))' >"$scratch/$name.json"
}
# show NAME: a line of percentages.
show() {
  python3 - "$1" "$scratch/$1.json" <<'PY'
import json, sys
tasks, _ = json.load(open(sys.argv[2]))
right, asked = (sum(t[k] for t in tasks) for k in ("right", "questions"))
print(f"{sys.argv[1]:6s} all {100 * right / asked:.1f} %:", " ".join(f'{t["task"]} {t["percent"]:.0f}' for t in tasks))
PY
}

ask 1x1 --tp 1 --pp 1 --min recall=95 --min recall_long=95 --min moving=95 --min yesno=95 --min sum2=90
show 1x1

# Other layouts, on a quarter of the questions of each task.
awk 'NR % 4 == 1' "$model/questions.jsonl" >"$scratch/questions.jsonl"
ask quarter --tp 1 --pp 1 --questions "$scratch/questions.jsonl"
for layout in "2 1" "1 2" "2 2" "4 1" "1 4"; do
  read -r tp pp <<<"$layout"
  ask "${tp}x$pp" --tp "$tp" --pp "$pp" --questions "$scratch/questions.jsonl"
  cmp "$scratch/quarter.json" "$scratch/${tp}x$pp.json" || { echo "tp $tp x pp $pp answers differently"; exit 1; }
  echo "tp $tp x pp $pp: every reply as by one rank"
done
for format in int8 int4; do
  ask "$format" --quantize "$format"
  show "$format"
done
ask fp8-kv --kv-cache-dtype fp8
show fp8-kv
if cmp -s "$scratch/1x1.json" "$scratch/fp8-kv.json"; then echo "an fp8 KV cache changes no answer: is it one?"; exit 1; fi
