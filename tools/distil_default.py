#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data for distilling the default model (models/default/README.md). Does not train.

  distil_default.py texts DATA OUT              writes unlabelled.txt (tweets_60k.txt without tweets of tweets_val.csv), varied.txt (spans of
                                                tweets, tweets without some words, halves of two tweets) and every.csv (all training texts)
  distil_default.py mix DATA OUT FILE=WEIGHT…   writes OUT/mixed.csv: the weighted mean of the teachers' scores (FILE: brim score --all-scores
                                                of every.csv), for tweets as if their classes were equally frequent in the training data
DATA contains tweets_train.csv, tweets_more_train.csv, sst2_train.csv, tweets_val.csv and tweets_60k.txt.
"""
import csv
import html
import pathlib
import random
import re
import sys

LABELS = ["negative", "neutral", "positive"]
LABELLED = ["tweets_train.csv", "tweets_more_train.csv"]


def rows(file):
    with open(file, newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f))


def write_rows(file, header, lines):
    with open(file, "w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows([header, *lines])


def normalized(text):
    """Letters and digits without user names and links: finds copies of a tweet."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"@\w+|http\S*|www\.\S+", " ", html.unescape(text).lower()))


def varied(tweets, r):
    words = [t.split() for t in tweets]
    for w in words:
        kind = r.random()
        if len(w) < 4:
            continue
        if kind < 0.4:
            count = r.randint(max(3, len(w) // 3), len(w))
            at = r.randint(0, len(w) - count)
            yield " ".join(w[at:at + count])
        elif kind < 0.7:
            yield " ".join([x for x in w if r.random() > 0.15] or w)
        else:
            other = r.choice(words)
            yield " ".join(w[:len(w) // 2] + other[len(other) // 2:])


def make_texts(data, out):
    out.mkdir(parents=True, exist_ok=True)
    validation = {normalized(r["text"]) for r in rows(data / "tweets_val.csv")}
    lines = (data / "tweets_60k.txt").read_text(encoding="utf-8", errors="replace").split("\n")
    unlabelled = [line for line in lines if line.strip() and normalized(line) not in validation]
    tweets = [r["text"] for f in LABELLED for r in rows(data / f)]
    made = list(varied(tweets + unlabelled, random.Random(7)))
    for name, texts in (("unlabelled", unlabelled), ("varied", made)):
        (out / f"{name}.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    phrases = [r["text"] for r in rows(data / "sst2_train.csv")]
    every = dict.fromkeys(tweets + unlabelled + phrases + made)
    write_rows(out / "every.csv", ["text"], ([t] for t in every))
    print(f"{len(unlabelled)} unlabelled and {len(made)} varied tweets, {len(every)} different texts")


def mix(data, out, *files):
    weights = [float(f.rpartition("=")[2]) for f in files]
    scored = [rows(f.rpartition("=")[0]) for f in files]
    phrases = {r["text"] for r in rows(data / "sst2_train.csv")}
    labels = [r["label"] for f in LABELLED for r in rows(data / f)]
    counts = [labels.count(label) for label in LABELS]
    lines = []
    for each in zip(*scored):
        text = each[0]["text"]
        mean = [sum(w * float(r[label]) for w, r in zip(weights, each)) for label in LABELS]
        if text not in phrases:  # divide by the class shares of the labelled tweets
            mean = [p / count for p, count in zip(mean, counts)]
        lines.append([text] + [f"{p / sum(mean):.6f}" for p in mean])
    write_rows(out / "mixed.csv", ["text", *LABELS], lines)
    print(f"{len(lines)} texts, {len(scored)} teachers")


if __name__ == "__main__":
    command, data, out, *more = sys.argv[1:]
    {"texts": make_texts, "mix": mix}[command](pathlib.Path(data), pathlib.Path(out), *more)
