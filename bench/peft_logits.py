#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Brim with PEFT on the same adapters, in both directions, on the CPU in fp32 and prints the largest differences:

  peft_logits.py --brim PROGRAM --model DIR --train CSV --texts FILE [--rank 8] [--steps 20] [--work DIR]

1. PEFT writes an adapter with random matrices and a new head; Brim scores the texts with it.
2. Brim trains an adapter; PEFT computes the texts' logits with it.

Compares logarithms of the scores, which equal the logits up to a constant per text, so both sides subtract their mean. PEFT
computes in fp64. Exits 1 if a difference is above 1e-5. Requires torch, transformers and peft.
"""
import argparse
import csv
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

import peft
import torch
import transformers as tf

LABELS = ["negative", "neutral", "positive"]
MOST = 1e-5


def centred(values):
    mean = sum(values) / len(values)
    return [v - mean for v in values]


def brim_logits(a, adapter):
    command = [a.brim, "score", a.texts, "--model", a.model, "--adapter", str(adapter), "--device", "cpu", "--precision", "fp32", "--all-scores", "--max-length", "128", "--output-format", "jsonl", "-q"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    return [centred([math.log(row.get("predicted_scores", row.get("scores"))[label]) for label in LABELS]) for row in rows]


def peft_logits(a, model, texts):
    tokenizer, model = tf.AutoTokenizer.from_pretrained(a.model), model.double().eval()
    with torch.no_grad():
        return [centred(model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=128)).logits[0].tolist()) for text in texts]


def base_model(a):
    return tf.AutoModelForSequenceClassification.from_pretrained(a.model, num_labels=len(LABELS), id2label=dict(enumerate(LABELS)),
                                                                 label2id={label: i for i, label in enumerate(LABELS)}, ignore_mismatched_sizes=True)


def worst(first, second):
    assert len(first) == len(second), f"{len(first)} and {len(second)} rows"
    return max(abs(x - y) for one, other in zip(first, second) for x, y in zip(one, other))


def written_by_peft(a, texts):
    torch.manual_seed(1)
    config = peft.LoraConfig(task_type="SEQ_CLS", r=a.rank, lora_alpha=2 * a.rank, target_modules="all-linear")
    model = peft.get_peft_model(base_model(a), config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.normal_(0, 0.02)
    out = pathlib.Path(a.work) / "peft"
    model.save_pretrained(out)
    model.config.save_pretrained(out)  # with the labels
    return worst(brim_logits(a, out), peft_logits(a, model, texts))


def written_by_brim(a, texts):
    out = pathlib.Path(a.work) / "brim"
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run([a.brim, "train", "--model", a.model, "--train", a.train, "--output", str(out), "--device", "cpu", "--lora-r", str(a.rank), "--lora-alpha", str(2 * a.rank), "--max-steps", str(a.steps),
                    "--learning-rate", "1e-3", "--warmup-ratio", "0", "--save-strategy", "no", "--ignore-mismatched-head", "true", "-q"], check=True)
    return worst(brim_logits(a, out), peft_logits(a, peft.PeftModel.from_pretrained(base_model(a), out), texts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("brim", "model", "train", "texts"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--work")
    a = parser.parse_args()
    made = None if a.work else tempfile.TemporaryDirectory(prefix="brim-peft-")
    a.work = a.work or made.name
    with open(a.texts, newline="", encoding="utf-8") as f:
        texts = [row["text"] for row in csv.DictReader(f)] if a.texts.endswith(".csv") else f.read().splitlines()
    differences = {"written by PEFT, scored by Brim": written_by_peft(a, texts), "trained by Brim, loaded by PEFT": written_by_brim(a, texts)}
    for name, difference in differences.items():
        print(f"{name}: {len(texts)} texts, largest difference of logits {difference:.2e}")
    sys.exit(1 if max(differences.values()) > MOST else 0)


if __name__ == "__main__":
    main()
