#!/usr/bin/env bash
# tests/gpu/checks.sh over programs that end in every way: the script goes on, and tells what failed.
set -euo pipefail
source "$(dirname "$0")/checks.sh"
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT
budget=0
shortest=1
fail() { echo "checks_test: $*" >&2; exit 1; }
expect() { [ "$2" = "$3" ] || fail "$1: '$2', expected '$3'"; }  # what got want

# GoogleTest programs' stand-ins.
cat >"$output/hanging" <<'END'
#!/usr/bin/env bash
if [ "$1" = --gtest_list_tests ]; then printf 'One.\n  A\nTwo.\n  B\nThree.\n  C\n'; else printf '[ RUN      ] %s\n' "$1"; sleep 30; fi
END
cat >"$output/broken" <<'END'
#!/usr/bin/env bash
echo "error while loading shared libraries: libnccl.so.2" >&2
exit 127
END
cat >"$output/suites" <<'END'
#!/usr/bin/env bash
case "$1" in
  --gtest_list_tests) printf 'Running main() from gtest_main.cc\nFirst.\n  Passes\nAll/Second.  # GetParam() = 1\n  Crashes/0\n' ;;
  --gtest_filter=First.*) printf '[ RUN      ] First.Passes\n[  PASSED  ] 1 test.\n[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] First.Not\n' ;;
  *) kill -SEGV $$ ;;
esac
END
chmod +x "$output"/{suites,hanging,broken}

{
  check "passes" 5 true
  check "fails in silence" 5 false
  status_means=([3]="found")
  check "means something" 5 bash -c 'exit 3'
  status_means=()
  check "crashes" 5 bash -c 'kill -SEGV $$'
  check "says much" 20 bash -c 'for ((i = 0; i < 100000; ++i)); do echo "error $i"; done; exit 3'
  check "names" 5 bash -c 'printf "[==========] Running\n[ RUN      ] Checks.Error\n[       OK ] Checks.Error (0 ms)\nwhat for: an error\n"; exit 6'
  check "hangs" 1 sleep 30
  check "skips" 5 bash -c 'printf "[  PASSED  ] 1 test.\n[  SKIPPED ] 2 tests.\n"'
  expected_skips=("no wgmma here" "a GPU without fp8")
  check "skips as expected" 5 bash -c 'printf "a.cc:8: Skipped\nno wgmma here\nb.cc:9: Skipped\na GPU without fp8\n[  SKIPPED ] 2 tests.\n"'
  check "skips more" 5 bash -c 'printf "a.cc:8: Skipped\nno wgmma here\nb.cc:9: Skipped\nno model\n[  SKIPPED ] 2 tests.\n"'
  allow_skips=1
  check_suites "suites" 5 "$output/suites"
  allow_skips=0
  check_suites "nothing" 5 true
  check_suites "broken" 5 "$output/broken"
  check_suites "hanging" 3 "$output/hanging"
  measure "measures" 5 bash -c 'echo 12 GB/s; exit 4'
} >"$output/said" 2>&1

expect "failed checks" "$(printf '%s;' "${failed[@]}")" \
  "fails in silence (status 1);means something (found);crashes (status 139);says much (status 3);names (status 6);hangs (status 124);skips (skipped tests: no reason is given);skips more (skipped tests: no model);suites: All/Second (status 139);nothing (lists no tests);broken (lists no tests);hanging: One (status 124);hanging: Two (status 124);measures (status 4);"
expect "checks not run" "$(printf '%s;' "${not_run[@]}")" "hanging: Three;"
grep -q "loading shared libraries" "$output/said" || fail "it is not told why a program lists no tests"
[ "$(sed -n '/^FAILED  names/,/^FAILED/p' "$output/said" | sed -n 2p)" = "what for: an error" ] || fail "names of tests are taken for reasons"
[ "$(wc -l <"$output/said")" -lt 200 ] || fail "a long failure is said whole"
for line in 0 99999; do grep -q "^error $line\$" "$output/log" || fail "error $line is not kept"; done
[ "$(stat -c %s "$output/log")" -lt 300000 ] || fail "a long failure is kept whole"
grep -q '^ok  suites: First .*PASSED  ] 1 test\.$' "$output/said" || fail "success is told by what was skipped"
grep -q '^\[ RUN      \] --gtest_filter=One' "$output/said" || fail "which test hangs is not told"
grep -q "ended at its limit of [13] s" "$output/said" || fail "a time limit is not named"
grep -q "^12 GB/s" "$output/said" || fail "a measurement is not shown"
! conclude >"$output/verdict" || fail "failures count as success"
grep -q "^FAILED: crashes (status 139)" "$output/verdict" || fail "the verdict names no failure"
! grep -q "passed" "$output/verdict" || fail "the verdict says that all passed"

failed=() not_run=() allow_skips=1
check "skips" 5 bash -c 'echo "[  SKIPPED ] 2 tests."' >/dev/null
expect "failures where skips are allowed" "${#failed[@]}" 0
not_asked=("the server (--bundle FILE)" "transformers")
conclude false >"$output/verdict" || fail "success counts as failure"
grep -q "^all that was asked for passed" "$output/verdict" || fail "success is not told"
[ "$(tail -n 2 "$output/verdict")" = $'not asked for: the server (--bundle FILE)\nnot asked for: transformers' ] ||
  fail "what was not asked for is not named last"
conclude echo "12 GB/s" >"$output/verdict"
grep -q "^12 GB/s" "$output/verdict" || fail "what was measured is not in the verdict"

budget=$((SECONDS + 2))
check "takes what is left" 60 sleep 60 >"$output/said"
check "comes too late" 60 true >>"$output/said"
expect "failed checks" "$(printf '%s;' "${failed[@]}")" "takes what is left (status 124);"
expect "checks not run" "$(printf '%s;' "${not_run[@]}")" "comes too late;"
failed=()
! conclude >"$output/verdict" || fail "what was not run counts as success"
grep -q "^NOT RUN: comes too late" "$output/verdict" || fail "the verdict does not name what was not run"
echo "passed"
