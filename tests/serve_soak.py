#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""serve_soak.py BRIM [SECONDS=3600] [FLAG…]: a server under everything at once: requests that are good, too many, cut off,
written byte by byte, no HTTP at all; streams that are left; queues; models that are parked, switched and reloaded every 20 s.
At the end: no error that is not the client's, memory and descriptors as they were, SIGTERM ends it with 0."""
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
said = open(work.name + "/said", "w+")
server = subprocess.Popen([brim, "serve", "--config", str(config), *flags], stderr=said)
atexit.register(server.kill)  # where this ends early


def wait_for_address():
    for _ in range(600):
        for line in open(work.name + "/said"):
            if line.startswith("listening on http://"):
                host, port = line.split("//")[1].strip().rsplit(":", 1)
                return host, int(port)
        assert server.poll() is None, open(work.name + "/said").read()
        time.sleep(0.1)
    raise SystemExit("it does not listen")


address = wait_for_address()
ending, running, counts, problems = threading.Event(), threading.Event(), collections.Counter(), []
running.set()
WORDS = "the market love hate great terrible profit loss up down today 😂 naïve quite not".split()


def text(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.choice((1, 5, 12, 12, 40, 300))))


def ask(connection, method, path, body=None, fields=None, good=(200, 202, 429)):
    headers = {"Content-Type": "application/json", **(fields or {})}
    try:
        connection.request(method, path, body if body is None or isinstance(body, (str, bytes)) else json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read()
    except OSError as e:
        connection.close()
        raise OSError(f"{method} {path}: {e}") from e
    counts[f"{re.sub('[0-9]+$', 'ID', path.split('?')[0])} {answer.status}"] += 1
    if answer.status not in good:
        problems.append(f"{method} {path}: {answer.status} {data[:300]!r}")
    return answer.status, data


def requests(seed):
    rng = random.Random(seed)
    connection = http.client.HTTPConnection(*address, timeout=300)
    while not ending.is_set():
        running.wait()
        kind = rng.randrange(8)
        if kind < 3:
            ask(connection, "POST", "/predict", {"inputs": text(rng)})
        elif kind == 3:
            ask(connection, "POST", "/classify", {"input": [text(rng) for _ in range(rng.randrange(1, 64))], "model": rng.choice(("mood", "other", "vader"))})
        elif kind == 4:
            ask(connection, "POST", "/queues/news/score_or_queue", {"text": text(rng), "item": {"id": rng.random()}})
        elif kind == 5:
            ask(connection, "POST", "/predict", {"inputs": ""}, good=(400, 429))
            ask(connection, "POST", "/decode", {"ids": [rng.randrange(30000) for _ in range(20)]})
        elif kind == 6:
            for path in ("/health", "/metrics", "/v1/models", "/snapshot", "/openapi.json"):
                ask(connection, "GET", path)
        else:
            rows = "".join(text(rng) + "\n" for _ in range(200))
            ask(connection, "POST", "/score?format=txt&model=" + rng.choice(("mood", "vader")), rows.encode(), {"Content-Type": "text/plain"})
        time.sleep(rng.random() * 0.05)


def rude(seed):
    """Clients that leave, crawl or speak something else. What they get is their own affair."""
    rng = random.Random(seed)
    while not ending.is_set():
        running.wait()
        try:
            with socket.create_connection(address, timeout=30) as s:
                body = json.dumps({"inputs": [[text(rng)] for _ in range(200)]}).encode()
                head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                kind = rng.randrange(5)
                if kind == 0:  # gone while it is worked on
                    s.sendall(head + body)
                elif kind == 1:  # gone in its middle
                    s.sendall((head + body)[: rng.randrange(1, len(head) + len(body))])
                elif kind == 2:  # byte by byte, for a while
                    for byte in (head + body)[: rng.randrange(20, 120)]:
                        s.sendall(bytes([byte]))
                        time.sleep(0.01)
                elif kind == 3:
                    s.sendall(rng.randbytes(rng.randrange(1, 400)))
                    s.recv(1000)
                else:  # a stream nobody reads
                    s.sendall(b"POST /score?format=txt&model=vader HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n" + b"good day\n" * 5000)
                    time.sleep(rng.random())
                counts["rude"] += 1
        except OSError:
            pass
        time.sleep(rng.random() * 0.1)


def switches():
    connection = http.client.HTTPConnection(*address, timeout=120)
    step = 0
    while not ending.wait(20 if seconds >= 120 else 2):
        running.wait()
        verb = ("park", "load", "reload", "park")[step % 4]
        ask(connection, "POST", f"/admin/models/{('other', 'mood')[step // 4 % 2]}/{verb}")
        step += 1


def collector():
    """Fetches what was flushed and acknowledges it: results that nobody acknowledges are kept."""
    connection = http.client.HTTPConnection(*address, timeout=120)
    while not ending.wait(1):
        running.wait()
        for flush in json.loads(ask(connection, "GET", "/queues/news/flushes")[1])["flushes"]:
            ask(connection, "GET", f"/queues/news/flushes/{flush['flush_id']}")
            ask(connection, "DELETE", f"/queues/news/flushes/{flush['flush_id']}", good=(200, 204))


def resident():
    return int(pathlib.Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def parts():
    """Of what it holds: own memory, threads. Which of them grows says where to look."""
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{server.pid}/status").read_text().splitlines())
    return f"anonymous {int(status['RssAnon'].split()[0]) / 1024:.1f} MiB, {status['Threads'].strip()} threads"


def at_rest():
    """What it holds with both models there and nobody asking, so that the same state is compared."""
    running.clear()
    time.sleep(5 if seconds >= 120 else 1)
    connection = http.client.HTTPConnection(*address, timeout=300)
    try:
        for model in ("mood", "other"):
            ask(connection, "POST", f"/admin/models/{model}/load")
    except OSError:
        time.sleep(1)
        require_alive()  # why it died says more than that nobody listens
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
            except Exception as e:  # noqa: BLE001: whatever a client meets is a finding
                problems.append(f"{work.__name__}: {type(e).__name__}: {e}")
                time.sleep(1)

    thread = threading.Thread(target=run, daemon=True)  # clients of a dead server keep nobody here
    thread.start()
    return thread


def require_alive():
    if server.poll() is not None:
        raise SystemExit(f"it ended with {server.returncode}: {open(work.name + '/said').read()[-2000:]}")


files_before = open_files()
threads = [guarded(requests, i) for i in range(6)] + [guarded(rude, 100 + i) for i in range(4)] + [guarded(switches), guarded(collector)]
began, looks = time.time(), []
while time.time() - began < seconds and server.poll() is None:
    time.sleep(min(2, seconds / 50))
    if time.time() - began > (len(looks) + 1) * seconds / 12:
        looks.append(at_rest())
        print(f"{looks[-1] / 2**20:.1f} MiB at rest after {time.time() - began:.0f} s, {parts()}", flush=True)
require_alive()
last = at_rest()
# One look may meet a heap that was not given back yet: medians of three after warming up and at the end.
first, held = statistics.median(looks[2:5] or [last]), statistics.median([*looks[-2:], last])
if len(looks) < 7:
    problems.append(f"memory was looked at {len(looks)} times, too few to compare: give it more than {seconds:.0f} seconds")
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
print(f"{time.time() - began:.0f} s, processor {cpu:.0f} s, requests {sum(counts.values())}, resident at rest {first / 2**20:.1f} MiB after a third, {held / 2**20:.1f} at the end")
for name, n in sorted(counts.items()):
    print(f"  {name}: {n}")
if files_after > files_before + 4:  # queues and jobs keep a file each
    problems.append(f"{files_before} open files before, {files_after} after")
if held > first * 1.05 + (4 << 20):
    problems.append(f"memory grew from {first} to {held} bytes")
if code != 0:
    problems.append(f"exit code {code} after SIGTERM: {open(work.name + '/said').read()[-2000:]}")
for problem in problems[:20]:
    print("PROBLEM:", problem)
sys.exit(1 if problems else 0)
