#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# serve_slow.sh BRIM [SECONDS]: the four attacks of slowhttptest (slow headers, bodies, ranges and reads), 400 connections each.
# Other clients must be served throughout, and all connections closed afterwards. Skipped without slowhttptest.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/serve_wait.sh"
brim=$(readlink -f "$1") seconds=${2:-20}
export BRIM_HOME=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
work=$(mktemp -d) server=
export BRIM_CACHE=$work/cache
cleanup() { [ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"; }
trap cleanup EXIT
fail() { echo "serve_slow.sh: $*" >&2; cat "$work/log" >&2; exit 1; }
command -v slowhttptest >/dev/null || { echo "serve_slow.sh: Skipped: no slowhttptest"; exit 77; }
ulimit -n 4096 2>/dev/null || true
"$brim" serve --model vader --listen 127.0.0.1:0 --connections-per-address 1024 --lame-duck-seconds 0 2>"$work/log" &
server=$!
wait_for_url
open_connections() { curl -sS --max-time 5 "$url/metrics" | awk '/^brim_connections/ { n += $2 } END { print n - 1 }'; } # without this one
for attack in "-H -u $url/predict" "-B -s 8192 -x 10 -f application/json -u $url/predict" "-R -a 1 -b 100 -u $url/dashboard" "-X -w 1 -y 10 -n 3 -z 8 -k 3 -u $url/dashboard"; do
  slowhttptest $attack -c 400 -r 200 -i 2 -l "$seconds" -p 5 >"$work/slow" 2>&1 &
  slow=$!
  answered=0 most=0
  while kill -0 "$slow" 2>/dev/null; do
    [ "$(curl -sS --max-time 5 "$url/predict" -H 'Content-Type: application/json' -d '{"inputs":"I love it"}' | head -c 10)" = '[{"score":' ] || fail "no response during slowhttptest $attack"
    answered=$((answered + 1))
    n=$(open_connections)
    [ "$n" -le "$most" ] || most=$n
    sleep 0.5
  done
  for _ in $(seq 150); do
    [ "$(open_connections)" -gt 0 ] || break
    sleep 0.2
  done
  left=$(open_connections)
  [ "$left" -le 0 ] || fail "$left connections still open after slowhttptest $attack"
  echo "serve_slow: ${attack%% -u*}: $answered other requests served, at most $most connections, none left open"
done
kill -TERM "$server"
wait "$server" || fail "exit code $?"
server=
