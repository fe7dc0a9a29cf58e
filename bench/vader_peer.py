#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Brim's VADER with vaderSentiment from PyPI: same texts, one core each, alternating; also compares the scores.

    python bench/vader_peer.py --bench build/release/src/text/vader_bench TEXTS.txt [MORE.csv …]

Reads the `text` column of .csv files, and the lines of other files. Prints a table; exits 1 if any rounded value differs.
Generates texts with many emoji, for which the reference takes quadratic time.
"""
import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time

from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

KEYS = ("neg", "neu", "pos", "compound")


def read_texts(path):
    with open(path, encoding="utf-8", newline="") as f:
        if path.endswith(".csv"):
            return [row["text"] for row in csv.DictReader(f)]
        return f.read().rstrip("\n").split("\n")


def run_case(name, texts, bench, analyzer, rounds):
    ratios, ours_s, reference_s = [], [], []
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        f.writelines(json.dumps(t) + "\n" for t in texts)
        f.flush()
        scores = subprocess.check_output([bench, f.name, "--scores"], text=True).splitlines()
        for _ in range(rounds):  # alternate, so that noise affects both equally
            ours = json.loads(subprocess.check_output([bench, f.name]))
            start = time.process_time()
            wanted = [analyzer.polarity_scores(t) for t in texts]
            reference_s.append(time.process_time() - start)
            ours_s.append(ours["median_s"])
            ratios.append(reference_s[-1] / ours_s[-1])
    assert len(scores) == len(wanted)
    differing = sum(json.loads(got) != [want[k] for k in KEYS] for got, want in zip(scores, wanted))
    mine, reference = statistics.median(ours_s), statistics.median(reference_s)
    print(f"{name:32} {len(texts):7} {len(texts) / reference:12.1f} {len(texts) / mine:12.0f} "
          f"{ours['bytes'] / mine / 1e6:8.1f} {statistics.median(ratios):9.0f}x {differing:8}", flush=True)
    return differing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--bench", required=True, help="path of vader_bench")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds; reports medians")
    parser.add_argument("--limit", type=int, default=5000, help="maximum number of texts per file")
    args = parser.parse_args()
    analyzer = SentimentIntensityAnalyzer()
    print(f"{'texts':32} {'rows':>7} {'reference/s':>12} {'brim/s':>12} {'MB/s':>8} {'ratio':>10} {'differ':>8}")
    differing = 0
    for path in args.files:
        texts = read_texts(path)[:args.limit]
        differing += run_case(path.rsplit("/", 1)[-1], texts, args.bench, analyzer, args.rounds)
    for count in (500, 5000):
        text = "😀😭❤😡👍" * (count // 5)
        differing += run_case(f"one text of {count} emoji", [text], args.bench, analyzer, 1)
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
