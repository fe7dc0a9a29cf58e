#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what `brim plan` chooses for large models under small memory limits, with the bytes by tag; needs no GPU and no weights.

  small_limits.py --brim PROGRAM --tokenizer DIR [--device rtx3060] [--precision bf16] [--batch-size 32] [--work DIR]

Writes models with the shapes of RoBERTa, XLM-R and DeBERTa-v3, whose weights are sparse files of zeros: plans read names, shapes and
sizes. DIR contains tokenizer.json. The context is estimated for the named GPU. Prints one table in Markdown.
"""
import argparse
import json
import pathlib
import shutil
import struct
import subprocess
import tempfile

MIB = 1 << 20
TAGS = ["weights", "master", "gradients", "optimizer", "activations", "workspace", "staging", "graphs", "context"]
BASE, LARGE = dict(H=768, L=12, A=12, F=3072), dict(H=1024, L=24, A=16, F=4096)
SHAPES = {  # family, width, vocabulary
    "RoBERTa-base": ("roberta", BASE, 50265),
    "RoBERTa-large": ("roberta", LARGE, 50265),
    "XLM-R-base": ("xlm-roberta", BASE, 250002),
    "XLM-R-large": ("xlm-roberta", LARGE, 250002),
    "DeBERTa-v3-large": ("deberta-v2", LARGE, 128100),
}
RUNS = [("train", "RoBERTa-base", "4GiB"), ("train", "RoBERTa-base", "6GiB"), ("train", "XLM-R-base", "4GiB"), ("train", "XLM-R-base", "6GiB"),
        ("train", "XLM-R-large", "8GiB"), ("train", "DeBERTa-v3-large", "8GiB"), ("score", "RoBERTa-large", "2GiB")]
PARTS = {"": [], "embeddings frozen": ["--freeze", "embeddings"], "LoRA r 8": ["--lora-r", "8"]}


def tensors(family, width, vocabulary):
    H, L, F = width["H"], width["L"], width["F"]
    deberta = family == "deberta-v2"
    prefix = "deberta" if deberta else "roberta"
    yield f"{prefix}.embeddings.word_embeddings.weight", [vocabulary, H]
    if not deberta:
        yield f"{prefix}.embeddings.position_embeddings.weight", [514, H]
        yield f"{prefix}.embeddings.token_type_embeddings.weight", [1, H]

    def norm(name):
        return [(f"{name}.weight", [H]), (f"{name}.bias", [H])]

    def dense(name, rows, columns):
        return [(f"{name}.weight", [rows, columns]), (f"{name}.bias", [rows])]

    yield from norm(f"{prefix}.embeddings.LayerNorm")
    for layer in range(L):
        at = f"{prefix}.encoder.layer.{layer}"
        for name in ("query_proj", "key_proj", "value_proj") if deberta else ("query", "key", "value"):
            yield from dense(f"{at}.attention.self.{name}", H, H)
        yield from dense(f"{at}.attention.output.dense", H, H)
        yield from norm(f"{at}.attention.output.LayerNorm")
        yield from dense(f"{at}.intermediate.dense", F, H)
        yield from dense(f"{at}.output.dense", H, F)
        yield from norm(f"{at}.output.LayerNorm")
    if deberta:
        yield f"{prefix}.encoder.rel_embeddings.weight", [512, H]
        yield from norm(f"{prefix}.encoder.LayerNorm")
    yield from dense("pooler.dense" if deberta else "classifier.dense", H, H)
    yield from dense("classifier" if deberta else "classifier.out_proj", 3, H)


def write_model(out, tokenizer, family, width, vocabulary):
    out.mkdir(parents=True, exist_ok=True)
    labels = {str(i): name for i, name in enumerate(["negative", "neutral", "positive"])}
    config = dict(model_type=family, vocab_size=vocabulary, hidden_size=width["H"], num_hidden_layers=width["L"], num_attention_heads=width["A"], intermediate_size=width["F"], hidden_act="gelu",
                  max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1, bos_token_id=0, eos_token_id=2, id2label=labels, label2id={v: int(k) for k, v in labels.items()},
                  architectures=["RobertaForSequenceClassification"])
    if family == "deberta-v2":
        config.update(architectures=["DebertaV2ForSequenceClassification"], max_position_embeddings=512, type_vocab_size=0, layer_norm_eps=1e-7, relative_attention=True, position_buckets=256,
                      norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, max_relative_positions=-1, pooler_hidden_act="gelu", pooler_dropout=0)
    (out / "config.json").write_text(json.dumps(config))
    for file in tokenizer.glob("*"):
        if file.name != "config.json":
            shutil.copy(file, out / file.name)
    header, at = {}, 0
    for name, shape in tensors(family, width, vocabulary):
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = dict(dtype="F32", shape=shape, data_offsets=[at, at + size])
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(out / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)


def plan(a, model, task, limit, flags):
    command = [a.brim, "plan", "--model", str(model), "--task", task, "--device", a.device, "--memory-limit", limit, "--precision", a.precision, "--json", *flags]
    if task == "train":
        command += ["--batch-size", str(a.batch_size)]
    run = subprocess.run(command, capture_output=True, text=True)
    return json.loads(run.stdout) if run.returncode == 0 else run.stderr.strip().splitlines()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brim", required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="rtx3060")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--work")
    a = parser.parse_args()
    made = None if a.work else tempfile.TemporaryDirectory(prefix="brim-limits-")
    work = pathlib.Path(a.work or made.name)
    for name, (family, width, vocabulary) in SHAPES.items():
        write_model(work / name, a.tokenizer, family, width, vocabulary)
    print(f"| run | limit | plan | {' | '.join(TAGS)} | peak | predicted tokens/s |")
    print("| --- |" + " --- |" * (len(TAGS) + 4))
    for task, name, limit in RUNS:
        for part, flags in PARTS.items() if task == "train" else [("", [])]:
            p = plan(a, work / name, task, limit, flags)
            run = f"{task} {name}{', ' if part else ''}{part}"
            if isinstance(p, str):
                print(f"| {run} | {limit} | does not fit: {p} |")
                continue
            chosen = f"{p['token_budget']:,} tokens"
            if task == "train":
                chosen = f"{p['optimizer']}{', moments in host memory' if p.get('moments_on_host') else ''}, recompute {p['recompute']}, {chosen}"
            sizes = " | ".join(f"{p['bytes'].get(tag, 0) / MIB:,.0f}" for tag in TAGS)
            print(f"| {run} | {limit} | {chosen} | {sizes} | {p['peak_bytes'] / MIB:,.0f} | {p.get('tokens_per_second', 0):,.0f} |")


if __name__ == "__main__":
    main()
