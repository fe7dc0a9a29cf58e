#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# serve_kills.sh BRIM [KILLS]: kills the server with SIGKILL at random moments while clients fill a queue and a job runs. No
# acknowledged item may be lost or scored twice, and the job must output every row once and in order.
set -euo pipefail
brim=$(readlink -f "$1") kills=${2:-20}
export BRIM_HOME=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exec python3 - "$brim" "$kills" "$work" <<'PYTHON'
import collections, http.client, json, pathlib, random, socket, subprocess, sys, threading, time

brim, kills, work = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
(work / "serve.yaml").write_text(f"""listen: 127.0.0.1:{port}
lame_duck_seconds: 0
state_dir: {work}/state
models: {{vader: {{builtin: vader}}}}
queues: {{news: {{model: vader, flush_size: 7}}}}
""")
ROWS = 300_000
(work / "rows.txt").write_text("".join(f"a good day {i}\n" for i in range(ROWS)))


def start():
    return subprocess.Popen([brim, "serve", "--config", work / "serve.yaml", "-q"])


def request(method, path, body=None, fields={}, patience=120):
    """Repeats the request until there is a response, as clients with an idempotency key may."""
    end = time.monotonic() + patience
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} | fields)
            response = connection.getresponse()
            text = response.read()
            if response.status < 500:
                return response.status, text
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        assert time.monotonic() < end, f"{path}: no response"
        time.sleep(0.01)


flushes, acknowledged, lock, ending = {}, [], threading.Lock(), threading.Event()


def record_flush(text):
    flush = json.loads(text)
    if flush.get("flush_id") is not None:
        with lock:
            before = flushes.setdefault(flush["flush_id"], flush["items"])
            assert before == flush["items"], "different results for one flush"


def client(number):
    for i in range(10**6):
        if ending.is_set():
            return
        item = f"{number}-{i}"
        body = json.dumps({"text": f"good news {item}", "item": {"id": item}})
        status, text = request("POST", "/queues/news/score_or_queue", body, {"Idempotency-Key": item})
        assert status in (200, 202), (status, text)
        with lock:
            acknowledged.append(item)
        record_flush(text)


server = start()
status, text = request("POST", "/jobs?format=txt&output_format=csv", (work / "rows.txt").read_bytes())
job = json.loads(text)["id"]
clients = [threading.Thread(target=client, args=(n,)) for n in range(3)]
for thread in clients:
    thread.start()
random.seed(7)
for _ in range(kills):
    time.sleep(random.uniform(0.05, 0.6))
    server.kill()
    server.wait()
    server = start()
time.sleep(0.3)
ending.set()
for thread in clients:
    thread.join()
record_flush(request("POST", "/queues/news/flush_and_apply", "{}", {"Idempotency-Key": "last"})[1])
for flush in json.loads(request("GET", "/queues/news/flushes")[1])["flushes"]:
    record_flush(request("GET", f"/queues/news/flushes/{flush['flush_id']}")[1])
seen = collections.Counter(item["id"] for items in flushes.values() for item in items)
lost = [item for item in acknowledged if seen[item] == 0]
twice = [item for item, n in seen.items() if n > 1]
assert not lost, f"acknowledged but lost: {lost[:5]}"
assert not twice, f"scored twice: {twice[:5]}"
assert all("sentiment_label" in item for items in flushes.values() for item in items)
while json.loads(request("GET", f"/jobs/{job}")[1])["status"] != "completed":
    time.sleep(0.05)
rows = request("GET", f"/jobs/{job}/output")[1].decode().splitlines()
assert len(rows) == ROWS + 1, f"{len(rows)} rows"
for i, row in enumerate(rows[1:]):
    assert row.startswith(f"a good day {i},"), f"row {i} is {row}"
server.terminate()
assert server.wait() == 0
print(f"serve_kills: {kills} kills, {len(acknowledged)} items in {len(flushes)} flushes scored once, {ROWS} rows of a job in order")
PYTHON
