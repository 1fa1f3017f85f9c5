# shellcheck shell=bash
# Functions of tests/gpu/run.sh: what runs programs with a time limit, keeps their output and remembers what failed.
# Source it with `output` (a directory) and `budget` (seconds for the whole run, 0: as long as it takes) set.
failed=()
not_run=()
allow_skips=${allow_skips:-0}

step() { printf '\n== %s (%ss elapsed)\n' "$*" "$SECONDS"; }

# Seconds that a check may take which is given so many by itself.
limit_of() {
  local left=$((budget - SECONDS))
  if [ "$budget" -gt 0 ] && [ "$left" -lt "$1" ]; then echo "$left"; else echo "$1"; fi
}

# What says why, in the output of GoogleTest, of our CHECKs, of compute-sanitizer and of NCCL.
show_failure() {
  { grep -aE 'FAILED|Failure|[Ee]rror|ERROR|[Cc]heck|=========|NCCL WARN|terminate|rank [0-9]+:' -A4 "$1" | head -40; } || true
}

# run_limited HOW LABEL SECONDS COMMAND...: its output into $output/last.log and $output/log, and as it comes if HOW is
# shown. Sets `status`; false where the budget leaves no time for it.
run_limited() {
  local how=$1
  label=$2 limit=$(limit_of "$3") status=0
  shift 3
  if [ "$limit" -lt 5 ]; then not_run+=("$label"); return 1; fi
  if [ "$how" = shown ]; then
    timeout -k 10 "$limit" "$@" 2>&1 | tee "$output/last.log" || status=$?
  else  # no pipe, which processes that outlive the command would hold open
    timeout -k 10 "$limit" "$@" >"$output/last.log" 2>&1 || status=$?
  fi
  { echo "## $label: status $status, ${SECONDS}s elapsed"; cat "$output/last.log"; } >>"$output/log"
}

# Remembers a failure, and shows why.
fail_check() {
  failed+=("$label ($1)")
  echo "FAILED  $label ($1)"
  if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then echo "killed, or ended at its limit of $limit s"; fi
  show_failure "$output/last.log"
  tail -n 3 "$output/last.log" || true
}

# check LABEL SECONDS COMMAND...: one line if all is well. Never ends the script.
check() {
  local label limit status began=$SECONDS
  run_limited kept "$@" || return 0
  if [ "$status" -ne 0 ]; then
    fail_check "status $status"
  elif [ "$allow_skips" = 0 ] && grep -aq '^\[  SKIPPED' "$output/last.log"; then
    fail_check "skipped tests"
  else
    echo "ok  $label  ($((SECONDS - began))s)  $(tail -n 1 "$output/last.log")"
  fi
}

# measure LABEL SECONDS COMMAND...: shows what the command prints, as it comes.
measure() {
  local label limit status
  step "$1"
  run_limited shown "$@" || return 0
  if [ "$status" -ne 0 ]; then fail_check "status $status"; fi
}

# check_suites LABEL SECONDS PROGRAM: each suite of a GoogleTest program by itself, so that one that hangs or crashes
# leaves the others.
check_suites() {
  local label=$1 limit=$2 program=$3 suites suite
  suites=$(timeout 60 "$program" --gtest_list_tests 2>&1 | sed -n 's/^\([^ ]*\.\)\( .*\)*$/\1/p') || true
  if [ -z "$suites" ]; then failed+=("$label (lists no tests)"); return 0; fi
  for suite in $suites; do
    check "$label: ${suite%.}" "$limit" "$program" --gtest_brief=1 "--gtest_filter=$suite*"
  done
}

# The verdict, and its status.
conclude() {
  if [ ${#not_run[@]} -gt 0 ]; then printf 'NOT RUN: %s\n' "${not_run[@]}"; fi
  if [ ${#failed[@]} -gt 0 ]; then printf 'FAILED: %s\n' "${failed[@]}"; fi
  if [ ${#failed[@]} -gt 0 ] || [ ${#not_run[@]} -gt 0 ]; then return 1; fi
  echo "all passed (${SECONDS}s)"
}
