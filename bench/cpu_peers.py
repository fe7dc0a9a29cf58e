#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Brim's CPU engine with PyTorch and ONNX Runtime; prints one table.

  cpu_peers.py --bench encoder_bench --brim PROGRAM --vocab DIR --texts FILE [--model DIR] [--threads N] [--seconds 2] [--parts encoder,tweets,start,long]
               [--precisions fp32,bf16,int8] [--rows N]

encoder: BERT-base with seeded weights, 32x32, 32x128 and 1x32 tokens, all precisions. tweets: a model (--model) on FILE, `brim score`
end to end against an optimized Python loop (length-sorted batches, ONNX Runtime, for BERT with transformer fusions); compares
labels. start: process time for ten lines. long: model flop/s with one text in 64 a hundred times longer, and with uniform lengths.
--vocab is a BERT vocabulary folder. Requires torch, transformers, onnxruntime and onnx; reports what cannot be measured.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
rows = []


def emit(**row):
    rows.append(row)
    print(json.dumps(row), flush=True)


def median_seconds(call, seconds):
    for _ in range(3):
        call()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds or len(times) < 5:
        t = time.perf_counter()
        call()
        times.append(time.perf_counter() - t)
    return statistics.median(times)


def export_onnx(model, path, with_types):
    import torch

    ids = torch.ones(2, 16, dtype=torch.long)
    inputs = (ids, torch.ones_like(ids)) + ((torch.zeros_like(ids),) if with_types else ())
    names = ["input_ids", "attention_mask"] + (["token_type_ids"] if with_types else [])
    axes = {n: {0: "b", 1: "s"} for n in names}
    with torch.inference_mode():
        torch.onnx.export(model, inputs, path, input_names=names, output_names=["out"], dynamic_axes=axes, opset_version=17, dynamo=False)


