#!/usr/bin/env bash
# Chat templates beside jinja2, which transformers and vLLM run them with: Llama's, where they are at hand, and small random ones.
#
#   tests/e2e/chat_templates_test.sh TOOL BUILD_DIR
set -euo pipefail
tool=$1 build=$2
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/e2e/python_package.sh
source "$here/python_package.sh"

python_with jinja2
export PYTHONDONTWRITEBYTECODE=1
templates=${LOCKSTEP_SHARED:-$here/../../../shared}/chat_templates
if [ -d "$templates" ]; then
  python3 "$here/chat_templates/oracle.py" "$tool" "$templates" --only templates --count 1000
else
  echo "SKIPPED: whole templates, as $templates is absent (set LOCKSTEP_SHARED)"
fi
python3 "$here/chat_templates/oracle.py" "$tool" --only snippets --count 4000
