# shellcheck shell=bash
# Functions of tests/gpu/run.sh: what runs programs with a time limit, keeps their output and remembers what failed.
# Source it with `output` (a directory) and `budget` (seconds for the whole run, 0: as long as it takes) set.
failed=()
not_run=()
allow_skips=${allow_skips:-0}
last_log=$(mktemp)
num_timeouts=0
shortest=5  # seconds that a check is begun for

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

# The beginning and the end of what a program has said, which may be one error a million times.
keep_log() {
  echo "## $1"
  if [ "$(stat -c %s "$last_log")" -le 250000 ]; then cat "$last_log"; return; fi
  head -c 200000 "$last_log"
  printf '\n## (cut)\n'
  tail -c 50000 "$last_log"
}

# run_limited HOW LABEL SECONDS COMMAND...: its output into $last_log and $output/log, and as it comes if HOW is
# shown. Sets `status`; false where the budget leaves no time for it.
run_limited() {
  local how=$1
  label=$2 limit=$(limit_of "$3") status=0
  shift 3
  if [ "$limit" -lt "$shortest" ]; then not_run+=("$label"); return 1; fi
  if [ "$how" = shown ]; then
    timeout -k 10 "$limit" "$@" 2>&1 | tee "$last_log" || status=$?
  else  # no pipe, which processes that outlive the command would hold open
    timeout -k 10 "$limit" "$@" >"$last_log" 2>&1 || status=$?
  fi
  keep_log "$label: status $status, ${SECONDS}s elapsed" >>"$output/log"
}

# Remembers a failure, and shows why.
fail_check() {
  failed+=("$label ($1)")
  echo "FAILED  $label ($1)"
  if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    echo "killed, or ended at its limit of $limit s"
    num_timeouts=$((num_timeouts + 1))
  fi
  show_failure "$last_log" | cut -c1-300
  tail -n 3 "$last_log" | cut -c1-300
}

# check LABEL SECONDS COMMAND...: one line if all is well. Never ends the script.
check() {
  local label limit status began=$SECONDS
  run_limited kept "$@" || return 0
  if [ "$status" -ne 0 ]; then
    fail_check "status $status"
  elif [ "$allow_skips" = 0 ] && grep -aq '^\[  SKIPPED' "$last_log"; then
    fail_check "skipped tests"
  else
    echo "ok  $label  ($((SECONDS - began))s)  $(tail -n 1 "$last_log" | cut -c1-300)"
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
# leaves the others. After two that hung the others are not tried: they would take all the time there is.
check_suites() {
  local label=$1 limit=$2 program=$3 suites suite timeouts_before=$num_timeouts
  timeout 60 "$program" --gtest_list_tests >"$last_log" 2>&1 || true
  suites=$(sed -n 's/^\([^ ]*\.\)\( .*\)*$/\1/p' "$last_log")
  if [ -z "$suites" ]; then
    failed+=("$label (lists no tests)")
    tail -n 3 "$last_log" | cut -c1-300
    keep_log "$label: lists no tests" >>"$output/log"
    return 0
  fi
  for suite in $suites; do
    if [ $((num_timeouts - timeouts_before)) -ge 2 ]; then not_run+=("$label: ${suite%.}"); continue; fi
    check "$label: ${suite%.}" "$limit" "$program" --gtest_brief=1 "--gtest_filter=$suite*"
  done
}

# What was measured once more, in short, then the verdict, and its status.
conclude() {
  local figures
  figures=$(grep -haE '^(##.*(speed|clients|torch|sums over).*status|limits |load |decode |prefill |  with both|largest gaps|times as fast)' \
    "$output/log" 2>/dev/null | cut -c1-200) || true
  if [ -n "$figures" ]; then
    step "measured"
    printf '%s\n' "$figures"
  fi
  rm -f "$last_log"
  if [ ${#not_run[@]} -gt 0 ]; then printf 'NOT RUN: %s\n' "${not_run[@]}"; fi
  if [ ${#failed[@]} -gt 0 ]; then printf 'FAILED: %s\n' "${failed[@]}"; fi
  if [ ${#failed[@]} -gt 0 ] || [ ${#not_run[@]} -gt 0 ]; then return 1; fi
  echo "all passed (${SECONDS}s)"
}
