#!/usr/bin/env bash
# deploy/kubernetes/ against the schemas of the Kubernetes API, which a pinned Python package carries, and against the program's flags.
#
#   tests/e2e/kubernetes_manifests_test.sh LOCKSTEP BUILD_DIR
set -euo pipefail
lockstep=$1 build=$2
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/e2e/python_package.sh
source "$here/python_package.sh"

python_with kubernetes-validate
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
python3 "$here/kubernetes_manifests_test.py" "$lockstep" "$here/../../deploy/kubernetes"
