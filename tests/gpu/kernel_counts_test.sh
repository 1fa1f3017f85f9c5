#!/usr/bin/env bash
# kernel_counts: a line to each kernel, of numbers; decodes' attention reads its cache once, without waste.
#
#   tests/gpu/kernel_counts_test.sh KERNEL_COUNTS
set -euo pipefail
counts=${1:?usage: kernel_counts_test.sh KERNEL_COUNTS}
said=$(mktemp)
trap 'rm -f "$said"' EXIT
fail() { echo "kernel_counts_test: $*" >&2; cat "$said" >&2; exit 1; }

"$counts" --decode 1 --context 256 --prefill 16 --no-products >"$said" 2>&1 || fail "it ends with $?"
for line in '^1 x 1 tokens at context 256' '^1 x 16 tokens' '^RMSNorm ' '^RMSNorm in e4m3 ' '^RoPE, cache write ' '^SiLU ' \
  '^attention, splits' '^attention, fp8 cache, ' '^attention by wgmma, '; do
  grep -q "$line" "$said" || fail "no line '$line'"
done
! grep -qi 'nan\|inf' "$said" || fail "numbers that are none"
# 256 tokens of 8 heads of 128 keys and values in bf16: 1.05 MB, and little beside them; half of that in e4m3.
for cache in 'attention, splits:1.04:1.2' 'attention, fp8 cache,:0.52:0.6'; do
  IFS=: read -r name least most <<<"$cache"
  awk -v least="$least" -v most="$most" "/^$name/"' && !found { found = 1; megabytes = $(NF - 8); sectors = $(NF - 1); turns = $NF }
    END { exit !(megabytes > least && megabytes < most && sectors < 1.05 && turns < 1.05) }' "$said" ||
    fail "attention reads something else than its cache: $name"
done
"$counts" --decode 0 >"$said" 2>&1 && fail "no sequences are accepted"
echo "passed"
