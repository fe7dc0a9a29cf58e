#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# forecast_example.sh BRIM: runs examples/forecast_stocks at small scale with one interruption.
set -euo pipefail
export BRIM=$(readlink -f "$1")
root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "forecast_example.sh: $*" >&2; cat "$work/log" >&2; exit 1; }
small=(--max-steps 20 --device cpu --save-steps 5)
timeout -s INT 0.3 "$root/examples/forecast_stocks/run" 8 "$work/out" "${small[@]}" >"$work/first" 2>&1 || true
"$root/examples/forecast_stocks/run" 8 "$work/out" "${small[@]}" >"$work/forecasts" 2>"$work/log" || fail "exit code $?"
grep -q 'naive' "$work/forecasts" || fail "no headline"
grep -q 'memory_monitoring is ignored' "$work/log" || fail "an ignored key of the memory block was not logged"
[ "$(wc -l <"$work/out/rolled/forecasts.csv")" -eq $((8 * 4 * 5 + 1)) ] || fail "rows are missing"
[ "$(grep -c '^[A-Z]*,2017-09-' "$work/forecasts")" -eq 20 ] || fail "next week is missing"
grep -q 'target_utilization' "$work/out/rolled/report.html" || fail "no report"
echo "forecast_example: passed, 8 weeks of 4 stocks and the next week"
