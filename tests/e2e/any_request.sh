#!/usr/bin/env bash
# Requests drawn at random from all that generation.proto can express, sent by clients of all manners to
# servers of several layouts while ranks, or the whole server, are killed; every stream is compared with
# the request's own words and, bit for bit, with what it returns alone on one rank.
#
#   tests/e2e/any_request.sh LOCKSTEP ANY_REQUEST_CLIENT [SECONDS [SEED [LAYOUT...]]]
#
# LAYOUTs are those below; SECONDS are of each. By hand, all of them for ten minutes:
#   ... 65 $RANDOM crowded narrow copies bytes eight_bits four_bits fp8_cache offloaded no_text deep reborn
set -euo pipefail
if [ $# -lt 2 ]; then echo "usage: any_request.sh LOCKSTEP ANY_REQUEST_CLIENT [SECONDS [SEED [LAYOUT...]]]" >&2; exit 2; fi
lockstep=$1 client=$2 seconds=${3:-10} seed=${4:-1}
layouts=("${@:5}")
if [ ${#layouts[@]} = 0 ]; then layouts=(crowded bytes offloaded); fi
# shellcheck source=tests/e2e/servers.sh
source "$(dirname "$0")/servers.sh"
demo=$(dirname "$0")/../../deploy/demo/model
tiny=$(dirname "$model")/tiny-llama31
stories=$model

# use NAME: sets the model, flags of both servers, of the one under load, and of the client.
use() {
  model=$stories both=(--max-model-len 256) load=() flags=()
  case $1 in
    crowded)  # a cache that is far too small, small blocks and chunks, a journal, ranks that die
      load=(--tp 2 --pp 2 --num-kv-blocks 66 --block-size 4 --max-batched-tokens 12 --max-num-seqs 64)
      load+=(--journal "$dir/journal")
      flags=(--journal --kill-every 6) ;;
    narrow)  # few sequences and a short queue, steps of few tokens, no cached prefixes
      load=(--tp 4 --block-size 8 --max-num-seqs 5 --max-batched-tokens 8 --max-queue 12 --no-prefix-cache)
      flags=(--no-prefix-cache --kill-every 10) ;;
    copies)  # requests move between replicas
      load=(--replicas 2 --pp 2 --num-kv-blocks 160 --block-size 4 --journal "$dir/journal")
      load+=(--speculative-tokens 3)
      flags=(--journal --kill-every 5) ;;
    bytes)  # another kind of tokenizer, longer texts, blocks of one token
      model=$demo both=(--max-model-len 1000)
      load=(--tp 2 --block-size 1 --num-kv-blocks 1200 --max-batched-tokens 64)
      load+=(--speculative-tokens 8) ;;
    eight_bits)
      both+=(--quantize int8)
      load=(--tp 2 --pp 2 --block-size 32 --journal "$dir/journal" --speculative-tokens 32)
      flags=(--journal --kill-every 7) ;;
    four_bits)
      both+=(--quantize int4)
      load=(--pp 3 --num-kv-blocks 100 --block-size 4 --max-batched-tokens 100) ;;
    fp8_cache)
      both+=(--kv-cache-dtype fp8)
      load=(--tp 2 --pp 2 --num-kv-blocks 100 --block-size 4 --speculative-tokens 4)
      flags=(--kill-every 7) ;;
    offloaded)  # cached prefixes come back from a host that has room for some of them
      load=(--tp 2 --pp 2 --num-kv-blocks 66 --block-size 4 --kv-offload-gib 0.001)
      load+=(--max-batched-tokens 40 --speculative-tokens 3)
      flags=(--kill-every 8) ;;
    no_text)  # no tokenizer, and far longer sequences
      model=$tiny both=(--max-model-len 1500)
      load=(--tp 4 --num-kv-blocks 400 --block-size 4 --max-batched-tokens 128)
      flags=(--kill-every 9) ;;
    deep)
      load=(--pp 5 --num-kv-blocks 300 --block-size 2 --max-batched-tokens 16 --max-num-seqs 40)
      load+=(--journal "$dir/journal")
      flags=(--journal --kill-every 8) ;;
    reborn)  # the server itself is killed every few seconds and started again
      load=(--tp 2 --num-kv-blocks 120 --block-size 4 --journal "$dir/journal" --speculative-tokens 4)
      flags=(--journal --restarts) ;;
    *)
      echo "any_request.sh: there is no layout $1" >&2
      exit 2 ;;
  esac
}

# Kills the server and starts another at the same address, until shortly before the client's end.
reincarnate() {
  local end=$((SECONDS + seconds - 4))
  while [ $SECONDS -lt $end ]; do
    sleep 2
    kill -9 "$pid"
    wait "$pid" 2>/dev/null || true
    listen=$address start "$@"
  done
}

for layout in "${layouts[@]}"; do
  use "$layout"
  rm -f "$dir/journal"
  start reference "${both[@]}"
  reference=$address reference_pid=$pid
  start "$layout" "${both[@]}" "${load[@]}" --max-restarts 1000000
  echo "$layout: ${load[*]}"
  "$client" --server "$address" --server-pid "$pid" --reference "$reference" --model "$model" \
    --seconds "$seconds" --seed "$seed" "${flags[@]}" &
  client_pid=$!
  trap 'kill "$client_pid" 2>/dev/null || true; cleanup' EXIT
  if [ "$layout" = reborn ]; then reincarnate "$layout" "${both[@]}" "${load[@]}"; fi
  wait "$client_pid"
  kill -INT "$pid" "$reference_pid"
  wait "$pid" "$reference_pid"
done
