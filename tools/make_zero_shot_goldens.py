#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/zero_shot.json: scores by transformers' zero-shot pipeline for the seeded model bert_pair, whose labels
are renamed to NLI classes in several orders. Texts, labels and templates consist of the words w5 … w95 of the tests'
vocabulary. Requires torch and transformers.

    python3 tools/make_zero_shot_goldens.py
"""
import json
import pathlib
import random
import tempfile

import torch
import transformers

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/data"
ORDERS = [["contradiction", "neutral", "ENTAILMENT"], ["entailment", "neutral", "contradiction"], ["neutral", "entailment", "contradiction"]]
REQUESTS = [
    {"labels": ["w10", "w20 w21", "w30"]},
    {"labels": ["w10", "w20 w21", "w30"], "multi_label": True},
    {"labels": ["w40"]},
    {"labels": [f"w{i}" for i in range(50, 90)], "template": "w5 w6 {} w7"},
    {"labels": ["unknown words", "w11 w12 w13 w14"], "template": "{}"},
]


def pipeline(order, folder):
    config = json.loads((DATA / "models/bert_pair/config.json").read_text())
    config["id2label"] = {str(i): label for i, label in enumerate(order)}
    config["label2id"] = {label: i for i, label in enumerate(order)}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes((DATA / "models/bert_pair/model.safetensors").read_bytes())
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{i}" for i in range(5, 96)]) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "model_max_length": 44}))
    return transformers.pipeline("zero-shot-classification", model=str(folder), device="cpu", dtype=torch.float32)


def main():
    rng = random.Random(1)
    texts = [" ".join(f"w{rng.randrange(5, 96)}" for _ in range(n)) for n in (1, 2, 5, 9, 20, 38, 43, 80)]
    cases = []
    for order in ORDERS:
        with tempfile.TemporaryDirectory() as folder:
            classify = pipeline(order, pathlib.Path(folder))
            for request in REQUESTS:
                scores = []
                for text in texts:
                    found = classify(text, request["labels"], hypothesis_template=request.get("template", "This example is {}."),
                                     multi_label=request.get("multi_label", False))  # fmt: skip
                    by_label = dict(zip(found["labels"], found["scores"]))
                    scores.append([round(by_label[label], 7) for label in request["labels"]])
                cases.append({"model_labels": order, **request, "scores": scores})
    (DATA / "zero_shot.json").write_text(json.dumps({"texts": texts, "cases": cases}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
