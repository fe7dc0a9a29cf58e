#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares vectors of `brim embed` in int8 (or --precision) with those in fp32.

  bench/int8_vectors.py --brim PROGRAM --model DIR [--rows 1000] FILE.csv …

Takes the first different texts of the files, an equal part of each as far as it has them. Prints the lowest and mean cosine,
and the share of texts that keep their nearest neighbour among the texts. Requires numpy. Speed is not measured."""
import argparse
import csv
import json
import pathlib
import subprocess
import tempfile

import numpy as np

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("files", nargs="+", type=pathlib.Path)
parser.add_argument("--brim", default="./brim")
parser.add_argument("--model", required=True)
parser.add_argument("--precision", default="int8")
parser.add_argument("--rows", type=int, default=1000)
args = parser.parse_args()


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return [row["text"] for row in csv.DictReader(file)]


def choose(columns, rows):
    """The i-th texts of all files in turn."""
    texts = {}
    for i in range(max(map(len, columns))):
        for column in columns:
            if i < len(column) and column[i].strip() and len(texts) < rows:
                texts[" ".join(column[i].split())] = None
    return list(texts)


def vectors(texts, precision):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "texts.txt")
        source.write_text("\n".join(texts) + "\n", encoding="utf-8")
        command = [args.brim, "embed", source, "--model", args.model, "--device", "cpu", "--precision", precision, "-q"]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    found = np.array([json.loads(line)["embedding"] for line in lines])
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def neighbours(found):
    cosines = found @ found.T
    np.fill_diagonal(cosines, -2)
    return cosines.argmax(1)


texts = choose([read(path) for path in args.files], args.rows)
exact, rounded = vectors(texts, "fp32"), vectors(texts, args.precision)
cosines = (exact * rounded).sum(1)
kept = (neighbours(exact) == neighbours(rounded)).mean()
print(f"{args.precision}, {len(texts)} texts: cosine min {cosines.min():.4f}, mean {cosines.mean():.5f}; neighbours kept {kept:.1%}")
