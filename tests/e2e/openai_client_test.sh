#!/usr/bin/env bash
# OpenAI's own Python client against `lockstep gateway`, in front of real ranks that also die meanwhile.
#
#   tests/e2e/openai_client_test.sh LOCKSTEP BUILD_DIR
set -euo pipefail
lockstep=$1 build=$2
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/e2e/python_package.sh
source "$here/python_package.sh"

python_with openai
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
PYTHONDONTWRITEBYTECODE=1 python3 "$here/openai_client_test.py" "$lockstep" "$here/../../deploy/demo/model"
