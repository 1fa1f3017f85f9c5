#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test.
#
#   tests/run.sh                 build + all tests (plain loop, MPI, end to end)
#   tests/run.sh --quick         build + the plain loop only (under three minutes)
#   tests/run.sh --sanitizers    also the suite under ASan+UBSan and the threaded parts under TSan
#   tests/run.sh --ci            as continuous integration runs it: a build from nothing in build/ci and build/ci-asan, many sources at
#                                a time (LOCKSTEP_UNITY); every test, those of engine, demo and launcher with sanitizers alone,
#                                those on the emulated GPU with sanitizers or, where these leave them out, without
#   tests/run.sh --filter REGEX  only ctest entries that match
#
# LOCKSTEP_SHARED names the directory of test assets (default: ../shared beside the checkout); tests that need it skip loudly without it.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD

quick=0 sanitizers=0 ci=0 filter="" release=build/release asan=build/asan options=() release_tests=ON
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) quick=1 ;;
    --sanitizers) sanitizers=1 ;;
    --ci) sanitizers=1 ci=1 release=build/ci asan=build/ci-asan options=(-DLOCKSTEP_UNITY=ON) release_tests=COMPUTING ;;
    --filter) filter=${2:?--filter needs a regular expression}; shift ;;
    -h | --help) sed -n '2,12p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "tests/run.sh: unknown option '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done

deploy/packages.sh
if [ "$ci" = 1 ]; then deploy/packages.sh --hosts; fi
jobs=$(nproc)
some=$((jobs + 1))  # tests at a time: many wait now and then
step() { printf '\n== %s (%ss elapsed)\n' "$*" "$SECONDS"; }

# build DIR [TARGET...] [-DCMAKE-OPTION...]
build() {
  local dir=$1 targets=() cmake_options=()
  shift
  for argument in "$@"; do
    case "$argument" in -D*) cmake_options+=("$argument") ;; *) targets+=("$argument") ;; esac
  done
  cmake -G Ninja -S "$source" -B "$dir" "${cmake_options[@]}" >"$dir.cmake.log" 2>&1 ||
    { cat "$dir.cmake.log"; return 1; }
  ninja -C "$dir" -j "$jobs" "${targets[@]}"
}
# test_in DIR CTEST-OPTION...
test_in() {
  local dir=$1
  shift
  ctest --test-dir "$dir" --output-on-failure ${filter:+-R "$filter"} "$@"
}
# expect_tests DIR: the filter is no typo.
expect_tests() {
  [ -z "$filter" ] || ! ctest --test-dir "$1" -N -R "$filter" | grep -q '^Total Tests: 0$' ||
    { echo "run.sh: --filter $filter: no test of that name" >&2; exit 1; }
}
# beside LOG COMMAND...: while other steps go on, one at a time, until `await` shows what it says, waits for it and fails as it does.
beside() {
  log=$1
  shift
  "$@" >"$log" 2>&1 &
  running=$!
  trap 'pkill -P "$running"; kill "$running" 2>/dev/null' EXIT
}
await() {
  local status=0 shown
  tail -n +1 -f --pid="$running" "$log" &
  shown=$!
  wait "$running" || status=$?
  wait "$shown"
  trap - EXIT
  return "$status"
}

mkdir -p build
step "format"
if command -v clang-format >/dev/null; then
  git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror
fi

# What takes long with sanitizers and repeats others of its kind there: of templates for f32, f16 and bf16, bf16; numbers, sizes,
# modes and layouts of which there are many alike.
unsanitized="*/f32*:*/f16*:*.F16*:*.DeterministicF16*:*.EverySizeIsMeasured:*InvarianceTest*int*:*GoldenTest.ReferenceBackend*"
unsanitized+=":*RunsOfAMillionCharacters*:*LongPatternsAreReadInTime*:*EqualsTwinForEveryNumberOfSlices/scalar"
unsanitized+=":DeviceRows.ChoicesAreTheHosts:CudaFp8GroupsTest.TokensWithoutLogits*:CudaGroupsTest.Deterministic*"
unsanitized+=":*CudaStageTest.Bf16IsAsNear*stories260K:*CudaWarmUpTest*Fastest:*CudaAttention.LittleWorkspace*_wgmma:*/bf16DeterministicFp8"
threaded=(thread_pool_test linear_test attention_test elementwise_test communicator_test
  shared_memory_collectives_test nccl_communicator_test pipeline_communicator_test sampling_test step_loop_test
  engine_step_loop_test rendezvous_test)
