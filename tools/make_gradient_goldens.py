#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/models/*/gradients.json: the loss of each tiny model on its golden ids and, for every parameter, the
gradient's norm and sixteen of its values, from PyTorch in fp64 without dropout. Requires torch and transformers.
BRIM_GOLDEN_MODELS: another directory of models."""
import json
import os
import pathlib
import sys

import torch
import transformers as tf
from make_model_goldens import inputs

ROOT = pathlib.Path(os.environ.get("BRIM_GOLDEN_MODELS") or pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "models")

for folder in sorted(ROOT.iterdir()):
    arch = json.loads((folder / "config.json").read_text())["architectures"][0]
    heads = ("ForSequenceClassification", "ForTokenClassification")
    if not arch.endswith(heads) or (sys.argv[1:] and folder.name not in sys.argv[1:]):
        continue
    model = getattr(tf, arch).from_pretrained(folder).double().eval()  # eval: no dropout
    ids = json.loads((folder / "golden.json").read_text())["ids"]
    labels_count = model.config.num_labels
    gen = torch.Generator().manual_seed(7)
    token = "Token" in arch
    multi = model.config.problem_type == "multi_label_classification"
    targets, losses, weight = [], 0, 0
    for seq in ids:
        logits = model(**inputs(seq)).logits[0]
        if token:
            t = torch.randint(0, labels_count, (len(seq),), generator=gen)
            t[torch.rand(len(seq), generator=gen) < 0.3] = -100
            losses = losses + torch.nn.functional.cross_entropy(logits, t, ignore_index=-100, reduction="sum")
            weight += int((t != -100).sum())
        elif labels_count == 1:  # regression
            t = torch.randn((), generator=gen, dtype=torch.float64)
            losses = losses + (logits[0] - t).square()
            weight += 1
        elif multi:
            t = (torch.rand(labels_count, generator=gen) < 0.5).double()
            losses = losses + torch.nn.functional.binary_cross_entropy_with_logits(logits, t)
            weight += 1
        else:
            t = torch.randint(0, labels_count, (), generator=gen)
            losses = losses + torch.nn.functional.cross_entropy(logits[None], t[None], reduction="sum")
            weight += 1
        targets.append(t.tolist())
    (losses / weight).backward()
    grads = {}
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        flat = p.grad.flatten()
        at = torch.randint(0, flat.numel(), (16,), generator=gen).tolist()
        grads[name] = {"norm": float("%.9g" % flat.norm()), "at": at, "values": [float("%.9g" % flat[i]) for i in at]}
    golden = {"targets": targets, "loss_sum": float("%.10g" % losses), "weight": weight, "gradients": grads}
    (folder / "gradients.json").write_text(json.dumps(golden) + "\n")
    print(folder.name, float(losses), weight, len(grads))
