#!/usr/bin/env bash
# Chats of Llama 3.1 and 3.2 over the HTTP API: prompts have the tokens that jinja2 and Hugging Face's tokenizers make of them, and nothing that people
# say is a marker. Of a Qwen3 that thinks, thoughts come apart from answers, and constraints hold behind them. The models have random weights.
#
#   tests/e2e/llama_chat_test.sh LOCKSTEP BUILD_DIR
set -euo pipefail
lockstep=$1 build=$2
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/e2e/python_package.sh
source "$here/python_package.sh"

shared=${LOCKSTEP_SHARED:-$here/../../../shared}
for asset in chat_templates tokenizers/llama3; do
  [ -d "$shared/$asset" ] || skip "$shared/$asset is absent (set LOCKSTEP_SHARED)"
done
python_with jinja2
python_with tokenizers
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PYTHONDONTWRITEBYTECODE=1 TZ=UTC
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cat >"$scratch/config.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
 "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05,
 "rope_theta": 500000.0, "hidden_act": "silu", "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "tie_word_embeddings": true,
 "torch_dtype": "bfloat16"}
JSON
"$lockstep" model synth --shape "$scratch/config.json" "$scratch/model" --quiet
cp "$shared/tokenizers/llama3/tokenizer.json" "$scratch/model/"
printf '{"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}' >"$scratch/model/tokenizer_config.json"

# Two of Llama's reserved tokens are its markers, as of DeepSeek's distilled Llamas.
sed -e 's/LlamaForCausalLM/Qwen3ForCausalLM/; s/"llama"/"qwen3", "head_dim": 32/' "$scratch/config.json" >"$scratch/qwen3.json"
"$lockstep" model synth --shape "$scratch/qwen3.json" "$scratch/thinker" --quiet
cp "$scratch/model/tokenizer.json" "$scratch/model/tokenizer_config.json" "$scratch/thinker/"
python3 - "$scratch/thinker" <<'PYTHON'
import json, pathlib, sys
path = pathlib.Path(sys.argv[1]) / "tokenizer.json"
tokenizer = json.loads(path.read_text())
for token in tokenizer["added_tokens"]:
    if token["id"] in (128013, 128014):
        token.update(content={128013: "<think>", 128014: "</think>"}[token["id"]], special=False)
path.write_text(json.dumps(tokenizer))
PYTHON
cat >"$scratch/thinker/chat_template.jinja" <<'JINJA'
{{ bos_token }}{% for m in messages %}{{ m.role + ':' + (m.content.split('</think>')[-1] if m.role == 'assistant' else m.content) }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant:' }}<think>{{ '\n' if not never_thinks else '\n\n</think>\n\n' }}{% endif %}
JINJA
python3 "$here/llama_chat_test.py" "$lockstep" "$scratch/model" "$shared" "$scratch/thinker"
