#!/usr/bin/env bash
# OpenAI's own Python client against `lockstep gateway`, in front of real ranks that also die meanwhile.
#
#   tests/e2e/openai_client_test.sh LOCKSTEP BUILD_DIR
#
# The package is installed once into BUILD_DIR/openai_client_test/.
set -euo pipefail
lockstep=$1 build=$2
here=$(cd "$(dirname "$0")" && pwd)
skip() { echo "SKIPPED: $*"; exit 77; }

python3 -m pip --version >/dev/null 2>&1 || skip "python3 with pip is not installed"
pin=$(grep '^openai==' "$here/requirements.txt")
packages=$build/openai_client_test/$pin
if [ ! -d "$packages" ]; then
  mkdir -p "$(dirname "$packages")"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action ignore --target "$packages.part" "$pin" >"$packages.log" 2>&1 ||
    skip "pip cannot install $pin: $(tail -1 "$packages.log")"
  mv "$packages.part" "$packages"
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
PYTHONPATH=$packages python3 "$here/openai_client_test.py" "$lockstep" "$here/../../deploy/demo/model"
