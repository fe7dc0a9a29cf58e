#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two builds of brim against each other on this machine: the same command, in turns, so that both meet the same noise.

  bench/before_after.py BEFORE AFTER [--pairs 7] [--rate KEY] -- score texts.txt -o {out} --summary-json {summary} …

Every round runs BEFORE, AFTER, BEFORE, each from a process of its own, rotated from round to round. Printed: the median of
AFTER ÷ BEFORE and its range, and beside it BEFORE ÷ BEFORE, which is what the machine does by itself. {out} and {summary} are
places of the run's own (a training run's {out} is its folder); --rate names the summary's figure to compare (rows_per_second, tokens_per_second). Processor seconds
are compared too: on a machine others use they are the steadier figure. With {out}, the outputs' bytes are compared."""
import argparse
import hashlib
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("before")
parser.add_argument("after")
parser.add_argument("--pairs", type=int, default=7)
parser.add_argument("--rate", default="rows_per_second")
parser.add_argument("command", nargs=argparse.REMAINDER)
args = parser.parse_args()
command = args.command[1:] if args.command[:1] == ["--"] else args.command


def run(program):
    with tempfile.TemporaryDirectory() as folder:
        out, summary = pathlib.Path(folder, "out"), pathlib.Path(folder, "summary.json")
        words = [w.replace("{out}", str(out)).replace("{summary}", str(summary)) for w in command]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            sys.exit(f"{program} {' '.join(words)}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        digest = hashlib.sha256(out.read_bytes()).hexdigest()[:12] if out.is_file() else ""
        if out.is_dir():  # a training run: its log's last figure
            logged = [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]
            return [r[args.rate] for r in logged if args.rate in r][-1], cpu, digest
        return json.loads(summary.read_text())[args.rate], cpu, digest


def spread(values):
    return f"{statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f})"


run(args.before), run(args.after)  # caches, and what a first run keeps
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
print(f"{args.rate:<22} after/before {spread(rates)}   before/before {spread(same_rates)}   last {last['before']:.0f} {last['after']:.0f}")
print(f"{'per processor second':<22} after/before {spread(cpus)}   before/before {spread(same_cpus)}")
if any(digests["before"]):
    print(f"{'output':<22} {'the same bytes' if digests['before'] == digests['after'] and len(digests['after']) == 1 else digests}")
