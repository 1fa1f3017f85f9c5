#!/usr/bin/env bash
# EleutherAI's evaluation harness (lm-eval) through `lockstep gateway`, against what it says of the same model in transformers: lm_eval/compare.py.
#
#   LOCKSTEP_LM_EVAL_PACKAGES=DIR tests/e2e/lm_eval_test.sh LOCKSTEP
#
# The harness (with PyTorch 6 GB) is installed once, into DIR; without one the test is skipped.
set -euo pipefail
lockstep=$1
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/e2e/python_package.sh
source "$here/python_package.sh"

python_libraries LOCKSTEP_LM_EVAL_PACKAGES "$here/lm_eval/requirements.txt"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$packages:$here CUDA_VISIBLE_DEVICES='' \
  python3 "$here/lm_eval/compare.py" "$lockstep" "$here/../../deploy/demo/model"
