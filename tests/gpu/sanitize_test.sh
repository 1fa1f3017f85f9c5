#!/usr/bin/env bash
# tests/gpu/sanitize.sh with a stand-in for compute-sanitizer: what is found counts, wherever it is told; and tests that
# it lists are tests of the programs.
#
#   tests/gpu/sanitize_test.sh [DIRECTORY-OF-PROGRAMS]
set -euo pipefail -f
directory=${1:-}
sanitize=$(dirname "$0")/sanitize.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "sanitize_test: $*" >&2; cat "$scratch/said" >&2; exit 1; }

cat >"$scratch/compute-sanitizer" <<'END'
#!/usr/bin/env bash
if [ "$1" = --help ]; then printf '  --kernel-name arg   x\n  --kernel-name-exclude arg\n  --require-cuda-init arg (=yes)\n'; exit; fi
echo "========= COMPUTE-SANITIZER"
echo "$*" >"$ASKED"
cat "$SAYS"
sleep "${HANGS:-0}"
exit "$STATUS"
END
chmod +x "$scratch/compute-sanitizer"
export PATH=$scratch:$PATH ASKED=$scratch/asked SAYS=$scratch/says STATUS=0
run() { "$sanitize" memcheck program 'Suite.*' >"$scratch/said" 2>&1; }

printf '[  PASSED  ] 2 tests.\n========= ERROR SUMMARY: 0 errors\n' >"$SAYS"
run || fail "a clean run counts as a failure"
[ "$(tail -n 1 "$scratch/said")" = "========= ERROR SUMMARY: 0 errors" ] || fail "it does not end with what was found"
grep -q -- '--tool memcheck .*--require-cuda-init no --kernel-name kns=lockstep program --gtest_brief=1 --gtest_filter=Suite\.\*$' "$ASKED" ||
  fail "it asks for something else: $(cat "$ASKED")"
# ends_with STATUS WHAT: of a run.
ends_with() {
  local got=0
  run || got=$?
  [ "$got" = "$1" ] || fail "$2: status $got, not $1"
}
STATUS=1 ends_with 4 "tests that fail, of which the tool finds nothing"
tail -n 1 "$scratch/said" | grep -q 'memcheck found nothing, but tests fail' || fail "it is not told that the tool found nothing"
printf '[  FAILED  ] 1 test.\n========= ERROR SUMMARY: 2 errors\n' >"$SAYS"
STATUS=1 ends_with 3 "what the tool finds, beside a test that fails"
printf '[  PASSED  ] 2 tests.\n========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)\n========= ERROR SUMMARY: 0 errors\n' >"$SAYS"
ends_with 3 "a rank's errors"
[ "$(tail -n 1 "$scratch/said")" = "========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)" ] ||
  fail "it does not end with what was found"
printf '[  PASSED  ] 0 tests.\n========= ERROR SUMMARY: 0 errors\n' >"$SAYS"
ends_with 4 "no tests"
printf '[  PASSED  ] 2 tests.\n' >"$SAYS"
ends_with 5 "no summary"
echo "========= Invalid __global__ read" >"$SAYS"
got=0
HANGS=60 timeout 5 "$sanitize" memcheck program 'Suite.*' >"$scratch/said" 2>&1 || got=$?
[ "$got" = 124 ] || fail "one that hangs: status $got"
grep -q 'Invalid __global__ read' "$scratch/said" || fail "what is found before a time limit is lost"

"$sanitize" --list >"$scratch/said"
[ "$(grep -c . "$scratch/said")" -gt 20 ] || fail "a short list"
for tool in memcheck synccheck; do
  first=$(grep "^$tool " "$scratch/said" | head -n 3 | cut -d ' ' -f 4- | paste -sd ';')
  [ "$first" = "attention by wgmma;sums and gatherings over 2 ranks;products of few rows" ] || fail "$tool begins with: $first"
done
while read -r tool program filter label; do
  [ -n "$label" ] || fail "no label"
  case "$tool" in memcheck | racecheck | synccheck) ;; *) fail "no tool '$tool'" ;; esac
  if [ "$tool" != memcheck ] || [ ! -x "$directory/$program" ]; then continue; fi
  for one in ${filter//:/ }; do
    "$directory/$program" --gtest_list_tests "--gtest_filter=$one" | grep '^  ' >/dev/null || fail "$program has no test '$one'"
  done
done <"$scratch/said"
echo "passed"