def onnx_session(path, threads):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def fused(path, out, config):
    """Applies ONNX Runtime's transformer fusions (attention, layer norm, GELU), which its loader does not apply by default."""
    from onnxruntime.transformers import optimizer

    optimizer.optimize_model(path, model_type="bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size, opt_level=1).save_model_to_file(out)
    return out


def quantise(path, out):
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # The quantizer cannot infer the types of fused operators; all are float.
    quantize_dynamic(path, out, weight_type=QuantType.QInt8, per_channel=True, extra_options={"DefaultTensorType": 1})


def best_classes(session, encoded):
    """Returns the best class of each text; batches of at most 4,096 tokens, longest first, padded to the longest."""
    import numpy as np

    order = sorted(range(len(encoded)), key=lambda i: -len(encoded[i]))
    best, at = [None] * len(encoded), 0
    while at < len(order):
        part = order[at:at + max(1, 4096 // len(encoded[order[at]]))]
        at += len(part)
        ids = np.zeros((len(part), len(encoded[part[0]])), np.int64)
        mask = np.zeros_like(ids)
        for r, i in enumerate(part):
            ids[r, :len(encoded[i])] = encoded[i]
            mask[r, :len(encoded[i])] = 1
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        classes = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})[0].argmax(-1)
        for r, i in enumerate(part):
            best[i] = int(classes[r])
    return best


class Wrapped:
    """A model that returns one tensor, as required by the exporter."""

    def __new__(cls, hf):
        import torch

        class Module(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.hf = hf

            def forward(self, input_ids, attention_mask, token_type_ids=None):
                return self.hf(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)[0]

        return Module().eval()


def encoder(a, work):
    import numpy as np
    import torch
    import transformers as tf

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    folder = f"{work}/bert-base"
    hf = tf.BertModel(tf.BertConfig(vocab_size=30522), add_pooling_layer=False).eval()
    hf.save_pretrained(folder)
    for f in pathlib.Path(a.vocab).iterdir():
        if f.name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
            (pathlib.Path(folder) / f.name).write_bytes(f.read_bytes())
    shapes = ["32x32", "32x128", "1x32"]
    for precision in a.precisions:
        out = subprocess.run([a.bench, folder, precision, "cpu", str(a.threads), str(a.seconds), *shapes], capture_output=True, text=True)
        for line in out.stdout.splitlines():
            emit(**json.loads(line))
        if out.returncode:
            emit(who="brim", precision=precision, error=out.stderr.strip())
    made = {s: torch.randint(0, 30522, tuple(map(int, s.split("x")))) for s in shapes}

    def report(who, precision, call):
        for s in shapes:
            try:
                t = median_seconds(lambda: call(s), a.seconds)
                emit(who=who, precision=precision, shape=s, seconds=t, sequences_per_second=int(s.split("x")[0]) / t)
            except Exception as e:  # report baselines that fail
                emit(who=who, precision=precision, shape=s, error=str(e)[:200])

    with torch.inference_mode():
        if "fp32" in a.precisions:
            report("pytorch", "fp32", lambda s: hf(input_ids=made[s]).last_hidden_state)
        if "bf16" in a.precisions:
            half = tf.BertModel.from_pretrained(folder, dtype=torch.bfloat16, add_pooling_layer=False).eval()
            report("pytorch", "bf16", lambda s: half(input_ids=made[s]).last_hidden_state)
            compiled = torch.compile(half)
            report("pytorch compile", "bf16", lambda s: compiled(input_ids=made[s]).last_hidden_state)
    try:
        path = f"{work}/bert.onnx"
        export_onnx(Wrapped(hf), path, True)
        path = fused(path, f"{work}/bert-fused.onnx", hf.config)
        feeds = {s: {"input_ids": m.numpy(), "attention_mask": np.ones(m.shape, np.int64), "token_type_ids": np.zeros(m.shape, np.int64)} for s, m in made.items()}
        if "fp32" in a.precisions:
            plain = onnx_session(path, a.threads)
            report("onnxruntime", "fp32", lambda s: plain.run(None, feeds[s]))
        if "int8" in a.precisions:
            quantise(path, f"{work}/bert8.onnx")
            narrow = onnx_session(f"{work}/bert8.onnx", a.threads)
            report("onnxruntime", "int8", lambda s: narrow.run(None, feeds[s]))
    except Exception as e:
        emit(who="onnxruntime", error=str(e)[:300])


def brim_score(a, texts, out, *flags):
    """Returns the wall time of the process and its summary."""
    summary = out + ".json"
    t = time.perf_counter()
    p = subprocess.run([a.brim, "score", texts, "-o", out, "--model", a.model, "--device", "cpu", "--threads", str(a.threads), "--summary-json", summary, "-q", *flags],
                       capture_output=True, text=True)
    took = time.perf_counter() - t
    if p.returncode:
        raise RuntimeError(p.stderr.strip())
    return took, json.load(open(summary))


def tweets(a, work):
    import csv

    import tokenizers
    import torch
    import transformers as tf

    lines = [l.rstrip("\n") for l in open(a.texts, encoding="utf-8", errors="replace")][: a.rows or None]
    texts = f"{work}/texts.txt"
    open(texts, "w", encoding="utf-8").write("\n".join(lines) + "\n")
    labels = {}
    for precision in a.precisions:
        runs = [brim_score(a, texts, f"{work}/o.csv", "--precision", precision, "--format", "txt") for _ in range(3)]
        took = statistics.median(t for t, _ in runs)
        labels[precision] = [r["label"] for r in csv.DictReader(open(f"{work}/o.csv", newline="", encoding="utf-8"))]
        emit(who="brim score", precision=precision, rows=len(lines), seconds=took, rows_per_second=len(lines) / took, after_loading=max(r["rows_per_second"] for _, r in runs),
             mfu=runs[0][1].get("mfu"), held_back_by=runs[0][1].get("held_back_by"))
    try:
        hf = tf.AutoModelForSequenceClassification.from_pretrained(a.model, dtype=torch.float32).eval()
        path = f"{work}/cls.onnx"
        export_onnx(Wrapped(hf), path, True)
        if hf.config.model_type == "bert":
            path = fused(path, f"{work}/cls-fused.onnx", hf.config)
        quantise(path, f"{work}/cls8.onnx")
        names = [hf.config.id2label[i] for i in range(hf.config.num_labels)]

        fast = tokenizers.Tokenizer.from_file(f"{a.model}/tokenizer.json")
        fast.no_padding()
        fast.enable_truncation(512)

        def loop(session):
            encoded = [e.ids for e in getattr(fast, "encode_batch_fast", fast.encode_batch)(lines)]
            return [names[best] for best in best_classes(session, encoded)]

        for precision, file in (("fp32", path), ("int8", f"{work}/cls8.onnx")):
            if precision not in labels:
                continue
            session = onnx_session(file, a.threads)
            loop(session)
            times = []
            for _ in range(3):
                t = time.perf_counter()
                found = loop(session)
                times.append(time.perf_counter() - t)
            took = statistics.median(times)
            agree = {p: sum(x == y for x, y in zip(found, own)) / len(lines) for p, own in labels.items()}
            emit(who="python loop, onnxruntime", precision=precision, rows=len(lines), seconds=took, rows_per_second=len(lines) / took, labels_as_brim=agree)
    except Exception as e:
        emit(who="python loop, onnxruntime", error=str(e)[:300])


def start(a, work):
    ten = f"{work}/ten.txt"
    open(ten, "w").write("\n".join(open(a.texts, encoding="utf-8", errors="replace").read().split("\n")[:10]) + "\n")
    times = sorted(brim_score(a, ten, f"{work}/ten.csv")[0] for _ in range(15))
    emit(who="brim, ten lines, whole process", seconds=times[len(times) // 2], least=times[0], most=times[-1])


def long(a, work):
    words = [w for l in open(a.texts, encoding="utf-8", errors="replace").read().split("\n")[:4000] for w in l.split()]
    short = [" ".join(words[i:i + 4]) for i in range(0, 40000, 4)]
    open(f"{work}/uniform.txt", "w").write("\n".join(s for s in short for _ in range(2)) + "\n")
    open(f"{work}/mixed.txt", "w").write("\n".join(" ".join([s] * 100) if i % 64 == 0 else s for i, s in enumerate(short)) + "\n")
    for kind in ("uniform", "mixed"):
        runs = [brim_score(a, f"{work}/{kind}.txt", f"{work}/l.csv", "--precision", "bf16")[1] for _ in range(3)]
        emit(who=f"brim, lengths {kind}", precision="bf16", mfu=statistics.median(r["mfu"] for r in runs), tokens_per_second=statistics.median(r["tokens_per_second"] for r in runs),
            device_busy=runs[0].get("device_busy"), held_back_by=runs[0].get("held_back_by"))


def main():
    p = argparse.ArgumentParser()
    for name in ("bench", "brim", "vocab", "texts", "model"):
        p.add_argument(f"--{name}")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--parts", default="encoder,tweets,start,long")
    p.add_argument("--precisions", type=lambda t: t.split(","), default=["fp32", "bf16", "int8"])
    p.add_argument("--rows", type=int, default=0, help="first rows of --texts for the tweets part; 0: all")
    p.add_argument("--json")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as work:
        for part in a.parts.split(","):
            {"encoder": encoder, "tweets": tweets, "start": start, "long": long}[part](a, work)
    best = {}
    for r in rows:
        if "sequences_per_second" in r:
            best[(r["shape"], r["precision"], r["who"])] = r["sequences_per_second"]
    print("\nshape    precision  " + "sequences/s; speed-up of brim in brackets")
    for shape in sorted({k[0] for k in best}):
        for precision in ("fp32", "bf16", "int8"):
            own = best.get((shape, precision, "brim"))
            peers = {k[2]: v for k, v in best.items() if k[:2] == (shape, precision) and k[2] != "brim"}
            if own:
                print(f"{shape:8} {precision:9} brim {own:.5g}" + "".join(f" · {who} {v:.5g} [{own / v:.2f}x]" for who, v in peers.items()))
    if a.json:
        json.dump(rows, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    sys.exit(main())
