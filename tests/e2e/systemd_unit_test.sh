#!/usr/bin/env bash
# deploy/systemd/lockstep.service, without a running systemd: its syntax, and what it says of the program.
#
#   tests/e2e/systemd_unit_test.sh LOCKSTEP
set -euo pipefail
lockstep=$(realpath "$1")
unit=$(cd "$(dirname "$0")/../.." && pwd)/deploy/systemd/lockstep.service
skip() { echo "SKIPPED: $*"; exit 77; }
fail() { echo "systemd_unit_test.sh: $*" >&2; exit 1; }
command -v systemd-analyze >/dev/null || skip "systemd-analyze is not installed"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# It looks for the program, and warns of what it does not know.
sed "s|/opt/lockstep/bin/lockstep|$lockstep|" "$unit" >"$scratch/lockstep.service"
systemd-analyze verify --man=no "$scratch/lockstep.service" >"$scratch/said" 2>&1 || fail "$(cat "$scratch/said")"
if grep "lockstep.service" "$scratch/said"; then fail "systemd does not take it as it is meant"; fi

command=$(sed -n 's|^ExecStart=/opt/lockstep/bin/lockstep ||p' "$unit")
drain=$(grep -oP -- '--drain-seconds \K[0-9]+' <<<"$command")
[ "$(sed -n 's/^TimeoutStopSec=//p' "$unit")" -gt "$drain" ] || fail "the unit is killed before $drain s of draining are over"
# The program understands these flags: it fails for want of the model, not of usage.
read -ra words <<<"${command/\$LOCKSTEP_ARGUMENTS/$scratch/nothing}"
code=0
"$lockstep" "${words[@]}" >"$scratch/said" 2>&1 || code=$?
[ "$code" = 1 ] && grep -q "$scratch/nothing" "$scratch/said" || fail "exit code $code: $(cat "$scratch/said")"
echo "systemd_unit_test.sh: passed"
