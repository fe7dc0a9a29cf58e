#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Injects faults, runs `brim doctor`, removes the faults and compares the predicted with the measured gain.

    bench/doctor_faults.py BRIM TEXTS [--model default] [--device cpu] [--faults reader,writer] [--rows N] [--prefix "chrt -r 1"]

TEXTS is a file with one text per line. Each case runs once with the fault and once without (median of three if the run is
short); the doctor sees only the first. A row passes if the fault is the first finding and the predicted time is within 25 % of
the measured one. `copy` needs a GPU and a small model (--model default): with long batches its gaps are negligible, and
"no bottleneck found" may be correct. Use an idle machine, because other processes count as a fault.
"""
import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

THROTTLE = r"""
import sys, time
rate = float(sys.argv[1]); done = 0; start = time.time(); step = max(1, int(rate / 50))
lines = sys.stdin.buffer
while True:
    block = [line for _, line in zip(range(step), lines)]
    if not block: break
    sys.stdout.buffer.write(b''.join(block)); sys.stdout.buffer.flush(); done += len(block)
    ahead = done / rate - (time.time() - start)
    if ahead > 0: time.sleep(ahead)
    else: start -= ahead  # do not catch up after a stall
"""
BUSY = "while True: pass"


class Bench:
    def __init__(self, args):
        self.a = args
        self.tmp = tempfile.mkdtemp(prefix="brim_faults_")
        self.prefix = shlex.split(args.prefix)
        self.throttle = os.path.join(self.tmp, "throttle.py")
        with open(self.throttle, "w") as f:
            f.write(THROTTLE)

    def texts(self, rows, joined=1):
        """Writes a file of `rows` rows, each of `joined` concatenated texts."""
        path = os.path.join(self.tmp, f"texts_{rows}_{joined}.txt")
        with open(self.a.texts, encoding="utf-8", errors="replace") as f:
            source = [line.rstrip("\n") for line in f if line.strip()]
        with open(path, "w", encoding="utf-8") as f:
            for i in range(rows):
                f.write(" ".join(source[(i * joined + j) % len(source)] for j in range(joined)) + "\n")
        return path

    def score(self, flags, source, env=None, feed=None, drain=None):
        """Runs with tracing; returns (pipeline seconds, path of the trace). feed and drain are commands piped in and out."""
        trace = os.path.join(self.tmp, f"run_{time.monotonic_ns()}.json")
        command = self.prefix + [self.a.brim, "score", "-" if feed else source, "-q", "--format", "txt", "--output-format", "csv", "--trace", trace] + flags
        command += ["-o", "-" if drain else os.path.join(self.tmp, "out.csv")]
        stdin = None
        helpers = []
        if feed:
            helpers.append(subprocess.Popen(feed, stdin=open(source, "rb"), stdout=subprocess.PIPE))
            stdin = helpers[-1].stdout
        run = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE if drain else subprocess.DEVNULL, env={**os.environ, **(env or {})})
        if feed:
            helpers[0].stdout.close()
        if drain:
            helpers.append(subprocess.Popen(drain, stdin=run.stdout, stdout=subprocess.DEVNULL))
            run.stdout.close()
        if run.wait() != 0:
            sys.exit(f"failed: {' '.join(command)}")
        for h in helpers:
            h.wait()
        with open(trace) as f:
            stats = json.load(f)["otherData"]["brim"]["stats"]
        return stats["seconds"], trace

    def doctor(self, trace):
        out = subprocess.run(self.prefix + [self.a.brim, "doctor", "--run", trace, "--json"], check=True, capture_output=True, text=True).stdout
        return json.loads(out)["run"]

    def median(self, run):
        first = run()[0]
        return first if first > 5 else statistics.median([first, run()[0], run()[0]])

    def base(self, model=True):
        return (["-m", self.a.model] if model else ["-m", "vader"]) + ["--device", self.a.device]

    # ---- faults: (expected cause, run with the fault, run without it) ----
    def fault_tokenizer(self):
        flags = self.base()
        if self.a.device == "cpu":  # with a model on the CPU, tokenization is cheap: use long texts, mostly truncated
            source, flags = self.texts(self.a.rows // 4, 400), flags + ["--max-length", "16"]
        else:  # a GPU computes faster than one thread tokenizes
            source, flags = self.texts(self.a.rows * 10, 4), flags + ["--max-length", "32"]
        cores = len(os.sched_getaffinity(0))
        more = cores if self.a.device == "cpu" else max(1, cores - 2)
        return "tokenizer", lambda: self.score(flags + ["--tokenizer-threads", "1"], source), lambda: self.score(flags + ["--tokenizer-threads", str(more)], source)

    def fault_rules(self):  # VADER, whose rules run on the tokenizer threads
        source = self.texts(self.a.rows * 400)
        return "tokenizer", lambda: self.score(self.base(False) + ["--tokenizer-threads", "1"], source), lambda: self.score(self.base(False), source)

    def rate(self, source):
        seconds, _ = self.score(self.base(), source)
        return sum(1 for _ in open(source, "rb")) / seconds

    def long_run(self):
        """Enough rows for about two seconds, so that GPU start-up is negligible."""
        return self.texts(self.a.rows if self.a.device == "cpu" else max(self.a.rows, int(2 * self.rate(self.texts(self.a.rows * 10)))))

    def fault_reader(self):
        source = self.long_run()
        slow = str(self.rate(source) * 0.35)
        return ("reader", lambda: self.score(self.base(), source, feed=[sys.executable, self.throttle, slow]),
                lambda: self.score(self.base(), source, feed=["cat"]))

    def fault_writer(self):
        source = self.long_run()
        slow = str(self.rate(source) * 0.35)
        return ("writer", lambda: self.score(self.base(), source, drain=[sys.executable, self.throttle, slow]),
                lambda: self.score(self.base(), source, drain=["cat"]))

    def fault_small(self):
        """The smallest memory limit that works: about one text at a time."""
        on_cpu = self.a.device == "cpu"
        source, flags = self.texts(self.a.rows * (1 if on_cpu else 10)), self.base() + ["--max-length", "32"]
        one = self.texts(1)

        def attempt(limit):
            run = subprocess.run([self.a.brim, "score", one, "-q", "--format", "txt", "-o", os.path.join(self.tmp, "out.csv"), "--memory-limit", f"{limit}KiB"] + flags,
                                 capture_output=True, text=True)
            if run.returncode not in (0, 5):
                sys.exit(run.stderr)
            return run
        refused = attempt(1)  # the message contains the smallest limit, in whole MiB
        named = re.search(r"--memory-limit (\d+)MiB would do", refused.stderr)
        if not named:
            sys.exit("no smallest limit in the message: " + refused.stderr)
        high = int(named.group(1)) * 1024
        low = high - 1024
        while on_cpu and high - low > 8:  # on the CPU a MiB holds many tokens; on a GPU each attempt would initialize CUDA
            middle = (low + high) // 2
            low, high = (low, middle) if attempt(middle).returncode == 0 else (middle, high)
        return "small batches", lambda: self.score(flags + ["--memory-limit", f"{high}KiB"], source), lambda: self.score(flags, source)

    def fault_copy(self):
        """One batch in flight. A long run makes start-up negligible; a small model makes the gaps long relative to the batches."""
        source = self.texts(max(self.a.rows, int(4 * self.rate(self.texts(self.a.rows * 20)))))
        return "copy", lambda: self.score(self.base(), source, env={"BRIM_STAGING_DEPTH": "1"}), lambda: self.score(self.base(), source)

    def fault_other(self):
        source = self.long_run()

        def beside():
            busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in os.sched_getaffinity(0)]
            prefix, self.prefix = self.prefix, []  # without the prefix: a higher priority would hide the other processes
            try:
                return self.score(self.base(), source)
            finally:
                self.prefix = prefix
                for b in busy:
                    b.kill()
                    b.wait()
        return "another process", beside, lambda: self.score(self.base(), source)

    def run(self):
        print("| fault | first finding | attributed | with fault | predicted without | measured without | error | |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        passed = 0
        names = self.a.faults.split(",")
        for name in names:
            cause, injected, removed = getattr(self, "fault_" + name)()
            seconds, trace = injected()
            d = self.doctor(trace)
            measured = self.median(removed)
            first = d["findings"][0] if d["findings"] else {"cause": "nothing", "predicted_seconds": d["seconds"]}
            error = first["predicted_seconds"] / measured - 1
            ok = first["cause"] == cause and abs(error) <= 0.25 and d["attributed"] >= 0.98
            passed += ok
            print(f"| {name} | {first['cause']} | {100 * d['attributed']:.1f} % | {seconds:.2f} s | {first['predicted_seconds']:.2f} s | {measured:.2f} s "
                  f"| {100 * error:+.0f} % | {'ok' if ok else 'NO'} |", flush=True)
        print(f"{passed} of {len(names)}")
        return 0 if passed == len(names) else 1


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("brim")
parser.add_argument("texts")
parser.add_argument("--model", default="default")
parser.add_argument("--device", default="cpu")
parser.add_argument("--rows", type=int, default=6000)
parser.add_argument("--faults", default="tokenizer,reader,writer,small,other")
parser.add_argument("--prefix", default="", help="command prefix for brim, e.g. chrt -r 1 or taskset -c 0-15")
sys.exit(Bench(parser.parse_args()).run())
