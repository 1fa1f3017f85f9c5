#!/usr/bin/env bash
# The whole server over the CUDA backend under load: a model of a real shape with made-up weights, many clients at once, each
# of them through gRPC. Prints what the server says of its start, then bench's report.
#
#   tests/gpu/server.sh LOCKSTEP PLUGIN [--shape NAME | --model DIR] [--scratch DIR] [--concurrency N] [--num-requests N]
#                       [--input-len N] [--output-len N] [--json FILE] [-- SERVE-FLAG...]
#
#   --shape NAME        of `lockstep model synth` (default llama-3.1-8b)
#   --model DIR         serves that one, and leaves it
#   --scratch DIR       holds weights that are made up meanwhile (default /tmp)
#   --json FILE         keeps bench's report as JSON
# Defaults: 64 clients, 256 requests, 1024 tokens in and 128 out.
set -euo pipefail
usage() { sed -n '5,12p' "$0" | sed 's/^# \{0,1\}//'; }
if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then usage; exit 0; fi
if [ $# -lt 2 ]; then usage >&2; exit 2; fi
lockstep=$1 plugin=$2
shift 2
shape=llama-3.1-8b model="" scratch=/tmp concurrency=64 requests=256 input=1024 output=128 json=""
while [ $# -gt 0 ]; do
  case "$1" in
    --shape) shape=${2:?--shape needs a name} ;;
    --model) model=${2:?--model needs a directory} ;;
    --scratch) scratch=${2:?--scratch needs a directory} ;;
    --concurrency) concurrency=${2:?--concurrency needs a number} ;;
    --num-requests) requests=${2:?--num-requests needs a number} ;;
    --input-len) input=${2:?--input-len needs a number} ;;
    --output-len) output=${2:?--output-len needs a number} ;;
    --json) json=${2:?--json needs a file} ;;
    --) shift; break ;;
    *) echo "server.sh: unknown option '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift 2
done

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
dir=$(mktemp -d -p "$scratch")
server=""
cleanup() {
  if [ -n "$server" ] && kill -INT "$server" 2>/dev/null; then
    for _ in $(seq 50); do
      kill -0 "$server" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "$server" 2>/dev/null || true  # its ranks end with it
    wait "$server" 2>/dev/null || true
  fi
  rm -rf "$dir"
}
trap cleanup EXIT
fail() {
  echo "server.sh: $*" >&2
  tail -n 20 "$dir/log" >&2 || true
  exit 1
}
trap 'fail "ended by a time limit, after what the server says:"' TERM

: >"$dir/log"
if [ -z "$model" ]; then
  model=$dir/model
  "$lockstep" model synth --shape "$shape" --quiet "$model" || fail "no model of shape $shape"
fi
: >"$dir/log"  # there before the server writes it
# A loss is a failure, but for who says otherwise.
case " $* " in *" --max-restarts "*) ;; *) set -- --max-restarts 0 "$@" ;; esac
LOCKSTEP_CUDA_PLUGIN=$plugin "$lockstep" serve "$model" --device cuda --listen 127.0.0.1:0 --rank-timeout-seconds 60 "$@" \
  >"$dir/log" 2>&1 &
server=$!
address=""
while [ -z "$address" ]; do
  kill -0 "$server" 2>/dev/null || { server=""; fail "the server did not start"; }
  sleep 0.1
  address=$(sed -n 's/^Serving .* on \([^ ]*:[0-9]*\) .*/\1/p' "$dir/log")
done
cat "$dir/log"

"$lockstep" bench --server "$address" --quiet --concurrency "$concurrency" --num-requests "$requests" --input-len "$input" \
  --output-len "$output" ${json:+--json} >"$dir/report" ||
  { cat "$dir/report"; fail "not every request was answered"; }
cat "$dir/report"
if [ -n "$json" ]; then cp "$dir/report" "$json"; fi
kill -INT "$server"
wait "$server" || { server=""; fail "the server did not stop cleanly"; }
server=""
