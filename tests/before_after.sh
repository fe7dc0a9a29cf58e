#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/before_after.py with programs whose rates are known: values of a summary and of JSON on stdout.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for rate in 100 150; do
  cat > "$work/$rate" <<EOF
#!/bin/sh
case "\$1" in
  bench) echo '{"texts_per_second": $rate, "answered": 10, "texts_per_request": 32}' ;;
  score) echo rows > "\$2"; echo '{"rows_per_second": $rate}' > "\$3" ;;
esac
EOF
  chmod +x "$work/$rate"
done
check() {  # expected first words of a line, then the command
  local expected=$1
  shift
  out=$(python3 bench/before_after.py "$work/100" "$work/150" --pairs 2 -- "$@")
  grep -qE "^$expected" <<< "$out" || { echo "before_after: no line '$expected' in: $out"; exit 1; }
}
check 'texts_per_second +after/before 1\.5000 .* before/before 1\.0000 .* last 100 150' bench serve --json
check 'rows_per_second +after/before 1\.5000' score {out} {summary}
check 'output +identical' score {out} {summary}
echo "before_after: passed"
