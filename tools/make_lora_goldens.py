#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/lora/*: LoRA training of models in tests/data/models with PEFT, in fp64 without dropout.

Requires torch, transformers and peft. Each directory contains the initial adapter in PEFT's two files and golden.json:
name of the base model, loss and gradients (norm and eight values of each trained tensor) on the base model's golden ids
and targets, and the losses of the first steps with AdamW, clipping and a linear schedule with warm-up.

Checks an adapter that `brim train` wrote: make_lora_goldens.py --check BASE_MODEL_DIR ADAPTER_DIR loads it with PEFT and
prints the largest difference from the logits of MERGED_DIR, if given as a third argument.
"""
import json
import pathlib
import re
import shutil
import sys
import tempfile

import torch
import transformers as tf
from make_adapter_goldens import check, hash_of
from make_loss_goldens import loss_of
from peft import LoraConfig, get_peft_model

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"
STEPS, BATCH, LR, WARMUP, DECAY, CLIP = 8, 3, 1e-2, 2, 0.01, 1.0
MODELS = {  # base model: settings of PEFT; targets default to all linear layers
    "bert_sequence": dict(r=4, lora_alpha=8, modules_to_save=["pooler.dense", "classifier"]),
    "bert_token": dict(r=3, lora_alpha=5, use_rslora=True, target_modules=["query", "value"]),
    "roberta_sequence": dict(r=2, lora_alpha=2, target_modules=["key", "output.dense"]),
    "distilbert_sequence": dict(r=2, lora_alpha=4, modules_to_save=["pre_classifier", "classifier"]),
    "electra_sequence": dict(r=2, lora_alpha=4),
    "albert_groups": dict(r=2, lora_alpha=4, modules_to_save=["pooler", "classifier"]),
    "mpnet_sequence": dict(r=2, lora_alpha=4),
    "modernbert_sequence": dict(r=2, lora_alpha=4, rank_pattern={"attn.Wo": 3}, modules_to_save=["head", "classifier"]),
    "modernbert_mean": dict(r=2, lora_alpha=4, target_modules=["Wqkv"], modules_to_save=["head", "classifier"]),
    "deberta_sequence": dict(r=2, lora_alpha=4, modules_to_save=["pooler", "classifier"]),
    "deberta_token": dict(r=2, lora_alpha=4, target_modules=["query_proj"]),
}


def rate(step):
    return LR * step / WARMUP if step < WARMUP else LR * (STEPS - step) / (STEPS - WARMUP)


def all_linear(model):
    """Names within a layer of all linear layers of the encoder."""
    names = set()
    for name, module in model.named_modules():
        inner = re.match(r".*?\.\d+\.(.*)", name)
        if isinstance(module, torch.nn.Linear) and inner:
            names.add(inner.group(1))
    return sorted(names)


def write(base_name):
    settings = dict(MODELS[base_name])
    base = DATA / "models" / base_name
    arch = json.loads((base / "config.json").read_text())["architectures"][0]
    token = "Token" in arch
    torch.manual_seed(hash_of(base_name))
    plain = getattr(tf, arch).from_pretrained(base)
    settings.setdefault("target_modules", all_linear(plain))
    settings.setdefault("modules_to_save", ["classifier"])
    model = get_peft_model(plain, LoraConfig(task_type="TOKEN_CLS" if token else "SEQ_CLS", **settings))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.add_(torch.randn_like(p) * 0.1)
    out = DATA / "lora" / base_name
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        out.mkdir(parents=True)
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(pathlib.Path(tmp) / file, out)
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base_name
    config["target_modules"] = sorted(config["target_modules"])
    (out / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    model = model.double().eval()
    ids = json.loads((base / "golden.json").read_text())["ids"]
    targets = json.loads((base / "gradients.json").read_text())["targets"]
    multi = model.config.problem_type == "multi_label_classification"
    loss = loss_of(model, token, multi, ids, targets)
    loss.backward()
    gen = torch.Generator().manual_seed(7)
    grads = {}
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    for name, p in trained:
        flat = p.grad.flatten()
        at = torch.randint(0, flat.numel(), (8,), generator=gen).tolist()
        short = name.removeprefix("base_model.model.").replace(".default", "").replace(".modules_to_save", "")
        grads[short] = {"norm": float("%.9g" % flat.norm()), "at": at, "values": [float("%.9g" % flat[i]) for i in at]}
    plain = [p for n, p in trained if "bias" in n or "norm" in n.lower()]
    decayed = [p for n, p in trained if not ("bias" in n or "norm" in n.lower())]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}], lr=LR)
    losses = []
    for step in range(STEPS):
        rows = [(BATCH * step + j) % len(ids) for j in range(BATCH)]
        optimizer.zero_grad()
        step_loss = loss_of(model, token, multi, [ids[r] for r in rows], [targets[r] for r in rows])
        losses.append(float("%.9g" % step_loss.item()))
        step_loss.backward()
        torch.nn.utils.clip_grad_norm_([p for _, p in trained], CLIP)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
    golden = {"base": base_name, "loss": float("%.10g" % loss), "gradients": grads, "losses": losses,
              "steps": STEPS, "batch": BATCH, "learning_rate": LR, "warmup_steps": WARMUP, "weight_decay": DECAY, "max_grad_norm": CLIP}
    (out / "golden.json").write_text(json.dumps(golden) + "\n")
    print(base_name, float(loss), losses[0], losses[-1], len(grads))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        sys.exit(check(*map(pathlib.Path, sys.argv[2:5])))
    for name in sys.argv[1:] or MODELS:
        write(name)
