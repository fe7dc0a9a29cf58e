#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the accuracy of LoRA with that of full training with otherwise identical runs, seed by seed.

  lora_accuracy.py --brim PROGRAM --model DIR --data TRAIN.csv VAL.csv [--data …] [--epochs 2,4] [--batch 64,32] [--seeds 5]
                   [--rank 8] [--learning-rate 8e-5] [--lora-learning-rates 5e-4,1e-3,2e-3] [--parallel 4] [--work DIR]

--epochs and --batch have one value per data set, or one for all. Each seed is one pair of runs per data set; the seed determines
head initialization, row order and dropout. If there are several learning rates for LoRA, runs with seed 1000 select one per data
set, and the seeds of the comparison are not used for that. Full training uses --learning-rate. Uses the last model, not the best.
Prints the accuracy of each pair, then per data set the mean difference (LoRA minus full, in points) with its paired 95 % interval
(Student's t). Exits 1 if a mean is below -0.5 points or a run failed. Runs share the device, so their times mean nothing.
"""
import argparse
import concurrent.futures
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from precision_accuracy import WORST_MEAN, interval, last_metric

SELECTING_SEED = 1000


def train(a, data, kind, rate, seed):
    out = pathlib.Path(a.work) / f"{data['name']}-{kind}-{rate:g}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    command = [a.brim, "train", "--model", a.model, "--train", data["train"], "--val", data["val"], "--output", str(out), "--precision", a.precision, "--seed", str(seed),
               "--device", a.device, "--num-train-epochs", str(data["epochs"]), "--per-device-train-batch-size", str(data["batch"]), "--learning-rate", str(rate),
               "--warmup-ratio", "0.1", "--eval-strategy", "epoch", "--save-strategy", "no", "--load-best-model-at-end", "false", "--ignore-mismatched-head", "true"]
    if a.memory_limit:
        command += ["--memory-limit", a.memory_limit]
    if a.max_steps:
        command += ["--max-steps", str(a.max_steps)]
    if kind == "lora":
        command += ["--lora-r", str(a.rank), "--lora-alpha", str(2 * a.rank)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {run.returncode}\n{run.stderr[-2000:]}")
    accuracy = last_metric(out, "eval_accuracy")
    shutil.rmtree(out)
    return accuracy


def compare(a, data, pool):
    """Returns the accuracy differences, LoRA minus full training, by seed."""
    rates = [float(r) for r in a.lora_learning_rates.split(",")]
    rate = rates[0]
    if len(rates) > 1:
        tried = dict(zip(rates, pool.map(lambda r: train(a, data, "lora", r, SELECTING_SEED), rates)))
        rate = max(tried, key=tried.get)
        print(f"{data['name']}: learning rate of LoRA {rate:g}, from " + ", ".join(f"{r:g} {v:.2f}" for r, v in tried.items()), flush=True)
    runs = [(kind, seed) for seed in range(1, a.seeds + 1) for kind in ("full", "lora")]
    got = dict(zip(runs, pool.map(lambda run: train(a, data, run[0], rate if run[0] == "lora" else a.learning_rate, run[1]), runs)))
    for seed in range(1, a.seeds + 1):
        print(f"{data['name']} seed {seed:2}: full {got['full', seed]:.2f}, LoRA {got['lora', seed]:.2f}: {got['lora', seed] - got['full', seed]:+.2f}", flush=True)
    for kind in ("full", "lora"):
        print(f"{data['name']}: mean accuracy of {kind}: {statistics.fmean(got[kind, seed] for seed in range(1, a.seeds + 1)):.2f}")
    return [got["lora", seed] - got["full", seed] for seed in range(1, a.seeds + 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brim", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", nargs=2, metavar=("TRAIN", "VAL"), action="append", required=True)
    parser.add_argument("--epochs", default="2")
    parser.add_argument("--batch", default="32")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=8e-5)
    parser.add_argument("--lora-learning-rates", default="5e-4,1e-3,2e-3")
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--memory-limit", help="of each run")
    parser.add_argument("--max-steps", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--work")
    a = parser.parse_args()
    made = None if a.work else tempfile.TemporaryDirectory(prefix="brim-lora-")
    a.work = a.work or made.name
    pathlib.Path(a.work).mkdir(parents=True, exist_ok=True)

    def each(text):
        values = [int(v) for v in text.split(",")]
        return values if len(values) == len(a.data) else values[:1] * len(a.data)

    worse = False
    with concurrent.futures.ThreadPoolExecutor(a.parallel) as pool:
        for (train_file, val_file), epochs, batch in zip(a.data, each(a.epochs), each(a.batch)):
            data = dict(name=pathlib.Path(train_file).stem, train=train_file, val=val_file, epochs=epochs, batch=batch)
            differences = compare(a, data, pool)
            mean, half = interval(differences)
            worse = worse or mean < WORST_MEAN
            print(f"{data['name']}: LoRA minus full: {mean:+.3f} points, 95 % from {mean - half:+.3f} to {mean + half:+.3f}, {len(differences)} pairs"
                  f"{f': below {WORST_MEAN}' if mean < WORST_MEAN else ''}", flush=True)
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
