#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# serve_slow.sh BRIM [SECONDS]: slowhttptest's four attacks (heads, bodies, ranges and answers that crawl), 400 connections
# each: other clients are answered all the while, and every connection is let go afterwards. Without slowhttptest: Skipped.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/serve_wait.sh"
brim=$(readlink -f "$1") seconds=${2:-20}
export BRIM_HOME=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
work=$(mktemp -d) server=
export BRIM_CACHE=$work/cache
cleanup() { [ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"; }
trap cleanup EXIT
fail() { echo "serve_slow.sh: $*" >&2; cat "$work/said" >&2; exit 1; }
command -v slowhttptest >/dev/null || { echo "serve_slow.sh: Skipped: no slowhttptest"; exit 77; }
ulimit -n 4096 2>/dev/null || true
"$brim" serve --model vader --listen 127.0.0.1:0 --connections-per-address 1024 --lame-duck-seconds 0 2>"$work/said" &
server=$!
wait_for_url
open_connections() { curl -sS --max-time 5 "$url/metrics" | awk '/^brim_connections/ { n += $2 } END { print n - 1 }'; } # less its own
for attack in "-H -u $url/predict" "-B -s 8192 -x 10 -f application/json -u $url/predict" "-R -a 1 -b 100 -u $url/dashboard" "-X -w 1 -y 10 -n 3 -z 8 -k 3 -u $url/dashboard"; do
  slowhttptest $attack -c 400 -r 200 -i 2 -l "$seconds" -p 5 >"$work/slow" 2>&1 &
  slow=$!
  answered=0 most=0
  while kill -0 "$slow" 2>/dev/null; do
    [ "$(curl -sS --max-time 5 "$url/predict" -H 'Content-Type: application/json' -d '{"inputs":"I love it"}' | head -c 10)" = '[{"score":' ] || fail "no answer beside slowhttptest $attack"
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
  [ "$left" -le 0 ] || fail "$left connections are left after slowhttptest $attack"
  echo "serve_slow: ${attack%% -u*}: $answered others answered, $most connections at most, none left"
done
kill -TERM "$server"
wait "$server" || fail "exit code $?"
server=