# In what other tests leave of the machine: some have it to themselves, and wait.
build_sanitized() {
  renice -n 19 -p "$BASHPID"
  # Its objects have no use for benchmarks.
  build "$asan" plain_tests lockstep "${options[@]}" -DLOCKSTEP_SANITIZE=address,undefined -DLOCKSTEP_BENCHMARKS=OFF &&
    build build/tsan "${threaded[@]}" -DLOCKSTEP_SANITIZE=thread -DLOCKSTEP_RUNTIME=OFF -DLOCKSTEP_MPI=OFF \
      -DLOCKSTEP_BENCHMARKS=OFF "${options[@]/%=ON/=LIBRARIES}"
}
# Groups of seven and eight ranks would take as long as all others.
test_threaded() {
  GTEST_FILTER="-*NcclCommunicatorTest.*/3:*NcclCommunicatorTest.*/4" \
    TSAN_OPTIONS="halt_on_error=1 suppressions=$source/tests/support/tsan.supp" \
    test_in build/tsan -R "^($(IFS='|'; echo "${threaded[*]}"))\$" -j 1
}

step "build (release)"
if [ "$quick" = 1 ]; then
  build "$release" plain_tests "${options[@]}"
else
  build "$release" all "${options[@]}" -DLOCKSTEP_TESTS="$release_tests"
fi
expect_tests "$release"
step "plain tests"
if [ "$ci" = 1 ]; then
  test_in "$release" -L plain -LE emulated -j "$some"
  GTEST_FILTER=$unsanitized test_in "$release" -L emulated -j "$some"
else
  test_in "$release" -L plain -j "$some"
fi
if [ "$quick" = 1 ]; then exit 0; fi

if [ "$sanitizers" = 1 ]; then beside build/sanitized.log build_sanitized; fi
step "MPI and end-to-end tests"
test_in "$release" -LE 'plain|measures' -j "$some"

if [ "$sanitizers" = 1 ]; then
  step "build (ASan + UBSan; TSan for the threaded parts, without gRPC and MPI, which are not instrumented)"
  await
fi
# They have the machine to themselves.
step "tests that measure"
test_in "$release" -L measures

if [ "$sanitizers" = 1 ]; then
  step "tests under ASan + UBSan; beside them the threaded ones under TSan"
  beside build/threaded.log test_threaded
  # One place of those that run at a time is TSan's. Emulated GPU threads take turns at random there: what depends on their order
  # fails. Of the simulated worlds that the release build went through, a twentieth. Up to GCC 13 the leak checker takes a thread's block
  # of a plugin's variables, where it begins at byte 16 of a page, for one of an old glibc, and dies (google/sanitizers issue 1322).
  LOCKSTEP_CUDA_THREAD_ORDER=12345 LOCKSTEP_SIMULATION_SEEDS=500 UBSAN_OPTIONS=print_stacktrace=1 \
    LSAN_OPTIONS="suppressions=$source/tests/support/lsan.supp:intercept_tls_get_addr=0" GTEST_FILTER="-$unsanitized" \
    test_in "$asan" -L plain -j "$jobs"
  step "threaded tests under TSan"
  await
  step "the program under ASan + UBSan"  # whose parts meet there alone; Open MPI leaks
  ASAN_OPTIONS=detect_leaks=0 LOCKSTEP_BINARY="$source/$asan/bin/lockstep" test_in "$release" -R '^serve_test$'
fi
step "all tests passed"
