#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Brim's Python calls with those of other libraries: python_pipelines.py TEXTS [--encoder DIR] [--rows 2000] [--runs 3]

predict(list) of the default model in its own precision against transformers.pipeline in fp32 (batches of 32, texts in the given order
and sorted by length) and against a loop over ONNX Runtime int8 with transformer fusions, sorted by length; encode(list) of --encoder
against sentence-transformers in fp32. All use the same weights, threads and texts; runs are interleaved. Needs the
installed module, torch, transformers, onnx and onnxruntime; --encoder needs sentence-transformers. Prints one line per program."""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

import brim
from brim import _brim
from cpu_peers import Wrapped, best_classes, export_onnx, fused, onnx_session, quantise
from python_peers import plain_model

Calls = dict[str, Callable[[list[str]], object]]
WARM_UP = 100  # texts


def onnx_labels(model: str, work: str, threads: int) -> Callable[[list[str]], list[str]]:
    """Labels of texts by ONNX Runtime; tokenizes in each call."""
    import tokenizers
    import transformers

    hf = transformers.AutoModelForSequenceClassification.from_pretrained(model, attn_implementation="eager").eval()
    export_onnx(Wrapped(hf), f"{work}/cls.onnx", True)
    quantise(fused(f"{work}/cls.onnx", f"{work}/fused.onnx", hf.config), f"{work}/cls8.onnx")
    session = onnx_session(f"{work}/cls8.onnx", threads)
    fast = tokenizers.Tokenizer.from_file(f"{model}/tokenizer.json")
    fast.no_padding()
    fast.enable_truncation(512)

    def labels(texts: list[str]) -> list[str]:
        encoded = [one.ids for one in fast.encode_batch_fast(texts)]
        return [hf.config.id2label[best] for best in best_classes(session, encoded)]

    return labels


def classifiers(work: str, texts: list[str], threads: int) -> Calls:
    import transformers

    model = f"{work}/fp32"
    plain_model(_brim.find_model(""), model)
    classifier = brim.Classifier(device="cpu", threads=threads)
    pipe = transformers.pipeline("text-classification", model=model, device="cpu")
    run_onnx = onnx_labels(model, work, threads)
    some = texts[:200]
    ours, theirs, narrow = classifier.predict(some).labels, [one["label"] for one in pipe(some, batch_size=32)], run_onnx(some)
    print(f"Brim: {classifier.precision} on {classifier.device}; equal labels: "
          f"{100 * sum(map(str.__eq__, ours, theirs)) / len(some):.1f} % with transformers, "
          f"{100 * sum(map(str.__eq__, ours, narrow)) / len(some):.1f} % with ONNX Runtime", flush=True)
    return {"brim predict": classifier.predict,
            "transformers": lambda texts: pipe(texts, batch_size=32, truncation=True),
            "transformers, sorted": lambda texts: pipe(sorted(texts, key=len), batch_size=32, truncation=True),
            "ONNX Runtime int8, sorted": run_onnx}


def encoders(folder: str, texts: list[str], threads: int) -> Calls:
    import numpy as np
    import sentence_transformers

    encoder = brim.Encoder(folder, device="cpu", threads=threads)
    theirs = sentence_transformers.SentenceTransformer(folder, device="cpu").float()
    ours, wanted = encoder.encode(texts[:200]), theirs.encode(texts[:200])
    cosines = (ours * wanted).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(wanted, axis=1)
    print(f"Brim: {encoder.precision}; least cosine with sentence-transformers {cosines.min():.4f}", flush=True)
    return {"brim encode": encoder.encode,
            "sentence-transformers": lambda texts: theirs.encode(texts, batch_size=32, show_progress_bar=False)}


def measured(calls: Calls, texts: list[str], runs: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call(texts[:WARM_UP])
    for _ in range(runs):
        for name, call in calls.items():
            began = time.perf_counter()
            call(texts)
            rates[name].append(len(texts) / (time.perf_counter() - began))
    ours = statistics.median(next(iter(rates.values())))
    for name, found in rates.items():
        shown = ", ".join(f"{one:,.0f}" for one in found)
        print(f"{name:<26}{shown} texts/s; Brim is {ours / statistics.median(found):.2f} times as fast", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=pathlib.Path)
    options.add_argument("--encoder", help="a sentence-transformers directory")
    options.add_argument("--rows", type=int, default=2000)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    given = options.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    import torch

    torch.set_num_threads(given.threads)
    texts = given.file.read_text(encoding="utf-8").split("\n")[:given.rows]
    with tempfile.TemporaryDirectory() as work:
        measured(classifiers(work, texts, given.threads), texts, given.runs)
    if given.encoder:
        measured(encoders(given.encoder, texts, given.threads), texts, given.runs)


if __name__ == "__main__":
    main()
