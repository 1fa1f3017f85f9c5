#!/usr/bin/env bash
# Builds kernels, model and parallel for this machine's GPU, without gRPC and MPI; checks them against their twins on the
# CPU and golden models, also as several ranks (processes, which share the GPU if there is only one); measures.
#
#   tests/gpu/run.sh [--dependencies DIR] [--only PARTS] [--budget SECONDS] [--output DIR] [--shape NAME] [--sanitizer]
#                    [--bundle FILE]
#
#   --dependencies DIR   libraries and models collected by tests/gpu/dependencies.sh; without models (here or in
#                        LOCKSTEP_SHARED) model, ranks and server are named, not run
#   --only PARTS         of build,kernels,model,sums,ranks,bench,server,sanitizer,transformers (the last three only if named,
#                        or asked for by their options); what they need is built in any case
#   --bundle FILE        also the whole server, by a bundle of deploy/bundle.sh, which was built elsewhere: known answers,
#                        then 64 clients at once
#   --budget SECONDS     what has not begun by then is named, not run; without it a run takes as long as it takes
#   --output DIR         for logs and benchmarks' JSON (default build/gpu-results, which keeps a copy of bench-none.json in any
#                        case: with it transformers of a later run are compared)
#   --shape NAME         of the model that is measured (default llama-3.1-8b; its weights are made up, in /dev/shm or /tmp)
#   --sanitizer          kernels, recorded steps and sums also under compute-sanitizer (tests/gpu/sanitize.sh --list)
#   --allow-skips        tests that miss their assets are no failures
# bench takes steps in bf16 (at once also without kernels that overlap), in fp8, and with --deterministic, the last of all;
# the others come before what is checked.
# It ends with every figure beside its target (tests/gpu/figures.h), then with what did not run. A missed target is no
# failure. All of it takes longer than a short lease of a GPU: `--only bench,model,kernels`, then `--only server,transformers
# --bundle FILE`, then `--only sums,ranks,sanitizer`, each with a --budget, keep what was built and measured.
# LOCKSTEP_SHARED names the directory of test assets (default: DIR/shared, else ../shared beside the checkout).
# LOCKSTEP_CUDA_IPC=0 leaves sums over ranks to NCCL, where processes cannot share a GPU's memory.
# NCCL_HOME names a directory with NCCL's header and library (default: where they are found).
set -euo pipefail
cd "$(dirname "$0")/../.."
usual_parts=build,kernels,model,sums,ranks,bench
known_parts=$usual_parts,server,sanitizer,transformers
dependencies="" parts="" budget=0 output=build/gpu-results shape=llama-3.1-8b sanitizer=0 allow_skips=0 bundle=""
while [ $# -gt 0 ]; do
  case "$1" in
    --dependencies) dependencies=$(realpath "${2:?--dependencies needs a directory}"); shift ;;
    --only) parts=${2:?--only needs a list of parts}; shift ;;
    --budget) budget=${2:?--budget needs seconds}; shift ;;
    --output) output=${2:?--output needs a directory}; shift ;;
    --shape) shape=${2:?--shape needs a name}; shift ;;
    --sanitizer) sanitizer=1 ;;
    --bundle) bundle=$(realpath -e "${2:?--bundle needs a file}"); shift ;;
    --allow-skips) allow_skips=1 ;;
    -h | --help) sed -n '2,27p' tests/gpu/run.sh | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "tests/gpu/run.sh: unknown option '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
case "$budget" in *[!0-9]*) echo "tests/gpu/run.sh: --budget takes whole seconds, not '$budget'" >&2; exit 2 ;; esac
for part in ${parts//,/ }; do
  case ",$known_parts," in
    *",$part,"*) ;;
    *) echo "tests/gpu/run.sh: no part '$part' among $known_parts" >&2; exit 2 ;;
  esac
done
parts=${parts:-$usual_parts}
if [ "$sanitizer" = 1 ]; then parts=$parts,sanitizer; fi
if [ -n "$bundle" ]; then parts=$parts,server; fi
wants() { case ",$parts," in *",$1,"*) ;; *) return 1 ;; esac; }
if wants server && [ -z "$bundle" ]; then echo "tests/gpu/run.sh: the part server needs --bundle" >&2; exit 2; fi

