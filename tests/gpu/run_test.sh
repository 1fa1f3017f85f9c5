#!/usr/bin/env bash
# tests/gpu/run.sh with stand-ins for CMake, Python and the programs that it builds: what is run of what was asked for, what
# is told of the rest, and what of earlier runs is used.
set -euo pipefail
here=$(realpath "$(dirname "$0")")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/lockstep
mkdir -p "$tree/tests/gpu" "$scratch/stubs" "$scratch/shared/models/stories260K"
cp "$here"/*.sh "$tree/tests/gpu"
touch "$scratch/shared/models/stories260K/model.safetensors"
fail() { echo "run_test: $*" >&2; cat "$scratch/said" >&2; exit 1; }

# compare_transformers.py without torch: no comparison is not what an absent file asks for.
mkdir "$scratch/modules"
printf 'class cuda:\n    is_available = staticmethod(lambda: False)\n' >"$scratch/modules/torch.py"
printf 'LlamaConfig = LlamaForCausalLM = StaticCache = None\n' >"$scratch/modules/transformers.py"
! PYTHONPATH=$scratch/modules python3 "$here/compare_transformers.py" --bench "$scratch/none.json" >"$scratch/said" 2>&1 ||
  fail "compare_transformers.py takes an absent file"
grep -q "no file '$scratch/none.json' to print beside" "$scratch/said" || fail "it is not told that the file is absent"

# Builds the targets it is told to: each is the program below.
cat >"$scratch/stubs/cmake" <<'END_OF_CMAKE'
#!/usr/bin/env bash
if [ "$1" != --build ]; then exit 0; fi
if [ -n "${BROKEN:-}" ]; then exit 1; fi
mkdir -p build/gpu/bin
while [ "$1" != --target ]; do shift; done
shift
for target in "$@"; do
  if [ "$target" = -- ]; then break; fi
  cp "$PROGRAM" "build/gpu/bin/$target"
done
END_OF_CMAKE
cat >"$scratch/program" <<'END_OF_PROGRAM'
#!/usr/bin/env bash
name=$(basename "$0")
echo "$name $* (ranks wait ${LOCKSTEP_RANKS_TIMEOUT_S:-} s)" >>"$CALLS"
if [ "${1:-}" = --gtest_list_tests ]; then printf 'Suite.\n  Test\n'; fi
while [ $# -gt 0 ]; do
  if [ "$1" = --json ]; then echo "of $name" >"$2"; fi
  shift
done
echo "$name is done"
END_OF_PROGRAM
cat >"$scratch/stubs/python3" <<'END_OF_PYTHON'
#!/usr/bin/env bash
case "$1" in -c) exit 1 ;; *) echo "python3 $*" >>"$CALLS" ;; esac
END_OF_PYTHON
printf '#!/bin/sh\n' >"$scratch/stubs/nvidia-smi"
chmod +x "$scratch/program" "$scratch"/stubs/*
export PATH=$scratch/stubs:$PATH PROGRAM=$scratch/program CALLS=$scratch/calls
unset LOCKSTEP_RANKS_TIMEOUT_S

# run_sh STATUS OPTION...
run_sh() {
  local want=$1 got=0
  shift
  : >"$CALLS"
  "$tree/tests/gpu/run.sh" "$@" >"$scratch/said" 2>&1 || got=$?
  [ "$got" = "$want" ] || fail "status $got, not $want, of: $*"
}
said() { grep -qF -- "$1" "$scratch/said" || fail "it does not say: $1"; }
called() { grep -qF -- "$1" "$CALLS" || fail "it does not run: $1; but: $(cat "$CALLS")"; }
not_called() { ! grep -qF -- "$1" "$CALLS" || fail "it runs: $1"; }

export LOCKSTEP_SHARED=$scratch/none
run_sh 0 --help
said 'LOCKSTEP_SHARED names'
! grep -q 'set -euo' "$scratch/said" || fail "help goes on into the script"
run_sh 2 --only model,ranks
said "model (no models in $scratch/none/models: give --dependencies DIR, or set LOCKSTEP_SHARED)"
run_sh 1 --only kernels,model
said "NOT RUN: model (no models in $scratch/none/models"
! grep -q 'not asked for: model' "$scratch/said" || fail "what was asked for is said not to have been"
called 'gpu_kernel_test --gtest_filter='
not_called gpu_stage_test

# Transformers without anything to compare them with, then with what a run of another directory has left.
export LOCKSTEP_SHARED=$scratch/shared
run_sh 1 --only transformers --output "$scratch/first"
said 'NOT RUN: transformers beside gpu_bench (no bench-none.json'
called 'python3 tests/gpu/compare_transformers.py'
not_called --bench
run_sh 0 --only bench --output "$scratch/first"
grep -o -- '--quantize [a-z0-9]*\|--no-overlap\|--deterministic' "$CALLS" | paste -sd ' ' >"$scratch/order"
[ "$(cat "$scratch/order")" = "--quantize none --no-overlap --quantize fp8 --deterministic" ] ||
  fail "steps are measured so: $(cat "$scratch/order")"
called "--no-overlap --long-context 0 --json $scratch/first/bench-no-overlap.json --compare $scratch/first/bench-none.json"
rm -r "$scratch/first"
run_sh 0 --only transformers --output "$scratch/second"
called "--bench $scratch/second/bench-none.json"

# Weights are made up in memory where there is room, or where they are.
printf '#!/bin/sh\necho Avail\necho 1000\n' >"$scratch/stubs/df"
chmod +x "$scratch/stubs/df"
run_sh 0 --only bench
called '--scratch /tmp'
shape=run-test-$$
mkdir "/dev/shm/gpu_bench-$shape"
trap 'rm -rf "$scratch" "/dev/shm/gpu_bench-$shape"' EXIT
touch "/dev/shm/gpu_bench-$shape/config.json"
run_sh 0 --only bench --shape "$shape"
called "--shape $shape --scratch /dev/shm"
rm "$scratch/stubs/df"

# Parts one after the other keep each other's programs, and no part runs what an earlier build has left.
run_sh 0 --only sums,ranks
called 'gpu_sums_test --gtest_filter=Suite.* (ranks wait 100 s)'
[ -x "$tree/build/gpu/bin/gpu_bench" ] || fail "gpu_bench is gone"
run_sh 0 --only ranks
called gpu_ranks_test
BROKEN=1 run_sh 1 --only ranks
said 'FAILED: build of gpu_ranks_test'
not_called gpu_ranks_test

# What compute-sanitizer finds is told apart from tests that fail.
cat >"$scratch/stubs/compute-sanitizer" <<'END_OF_SANITIZER'
#!/usr/bin/env bash
case "$*" in *racecheck*wgmma*) errors=2 ;; *) errors=0 ;; esac
printf '[  PASSED  ] 1 test.\n========= ERROR SUMMARY: %s errors\n' "$errors"
case "$*" in *memcheck*SkinnyGemm*) exit 1 ;; esac
END_OF_SANITIZER
chmod +x "$scratch/stubs/compute-sanitizer"
run_sh 1 --only sanitizer
said 'FAILED: racecheck: attention by wgmma (the tool found something)'
said 'FAILED: memcheck: products of few rows (tests fail; the tool found nothing)'
[ "$(grep -c '^FAILED: ' "$scratch/said")" = 2 ] || fail "more has failed"

# Steps are measured before anything is checked, but for --deterministic; where they hang twice, no more of them.
run_sh 0 --only bench,kernels,model
grep -o '^gpu_[a-z]*_test --gtest_filter\|--quantize [a-z0-9]*\|--deterministic' "$CALLS" | paste -sd ' ' >"$scratch/order"
[ "$(cat "$scratch/order")" = "--quantize none --quantize fp8 gpu_stage_test --gtest_filter gpu_kernel_test --gtest_filter --deterministic" ] ||
  fail "what comes first: $(cat "$scratch/order")"
cat >"$scratch/stubs/timeout" <<'END_OF_TIMEOUT'
#!/usr/bin/env bash
case "$*" in *"gpu_bench --shape"*) exit 124 ;; *) exec /usr/bin/timeout "$@" ;; esac
END_OF_TIMEOUT
chmod +x "$scratch/stubs/timeout"
run_sh 1 --only bench,kernels
said 'FAILED: speed, --no-overlap (status 124)'
said 'NOT RUN: speed, weights: fp8'
said 'NOT RUN: speed, --deterministic'
called 'gpu_kernel_test --gtest_filter='
rm "$scratch/stubs/timeout"

# A server whose start outlasts its time: what it has said so far.
printf '#!/bin/sh\necho "Loaded   1 GiB"\nexec sleep 60\n' >"$scratch/serve"
chmod +x "$scratch/serve"
timeout -k 20 5 "$here/server.sh" "$scratch/serve" plugin --model "$scratch" --scratch "$scratch" >"$scratch/said" 2>&1 || true
said 'Loaded   1 GiB'

# Time that runs out while the first steps are measured.
sed -i 's/^echo "$name is done"/case "$*$name" in *gpu_bench) sleep 6 ;; esac/' "$scratch/program"
run_sh 1 --only bench --budget 10
said 'NOT RUN: speed, --no-overlap'
echo "passed"
