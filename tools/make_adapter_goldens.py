#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/adapters/*: LoRA adapters for models in tests/data/models, written by PEFT, with its logits.

Requires torch, transformers and peft. Each directory contains PEFT's two files and golden.json: name of the base model,
its golden ids, and the logits of the adapted model for them, computed in fp64, one sequence at a time.

Checks adapters that Brim wrote: make_adapter_goldens.py --check BASE_MODEL_DIR ADAPTER_DIR MERGED_DIR compares PEFT's
logits with those of the merged model.
"""
import json
import pathlib
import shutil
import sys
import tempfile

import torch
import transformers as tf
from peft import LoraConfig, PeftModel, get_peft_model

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"
ADAPTERS = {
    "roberta": ("roberta_sequence", dict(task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=["query", "value"])),
    "bert_tags": ("bert_token", dict(task_type="TOKEN_CLS", r=3, lora_alpha=5, use_rslora=True, target_modules=r".*layer\.\d+\..*dense")),
    "bert_new_head": ("bert_encoder", dict(task_type="SEQ_CLS", r=2, lora_alpha=16, target_modules=["key"])),
    "deberta": ("deberta_sequence", dict(task_type="SEQ_CLS", r=4, lora_alpha=8, bias="lora_only", target_modules=["query_proj", "value_proj"])),
    "modernbert": ("modernbert_sequence", dict(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["Wqkv", "Wi", "Wo"],
                                               rank_pattern={"attn.Wo": 3}, alpha_pattern={"mlp.Wi": 12})),
    "albert": ("albert_groups", dict(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["query", "ffn"])),
}
HEADS = {"SEQ_CLS": tf.AutoModelForSequenceClassification, "TOKEN_CLS": tf.AutoModelForTokenClassification}


def logits(model, ids):
    model = model.double().eval()
    with torch.no_grad():
        return [model(torch.tensor([row])).logits[0].tolist() for row in ids]


def load(base, task):
    return HEADS[task].from_pretrained(base)


def write(name, base_name, settings):
    torch.manual_seed(hash_of(name))
    base = DATA / "models" / base_name
    model = get_peft_model(load(base, settings["task_type"]), LoraConfig(**settings, lora_dropout=0.1))
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.1)
    out = DATA / "adapters" / name
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        out.mkdir(parents=True)
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(pathlib.Path(tmp) / file, out)
    config = json.loads((out / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = base_name
    (out / "adapter_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    ids = json.loads((base / "golden.json").read_text())["ids"]
    rows = [r if isinstance(r[0], list) else [r] for r in logits(model, ids)]
    rounded = [[[round(v, 7) for v in row] for row in r] for r in rows]
    (out / "golden.json").write_text(json.dumps({"base": base_name, "ids": ids, "rows": rounded}) + "\n")


def hash_of(name):
    return sum(ord(c) * 31**i for i, c in enumerate(name)) % 2**31


def check(base, adapter, merged):
    task = json.loads((adapter / "adapter_config.json").read_text())["task_type"]
    ids = [[2, 7, 9, 30, 3], [2, 5, 3], list(range(2, 40))]
    config = tf.AutoConfig.from_pretrained(merged)
    model = HEADS[task].from_pretrained(base, num_labels=config.num_labels, ignore_mismatched_sizes=True)
    got = logits(PeftModel.from_pretrained(model, adapter), ids)
    want = logits(HEADS[task].from_pretrained(merged), ids)
    worst = max(abs(torch.tensor(a) - torch.tensor(b)).max().item() for a, b in zip(got, want))
    print(f"largest difference of logits: {worst:.2e}")
    return worst > 1e-5


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        sys.exit(check(*map(pathlib.Path, sys.argv[2:5])))
    for name in sys.argv[1:] or ADAPTERS:
        write(name, *ADAPTERS[name])
