#!/usr/bin/env bash
# EleutherAI's evaluation harness (lm-eval) through `lockstep gateway`, against what it says of the same model in transformers: lm_eval/compare.py.
#
#   LOCKSTEP_LM_EVAL_PACKAGES=DIR tests/e2e/lm_eval_test.sh LOCKSTEP
#
# The harness (with PyTorch 6 GB) is installed once, into DIR; without one the test is skipped.
set -euo pipefail
lockstep=$1
here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "SKIPPED: $*"; exit 77; }

[ -n "${LOCKSTEP_LM_EVAL_PACKAGES:-}" ] || skip "LOCKSTEP_LM_EVAL_PACKAGES names no directory for 6 GB of Python libraries to compare with"
python3 -m pip --version >/dev/null 2>&1 || skip "python3 with pip is not installed"
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$version" = 3.11 ] || skip "the libraries are pinned for Python 3.11, this is $version"
packages=$LOCKSTEP_LM_EVAL_PACKAGES/$(sha256sum "$here/lm_eval/requirements.txt" | cut -c1-16)
if [ ! -d "$packages" ]; then
  mkdir -p "$(dirname "$packages")"
  free_gb=$(($(df --output=avail -k "$(dirname "$packages")" | tail -1) >> 20))
  [ "$free_gb" -ge 16 ] || skip "$free_gb GiB are free at $(dirname "$packages"), 16 are needed to install the libraries"
  rm -rf "$packages.part"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --no-deps --target "$packages.part" \
    -r "$here/lm_eval/requirements.txt" >"$packages.log" 2>&1 || skip "pip cannot install lm_eval/requirements.txt: $(tail -1 "$packages.log")"
  mv "$packages.part" "$packages"
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$packages:$here CUDA_VISIBLE_DEVICES='' \
  python3 "$here/lm_eval/compare.py" "$lockstep" "$here/../../deploy/demo/model"
