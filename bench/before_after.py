#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two builds of brim on this machine: alternates runs of the same command, so that noise affects both equally.

  bench/before_after.py BEFORE AFTER [--pairs 7] [--rate KEY] -- score texts.txt -o {out} --summary-json {summary} …
  bench/before_after.py BEFORE AFTER [--pairs 7] -- bench serve --model DIR --batch 32 --json …

Every round runs BEFORE, AFTER, BEFORE in separate processes, in rotating order. Prints median and range of AFTER ÷ BEFORE and,
as a measure of noise, of BEFORE ÷ BEFORE. {out} and {summary} are replaced by temporary paths (for training, {out} is the output
folder). --rate selects the value to compare: of the summary (rows_per_second), of a training log (tokens_per_second), or of the
JSON on stdout if the command uses neither path (texts_per_second). CPU time is compared too; it is less affected by other
processes. A server is measured for a fixed time, so its CPU time is divided by the answered texts. If the command uses {out},
the output bytes are compared."""
import argparse
import hashlib
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser(usage="before_after.py BEFORE AFTER [--pairs N] [--rate KEY] -- COMMAND…")
parser.add_argument("before")
parser.add_argument("after")
parser.add_argument("--pairs", type=int, default=7)
parser.add_argument("--rate", help="default: see above")
if "--" not in sys.argv:
    parser.error("the command is missing: -- COMMAND…")
at = sys.argv.index("--")
args, command = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1:]


def default_rate():
    if any("{summary}" in word for word in command):
        return "rows_per_second"
    return "tokens_per_second" if any("{out}" in word for word in command) else "texts_per_second"


rate_key = args.rate or default_rate()


def run(program):
    """Returns the rate, CPU seconds per amount of work that is equal in all runs, and a digest of the output."""
    with tempfile.TemporaryDirectory() as folder:
        out, summary = pathlib.Path(folder, "out"), pathlib.Path(folder, "summary.json")
        words = [w.replace("{out}", str(out)).replace("{summary}", str(summary)) for w in command]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            sys.exit(f"{program} {' '.join(words)}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        digest = hashlib.sha256(out.read_bytes()).hexdigest()[:12] if out.is_file() else ""
        if out.is_dir():  # training run: the last value of its log
            logged = [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]
            return [r[rate_key] for r in logged if rate_key in r][-1], cpu, digest
        if summary.is_file():
            return json.loads(summary.read_text())[rate_key], cpu, digest
        printed = json.loads(done.stdout)
        return printed[rate_key], cpu / max(1, printed.get("answered", 1) * printed.get("texts_per_request", 1)), digest


def spread(values):
    return f"{statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f})"


run(args.before), run(args.after)  # warm up caches
rates, cpus, same_rates, same_cpus, digests = [], [], [], [], {"before": set(), "after": set()}
for i in range(args.pairs):
    order = ["before", "after", "again"]
    order = order[i % 3:] + order[:i % 3]
    got = {name: run(args.after if name == "after" else args.before) for name in order}
    for name, (_, _, digest) in got.items():
        digests["after" if name == "after" else "before"].add(digest)
    rate, cpu = ({name: value[j] for name, value in got.items()} for j in (0, 1))
    rates.append(rate["after"] / statistics.mean([rate["before"], rate["again"]]))
    same_rates.append(rate["again"] / rate["before"])
    cpus.append(statistics.mean([cpu["before"], cpu["again"]]) / cpu["after"])
    same_cpus.append(cpu["before"] / cpu["again"])
    last = rate
print(f"{rate_key:<22} after/before {spread(rates)}   before/before {spread(same_rates)}   last {last['before']:.0f} {last['after']:.0f}")
print(f"{'per CPU second':<22} after/before {spread(cpus)}   before/before {spread(same_cpus)}")
if any(digests["before"]):
    print(f"{'output':<22} {'identical' if digests['before'] == digests['after'] and len(digests['after']) == 1 else digests}")
