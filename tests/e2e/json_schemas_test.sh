#!/usr/bin/env bash
# Grammars of JSON Schemas beside the validator jsonschema: what they write is valid, and what is valid they have.
#
#   tests/e2e/json_schemas_test.sh TOOL BUILD_DIR
set -euo pipefail
tool=$1 build=$2
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/e2e/python_package.sh
source "$here/python_package.sh"

python_with jsonschema
export PYTHONDONTWRITEBYTECODE=1
python3 "$here/json_schemas/oracle.py" "$tool" --count 1000
