#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the accuracy of models trained in two precisions with otherwise identical runs, seed by seed.

  precision_accuracy.py --brim BUILD/brim --model DIR --classes TRAIN.csv VAL.csv --tags TRAIN.conll VAL.conll
                        [--precisions bf16,fp8] [--seeds 10] [--steps 400] [--batch 32] [--learning-rate 5e-5] [--work DIR]

Each seed is one pair of runs per data set; the seed determines head initialization, row order and dropout, so that a pair differs
only in precision. The order within pairs alternates. Uses the last model, not the best. Prints the accuracy of each pair (entity F1
for taggers), then per data set the mean difference (second minus first precision, in points) with its paired 95 % interval
(Student's t). Exits 1 if a mean is below -0.5 points or a run failed. `--device cpu --precisions fp32,bf16` works without a GPU.
"""
import argparse
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

WORST_MEAN = -0.5  # points
# Two-sided 95 % of Student's t by degrees of freedom.
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086]


def interval(differences):
    """Returns the mean and half the width of its 95 % interval."""
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return mean, math.inf
    t = T95[len(differences) - 2] if len(differences) - 2 < len(T95) else 1.96 + 2.5 / (len(differences) - 1)
    return mean, t * statistics.stdev(differences) / math.sqrt(len(differences))


def last_metric(out, metric):
    rows = [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]
    values = [row[metric] for row in rows if metric in row]
    if not values:
        raise SystemExit(f"{out}/train_log.jsonl: no {metric}")
    return 100 * values[-1]


def train(a, files, metric, precision, seed):
    out = pathlib.Path(a.work) / f"{metric}-{precision}"
    shutil.rmtree(out, ignore_errors=True)
    command = [a.brim, "train", "--model", a.model, "--train", files[0], "--val", files[1], "--output", str(out), "--precision", precision, "--seed", str(seed),
               "--device", a.device, "--max-steps", str(a.steps), "--per-device-train-batch-size", str(a.batch), "--learning-rate", str(a.learning_rate),
               "--warmup-ratio", "0.1", "--eval-strategy", "steps", "--eval-steps", str(a.steps), "--save-strategy", "no", "--load-best-model-at-end", "false",
               "--ignore-mismatched-head", "true"]
    begun = time.monotonic()
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {run.returncode}\n{run.stderr[-2000:]}")
    return last_metric(out, metric), time.monotonic() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brim", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--classes", nargs=2, metavar=("TRAIN", "VAL"))
    parser.add_argument("--tags", nargs=2, metavar=("TRAIN", "VAL"))
    parser.add_argument("--precisions", default="bf16,fp8")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work")
    a = parser.parse_args()
    if not a.classes and not a.tags:
        parser.error("--classes or --tags is required")
    names = a.precisions.split(",")
    if len(names) != 2 or a.seeds < 1:
        parser.error("--precisions takes two names; --seeds must be at least 1")
    made = None if a.work else tempfile.TemporaryDirectory(prefix="brim-precision-")
    a.work = a.work or made.name
    pathlib.Path(a.work).mkdir(parents=True, exist_ok=True)
    worse = False
    for files, metric in ((a.classes, "eval_accuracy"), (a.tags, "eval_entity_f1")):
        if not files:
            continue
        differences = []
        for seed in range(1, a.seeds + 1):
            got = {}
            for name in names if seed % 2 else reversed(names):
                got[name] = train(a, files, metric, name, seed)
            differences.append(got[names[1]][0] - got[names[0]][0])
            print(f"{metric} seed {seed:2}: " + ", ".join(f"{name} {got[name][0]:.2f} ({got[name][1]:.0f} s)" for name in names) + f": {differences[-1]:+.2f}",
                  flush=True)
        mean, half = interval(differences)
        under = mean < WORST_MEAN
        worse = worse or under
        print(f"{metric}: {names[1]} minus {names[0]}: {mean:+.3f} points, 95 % from {mean - half:+.3f} to {mean + half:+.3f}, {len(differences)} pairs"
              f"{f': below {WORST_MEAN}' if under else ''}", flush=True)
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
