# shellcheck shell=bash
# Functions of tests/gpu/run.sh: what runs programs with a time limit, keeps their output and remembers what failed.
# Source it with `output` (a directory) and `budget` (seconds for the whole run, 0: as long as it takes) set.
failed=()
not_run=()
not_asked=()       # named last, and no failures
expected_skips=()  # reasons that this machine is known to give
allow_skips=${allow_skips:-0}
declare -A status_means=()  # what is said of a status instead of its number
last_log=$(mktemp)
num_timeouts=0
shortest=5  # seconds that a check is begun for

step() { printf '\n== %s (%ss elapsed)\n' "$*" "$SECONDS"; }

# Seconds that a check may take which is given so many by itself.
limit_of() {
  local left=$((budget - SECONDS))
  if [ "$budget" -gt 0 ] && [ "$left" -lt "$1" ]; then echo "$left"; else echo "$1"; fi
}

# What says why, in the output of GoogleTest (whose tests' names may, too), of our CHECKs, of compute-sanitizer and of NCCL.
show_failure() {
  { grep -avE '^\[( RUN | +OK |-+\]|=+\])' "$1" | grep -aE 'FAILED|Failure|[Ee]rror|ERROR|[Cc]heck|=========|NCCL WARN|terminate|rank [0-9]+:' -A4 | head -40; } || true
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

# Reasons for skipped tests, as GoogleTest gives them under "FILE:LINE: Skipped", but for the expected ones; or that
# there are none.
unexpected_skips() {
  local reason expected reasons
  reasons=$(grep -aA1 ': Skipped$' "$1" | grep -avE ': Skipped$|^--$' | sort -u) || true
  if [ -z "$reasons" ]; then echo "no reason is given"; fi
  while read -r reason; do
    for expected in "" "${expected_skips[@]}"; do
      if [ "$reason" = "$expected" ]; then continue 2; fi
    done
    echo "$reason"
  done <<<"$reasons"
}

# What is told of success: GoogleTest's verdict, under which it lists tests that were skipped, or else the last line.
last_word() { grep -aE '^\[  PASSED' "$1" || tail -n 1 "$1"; }

# check LABEL SECONDS COMMAND...: one line if all is well. Never ends the script.
check() {
  local label limit status skips="" began=$SECONDS
  run_limited kept "$@" || return 0
  if [ "$status" -ne 0 ]; then
    fail_check "${status_means[$status]:-status $status}"
    return
  fi
  if [ "$allow_skips" = 0 ] && grep -aq '^\[  SKIPPED' "$last_log"; then skips=$(unexpected_skips "$last_log"); fi
  if [ -n "$skips" ]; then
    fail_check "skipped tests: $(head -n 1 <<<"$skips" | cut -c1-100)"
  else
    echo "ok  $label  ($((SECONDS - began))s)  $(last_word "$last_log" | cut -c1-300 | tail -n 1)"
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
# leaves the others; each test is told as it begins, and so the one that hangs. After two that hung the others are not
# tried: they would take all the time there is.
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
    check "$label: ${suite%.}" "$limit" "$program" "--gtest_filter=$suite*"
  done
}

# conclude COMMAND...: what the command tells of what was measured (none: nothing), then the verdict, and its status.
conclude() {
  rm -f "$last_log"
  if [ $# -gt 0 ]; then
    step "measured"
    "$@" || true
  fi
  if [ ${#not_run[@]} -gt 0 ]; then printf 'NOT RUN: %s\n' "${not_run[@]}"; fi
  if [ ${#failed[@]} -gt 0 ]; then printf 'FAILED: %s\n' "${failed[@]}"; fi
  if [ ${#failed[@]} -eq 0 ] && [ ${#not_run[@]} -eq 0 ]; then echo "all that was asked for passed (${SECONDS}s)"; fi
  if [ ${#not_asked[@]} -gt 0 ]; then printf 'not asked for: %s\n' "${not_asked[@]}"; fi
  [ ${#failed[@]} -eq 0 ] && [ ${#not_run[@]} -eq 0 ]
}
