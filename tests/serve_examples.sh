#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# serve_examples.sh BRIM: runs the server examples of examples/ at small scale.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/serve_wait.sh"
brim=$(readlink -f "$1")
root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
export BRIM_HOME=$root
work=$(mktemp -d) server=
cleanup() { [ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"; }
trap cleanup EXIT
fail() { echo "serve_examples.sh: $*" >&2; cat "$work"/* >&2 2>/dev/null || true; exit 1; }
"$brim" --env-file "$root/examples/serve_news/bot.env" serve --listen 127.0.0.1:0 --state-dir "$work/state" --lame-duck-seconds 0 2>"$work/log" &
server=$!
wait_for_url
keep_alive() { # keep-alive of the first model in seconds, once a snapshot is available
  for _ in $(seq 100); do
    value=$(curl -sS --max-time 60 "$url/snapshot" | python3 -c 'import json,sys; a = json.load(sys.stdin); print(a["models"][0]["keep_alive_s"] if a else "")')
    [ -z "$value" ] || break
    sleep 0.05
  done
  echo "$value"
}
awk -v s="$(keep_alive)" 'BEGIN { exit !(s >= 0 && s <= 600) }' || fail "model is not unloaded when idle: keep_alive $(keep_alive)"
"$root/examples/serve_news/bot.py" --url "$url" --per-day 1 >"$work/news" || fail "serve_news"
[ "$(grep -c '^2025-' "$work/news")" -eq 12 ] && grep -q '^365 headlines, scored by ' "$work/news" || fail "serve_news"
! grep -q failed "$work/news" || fail "headlines without scores"
"$root/examples/serve_tweets/run" 3000 "$url" >"$work/tweets" || fail "serve_tweets"
grep -q '^3000 tweets$' "$work/tweets" && grep -Eq '^positive +[0-9]+$' "$work/tweets" || fail "serve_tweets"
kill -TERM "$server"
code=0; wait "$server" || code=$?
server=
[ "$code" -eq 0 ] || fail "exit code $code"
: >"$work/log"
BRIM_KEEP_ALIVE=-1 "$brim" --env-file "$root/examples/serve_news/bot.env" serve --listen 127.0.0.1:0 --state-dir "$work/state" --lame-duck-seconds 0 2>"$work/log" &
server=$!
wait_for_url
[ "$(keep_alive)" = -1.0 ] || fail "BRIM_KEEP_ALIVE has no effect: keep_alive $(keep_alive)"
kill -TERM "$server"
wait "$server" || fail "exit code $?"
server=
echo "serve_examples: passed, a year of headlines, 3,000 tweets"
