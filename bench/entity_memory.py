#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares planned with measured memory of `brim score --entities` on a CPU in short runs with random settings.

  entity_memory.py --brim PROGRAM --models DIR… --texts FILE [--runs 30] [--seed 1]

Varies the model, number and length of labels, rows and their length, windows, threads, precision and memory limit. Memory is the
maximum resident set size. Prints one JSON line per run and a summary; fails (exit 1) if a run fails or exceeds its plan or limit.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

MIB = 1 << 20


def random_case(rng, models):
    return dict(model=rng.choice(models), labels=rng.choice([1, 3, 5, 8]), words_per_label=rng.choice([1, 2]), rows=rng.choice([50, 300, 1000]),
                words=rng.choice([5, 20, 60, 200]), long_text=rng.choice(["truncate", "window-max"]), threads=rng.choice([1, 2]),
                precision=rng.choice(["fp32", "bf16", "auto"]), limit=rng.choice(["2GiB", "4GiB", "6GiB"]))  # fmt: skip


def run(brim, case, words, rng, folder):
    rows, out, summary = (folder / name for name in ("rows.jsonl", "out.jsonl", "summary.json"))
    rows.write_text("".join(json.dumps({"text": " ".join(rng.choices(words, k=rng.randint(1, case["words"])))}) + "\n" for _ in range(case["rows"])))
    labels = [" ".join(f"{rng.choice(words[:500])}" for _ in range(case["words_per_label"])) + f" {i}" for i in range(case["labels"])]
    (folder / "labels.txt").write_text("\n".join(labels) + "\n")
    out.unlink(missing_ok=True)
    command = [brim, "score", rows, "-o", out, "--model", case["model"], "--entities-file", folder / "labels.txt", "--threshold", "0.9", "--device", "cpu", "--threads", str(case["threads"]),
               "--long-text", case["long_text"], "--memory-limit", case["limit"], "--summary-json", summary]  # fmt: skip
    if case["precision"] != "auto":
        command += ["--precision", case["precision"]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    code = process.returncode = os.waitstatus_to_exitcode(status)
    result = dict(case, code=code, held_mib=round(usage.ru_maxrss / 1024, 1))
    if code != 0:
        return dict(result, error=errors.strip().splitlines()[-1:])
    planned = json.loads(summary.read_text())["planned_bytes"]
    gap = planned / MIB - result["held_mib"]
    return dict(result, planned_mib=round(planned / MIB, 1), gap_mib=round(gap, 1), gap_percent=round(100 * gap / result["held_mib"], 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brim", required=True)
    parser.add_argument("--models", required=True, nargs="+")
    parser.add_argument("--texts", required=True, type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    words = set()
    with args.texts.open() as lines:  # line by line: the memory of this process is the least that a child reports
        for line in lines:
            words.update(word for word in line.split() if word.isalpha())
    words = sorted(words)[::10]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.runs):
            results.append(run(args.brim, random_case(rng, args.models), words, rng, pathlib.Path(folder)))
            print(json.dumps(results[-1]), flush=True)
    failed = [r for r in results if r["code"] != 0]
    gaps = [r["gap_mib"] for r in results if r["code"] == 0]
    far = [r for r in results if r["code"] == 0 and r["gap_mib"] > 32 and r["gap_percent"] > 2]
    print(json.dumps(dict(runs=len(results), failed=len(failed), over_plan=sum(gap < 0 for gap in gaps), least_gap_mib=min(gaps, default=None), largest_gap_mib=max(gaps, default=None), above_both_bounds=len(far))))
    if failed or any(gap < 0 for gap in gaps):
        sys.exit(1)


if __name__ == "__main__":
    main()
