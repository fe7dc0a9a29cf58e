#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how throughput scales: tokens per second of `brim score` by number of rows (whole process) and by tokens per text; writes
a table and a plot.

  growth.py --brim PROGRAM --model DIR --texts FILE --work DIR --json OUT.json --svg OUT.svg [--rows 1000,100000,10000000]
            [--lengths 16,32,64,128,256,512] [--tokens 6000000] [--device cuda] [--precision bf16]

By rows: repeats the lines of FILE; measures the wall time of the process. By length: generates texts of exactly this many tokens
(from single-token words), --tokens in total. Fails if a row is lost or truncated.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import time


def flags():
    f = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("brim", "model", "texts", "work", "json", "svg"):
        f.add_argument("--" + name, required=True)
    f.add_argument("--rows", default="1000,100000,10000000")
    f.add_argument("--lengths", default="16,32,64,128,256,512")
    f.add_argument("--tokens", type=int, default=6_000_000)
    f.add_argument("--device", default="cuda")
    f.add_argument("--precision", default="bf16")
    return f.parse_args()


def score(a, file, rows):
    out, summary = f"{a.work}/growth.csv", f"{a.work}/growth.json"
    for old in (out, summary):
        if os.path.exists(old):
            os.remove(old)
    begin = time.time()
    command = [a.brim, "score", file, "-o", out, "--model", a.model, "--device", a.device, "--precision", a.precision, "--summary-json", summary, "--quiet"]
    run = subprocess.run(command, capture_output=True, text=True)
    seconds = time.time() - begin
    if run.returncode != 0:
        sys.exit(f"growth.py: {file}: {run.stderr.strip()}")
    s = json.load(open(summary))
    if s["rows"] != rows or s.get("truncated_rows"):
        sys.exit(f"growth.py: {file}: {s['rows']} of {rows} rows, {s.get('truncated_rows')} truncated")
    tokens = s["tokens_per_second"] * s["rows"] / s["rows_per_second"]
    return {"rows": rows, "seconds": seconds, "tokens": round(tokens), "whole_process_tokens_per_second": tokens / seconds, "tokens_per_second": s["tokens_per_second"], "mfu": s["mfu"]}


def by_rows(a, rows):
    lines = open(a.texts, "rb").read().splitlines(keepends=True)
    file = f"{a.work}/growth.txt"
    with open(file, "wb") as f:
        for _ in range(rows // len(lines)):
            f.writelines(lines)
        f.writelines(lines[: rows % len(lines)])
    found = score(a, file, rows)
    os.remove(file)
    return found


def by_length(a, length):
    rows = max(1, a.tokens // length)
    words = ("good bad day night man time year life work home world hand head book water money").split()
    file = f"{a.work}/growth.txt"
    with open(file, "w") as f:
        for i in range(rows):
            f.write(" ".join(words[(i + k) % len(words)] for k in range(length - 2)) + "\n")
    found = score(a, file, rows)
    found["tokens_per_text"] = found["tokens"] / rows
    os.remove(file)
    return found


def plot(title, label, points):
    """One log-x plot of (x, tokens per second) as SVG, 460 by 300."""
    left, right, top, bottom = 70, 440, 40, 250
    lo, hi = math.log10(points[0][0]), math.log10(points[-1][0])
    most = max(y for _, y in points) * 1.1
    at = [(left + (right - left) * (math.log10(x) - lo) / (hi - lo), bottom - (bottom - top) * y / most) for x, y in points]
    svg = [f'<text x="{left}" y="22" class="t">{title}</text>', f'<path d="M{left} {top}V{bottom}H{right}" class="a"/>']
    for part in (0, 0.5, 1):
        y = bottom - (bottom - top) * part
        svg.append(f'<path d="M{left} {y:.1f}H{right}" class="g"/><text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{most * part / 1e6:.1f} M</text>')
    svg.append('<path d="M' + "L".join(f"{x:.1f} {y:.1f}" for x, y in at) + '" class="l"/>')
    for (x, y), (px, py) in zip(at, points):
        name = f"{px / 1e6:g} M" if px >= 1e6 else f"{px / 1e3:g} k" if px >= 1e3 else f"{px:g}"
        svg.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/><text x="{x:.1f}" y="{bottom + 20}" text-anchor="middle">{name}</text><text x="{x:.1f}" y="{y - 9:.1f}" text-anchor="middle">{py / 1e6:.2f}</text>')
    svg.append(f'<text x="{(left + right) / 2}" y="{bottom + 40}" text-anchor="middle">{label}</text>')
    return "".join(svg)


def main():
    a = flags()
    os.makedirs(a.work, exist_ok=True)
    score_once = by_rows(a, 1000)  # warm-up: the first process loads the driver
    rows = [by_rows(a, int(float(n))) for n in a.rows.split(",")]
    lengths = [by_length(a, int(n)) for n in a.lengths.split(",")]
    for r in rows:
        print(f"{r['rows']:>12,} rows    {r['seconds']:8.2f} s whole  {r['whole_process_tokens_per_second']:14,.0f} tokens/s whole  {r['tokens_per_second']:14,.0f} tokens/s  MFU {100 * r['mfu']:.1f} %")
    for r in lengths:
        print(f"{r['tokens_per_text']:>8.1f} tokens per text  {r['rows']:>10,} rows  {r['tokens_per_second']:14,.0f} tokens/s  MFU {100 * r['mfu']:.1f} %")
    json.dump({"first": score_once, "rows": rows, "lengths": lengths}, open(a.json, "w"), indent=1)
    style = "text{font:12px sans-serif;fill:#444}.t{font-size:14px;fill:#111}.a{stroke:#444;fill:none}.g{stroke:#ddd;fill:none}.l{stroke:#2563eb;stroke-width:2;fill:none}circle{fill:#2563eb}"
    left = plot("tokens per second, whole process", "rows of the file", [(r["rows"], r["whole_process_tokens_per_second"]) for r in rows])
    right = plot("tokens per second, first batch to last", "tokens per text", [(r["tokens_per_text"], r["tokens_per_second"]) for r in lengths])
    open(a.svg, "w").write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 300"><style>{style}</style><rect width="920" height="300" fill="#fff"/>{left}<g transform="translate(460 0)">{right}</g></svg>\n')


main()
