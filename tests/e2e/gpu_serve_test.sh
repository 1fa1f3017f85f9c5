#!/usr/bin/env bash
# The server over the CUDA backend: a real GPU's, or the emulation's where the plugin given is that.
#
#   tests/e2e/gpu_serve_test.sh LOCKSTEP PLUGIN [FLAGS-OF-SERVE...]
set -euo pipefail
lockstep=${1:?usage: gpu_serve_test.sh LOCKSTEP PLUGIN}
plugin=${2:?usage: gpu_serve_test.sh LOCKSTEP PLUGIN}
shift 2
model=${LOCKSTEP_SHARED:-$(dirname "$0")/../../../shared}/models/stories260K
if [ ! -f "$model/model.safetensors" ]; then
  echo "SKIPPED: no $model"
  exit 77
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
scratch=$(mktemp -d)
server=""
cleanup() {
  if [ -n "$server" ]; then kill -INT "$server" 2>/dev/null && wait "$server" 2>/dev/null || true; fi
  rm -rf "$scratch"
}
trap cleanup EXIT
fail() {
  echo "gpu_serve_test: $*" >&2
  tail -n 30 "$scratch/log" >&2 || true
  exit 1
}
await() { # event, how often it must have come
  for _ in $(seq 3000); do
    if [ "$(grep -c "\"event\":\"$1\"" "$scratch/log")" -ge "${2:-1}" ]; then return; fi
    kill -0 "$server" 2>/dev/null || fail "the server ended; no event $1"
    sleep 0.1
  done
  fail "no event $1"
}
expect_text() {
  timeout 600 "$lockstep" generate --server "$address" --quiet --temperature 0 --max-tokens 60 \
    --prediction "$model/expected_greedy_256.txt" "Once upon a time" >"$scratch/text.$1" 2>>"$scratch/log" ||
    fail "generate failed"
  local length
  length=$(($(stat -c %s "$scratch/text.$1") - 1))
  [ "$length" -gt 120 ] || fail "the text is only $length bytes long"
  cmp -n "$length" "$scratch/text.$1" "$model/expected_greedy_256.txt" || fail "the text is not the reference's"
}
start() { # flags...
  : >"$scratch/log"  # the last server's would be read before the shell has emptied it
  LOCKSTEP_CUDA_PLUGIN=$plugin "$lockstep" serve "$model" --listen 127.0.0.1:0 --json --max-model-len 256 \
    --max-num-seqs 4 --max-batched-tokens 64 --num-kv-blocks 64 "$@" >"$scratch/log" 2>&1 &
  server=$!
  await ready
  address=$(sed -n 's/.*"event":"ready".*"address":"\([^"]*\)".*/\1/p' "$scratch/log" | head -1)
}
stop() {
  kill -INT "$server"
  wait "$server" || fail "the server did not stop cleanly"
  server=""
}
# Each parameter of sampling; what stays on the GPU between steps and what the host has to choose; all at once.
sampled_requests="--temperature 0.8 --top-k 40 --top-p 0.95
--temperature 1.5 --min-p 0.02
--temperature 1.2
--temperature 1.5 --top-k 300 --top-p 0.98
--temperature 1 --repetition-penalty 1.3 --presence-penalty 0.4 --frequency-penalty 0.3
--temperature 0.9 --top-k 30 --repetition-penalty 1.2 --n 2
--temperature 1 --top-p 0.9 --logit-bias 261:4 --min-tokens 20 --n 2
--temperature 0 --frequency-penalty 1.5
--temperature 1 --top-p 0.9 --json-schema {\"type\":\"object\"}
--temperature 1.2 --repetition-penalty 1.1 --regex (he|she|Lily|.){20}! --n 2"
answer_sampled() { # directory
  local clients=() flags seed=0
  mkdir "$1"
  while read -r flags; do
    seed=$((seed + 1))
    # shellcheck disable=SC2086
    timeout 600 "$lockstep" generate --server "$address" --json --quiet --seed "$seed" --max-tokens 40 --logprobs 2 \
      --prompt-logprobs 1 $flags "One day, Lily" >"$1/$seed" 2>>"$scratch/log" &
    clients+=($!)
  done <<<"$sampled_requests"
  for client in "${clients[@]}"; do wait "$client" || fail "a sampled request"; done
}
refused() { # pattern, plugin, flags...: one line that says so
  local pattern=$1 plugin=$2
  shift 2
  if LOCKSTEP_CUDA_PLUGIN=$plugin timeout 60 "$lockstep" serve "$model" --listen 127.0.0.1:0 --max-restarts 0 --rank-timeout-seconds 60 "$@" \
    >"$scratch/log" 2>&1; then fail "serve $* did not fail"; fi
  grep -qE -- "$pattern" "$scratch/log" || fail "the reason does not say '$pattern'"
  echo "refused: $(grep -E -- "$pattern" "$scratch/log" | tail -1)"
}

if [ $# -eq 0 ]; then
  refused "/nowhere.so" /nowhere.so --device cuda
  refused "fp8 is for GPUs.*no GPU is used: .*/nowhere.so" /nowhere.so --quantize fp8
  refused "int8 and int4 weights" "$plugin" --device cuda --quantize int8
  refused "dtype f16 is for GPUs" "$plugin" --device cpu --dtype float16
  # Which only the emulation can be.
  if [[ $plugin == *emulated* ]]; then
    LOCKSTEP_CUDA_CAPABILITY=8.0 refused "capability 8.9 or later; Emulated GPU" "$plugin" --quantize fp8
    LOCKSTEP_CUDA_CAPABILITY=7.5 refused "^lockstep serve: Emulated GPU of compute capability 7.5 is too old" "$plugin" --device cuda
    LOCKSTEP_CUDA_ECC_AFTER=100 \
      refused "^lockstep serve: .*rank 0.*killed by signal 6.*uncorrectable ECC error .* on GPU 0 \(0000:01:00.0\)" \
      "$plugin" --device cuda
    LOCKSTEP_CUDA_DRIVER=12.4 refused "the driver is for CUDA 12.4, the plugin was built with CUDA 13.0" "$plugin" --device cuda
    CUDA_VISIBLE_DEVICES=7 LOCKSTEP_CUDA_DEVICES=0 refused "no CUDA-capable.*CUDA_VISIBLE_DEVICES is '7'" "$plugin" --device cuda
    LOCKSTEP_CUDA_MEMORY_GIB=0.001 refused "may be taken of the ranks' GPUs" "$plugin" --device cuda
  fi
fi

# In 16 bits sampled answers may be others.
narrow=0
for flag in "$@"; do
  if [ "$flag" = --dtype ]; then narrow=1; fi
done
if [ $narrow = 0 ]; then
  start --device cpu
  answer_sampled "$scratch/of_cpu"
  stop
fi

start --device cuda --speculative-tokens 3 --kv-offload-gib 0.05 "$@"
grep '"event":"ready"' "$scratch/log" | head -1
grep -q '"event":"preflight".*"gpus":\[{"rank":0,"index":0,"name":"[^"]' "$scratch/log" ||
  fail "the ranks do not tell of their GPUs"
grep -q '"event":"rank_rehearsed".*"gpu_memory":{"total_bytes":[1-9].*"weight_bytes":[1-9].*"step_bytes":[1-9]' "$scratch/log" ||
  fail "the ranks do not tell what fills their GPUs"
dtype=f32
[ $narrow = 0 ] || dtype=f16
grep -q "\"backend\":\"cuda[^\"]*, $dtype" "$scratch/log" || fail "the ranks do not say that they compute on a GPU in $dtype"
# What ranks of a host exchange goes through memory they share; where it doesn't, that is told.
told=$(grep -c "what ranks exchange goes through NCCL alone" "$scratch/log" || true)
if [ "${LOCKSTEP_CUDA_IPC:-1}" = 0 ]; then
  [ "$told" = 1 ] || fail "$told notices of exchanges through NCCL alone instead of one"
else
  [ "$told" = 0 ] || fail "exchanges went through NCCL: $(grep -m1 'NCCL alone' "$scratch/log")"
fi
expect_text alone
guesses=$("$lockstep" status --server "$address" --json | grep -o '"draft_tokens_accepted":[0-9]*' | tr -dc 0-9)
[ "${guesses:-0}" -ge 20 ] || fail "only ${guesses:-0} guesses were right"
echo "a request alone: the reference's text, $guesses tokens of it guessed"

clients=()
for i in 1 2 3 4 5 6; do
  expect_text "$i" &
  clients+=($!)
done
for client in "${clients[@]}"; do wait "$client" || fail "a request among others"; done
echo "six requests at once: the reference's text each"

if [ $narrow = 0 ]; then
  answer_sampled "$scratch/of_gpu"
  "$(dirname "$0")/same_answers.py" "$scratch/of_cpu" "$scratch/of_gpu" || fail "sampled answers are not those of CPUs"
  echo "sampled answers: the CPU's tokens and log-probabilities"
fi

rank=$(sed -n 's/.*"event":"rank_joined".*"pid":\([0-9]*\).*/\1/p' "$scratch/log" | head -1)
expect_text through &
client=$!
sleep 0.2
kill -9 "$rank"
wait "$client" || fail "a request in whose midst a rank was killed"
await ready_again
expect_text again
echo "kill -9 of a rank in the midst of a request: the reference's text, then and afterwards"

# Prompts of six blocks or more, of which the cache has 64.
long=$(head -c 300 "$model/expected_greedy_256.txt")
continue_text() { # words before it, tokens
  timeout 600 "$lockstep" generate --server "$address" --quiet --temperature 0 --max-tokens "$2" "$1$long" 2>>"$scratch/log" ||
    fail "generate failed"
}
restored() { "$lockstep" status --server "$address" --json | grep -o '"kv_blocks_restored":[0-9]*' | tr -dc 0-9; }
continue_text "" 20 >"$scratch/before"
for i in $(seq 16); do continue_text "$i " 1 >/dev/null; done
before=$(restored)
continue_text "" 20 >"$scratch/after"
after=$(restored)
cmp "$scratch/before" "$scratch/after" || fail "a prompt that came back from the host's memory goes on otherwise"
[ $((${after:-0} - ${before:-0})) -ge 6 ] || fail "only $((${after:-0} - ${before:-0})) blocks came back from the host's memory"
echo "a prompt whose blocks went to others: $((after - before)) blocks from the host's memory, the same text"
stop
echo "stopped cleanly"

if [ $narrow = 1 ]; then
  "$(dirname "$0")/beyond_f16.py" "$model" "$scratch/beyond"
  model=$scratch/beyond
  start --device cuda "$@"
  for _ in 1 2; do
    if timeout 60 "$lockstep" generate --server "$address" --quiet "Once upon" >"$scratch/text" 2>"$scratch/error"; then
      fail "logits that are no numbers gave '$(cat "$scratch/text")'"
    fi
    grep -q "logits are no numbers" "$scratch/error" || fail "the reason is not told: $(cat "$scratch/error")"
  done
  stop
  echo "beyond f16: $(cat "$scratch/error")"
fi
