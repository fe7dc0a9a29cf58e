#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the wall time of a process and when each of its stages completes.

  start.py --brim BUILD_A/brim [--brim BUILD_B/brim] [--runs 9] -- score ten.txt -o out.csv --model DIR --device cuda

Alternates between builds. Prints the wall time of quiet runs, then, for runs with BRIM_DEBUG=1, the median time from process start
to each line on stderr and to the exit.
"""
import argparse
import os
import re
import statistics
import subprocess
import time

parser = argparse.ArgumentParser()
parser.add_argument("--brim", action="append", required=True)
parser.add_argument("--runs", type=int, default=9)
parser.add_argument("words", nargs="+")
a = parser.parse_args()


def run(brim, debug):
    environment = dict(os.environ, BRIM_DEBUG="1") if debug else os.environ
    marks = []
    begun = time.monotonic()
    with subprocess.Popen([brim, *a.words] + ([] if debug else ["--quiet"]), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as p:
        for line in p.stderr:
            marks.append((re.sub(r"[0-9][0-9.,]*", "N", line.decode(errors="replace").strip())[:70], 1e3 * (time.monotonic() - begun)))
        code = p.wait()
    ended = 1e3 * (time.monotonic() - begun)
    if code != 0:
        raise SystemExit(f"{brim} {' '.join(a.words)}: exit {code}: {marks[-1:]}")
    return marks, ended


for brim in a.brim:
    run(brim, False)  # warm-up: profiles the GPU and fills caches
walls = {brim: [] for brim in a.brim}
stages = {brim: {} for brim in a.brim}
for _ in range(a.runs):
    for brim in a.brim:
        walls[brim].append(run(brim, False)[1])
for _ in range(a.runs):
    for brim in a.brim:
        marks, ended = run(brim, True)
        for name, ms in [*marks, ("process exit", ended)]:
            stages[brim].setdefault(name, []).append(ms)
for brim in a.brim:
    w = sorted(walls[brim])
    print(f"{brim}: median {statistics.median(w):.0f} ms, {w[0]:.0f} to {w[-1]:.0f}, {len(w)} runs")
    for name, ms in sorted(stages[brim].items(), key=lambda s: statistics.median(s[1])):
        if len(ms) * 2 > a.runs:
            print(f"  {statistics.median(ms):8.1f} ms  {name}")
