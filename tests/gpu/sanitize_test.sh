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
STATUS=1 run && fail "a failure is lost"
printf '[  PASSED  ] 2 tests.\n========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)\n========= ERROR SUMMARY: 0 errors\n' >"$SAYS"
run && fail "a rank's errors are lost"
printf '[  PASSED  ] 0 tests.\n========= ERROR SUMMARY: 0 errors\n' >"$SAYS"
run && fail "no tests count as success"

"$sanitize" --list >"$scratch/said"
[ "$(grep -c . "$scratch/said")" -gt 20 ] || fail "a short list"
while read -r tool program filter label; do
  [ -n "$label" ] || fail "no label"
  case "$tool" in memcheck | racecheck | synccheck) ;; *) fail "no tool '$tool'" ;; esac
  if [ "$tool" != memcheck ] || [ ! -x "$directory/$program" ]; then continue; fi
  for one in ${filter//:/ }; do
    "$directory/$program" --gtest_list_tests "--gtest_filter=$one" | grep '^  ' >/dev/null || fail "$program has no test '$one'"
  done
done <"$scratch/said"
echo "passed"
