#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/train/losses.json: the first 20 losses of each tiny model under tests/data/models, trained by PyTorch
in fp64 with AdamW (no decay on biases and norms), clipping and a linear schedule with warm-up, without dropout. Batches
cycle through the golden sequences, three at a time; targets are those of gradients.json. Requires torch and transformers."""
import json
import pathlib
import sys

import torch
import transformers as tf
from make_model_goldens import inputs

ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"
STEPS, BATCH, LR, WARMUP, DECAY, CLIP = 20, 3, 1e-3, 4, 0.01, 1.0


def rate(step):
    return LR * step / WARMUP if step < WARMUP else LR * (STEPS - step) / (STEPS - WARMUP)


def loss_of(model, token, multi, ids, targets):
    total, weight = 0, 0
    for seq, target in zip(ids, targets):
        logits = model(**inputs(seq)).logits[0]
        if token:
            t = torch.tensor(target)
            total = total + torch.nn.functional.cross_entropy(logits, t, ignore_index=-100, reduction="sum")
            weight += int((t != -100).sum())
        elif logits.shape[-1] == 1:  # regression
            total = total + (logits[0] - target).square()
            weight += 1
        elif multi:
            total = total + torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(target, dtype=torch.float64))
            weight += 1
        else:
            total = total + torch.nn.functional.cross_entropy(logits[None], torch.tensor([target]), reduction="sum")
            weight += 1
    return total / max(1, weight)


def main():
    out = {"steps": STEPS, "batch": BATCH, "learning_rate": LR, "warmup_steps": WARMUP, "weight_decay": DECAY, "max_grad_norm": CLIP, "losses": {}}
    for folder in sorted((ROOT / "models").iterdir()):
        if not (folder / "gradients.json").exists():
            continue
        if sys.argv[1:] and folder.name not in sys.argv[1:]:  # keep the others
            out["losses"][folder.name] = json.loads((ROOT / "train" / "losses.json").read_text())["losses"][folder.name]
            continue
        arch = json.loads((folder / "config.json").read_text())["architectures"][0]
        model = getattr(tf, arch).from_pretrained(folder).double().eval()  # eval: no dropout
        ids = json.loads((folder / "golden.json").read_text())["ids"]
        targets = json.loads((folder / "gradients.json").read_text())["targets"]
        token, multi = "Token" in arch, model.config.problem_type == "multi_label_classification"
        plain = [p for n, p in model.named_parameters() if "bias" in n or "norm" in n.lower()]
        decayed = [p for n, p in model.named_parameters() if not ("bias" in n or "norm" in n.lower())]
        optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}], lr=LR, betas=(0.9, 0.999), eps=1e-8)
        losses = []
        for step in range(STEPS):
            rows = [(BATCH * step + j) % len(ids) for j in range(BATCH)]
            loss = loss_of(model, token, multi, [ids[r] for r in rows], [targets[r] for r in rows])
            losses.append(float("%.9g" % loss.item()))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
            optimizer.step()
        out["losses"][folder.name] = losses
        print(folder.name, losses[0], losses[-1])
    (ROOT / "train" / "losses.json").write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
