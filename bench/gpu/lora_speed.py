#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the training speed and memory of LoRA under a memory limit with full training without a limit.

  lora_speed.py --brim PROGRAM --model DIR --train CSV [--limit 8GiB] [--rank 8] [--steps 40] [--batch-tokens 16384]
                [--precision bf16] [--min-ratio 0.95] [--work DIR]

Runs full training, LoRA without a limit and LoRA under the limit with the same rows per step, and skips the first quarter
of the steps. Prints tokens/s, planned and used memory, micro-batch and recomputation of each run, and the ratios to full
training. Exits 1 if a run fails, or if LoRA under the limit is slower than --min-ratio times full training.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

MIB = 1 << 20


def train(a, name, flags):
    out = pathlib.Path(a.work) / name
    shutil.rmtree(out, ignore_errors=True)
    command = [a.brim, "train", "--model", a.model, "--train", a.train, "--output", str(out), "--device", a.device, "--precision", a.precision, "--max-steps", str(a.steps),
               "--batch-tokens", str(a.batch_tokens), "--max-length", "128", "--logging-steps", "1", "--save-strategy", "no", "--learning-rate", "2e-5", "--ignore-mismatched-head", "true", *flags]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        print(f"{name}: exit {run.returncode}: {run.stderr.strip().splitlines()[-1:]}")
        return None
    rows = [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "tokens_per_second" in row]
    plan = next(line for line in (run.stdout + run.stderr).splitlines() if "micro-batch" in line)
    shutil.rmtree(out)
    return dict(speed=statistics.median(row["tokens_per_second"] for row in rows[len(rows) // 4:]), used=max(row["memory_used_bytes"] for row in rows),
                planned=rows[-1]["memory_planned_bytes"], plan=plan.split(" · ", 1)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("brim", "model", "train"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--limit", default="8GiB")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-tokens", type=int, default=16384)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--min-ratio", type=float, default=0.95)
    parser.add_argument("--work")
    a = parser.parse_args()
    made = None if a.work else tempfile.TemporaryDirectory(prefix="brim-lora-")
    a.work = a.work or made.name
    lora = ["--lora-r", str(a.rank), "--lora-alpha", str(2 * a.rank)]
    runs = {"full": train(a, "full", []), "LoRA": train(a, "lora", lora), f"LoRA in {a.limit}": train(a, "limited", [*lora, "--memory-limit", a.limit]),
            f"full in {a.limit}": train(a, "full-limited", ["--memory-limit", a.limit])}
    full, limited = runs["full"], runs[f"LoRA in {a.limit}"]
    print(f"| {pathlib.Path(a.model).name} | tokens/s | to full | planned MiB | used MiB | |\n| --- | --- | --- | --- | --- | --- |")
    for name, r in runs.items():
        if r is None:
            print(f"| {name} | does not run | | | | |")
        else:
            ratio = f"{r['speed'] / full['speed']:.3f}" if full else ""
            print(f"| {name} | {r['speed']:,.0f} | {ratio} | {r['planned'] / MIB:,.0f} | {r['used'] / MIB:,.0f} | {r['plan']} |")
    sys.exit(0 if full and limited and limited["speed"] >= a.min_ratio * full["speed"] else 1)


if __name__ == "__main__":
    main()
