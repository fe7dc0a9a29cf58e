#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""serve_soak.py BRIM [SECONDS=3600] [FLAG…]: soak test with valid, excess, truncated and slow requests, garbage, abandoned
streams, queues, and models that are parked, loaded and reloaded every 20 s. Fails on server errors, growth of memory or open
files, or if SIGTERM does not end the server with exit code 0."""
import atexit
import collections
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

brim, seconds, flags = os.path.realpath(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 3600, sys.argv[3:]
os.environ["BRIM_HOME"] = str(pathlib.Path(__file__).resolve().parent.parent)
work = tempfile.TemporaryDirectory()
os.environ["BRIM_CACHE"] = work.name + "/cache"
config = pathlib.Path(work.name) / "serve.yaml"
config.write_text(
    """listen: 127.0.0.1:0
state_dir: %s/state
lame_duck_seconds: 0
models: {mood: {path: default}, other: {path: default, keep_alive: 5s}, vader: {builtin: vader}}
ladders: {sentiment: {rungs: [mood, vader], default: mood}}
queues: {news: {ladder: sentiment, flush_size: 10, flush_age_ms: 500}}
"""
    % work.name
)
log = open(work.name + "/log", "w+")
server = subprocess.Popen([brim, "serve", "--config", str(config), *flags], stderr=log)
atexit.register(server.kill)  # if this script fails


def wait_for_address():
    for _ in range(600):
        for line in open(work.name + "/log"):
            if line.startswith("listening on http://"):
                host, port = line.split("//")[1].strip().rsplit(":", 1)
                return host, int(port)
        assert server.poll() is None, open(work.name + "/log").read()
        time.sleep(0.1)
    raise SystemExit("the server does not listen")


address = wait_for_address()
ending, running, counts, problems = threading.Event(), threading.Event(), collections.Counter(), []
running.set()
WORDS = "the market love hate great terrible profit loss up down today 😂 naïve quite not".split()


def text(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.choice((1, 5, 12, 12, 40, 300))))


def request(connection, method, path, body=None, fields=None, good=(200, 202, 429)):
    headers = {"Content-Type": "application/json", **(fields or {})}
    try:
        connection.request(method, path, body if body is None or isinstance(body, (str, bytes)) else json.dumps(body), headers)
        response = connection.getresponse()
        data = response.read()
    except OSError as e:
        connection.close()
        raise OSError(f"{method} {path}: {e}") from e
    counts[f"{re.sub('[0-9]+$', 'ID', path.split('?')[0])} {response.status}"] += 1
    if response.status not in good:
        problems.append(f"{method} {path}: {response.status} {data[:300]!r}")
    return response.status, data


def good_client(seed):
    rng = random.Random(seed)
    connection = http.client.HTTPConnection(*address, timeout=300)
    while not ending.is_set():
        running.wait()
        kind = rng.randrange(8)
        if kind < 3:
            request(connection, "POST", "/predict", {"inputs": text(rng)})
        elif kind == 3:
            request(connection, "POST", "/classify", {"input": [text(rng) for _ in range(rng.randrange(1, 64))], "model": rng.choice(("mood", "other", "vader"))})
        elif kind == 4:
            request(connection, "POST", "/queues/news/score_or_queue", {"text": text(rng), "item": {"id": rng.random()}})
        elif kind == 5:
            request(connection, "POST", "/predict", {"inputs": ""}, good=(400, 429))
            request(connection, "POST", "/decode", {"ids": [rng.randrange(30000) for _ in range(20)]})
        elif kind == 6:
            for path in ("/health", "/metrics", "/v1/models", "/snapshot", "/openapi.json"):
                request(connection, "GET", path)
        else:
            rows = "".join(text(rng) + "\n" for _ in range(200))
            request(connection, "POST", "/score?format=txt&model=" + rng.choice(("mood", "vader")), rows.encode(), {"Content-Type": "text/plain"})
        time.sleep(rng.random() * 0.05)


def bad_client(seed):
    """Clients that disconnect, are slow or do not send HTTP. Their responses are not checked."""
    rng = random.Random(seed)
    while not ending.is_set():
        running.wait()
        try:
            with socket.create_connection(address, timeout=30) as s:
                body = json.dumps({"inputs": [[text(rng)] for _ in range(200)]}).encode()
                head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                kind = rng.randrange(5)
                if kind == 0:  # disconnect during processing
                    s.sendall(head + body)
                elif kind == 1:  # disconnect within the request
                    s.sendall((head + body)[: rng.randrange(1, len(head) + len(body))])
                elif kind == 2:  # byte by byte
                    for byte in (head + body)[: rng.randrange(20, 120)]:
                        s.sendall(bytes([byte]))
                        time.sleep(0.01)
                elif kind == 3:
                    s.sendall(rng.randbytes(rng.randrange(1, 400)))
                    s.recv(1000)
                else:  # a stream without a reader
                    s.sendall(b"POST /score?format=txt&model=vader HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n" + b"good day\n" * 5000)
                    time.sleep(rng.random())
                counts["bad_client"] += 1
        except OSError:
            pass
        time.sleep(rng.random() * 0.1)


def switches():
    connection = http.client.HTTPConnection(*address, timeout=120)
    step = 0
    while not ending.wait(20 if seconds >= 120 else 2):
        running.wait()
        verb = ("park", "load", "reload", "park")[step % 4]
        request(connection, "POST", f"/admin/models/{('other', 'mood')[step // 4 % 2]}/{verb}")
        step += 1


def collector():
    """Fetches and acknowledges flushes, because unacknowledged results are kept."""
    connection = http.client.HTTPConnection(*address, timeout=120)
    while not ending.wait(1):
        running.wait()
        for flush in json.loads(request(connection, "GET", "/queues/news/flushes")[1])["flushes"]:
            request(connection, "GET", f"/queues/news/flushes/{flush['flush_id']}")
            request(connection, "DELETE", f"/queues/news/flushes/{flush['flush_id']}", good=(200, 204))


def resident():
    return int(pathlib.Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_parts():
    """Describes anonymous memory and threads, to locate growth."""
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{server.pid}/status").read_text().splitlines())
    return f"anonymous {int(status['RssAnon'].split()[0]) / 1024:.1f} MiB, {status['Threads'].strip()} threads"


def idle_memory():
    """Resident memory with both models loaded and no requests, so that equal states are compared."""
    running.clear()
    time.sleep(5 if seconds >= 120 else 1)
    connection = http.client.HTTPConnection(*address, timeout=300)
    try:
        for model in ("mood", "other"):
            request(connection, "POST", f"/admin/models/{model}/load")
    except OSError:
        time.sleep(1)
        require_alive()  # reports the exit code and log if the server died
        raise
    held = resident()
    running.set()
    return held


def open_files():
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def guarded(work, *args):
    def run():
        while not ending.is_set():
            try:
                work(*args)
            except Exception as e:  # noqa: BLE001: every client error is a problem
                problems.append(f"{work.__name__}: {type(e).__name__}: {e}")
                time.sleep(1)

    thread = threading.Thread(target=run, daemon=True)  # do not wait for clients of a dead server
    thread.start()
    return thread


def require_alive():
    if server.poll() is not None:
        raise SystemExit(f"the server exited with {server.returncode}: {open(work.name + '/log').read()[-2000:]}")


files_before = open_files()
threads = [guarded(good_client, i) for i in range(6)] + [guarded(bad_client, 100 + i) for i in range(4)] + [guarded(switches), guarded(collector)]
began, samples = time.time(), []
while time.time() - began < seconds and server.poll() is None:
    time.sleep(min(2, seconds / 50))
    if time.time() - began > (len(samples) + 1) * seconds / 12:
        samples.append(idle_memory())
        print(f"{samples[-1] / 2**20:.1f} MiB at rest after {time.time() - began:.0f} s, {memory_parts()}", flush=True)
require_alive()
last = idle_memory()
# A single sample may include freed heap not yet returned: use medians of three, after warm-up and at the end.
first, held = statistics.median(samples[2:5] or [last]), statistics.median([*samples[-2:], last])
if len(samples) < 7:
    problems.append(f"only {len(samples)} memory samples; run for more than {seconds:.0f} seconds")
ending.set()
for thread in threads:
    thread.join()
time.sleep(3)
require_alive()
files_after = open_files()
busy = pathlib.Path(f"/proc/{server.pid}/stat").read_text().split()
cpu = (int(busy[13]) + int(busy[14])) / os.sysconf("SC_CLK_TCK")
server.send_signal(signal.SIGTERM)
code = server.wait(timeout=300)
print(f"{time.time() - began:.0f} s, CPU time {cpu:.0f} s, requests {sum(counts.values())}, resident at rest {first / 2**20:.1f} MiB after warm-up, {held / 2**20:.1f} at the end")
for name, n in sorted(counts.items()):
    print(f"  {name}: {n}")
if files_after > files_before + 4:  # queues and jobs keep one file open each
    problems.append(f"{files_before} open files before, {files_after} after")
if held > first * 1.05 + (4 << 20):
    problems.append(f"memory grew from {first} to {held} bytes")
if code != 0:
    problems.append(f"exit code {code} after SIGTERM: {open(work.name + '/log').read()[-2000:]}")
for problem in problems[:20]:
    print("PROBLEM:", problem)
sys.exit(1 if problems else 0)
