#!/usr/bin/env bash
# Prometheus's own Python client reads what `lockstep serve` and `lockstep gateway` measured of requests that are known, and of a loss.
#
#   tests/e2e/metrics_test.sh LOCKSTEP BUILD_DIR
set -euo pipefail
lockstep=$1 build=$2
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/e2e/python_package.sh
source "$here/python_package.sh"

python_with prometheus-client
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
PYTHONDONTWRITEBYTECODE=1 python3 "$here/metrics_test.py" "$lockstep" "$here/../../deploy/demo/model"