mkdir -p build "$output"
rm -f "$output/log"
PATH=$PATH:/usr/local/cuda/bin:/usr/local/nvidia/bin
# The driver stays loaded between the programs.
if [ -r /dev/nvidia0 ]; then exec 9</dev/nvidia0; fi
source tests/gpu/checks.sh
source tests/gpu/libraries.sh
build=build/gpu
bin=$build/bin

options=()
if [ -n "$dependencies" ]; then
  options+=("-DCMAKE_PREFIX_PATH=$dependencies/usr" "-DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu")
  export LD_LIBRARY_PATH=$dependencies/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export PKG_CONFIG_PATH=$dependencies/usr/lib/x86_64-linux-gnu/pkgconfig
  export LIBRARY_PATH=$dependencies/usr/lib/x86_64-linux-gnu
  if [ -d "$dependencies/shared" ]; then export LOCKSTEP_SHARED=${LOCKSTEP_SHARED:-$dependencies/shared}; fi
fi

export LOCKSTEP_SHARED=${LOCKSTEP_SHARED:-$(realpath -m ../shared)}
models=$LOCKSTEP_SHARED/models asked=$parts
if [ "$allow_skips" = 0 ] && [ ! -f "$models/stories260K/model.safetensors" ]; then
  kept=""
  for part in ${parts//,/ }; do
    case "$part" in
      server | model | ranks) not_run+=("$part (no models in $models: give --dependencies DIR, or set LOCKSTEP_SHARED)") ;;
      *) kept+=,$part ;;
    esac
  done
  parts=${kept#,}
  if [ -z "$parts" ]; then printf 'tests/gpu/run.sh: %s\n' "${not_run[@]}" >&2; exit 2; fi
fi

find_nccl
find_cublas

step "machine"
uname -sr
g++ --version | head -1
{ nvcc --version || /usr/local/cuda/bin/nvcc --version; } 2>/dev/null | tail -1 || true
nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || true
# How long a rank has a GPU that several share: what their exchanges wait for.
{ nvidia-smi compute-policy --list || true; } 2>/dev/null | grep -i slice || true
# "9.0", or nothing.
capability=$({ nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || true; } | head -n 1)
case "$capability" in
  9.0) ;;
  [0-9]*) expected_skips+=("no wgmma here") ;;  # which is Hopper's alone
esac
case "$capability" in [78].*) expected_skips+=("kernels do not overlap here") ;; esac
case "$capability" in 7.* | 8.[0-8]) expected_skips+=("a GPU without fp8") ;; esac
num_gpus=$({ nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU' || true)
echo "NCCL: $nccl"
echo "cuBLASLt: $cublas"
df -h /dev/shm /tmp || true

# The targets of a part.
programs_of() {
  case "$1" in
    build) echo lockstep_cuda gpu_kernel_test gpu_stage_test gpu_sums_test gpu_ranks_test gpu_bench ;;
    kernels) echo gpu_kernel_test ;;
    sanitizer) echo gpu_kernel_test gpu_stage_test gpu_sums_test ;;
    model) echo gpu_stage_test ;;
    sums) echo gpu_sums_test ;;
    ranks) echo gpu_ranks_test ;;
    bench) echo gpu_bench gpu_sums_test ;;
  esac
}
step "build"
targets=()
for part in ${parts//,/ }; do
  for target in $(programs_of "$part"); do
    case " ${targets[*]} " in *" $target "*) ;; *) targets+=("$target") ;; esac
  done
