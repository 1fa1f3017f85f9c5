#!/usr/bin/env bash
# From a clean clone to answers: installs what is missing, builds, serves a model from four ranks (tensor x pipeline parallel),
# asks it something, stops.
#
#   deploy/quickstart.sh          with the demo model that comes along (deploy/demo/model): it understands little stories
#   deploy/quickstart.sh MODEL    with your Hugging Face Llama checkpoint
#
# Layout by $LOCKSTEP_TP (default 2) and $LOCKSTEP_PP (default 2). Leaves build/release/ and nothing else.
set -euo pipefail
case "${1:-}" in
  -h | --help) sed -n '2,8p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
  -*) echo "quickstart: unknown option '$1' (see --help)" >&2; exit 2 ;;
esac
demo=deploy/demo/model
model=${1:+$(realpath -m "$1")}
cd "$(dirname "$0")/.."
model=${model:-$demo}
# Of other servers.
unset LOCKSTEP_SERVER LOCKSTEP_TLS_CA LOCKSTEP_TLS_CERT LOCKSTEP_TLS_KEY LOCKSTEP_TOKEN_FILE
if [ ! -d "$model" ]; then
  echo "quickstart: $model is not a directory; give a Hugging Face checkpoint, or nothing for the demo model" >&2
  exit 1
fi
tp=${LOCKSTEP_TP:-2}
pp=${LOCKSTEP_PP:-2}
step() { printf '\n== %s\n' "$*"; }

scratch=$(mktemp -d "${TMPDIR:-/tmp}/lockstep-quickstart.XXXXXX")
server=""
cleanup() {
  if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
    kill -TERM "$server"
    wait "$server" || true
  fi
  rm -rf "$scratch"
}
trap cleanup EXIT

step "1/4 Packages"
deploy/packages.sh
echo "All there."

step "2/4 Build"
# From nothing many sources at a time take less long; who has built before keeps what is there. What another compiler than ours warns of stops nobody.
options=()
if [ ! -e build/release/CMakeCache.txt ]; then options=(-DLOCKSTEP_UNITY=ON -DLOCKSTEP_WERROR=OFF); fi
cmake -G Ninja -S . -B build/release "${options[@]}" >"$scratch/cmake.log" 2>&1 || { cat "$scratch/cmake.log"; exit 1; }
sed -n 's/^-- \(.*CUDA plugin.*\)/\1/p' "$scratch/cmake.log"  # whether GPUs are used, and with what
ninja -C build/release lockstep
lockstep=$PWD/build/release/bin/lockstep

step "3/4 Model"
"$lockstep" model inspect "$model"

step "4/4 Serve on $tp x $pp ranks and ask"
: >"$scratch/serve.log"  # is there when it is looked at, also before the server begins
# Whatever the machine has: on fewer GPUs than ranks they share.
"$lockstep" serve "$model" --tp "$tp" --pp "$pp" --share-gpus --listen 127.0.0.1:0 >"$scratch/serve.log" 2>&1 &
server=$!
address=""
while [ -z "$address" ]; do
  if ! kill -0 "$server" 2>/dev/null; then
    cat "$scratch/serve.log"
    echo "quickstart: the server did not start" >&2
    exit 1
  fi
  address=$(sed -n 's/^Serving .* on \([^ ]*\) (tp.*/\1/p' "$scratch/serve.log")
  sleep 0.05
done
cat "$scratch/serve.log"
echo
# ask QUESTION: likeliest words first
ask() {
  echo "You:   $1"
  printf 'Model: '
  "$lockstep" generate --server "$address" --chat --quiet --temperature 0 --max-tokens 64 "$1"
}
if [ "$model" = "$demo" ]; then
  ask "Who are you?"
  ask "Mary is in the kitchen. Tom is in the garden. Mary took the red ball. Mary went to the garden. Mary gave the red ball to Tom. \
Tom went to the library. Where is the red ball?"
  ask "What is 47 + 85?"
else
  "$lockstep" generate --server "$address" --temperature 0.8 --seed 1 --max-tokens 64 "Once upon a time"
fi
echo
"$lockstep" status --server "$address"
kill -TERM "$server"
wait "$server"
server=""

cat <<EOF

It works. Next:
  PATH=$PWD/build/release/bin:\$PATH
  lockstep serve MODEL --tp $tp --pp $pp          # MODEL: a Hugging Face directory; --http-listen 127.0.0.1:8000: OpenAI's HTTP API
  lockstep generate "Once upon a time"          # from another terminal
  lockstep eval deploy/demo/model               # 1,100 questions whose answers are known
  lockstep bench --concurrency 16               # latencies and throughput
  lockstep model synth --shape llama-3.2-1b OUT # random weights of a real shape
  tests/run.sh --quick                          # the tests
EOF
