#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares three measurements of device utilisation between the first and the last batch of a run: Brim's timeline (events
around each batch), the summary, and the union of kernel intervals from CUPTI tracing (tracing.py).

    bench/gpu/busy_check.py BRIM MODEL TEXTS [flags of brim score]

Tracing adds small gaps between kernels, so the comparison uses the timeline of the traced run.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tracing

brim, model, texts, *flags = sys.argv[1:]
work = pathlib.Path(tempfile.mkdtemp(prefix="brim_busy_"))
library = tracing.build(work)


def union(spans):
    busy = reached = 0
    for begin, end in sorted(spans):
        busy += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return busy


def share(spans):
    return union(spans) / (max(e for _, e in spans) - min(b for b, _ in spans))


def run(**extra):
    trace, summary = work / "run.json", work / "summary.json"
    subprocess.run([brim, "score", texts, "--model", model, "--device", "cuda", "--cache", "0", "-q", "-o", os.devnull, "--output-format", "csv", "--trace", str(trace), "--summary-json", str(summary), *flags],
                   check=True, env={**os.environ, **extra})
    events = json.loads(trace.read_text())["traceEvents"]
    return [(e["ts"] * 1e3, (e["ts"] + e["dur"]) * 1e3) for e in events if e.get("name") == "device_busy" and e.get("ph") == "X"], json.loads(summary.read_text())


plain, summary = run()
print(f"untraced: timeline {100 * share(plain):.2f} %, summary {100 * summary['device_busy']:.2f} %, MFU {100 * summary['mfu']:.2f} %, {len(plain)} batches, {summary['rows_per_second']:.0f} rows/s")
lane, summary = run(CUDA_INJECTION64_PATH=str(library), KERNEL_TIMES=str(work / "times.txt"))
kernels = sorted((begin, end) for begin, end, _ in tracing.read(work / "times.txt"))
# The clocks differ: use the kernels within one lane length of the last kernel; earlier ones are warm-up.
length, last = max(e for _, e in lane) - min(b for b, _ in lane), max(e for _, e in kernels)
kernels = [k for k in kernels if k[0] >= last - length - 1e6]
flops_share = union(lane) / union(kernels)
print(f"traced: timeline {100 * share(lane):.2f} %, kernels {100 * share(kernels):.2f} %: {100 * (share(lane) - share(kernels)):+.2f} points; MFU of kernel time "
      f"{100 * summary['mfu'] / summary['device_busy'] * flops_share:.2f} %, of timeline {100 * summary['mfu'] / summary['device_busy']:.2f} %; {len(kernels)} kernels")
