#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# serve.sh BRIM: end-to-end test of the server with curl: labels equal to `brim score`, health, metrics, API keys, TLS, Unix sockets,
# streams and jobs of rows, SIGHUP, SIGTERM during a request, and invalid options.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/serve_wait.sh"
brim=$(readlink -f "$1")
export BRIM_HOME=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
work=$(mktemp -d) server=
export BRIM_CACHE=$work/cache
cleanup() { [ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"; }
trap cleanup EXIT
fail() { echo "serve.sh: $*" >&2; [ ! -e "$work/log" ] || cat "$work/log" >&2; exit 1; }
curl() { command curl -sS --max-time 60 "$@"; }
json() { python3 -c 'import json,sys; print(eval(sys.argv[1], {"a": json.load(sys.stdin)}))' "$1"; }

start() { # FLAGS…: starts a server and waits until it listens; sets url
  : >"$work/log" # remove the address of the previous server
  "$brim" serve "$@" >"$work/out" 2>"$work/log" &
  server=$!
  wait_for_url
}
finish() { # SIGTERM: drains and exits with 0
  kill -TERM "$server"
  local code=0
  wait "$server" || code=$?
  server=
  [ "$code" -eq 0 ] || fail "exit code $code after SIGTERM"
}

# invalid options
code=0; "$brim" serve --listen 0.0.0.0:0 2>"$work/log" || code=$?
[ "$code" -eq 2 ] && grep -q -- '--api-key-file' "$work/log" || fail "non-loopback address without keys: $code"
code=0; "$brim" serve --listen nonsense 2>"$work/log" || code=$?
[ "$code" -eq 2 ] || fail "invalid address: $code"
code=0; "$brim" serve --model a=vader --model a=vader 2>"$work/log" || code=$?
[ "$code" -eq 2 ] || fail "duplicate model name: $code"
for flags in '--max-batch-requests 4' '--hf-token x' --json-output '--port 1 --listen :2' '--dtype float32 --precision bf16'; do # options of text-embeddings-inference
  code=0; "$brim" serve $flags 2>"$work/log" || code=$?
  [ "$code" -eq 2 ] && grep -q -- "${flags%% *}" "$work/log" || fail "$flags: $code"
done
start --model-id default --served-model-name their/model --port 0 --hostname 127.0.0.1 --dtype float32 --auto-truncate false --max-concurrent-requests 64 --max-batch-tokens 256 --max-length 128 \
  --tokenization-workers 1 --lame-duck-seconds 0
[ "$(curl "$url/info" | json '[a[k] for k in ("served_model_name", "model_dtype", "auto_truncate", "max_concurrent_requests", "max_batch_tokens", "tokenization_workers")]')" = \
  "['their/model', 'fp32', False, 64, 256, 1]" ] || fail "flags of text-embeddings-inference: $(curl "$url/info")"
finish

start --listen 127.0.0.1:0 --model mood=default --model vader --lame-duck-seconds 0 --access-log "$work/access" --state-dir "$work/jobs"
printf 'I love this\nwhat a waste of money\n' >"$work/texts.txt"
"$brim" score --model default "$work/texts.txt" -q --output-format tsv -o "$work/scored.tsv"
while IFS=$'\t' read -r text label _; do
  [ "$text" != text ] || continue
  served=$(curl "$url/predict" -H 'Content-Type: application/json' -d "{\"inputs\":\"$text\"}" | json 'a[0]["label"]')
  [ "$served" = "$label" ] || fail "'$text' is $served over HTTP and $label from a file"
done <"$work/scored.tsv"
[ "$(curl "$url/classify" -H 'Content-Type: application/json' -d '{"input":"I love it","model":"vader"}' | json 'a["data"][0][0]["label"]')" = positive ] || fail "VADER"
[ "$(curl "$url/health" | json 'a["status"]')" = ok ] || fail "health"
curl "$url/metrics" -o "$work/metrics" # a pipe that grep -q closes early would fail curl
grep -q '^brim_texts_total{model="mood",class="interactive",reason="default"} 2$' "$work/metrics" || fail "metrics"
[ "$(curl -o /dev/null -w '%{http_code}' "$url/nothing")" = 404 ] || fail "404"
# A body sent with "Expect: 100-continue"; without "100 Continue" curl would wait a second.
python3 -c 'import json; print(json.dumps({"input": ["good " * 500] * 600, "model": "vader"}))' >"$work/large.json"
[ "$(curl "$url/classify" -H 'Content-Type: application/json' -H 'Expect: 100-continue' --data-binary @"$work/large.json" | json 'len(a["data"])')" = 600 ] || fail "a large body"
# rows of a file over HTTP: streamed, and as a background job
curl "$url/score?model=mood&output_format=tsv" -X POST -T "$work/texts.txt" -H 'Content-Type: text/plain' -o "$work/streamed.tsv"
same() { cmp -s <(cut -f1,2 "$1") <(cut -f1,2 "$work/scored.tsv"); } # compares texts and labels only; the last digits of scores may depend on the batch
same "$work/streamed.tsv" || fail "/score differs from brim score: $(cat "$work/streamed.tsv")"
job=$(curl "$url/jobs?model=mood&format=txt&output_format=tsv" --data-binary @"$work/texts.txt" | json 'a["id"]')
for _ in $(seq 200); do
  [ "$(curl "$url/jobs/$job" | json 'a["status"]')" != completed ] || break
  sleep 0.05
done
curl "$url/jobs/$job/output" -o "$work/job.tsv"
same "$work/job.tsv" || fail "a job differs from brim score"
finish
grep -q '"route":"POST /predict","model":"mood"' "$work/access" || fail "access log"
! grep -q 'waste' "$work/access" || fail "a text in the access log"

# Unix socket, API keys, and SIGTERM during a request
printf 'web:score:%s\n' "$(printf secret | sha256sum | cut -d' ' -f1)" >"$work/keys"
start --listen "unix:$work/brim.sock" --model vader --api-key-file "$work/keys" --lame-duck-seconds 0
get() { curl --unix-socket "$work/brim.sock" "$@"; }
[ "$(get -o /dev/null -w '%{http_code}' http://localhost/info)" = 401 ] || fail "request without a key"
[ "$(get -H 'Authorization: Bearer secret' http://localhost/info | json 'a["served_model_name"]')" = vader ] || fail "request with a key"
[ "$(get -o /dev/null -w '%{http_code}' http://localhost/ping)" = 200 ] || fail "ping"
# SIGHUP reloads the keys
printf 'web:score:%s\n' "$(printf newer | sha256sum | cut -d' ' -f1)" >"$work/keys"
kill -HUP "$server"
for _ in $(seq 100); do
  [ "$(get -o /dev/null -w '%{http_code}' -H 'Authorization: Bearer newer' http://localhost/info)" != 200 ] || break
  sleep 0.05
done
[ "$(get -o /dev/null -w '%{http_code}' -H 'Authorization: Bearer secret' http://localhost/info)" = 401 ] || fail "old key accepted after SIGHUP"
[ "$(get -o /dev/null -w '%{http_code}' -H 'Authorization: Bearer newer' http://localhost/admin/drain -X POST)" = 403 ] || fail "admin request without the scope"
get -H 'Authorization: Bearer newer' -H 'Content-Type: application/json' --data-binary @"$work/large.json" http://localhost/classify >"$work/answer" &
request=$!
finish
wait "$request" || true # answered completely, or not accepted
[ ! -s "$work/answer" ] || [ "$(json 'len(a.get("data", a))' <"$work/answer")" -gt 0 ] || fail "truncated response"
[ ! -e "$work/brim.sock" ] || fail "the socket was not removed"
# bench serve, with a server that requires a key and with its own server
for _ in $(seq 50); do printf 'I love this\nwhat a waste of money\nan hour ago\n'; done >"$work/many.txt"
bench() { "$brim" bench serve --model vader --texts "$work/many.txt" --connections 4 --seconds 1 --json "$@" >"$work/bench" 2>"$work/log"; }
start --listen 127.0.0.1:0 --model mood=default --model vader --api-key secret --lame-duck-seconds 0
BRIM_API_KEY=secret bench --url "$url" --served-model vader --rate 200 || fail "bench serve: $?"
[ "$(json '[a["answered"] > 50, a["refused"], a["failed"], a["other"], a["texts_per_second"] > 0, 0 < a["answered_ms"]["p50"] <= a["answered_ms"]["p99"] <= a["answered_ms"]["most"], a["seconds"] < 30]' <"$work/bench")" = \
  "[True, 0, 0, 0, True, True, True]" ] || fail "bench serve: $(cat "$work/bench")"
"$brim" doctor --url "$url" --seconds 2 --api-key secret --json >"$work/doctor" 2>"$work/log" &
doctor=$!
for _ in $(seq 30); do curl -o /dev/null "$url/predict" -H 'Authorization: Bearer secret' -H 'Content-Type: application/json' -d '{"inputs":"I love it"}'; done
wait "$doctor" && [ "$(json 'len(a["server"]["stages"]), len(a["server"]["findings"]) > 0, a["server"]["seconds"] >= 2' <"$work/doctor")" = "(5, True, True)" ] || fail "doctor --url: $(cat "$work/doctor" "$work/log")"
code=0; "$brim" doctor --url "$url/nothing" --seconds 1 2>"$work/log" || code=$?
[ "$code" -eq 3 ] && grep -q -- '401; set --api-key' "$work/log" || fail "doctor --url without a key: $code"
code=0; bench --url "$url" || code=$?
[ "$code" -eq 3 ] && grep -q -- '401; set --api-key' "$work/log" && [ "$(json 'a["answered"], a["failed"] > 0' <"$work/bench")" = "(0, True)" ] || fail "bench serve without a key: $code"
finish
code=0; bench --served-model vader || code=$?
[ "$code" -eq 2 ] || fail "bench serve --served-model without --url: $code"
bench --batch 3 || fail "bench serve with its own server: $?"
[ "$(json 'a["failed"], a["other"], len(a["scorer_texts_per_second"])' <"$work/bench")" = "(0, 0, 2)" ] || fail "bench serve with its own server: $(cat "$work/bench")"
# socket activation
"$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/serve_restarts.py" "$brim" 2 >/dev/null || fail "consecutive servers on one socket"
# TLS, and reloading the certificate
tls=$("$brim" serve --model vader --listen 127.0.0.1:0 --tls-cert x --tls-key x 2>&1 || true)
if command -v openssl >/dev/null && [[ $tls != *"has no TLS"* ]]; then
  certificate() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$work/key.pem" -out "$work/cert.pem" -days 1 -subj "/CN=$1" -addext subjectAltName=IP:127.0.0.1 2>/dev/null; }
  certificate one
  start --listen 127.0.0.1:0 --model vader --lame-duck-seconds 0 --tls-cert "$work/cert.pem" --tls-key "$work/key.pem"
  [ "${url%%:*}" = https ] || fail "the address is $url"
  [ "$(curl --cacert "$work/cert.pem" "$url/predict" -H 'Content-Type: application/json' -d '{"inputs":"I love it"}' | json 'a[0]["label"]')" = positive ] || fail "TLS"
  certificate two
  kill -HUP "$server"
  for _ in $(seq 100); do
    ! curl --cacert "$work/cert.pem" "$url/ping" 2>/dev/null || break
    sleep 0.05
  done
  curl --cacert "$work/cert.pem" "$url/ping" || fail "old certificate used after SIGHUP"
  finish
else
  echo "serve.sh: Skipped: TLS (no openssl, or built without TLS)"
fi
# two heads share one pass as long as their files have the same encoder
cp -rL "$BRIM_HOME/models/default" "$work/cls"
cp -r "$work/cls" "$work/tags"
python3 - "$work" <<'END'
import json, pathlib, struct, sys
tags = pathlib.Path(sys.argv[1]) / "tags"
config = json.loads((tags / "config.json").read_text())
config["architectures"], config["id2label"] = ["BertForTokenClassification"], {"0": "O", "1": "B-PER", "2": "I-PER"}
del config["label2id"]
(tags / "config.json").write_text(json.dumps(config))
weights = bytearray((tags / "model.safetensors").read_bytes())
head = struct.unpack("<Q", weights[:8])[0]
at = 8 + head + json.loads(weights[8 : 8 + head])["bert.embeddings.LayerNorm.bias"]["data_offsets"][0]
weights[at] ^= 1
(tags / "other").write_bytes(weights)
END
start --listen 127.0.0.1:0 --model "mood=$work/cls" --model "tags=$work/tags" --lame-duck-seconds 0
passes() { # N: expected passes of /analyze after a reload
  [ "$(curl -X POST "$url/admin/reload" | json 'a["problems"]')" = "[]" ] || fail "reload"
  curl "$url/analyze" -H 'Content-Type: application/json' -d '{"inputs":"I love it"}' -D "$work/head" -o /dev/null
  grep -q "^X-Brim-Passes: $1" "$work/head" || fail "expected $1 passes: $(cat "$work/head")"
}
passes 1
cp "$work/tags/model.safetensors" "$work/own"
mv "$work/tags/other" "$work/tags/model.safetensors" # the encoders differ by one bit
passes 2
mv "$work/own" "$work/tags/model.safetensors"
passes 1
finish
# a model that fails to load does not affect the others, and can be loaded later
mkdir "$work/torn"
start --listen 127.0.0.1:0 --model bad="$work/late" --model torn="$work/torn" --model vader --lame-duck-seconds 0
status_of() { curl "$url/predict" -H 'Content-Type: application/json' -d "{\"inputs\":\"good\",\"model\":\"$1\"}" -o "$work/answer" -w '%{http_code}'; }
[ "$(status_of vader)" = 200 ] || fail "a loaded model does not respond"
[ "$(status_of bad)" = 503 ] && grep -q 'directory not found' "$work/answer" || fail "missing model: $(cat "$work/answer")"
[ "$(curl "$url/v1/models" | json '[m["state"] for m in a["data"]]')" = "['failed', 'failed', 'resident']" ] || fail "states: $(curl "$url/v1/models")"
[ "$(curl "$url/health" | json 'a["status"]')" = degraded ] || fail "health with failed models"
cp -rL "$BRIM_HOME/models/default" "$work/late"
[ "$(curl -X POST "$url/admin/models/bad/load" | json 'a["state"]')" = resident ] && [ "$(status_of bad)" = 200 ] || fail "model loaded later: $(cat "$work/answer")"
finish
for flags in "--model torn=$work/torn" "--model torn=$work/torn --model none=$work/none" "--model torn=$work/torn --model vader --check" "--model default --model vader --device cuda:99"; do
  code=0; "$brim" serve --listen 127.0.0.1:0 $flags 2>"$work/log" || code=$?
  [ "$code" -ne 0 ] || fail "$flags: the server starts"
done
"$brim" serve --listen 127.0.0.1:0 --model "torn=$work/torn" --model vadr 2>"$work/log" && fail "starts without a model"
grep -q 'no model could be loaded: torn: ' "$work/log" && grep -q '^vadr: .*vader' "$work/log" || fail "does not report every model: $(cat "$work/log")"

# a ladder whose first rung is missing, and a queue that survives kill -9
cat >"$work/serve.yaml" <<END
listen: 127.0.0.1:0
lame_duck_seconds: 0
state_dir: $work/state
max_concurrent_requests: 48
max_batch_tokens: 256
max_length: 128
models:
  missing: {path: $work/no-such-model}
  mood: {path: default}
  vader: {builtin: vader}
ladders:
  sentiment: {rungs: [missing, mood, vader], default: missing, sources: [{match: [wire], rung: vader}]}
queues: {news: {ladder: sentiment, flush_size: 3}}
END
code=0
"$brim" serve --config "$work/serve.yaml" --check 2>"$work/log" || code=$?
[ $code -eq 4 ] && [ "$(grep -c 'no-such-model' "$work/log")" = 1 ] && grep -q 'missing is unavailable' "$work/log" && grep -q 'the server would start, with 1 warning$' "$work/log" && [ ! -e "$work/state" ] || fail "--check: exit code $code: $(cat "$work/log")"
"$brim" serve --model vader --model "torn=$work/torn" --model vadr --check 2>"$work/log" && fail "--check accepts missing models"
[ "$(grep -c 'torn: ' "$work/log")" = 1 ] && grep -q '2 models could not be loaded' "$work/log" && grep -q '^vadr: .*vader' "$work/log" || fail "--check does not name every missing model: $(cat "$work/log")"
"$brim" serve --model default --model vader --check 2>"$work/log" && grep -q 'configuration is valid' "$work/log" && grep -q 'vader: vader on cpu, rules' "$work/log" || fail "--check: $(cat "$work/log")"
"$brim" serve --config "$work/serve.yaml" --check --at "2026-11-23 10:00" 2>"$work/log" || true
grep -q 'ladder sentiment at 2026-11-23 10:00 UTC: mood (default) instead of missing: ' "$work/log" && grep -q 'source wire: vader (source)' "$work/log" || fail "--at: $(cat "$work/log")"
code=0; "$brim" serve --model vader --jobs-root "$work/none" --check 2>"$work/log" || code=$?
[ $code -eq 2 ] && grep -q -- "--jobs-root $work/none: not a directory" "$work/log" || fail "--jobs-root of a missing directory: $code: $(cat "$work/log")"
"$brim" serve --model default --release-device-after 10m --check 2>"$work/log" || fail "--release-device-after: $(cat "$work/log")"
grep -q -- '--release-device-after has no effect, because default is never unloaded; set --keep-alive' "$work/log" || fail "--release-device-after without --keep-alive: $(cat "$work/log")"
"$brim" serve --model default --release-device-after 10m --keep-alive 10m --check 2>"$work/log" && ! grep -q 'no effect' "$work/log" || fail "--release-device-after with --keep-alive: $(cat "$work/log")"
code=0; "$brim" serve --model vader --at "2026-11-23 10:00" 2>"$work/log" || code=$?
[ $code -eq 2 ] && grep -q -- '--check' "$work/log" || fail "--at without --check: $code"
GPU_PROFILING_ENABLED=1 start --config "$work/serve.yaml"
for _ in $(seq 100); do
  ! grep -Eq 'no GPU|GPU [0-9]+: ' "$work/log" || break
  sleep 0.05
done
grep -Eq 'no GPU|GPU [0-9]+: ' "$work/log" || fail "no GPU readings in the log: $(cat "$work/log")"
[ "$(curl "$url/info" | json 'a["max_concurrent_requests"], a["max_batch_tokens"]')" = "(48, 256)" ] || fail "limits of serve.yaml: $(curl "$url/info")"
post() { curl "$url/$1" -H 'Content-Type: application/json' -d "$2" "${@:3}"; }
post predict '{"inputs":"good"}' -D "$work/head" -o /dev/null
grep -q '^X-Brim-Model: mood@' "$work/head" || fail "the next rung is not used: $(cat "$work/head")"
post predict '{"inputs":"good","source":"wire"}' -D "$work/head" -o /dev/null
grep -q '^X-Brim-Model: vader@' "$work/head" && grep -q '^X-Brim-Reason: source' "$work/head" || fail "rung by source: $(cat "$work/head")"
[ "$(curl "$url/health" | json 'a["status"] + " " + str("missing" in str(a["warnings"]))')" = "degraded True" ] || fail "health does not list the missing rung"
[ "$(post queues/news/score_or_queue '{"text":"I love it","item":{"id":7}}' -o /dev/null -w '%{http_code}')" = 202 ] || fail "item not queued"
kill -KILL "$server"
wait "$server" 2>/dev/null || true
start --config "$work/serve.yaml"
[ "$(post queues/news/flush_and_apply '{}' | json 'a["items"][0]["id"], a["items"][0]["sentiment_label"]')" = "(7, 'positive')" ] || fail "an acknowledged item is lost"
finish
echo "serve: passed"
