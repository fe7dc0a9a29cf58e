#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the server on a GPU under load and checks each figure against a target; prints one table:

  serve_check.py --brim PROGRAM --model DIR [--other DIR]… --texts FILE [--device cuda] [--parts g5,g4,m1,q1,soak]
                 [--steps 500] [--soak-seconds 480] [--logs DIR] [--trace] [--tiny]

g5    loading a parked model, loading from the page cache, reloading a model under load
g4    2,000 interactive requests per second during a bulk /score request
m1    random loads, parks, reloads and texts under limits of 2 to 24 GiB; process memory polled every 10 ms (NVML; on a CPU the
      resident set, compared with the limit only)
q1    scores over HTTP against `brim score`: single texts, full requests, with long texts; in bf16 and fp32
soak  tests/serve_soak.py; not run by default

DIR: models written by make_model.py; --model is RoBERTa-base, --other models are used in m1. Exits 0 if all targets are met.
Takes about 4 minutes without --tiny and without soak."""
import argparse
import atexit
import collections
import http.client
import json
import os
import pathlib
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

root = pathlib.Path(__file__).resolve().parent.parent.parent
GIB, MIB = 1 << 30, 1 << 20
SHARED = {"forward pass", "batches in flight", "loading"}  # ledger owners that are shared by models


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


# --- load generator: open loop in a separate process; latency counts from the scheduled send time ---


def run_load(port, rate, seconds, connections, texts):
    """Returns [scheduled send time, seconds until the response, status] per request; status 0: no response."""
    rng = random.Random(1)
    bodies = [json.dumps({"inputs": text}).encode() for text in texts]
    requests = [b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(b), b) for b in bodies]
    poll, idle, busy, due, results = select.epoll(), [], {}, collections.deque(), []

    def connect():
        s = socket.create_connection(("127.0.0.1", port))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.setblocking(False)
        poll.register(s.fileno(), select.EPOLLIN)
        idle.append(s)

    for _ in range(connections):
        connect()
    begun = time.time()
    end, following, sent = begun + seconds, begun + rng.expovariate(rate), 0
    while True:
        now = time.time()
        while following <= now and following < end:
            due.append(following)
            following += rng.expovariate(rate)
        while due and idle:
            s = idle.pop()
            s.send(requests[sent % len(requests)])
            sent += 1
            busy[s.fileno()] = [s, due.popleft(), b""]
        if now >= end and not due and not busy or now > end + 30:
            break
        for fd, _ in poll.poll(max(0, min(0.01, (following if following < end else now + 0.01) - now))):
            if fd not in busy:
                continue
            call = busy[fd]
            try:
                data = call[0].recv(1 << 16)
            except OSError:
                data = b""
            call[2] += data
            head, mark, body = call[2].partition(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            if data and not (mark and length and len(body) >= int(length[1])):
                continue
            results.append((call[1], time.time() - call[1], int(head[9:12]) if data else 0))
            del busy[fd]
            if data:
                idle.append(call[0])
            else:
                poll.unregister(fd)
                call[0].close()
                connect()
    now = time.time()
    return results + [(c[1], now - c[1], 0) for c in busy.values()] + [(d, now - d, 0) for d in due]


if sys.argv[1:2] == ["load"]:  # started by this script in a separate interpreter
    port, rate, seconds, connections, texts_file, out = sys.argv[2:]
    lines = pathlib.Path(texts_file).read_text().splitlines()
    pathlib.Path(out).write_text(json.dumps(run_load(int(port), float(rate), float(seconds), int(connections), lines)))
    sys.exit(0)

parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("--brim", required=True)
parser.add_argument("--model", required=True)
parser.add_argument("--other", action="append", default=[])
parser.add_argument("--texts", required=True)
parser.add_argument("--device", default="cuda")
parser.add_argument("--parts", default="g5,g4,m1,q1")
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--soak-seconds", type=int, default=480)
parser.add_argument("--logs", default=os.environ.get("OUT", "/tmp/brim-serve-check"))
parser.add_argument("--trace", action="store_true", help="g5: what the server's threads did around the reload, as LOGS/reload_trace.json")
parser.add_argument("--tiny", action="store_true")
flags = parser.parse_args()
brim, on_card, tiny = os.path.realpath(flags.brim), flags.device.startswith("cuda"), flags.tiny
logs = pathlib.Path(flags.logs)
logs.mkdir(parents=True, exist_ok=True)
work_folder = tempfile.TemporaryDirectory(prefix="brim_serve_check_")
work = pathlib.Path(work_folder.name)
os.environ["BRIM_HOME"] = str(root)
os.environ.setdefault("BRIM_CACHE", str(work / "cache"))
texts = [line for line in pathlib.Path(flags.texts).read_text().splitlines() if line.strip()][: 400 if tiny else 60000]
few = work / "few.txt"
few.write_text("\n".join(texts[:2000]) + "\n")
failed = 0
table = open(logs / "serve_table.txt", "w")


def row(what, figure, bar="", good=None):
    global failed
    failed += good is False
    line = f"{what:<58} {figure:<74} {bar}{'' if good is None else '  ok' if good else '  MISSED'}"
    print(line, flush=True)
    print(line, file=table, flush=True)


class Server:
    def __init__(self, models, *more, name="server"):
        self.config = work / f"{name}.yaml"
        lines = [f"  {key}: {{path: {path}}}" for key, path in models.items()]
        self.config.write_text("listen: 127.0.0.1:0\nlame_duck_seconds: 0\nmodels:\n" + "\n".join(lines) + "\n")
        self.log = logs / f"serve_{name}.log"
        self.began = time.time()
        self.process = subprocess.Popen([brim, "serve", "--config", str(self.config), "--device", flags.device, "--state-dir", str(work / f"state_{name}"), "--connections-per-address", "1024", *more],
                                        stderr=open(self.log, "w"))
        atexit.register(self.process.kill)  # if a part fails
        while True:
            listening = re.search(r"listening on http://127.0.0.1:(\d+)", self.log.read_text())
            if listening:
                break
            if self.process.poll() is not None:
                raise RuntimeError(f"{name}: {self.log.read_text()[-800:]}")
            time.sleep(0.02)
        self.port = int(listening[1])
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)

    def request(self, method, path, body=None, kind="application/json", good=(200,)):
        data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        self.connection.request(method, path, data, {"Content-Type": kind})
        response = self.connection.getresponse()
        content = response.read()
        if response.status not in good:
            raise RuntimeError(f"{method} {path}: {response.status} {content[:300]!r}")
        return response.status, content

    def admin(self, model, verb, good=(200,)):
        began = time.perf_counter()
        status, _ = self.request("POST", f"/admin/models/{model}/{verb}", b"", good=good)
        return time.perf_counter() - began, status

    def states(self):
        return {m["id"]: m["state"] for m in json.loads(self.request("GET", "/v1/models")[1])["data"]}

    def load(self, rate, seconds, connections=128):
        self.out = work / "load.json"
        return subprocess.Popen([sys.executable, __file__, "load", str(self.port), str(rate), str(seconds), str(connections), str(few), str(self.out)])

    def trace(self, seconds, file):
        """Records a trace of all threads in the background."""

        def take():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
            connection.request("GET", f"/trace?seconds={seconds}")
            file.write_bytes(connection.getresponse().read())

        threading.Thread(target=take).start()
        time.sleep(0.5)

    def loaded(self, process):
        if process.wait() != 0:
            raise RuntimeError("the load generator failed")
        return json.loads(self.out.read_text())

    def stop(self):
        self.connection.close()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


def held_reader(pid):
    """Returns a function that reads the GPU memory of a process (NVML), on a CPU its resident set."""
    if not on_card:
        pages = f"/proc/{pid}/statm"
        return lambda: int(pathlib.Path(pages).read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    sys.path.insert(0, str(root / "bench/gpu"))
    from plan_check import Gpu

    gpu = Gpu()
    return lambda: gpu.by_process().get(pid, 0)


def g5():
    server = Server({"a": flags.model}, "--precision", "bf16" if on_card else "auto", name="g5")
    times = []
    for _ in range(3 if tiny else 12):
        server.admin("a", "park")
        state = server.states()["a"]
        times.append(server.admin("a", "load")[0])
    row("G5 load of a parked model, median and maximum", f"{percentile(times, 0.5) * 1e3:.1f} ms, {max(times) * 1e3:.1f} ms; state {state}", "<= 40 ms", None if not on_card else percentile(times, 0.5) <= 0.040 and state == "parked")
    times = []
    for _ in range(2 if tiny else 5):
        server.admin("a", "unload")
        times.append(server.admin("a", "load")[0])
    row("G5 load from the page cache, median and maximum", f"{percentile(times, 0.5):.3f} s, {max(times):.3f} s", "<= 1.2 s", percentile(times, 0.5) <= 1.2)
    rate, seconds = (20, 6) if tiny else (1000, 12)
    load = server.load(rate, seconds)
    time.sleep(seconds / 2)
    if flags.trace:
        server.trace(3, logs / "reload_trace.json")
    since = time.time()
    server.admin("a", "reload")
    until = max(time.time(), since + 1)
    results = server.loaded(load)
    during = [ms for at, ms, _ in results if since <= at < until]
    others = [ms for at, ms, _ in results if at < since - 0.1 and at > results[0][0] + 1]
    bad = sum(status != 200 for _, _, status in results)
    ratio = percentile(during, 0.99) / percentile(others, 0.99)
    row(f"G5 reload under {rate} requests/s, p99 during and before",
        f"{len(results)} requests, {bad} failed; {percentile(during, 0.99) * 1e3:.2f} ms ({until - since:.2f} s, {len(during)} requests) and {percentile(others, 0.99) * 1e3:.2f} ms: {ratio:.2f}x", "0, <= 3x",
        bad == 0 and (tiny or ratio <= 3))
    row("   server shutdown", f"exit code {server.stop()}", "0", server.process.returncode == 0)


def g4():
    rows = texts * (1 if tiny else max(1, 500_000 // len(texts)))
    body = ("\n".join(rows) + "\n").encode()
    sent = work / "rows.txt"
    sent.write_bytes(body)
    server = Server({"a": flags.model}, "--precision", "bf16" if on_card else "auto", name="g4")
    url = f"http://127.0.0.1:{server.port}/score?format=txt"
    out = work / "scored"

    def bulk():
        began = time.time()
        subprocess.run(["curl", "-sS", "-f", "-T", str(sent), "-X", "POST", "-H", "Content-Type: text/plain", "-H", "Expect:", url, "-o", str(out)], check=True)
        if len(out.read_bytes().splitlines()) < len(rows):
            raise RuntimeError("rows are missing in the response of /score")
        return time.time() - began

    bulk()  # warm-up
    alone = [bulk()]
    rate = 20 if tiny else 2000
    quiet = server.loaded(server.load(rate, 2 if tiny else 4))
    load = server.load(rate, alone[0] * 1.4 + 1)
    time.sleep(0.7)
    since = time.time()
    beside = bulk()
    until = time.time()
    during = [(ms, status) for at, ms, status in server.loaded(load) if since + 0.1 <= at < until]
    alone.append(bulk())
    share = sum(alone) / 2 / beside
    p99 = percentile([ms for ms, _ in during], 0.99) * 1e3
    bad = sum(status != 200 for _, status in during)
    row(f"G4 {rate} requests/s alone", f"p50 {percentile([ms for _, ms, _ in quiet], 0.5) * 1e3:.2f} ms, p99 {percentile([ms for _, ms, _ in quiet], 0.99) * 1e3:.2f} ms")
    row(f"G4 during a /score request of {len(rows):,} rows", f"{len(during)} requests, {bad} failed; p50 {percentile([ms for ms, _ in during], 0.5) * 1e3:.2f} ms, p99 {p99:.2f} ms", "p99 <= 6 ms", None if not on_card else bad == 0 and p99 <= 6)
    row("G4 /score with and without interactive load", f"{beside:.2f} s; {alone[0]:.2f} and {alone[1]:.2f} s: {share:.2f} of alone", ">= 0.85", None if not on_card else share >= 0.85)
    server.stop()


def m1():
    models = {f"m{i}": path for i, path in enumerate([flags.model, *flags.other])}
    limits = [1, 8] if tiny else [2, 4, 8, 16, 24]
    rng = random.Random(7)
    steps = over = far = at_end = 0
    worst, largest, answered, unserved = 0.0, [], [], 0
    for limit in limits:
        served = refused = loaded = unloaded = 0
        more = ["--memory-limit", f"{limit}GiB", *(["--precision", "bf16"] if on_card else [])]
        server = Server(models, *more, name=f"m1_{limit}")
        read = held_reader(server.process.pid)
        planned = json.loads(subprocess.run([brim, "plan", "--serve", str(server.config), "--json", "--device", flags.device, *more], check=True, capture_output=True, text=True).stdout)
        own = {key: sum(e["bytes"] for e in part["ledger"] if e["owner"] not in SHARED and e["tag"] != "context") for key, part in zip(models, planned["models"])}
        shared = planned["peak_bytes"] - sum(own.values())
        samples, ending = [], threading.Event()

        def watch():
            while not ending.wait(0.01):
                samples.append(read())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for _ in range(flags.steps // len(limits)):
                steps += 1
                name, kind = rng.choice(list(models)), rng.randrange(20)
                if kind < 9:
                    status, _ = server.request("POST", "/predict", {"inputs": [[t] for t in rng.sample(texts, min(32, len(texts)))], "model": name}, good=(200, 429))
                    served += status == 200
                    refused += status == 429
                elif kind < 14:
                    server.admin(name, "park")
                else:
                    if kind == 18:
                        server.admin(name, "unload")
                    _, status = server.admin(name, "load" if kind < 19 else "reload", good=(200, 409))
                    loaded += status == 200
                    unloaded += status == 409
                if on_card:
                    there = [key for key, state in server.states().items() if state == "resident"]
                    expected, held = shared + sum(own[key] for key in there), read()
                    worst = max(worst, abs(held - expected) / expected)
                    far += abs(held - expected) > 0.01 * expected
        finally:
            ending.set()
            watcher.join()
        over += sum(held > limit * GIB for held in samples)
        largest.append(f"{max(samples) / MIB:.0f} of {limit * 1024}")
        answered.append(f"{limit} GiB {served} and {refused}, {loaded} and {unloaded}")
        unserved += served == 0
        server.stop()
        at_end = max(at_end, read() if on_card else 0)
    row(f"M1 {steps} random steps of {len(models)} models, peak memory and limit, MiB", ", ".join(largest), "never over", over == 0)
    # The memory check would be vacuous if every request were rejected.
    row("M1 requests served and rejected, loads completed and rejected", "; ".join(answered), "some served at each", unserved == 0)
    if on_card:
        row("M1 memory against plan after each step, largest deviation", f"{100 * worst:.2f} %; {far} steps over 1 %", "within 1 %", far == 0)
        row("M1 memory after shutdown", f"{at_end} bytes", "0", at_end == 0)


def q1():
    count = 40 if tiny else 1000
    chosen = texts[:count]
    source = work / "q1.txt"
    source.write_text("\n".join(chosen) + "\n")
    long_text = " ".join(texts[:60])
    for precision, bound in (("bf16", 2e-3), ("fp32", 1e-5)) if on_card else (("fp32", 1e-5),):
        out = work / f"q1_{precision}.jsonl"
        subprocess.run([brim, "score", str(source), "--model", flags.model, "--device", flags.device, "--precision", precision, "--all-scores", "-o", str(out), "-q"], check=True)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        server = Server({"a": flags.model}, "--precision", precision, name=f"q1_{precision}")

        def request(group):
            response = json.loads(server.request("POST", "/predict", {"inputs": [[t] for t in group]})[1])
            return [{e["label"]: e["score"] for e in entry} for entry in response]

        variants = {
            "alone": [json.loads(server.request("POST", "/predict", {"inputs": t})[1]) for t in chosen],
            "in requests of 500": [e for i in range(0, count, 500) for e in request(chosen[i : i + 500])],
            "with long texts": [request([long_text, t, long_text])[1] for t in chosen[: count // 4]],
        }
        variants["alone"] = [{e["label"]: e["score"] for e in entry} for entry in variants["alone"]]
        for variant, scores in variants.items():
            worst, others = 0.0, 0
            for given, line in zip(scores, rows):
                expected = line["scores"]
                worst = max(worst, max(abs(given[label] - expected[label]) for label in given))
                best = sorted(expected.values())[-2:]
                others += max(given, key=given.get) != max(expected, key=expected.get) and best[1] - best[0] > 2 * bound
            row(f"Q1 {precision}, {variant}: {len(scores)} texts against `brim score`", f"{others} different labels, |dp| at most {worst:.1e}", f"0, <= {bound:g}", others == 0 and worst <= bound)
        server.stop()


def soak():
    log, late = logs / "serve_soak.log", ""
    with open(log, "w") as file:
        # In its own process group, so that its server can be killed with it. Its clients wait up to 300 s each at the end.
        ran = subprocess.Popen([sys.executable, str(root / "tests/serve_soak.py"), brim, str(flags.soak_seconds), "--device", flags.device], stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            ran.wait(timeout=flags.soak_seconds + 1200)
        except subprocess.TimeoutExpired:
            late = f"timeout after {flags.soak_seconds + 1200} s; "
        finally:
            if ran.poll() is None:
                os.killpg(ran.pid, signal.SIGKILL)
                ran.wait()
    output = log.read_text()
    row("soak", late + next((line for line in output.splitlines() if "resident" in line), output[-300:]), "no growth, no error", ran.returncode == 0)
    for line in [x for x in output.splitlines() if "PROBLEM" in x or "MiB at" in x][:40]:
        row("", line)


if on_card:
    row("GPU", subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip())
for part in flags.parts.split(","):
    began = time.time()
    try:
        {"g5": g5, "g4": g4, "m1": m1, "q1": q1, "soak": soak}[part]()
    except Exception as error:  # noqa: BLE001: continue with the other parts
        row(f"{part}", f"{type(error).__name__}: {error}"[:400], "", False)
    row(f"   {part}", f"{time.time() - began:.0f} s")
sys.exit(1 if failed else 0)
