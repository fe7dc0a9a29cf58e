#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# serve_clients.sh BRIM PYTHON [--all]: tests the server with unmodified third-party clients (huggingface_hub, openai, Prometheus'
# parser), and with schemathesis over the OpenAPI description. Skipped if PYTHON lacks them. --all also tests the clients of
# LangChain, LlamaIndex and infinity, which require an older huggingface_hub, in a new environment; exits with 77 if that cannot
# be installed.
set -euo pipefail
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/serve_wait.sh"
brim=$(readlink -f "$1") python=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
export BRIM_HOME=$here/..
work=$(mktemp -d) server= skipped=
export BRIM_CACHE=$work/cache
cleanup() { [ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"; }
trap cleanup EXIT
fail() { echo "serve_clients.sh: $*" >&2; cat "$work/log" >&2; exit 1; }
"$python" -c 'import huggingface_hub, openai, prometheus_client' 2>/dev/null || { echo "serve_clients.sh: Skipped: no huggingface_hub, openai, prometheus_client"; exit 77; }

printf 'client:score,queue,jobs,metrics,admin:%s\n' "$(printf secret | sha256sum | cut -d' ' -f1)" >"$work/keys"
cat >"$work/serve.yaml" <<END
listen: 127.0.0.1:0
lame_duck_seconds: 0
state_dir: $work/state
models: {mood: {path: default}, tags: {path: $here/data/models/bert_token}, vader: {builtin: vader}}
queues: {news: {model: vader, flush_size: 3}}
END
# The tiny tagger needs a tokenizer with its vocabulary.
mkdir "$work/tags"
cp "$here"/data/models/bert_token/{config.json,model.safetensors} "$work/tags"
"$python" - "$work/tags" <<'PYTHON'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{i}" for i in range(5, vocab)]
(folder / "vocab.txt").write_text("".join(w + "\n" for w in words))
PYTHON
sed -i "s|$here/data/models/bert_token|$work/tags|" "$work/serve.yaml"
"$brim" serve --config "$work/serve.yaml" --api-key-file "$work/keys" --embedding-model vectors=default --connections-per-address 1024 >"$work/out" 2>"$work/log" &
server=$!
wait_for_url
"$python" "$here/serve_clients.py" "$url" secret || fail "a client failed"
if [ "${3:-}" = --all ]; then
  if "$python" -m venv "$work/more" && "$work/more/bin/pip" install -q langchain-huggingface llama-index-embeddings-text-embeddings-inference infinity_client; then
    "$work/more/bin/python" "$here/serve_clients_more.py" "$url" secret || fail "a client of --all failed"
  else
    skipped="langchain-huggingface, llama-index, infinity_client"
  fi
fi
if "$python" -c 'import schemathesis' 2>/dev/null; then
  cd "$work" # schemathesis writes files to the current directory
  # Without routes that stream without end, take long, stop the server or unload models.
  "$python" -m schemathesis.cli --config-file "$here/schemathesis.toml" run "$url/openapi.json" --header 'Authorization: Bearer secret' --max-examples "${EXAMPLES:-40}" --seed 15 \
    --exclude-path-regex '^/(events|trace|admin/.*)$' --suppress-health-check all --no-color >"$work/schemathesis" 2>&1 || { tail -1200 "$work/schemathesis" >&2; fail "schemathesis"; }
  grep -E 'generated|passed|tested' "$work/schemathesis" | tail -3
else
  echo "serve_clients.sh: Skipped: schemathesis"
fi
kill -0 "$server" 2>/dev/null || fail "the server exited"
kill -TERM "$server"
wait "$server" || fail "exit code $?"
server=
echo "serve_clients: huggingface_hub, openai and Prometheus' parser passed"
[ -z "$skipped" ] || { echo "serve_clients.sh: Skipped: $skipped cannot be installed"; exit 77; }