done
if [ ${#targets[@]} -gt 0 ]; then targets+=(gpu_figures); fi  # without any, all would be built
if command -v ninja >/dev/null; then generator=(-G Ninja) keep_going=(-k 0); else generator=() keep_going=(-k); fi
build_targets() {
  # What another generator has left would be built by that one.
  if [ ${#generator[@]} -eq 0 ] && [ -e "$build/build.ninja" ]; then rm -rf "$build"; fi
  # Other compilers warn of other things. The longest source takes half as long where its architectures are compiled at once.
  cmake "${generator[@]}" -S . -B "$build" -DLOCKSTEP_CUDA=ON -DLOCKSTEP_RUNTIME=OFF -DLOCKSTEP_MPI=OFF -DLOCKSTEP_BENCHMARKS=OFF \
    "-DCMAKE_CXX_FLAGS=-w$cxx_include" "-DCMAKE_CUDA_FLAGS=-w --threads=2 -Xcompiler=-w$cuda_include" "${options[@]}" \
    >"$output/cmake.log" 2>&1 || { failed+=("configuring"); tail -40 "$output/cmake.log" | cut -c1-300; return; }
  local target limit
  limit=$(limit_of 3600)
  if timeout "$limit" cmake --build "$build" --parallel "$(nproc)" --target "${targets[@]}" -- "${keep_going[@]}" \
    >"$output/build.log" 2>&1; then return; fi
  { grep -aA10 -m3 -E 'FAILED|error:' "$output/build.log" || tail -20 "$output/build.log"; } | cut -c1-300
  for target in "${targets[@]}"; do  # those that could be built are run
    if [ ! -x "$bin/$target" ] && [ "$target" != lockstep_cuda ]; then failed+=("build of $target"); fi
  done
  [ ${#failed[@]} -gt 0 ] || failed+=("build")
}
if [ ${#targets[@]} -gt 0 ]; then
  rm -f "${targets[@]/#/$bin/}"  # nothing that an earlier build has left; other parts' programs stay
  build_targets
fi
has() { wants "$1" && [ -x "$bin/$2" ]; }

# Ranks that wait for one that is gone; a run that has failed need not repeat it.
export LOCKSTEP_RANKS_TIMEOUT_S=100 NCCL_DEBUG=${NCCL_DEBUG:-WARN}
check_ranks() { GTEST_FAIL_FAST=1 check_suites "$1" 240 "$bin/$2"; }

scratch=/tmp
shm_kib=$(df --output=avail -k /dev/shm 2>/dev/null | tail -1 || true)
# Weights that an earlier run has left there may have taken that room.
if [ "${shm_kib:-0}" -ge $((20 << 20)) ] || [ -e "/dev/shm/gpu_bench-$shape/config.json" ]; then scratch=/dev/shm; fi
# What transformers are compared with is kept where a later run finds it, whatever becomes of its own directory.
kept_bench=build/gpu-results/bench-none.json
if [ ! -s "$output/bench-none.json" ] && [ -s "$kept_bench" ]; then cp -p "$kept_bench" "$output"; fi
bench() {
  local compare=()
  if [ "$1" != none ] && [ -s "$output/bench-none.json" ]; then compare=(--compare "$output/bench-none.json"); fi
  measure_steps "speed, weights: $1" 240 "$bin/gpu_bench" --shape "$shape" --scratch "$scratch" --quantize "$1" \
    --json "$output/bench-$1.json" "${compare[@]}"
  if [ "$1" = none ] && [ -s "$output/bench-none.json" ] && ! [ "$output/bench-none.json" -ef "$kept_bench" ]; then
    mkdir -p "$(dirname "$kept_bench")"
    cp -p "$output/bench-none.json" "$kept_bench"
  fi
}
# bench_beside NAME FLAG: the same with FLAG, beside bench-none.json.
bench_beside() {
  measure_steps "speed, $2" 150 "$bin/gpu_bench" --shape "$shape" --scratch "$scratch" "$2" --long-context 0 \
    --json "$output/bench-$1.json" --compare "$output/bench-none.json"
}
# After two that hung the others would, too, and would leave no time for what is checked.
measure_steps() {
  if [ "$hung_steps" -ge 2 ]; then not_run+=("$1"); return; fi
  local timeouts_before=$num_timeouts
  measure "$@"
  hung_steps=$((hung_steps + num_timeouts - timeouts_before))
}
hung_steps=0

# What a GPU is lent for comes first.
if has bench gpu_bench; then
  bench none
  bench_beside no-overlap --no-overlap  # at once, before clocks and temperature have changed
  bench fp8
fi
step "checks"
if has model gpu_stage_test; then check_suites "whole generations" 120 "$bin/gpu_stage_test"; fi
if has kernels gpu_kernel_test; then check_suites "kernels against their twins" 120 "$bin/gpu_kernel_test"; fi
unpack_bundle() {
  rm -rf "$build/bundle" && mkdir -p "$build/bundle" && tar -C "$build/bundle" --strip-components=1 -xf "$bundle"
}
if wants server && ! unpack_bundle; then
  failed+=("unpacking $bundle")
elif wants server; then
  lockstep=$build/bundle/bin/lockstep plugin=$build/bundle/lib/liblockstep_cuda.so
  # The bundle's plugin asks the loader for NCCL and cuBLASLt.
  loader_path=${nccl_directory:+$nccl_directory:}${cublas_directory:+$cublas_directory:}${LD_LIBRARY_PATH:-}
  # Weights that gpu_bench has made up.
  model=()
  if [ -e "$scratch/gpu_bench-$shape/config.json" ]; then model=(--model "$scratch/gpu_bench-$shape"); fi
  LD_LIBRARY_PATH=$loader_path check "the whole server" 200 tests/e2e/gpu_serve_test.sh "$lockstep" "$plugin"
  for weights in none fp8; do
    LD_LIBRARY_PATH=$loader_path measure "64 clients of the server, weights: $weights" 200 tests/gpu/server.sh "$lockstep" "$plugin" \
      --shape "$shape" --scratch "$scratch" --json "$output/server-$weights.json" "${model[@]}" -- --quantize "$weights" --max-num-seqs 64
  done
  LD_LIBRARY_PATH=$loader_path measure "64 clients of the server, whose blocks are copied to the host" 200 tests/gpu/server.sh "$lockstep" \
    "$plugin" --shape "$shape" --scratch "$scratch" --json "$output/server-offload.json" "${model[@]}" -- --max-num-seqs 64 --kv-offload-gib 16
fi
if has sums gpu_sums_test; then check_ranks "sums over 2 to 8 ranks" gpu_sums_test; fi
if has ranks gpu_ranks_test; then check_ranks "generations over ranks" gpu_ranks_test; fi
if wants transformers; then
  beside=()
  if [ -s "$output/bench-none.json" ]; then
    beside=(--bench "$output/bench-none.json")
  else
    not_run+=("transformers beside gpu_bench (no bench-none.json in $output or build/gpu-results: --only bench,transformers)")
  fi
  measure "transformers with torch.compile" 420 python3 tests/gpu/compare_transformers.py --shape "$shape" \
    --json "$output/transformers.json" "${beside[@]}"
fi
if has bench gpu_sums_test; then
  for ranks in 2 4 8; do
    # Ranks that share a GPU would measure how it changes between them.
    if [ "$num_gpus" -ge "$ranks" ]; then
      measure "sums over $ranks ranks" 100 "$bin/gpu_sums_test" --latencies "$ranks"
    else
      not_asked+=("speed of sums over $ranks ranks (takes $ranks GPUs)")
    fi
  done
fi
if has bench gpu_bench; then bench_beside deterministic --deterministic; fi
sanitize_listed() {
  local tool program filter label
  local -A status_means=([3]="the tool found something" [4]="tests fail; the tool found nothing" [5]="the tool tells no summary")
  while read -r tool program filter label; do
    if [[ $label = *wgmma* && " ${expected_skips[*]} " = *"no wgmma here"* ]]; then continue; fi
    if [ ! -x "$bin/$program" ]; then not_run+=("$tool: $label"); continue; fi
    check "$tool: $label" 120 tests/gpu/sanitize.sh "$tool" "$bin/$program" "$filter" </dev/null
  done < <(tests/gpu/sanitize.sh --list)
}
if wants sanitizer; then sanitize_listed; fi

for part in ${known_parts//,/ }; do
  case ",$asked," in *",$part,"*) continue ;; esac
  case "$part" in
    build) ;;
    server) not_asked+=("server (--bundle FILE)") ;;
    sanitizer) not_asked+=("sanitizer (--sanitizer)") ;;
    *) not_asked+=("$part (--only $part)") ;;
  esac
done
figures=()
if [ -x "$bin/gpu_figures" ]; then figures=("$bin/gpu_figures" "$output" "$SECONDS"); fi
conclude "${figures[@]}"
