# SPDX-License-Identifier: Apache-2.0
"""Labels, scores and vectors against transformers in fp32: skipped where that is not installed (run-tests --all)."""

from __future__ import annotations

import pathlib
import subprocess

import brim
import numpy as np
import pytest
from brim import _program
from conftest import tiny_model

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")


def texts():
    words = ["ada", "lives", "in", "london", "paris", ".", *(f"word{i}" for i in range(40))]
    random = np.random.default_rng(1)
    return [" ".join(random.choice(words, size=random.integers(1, 25))) for _ in range(200)]


@pytest.fixture(scope="module", params=["bert_sequence", "bert_multilabel", "distilbert_sequence"])
def directory(request, tmp_path_factory) -> pathlib.Path:
    return tiny_model(request.param, tmp_path_factory.mktemp("parity") / request.param)


def test_classifier(directory):
    theirs = transformers.pipeline("text-classification", model=str(directory), device="cpu")
    with brim.Classifier(directory, precision="fp32") as ours:
        wanted, got = theirs(texts(), top_k=None), ours(texts(), top_k=None)
        for a, b in zip(wanted, got, strict=True):
            by_label = {entry["label"]: entry["score"] for entry in a}
            assert {entry["label"] for entry in b} == set(by_label)
            for entry in b:
                assert abs(entry["score"] - by_label[entry["label"]]) < 1e-5
        one = texts()[0]
        assert [e["label"] for e in ours(one)] == [e["label"] for e in theirs(one)]
        assert [e["label"] for e in ours(texts())] == [e["label"] for e in theirs(texts())]
        assert type(ours(one, top_k=1)) is type(theirs(one, top_k=1))


def test_default_model(tweets, tmp_path):
    directory = str(tmp_path / "default")  # its int8 weights are Brim's own format
    subprocess.run([_program.path(), "models", "export", "default", "--precision", "fp32", "-o", directory], check=True)
    theirs = transformers.pipeline("text-classification", model=directory, device="cpu")
    with brim.Classifier(directory, precision="fp32") as ours:
        for a, b in zip(theirs(tweets, truncation=True), ours(tweets), strict=True):
            assert a["label"] == b["label"] and abs(a["score"] - b["score"]) < 1e-5


def test_encoder(tmp_path):
    directory = tiny_model("bert_encoder", tmp_path / "encoder")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModel.from_pretrained(directory).eval()
    vectors = brim.Encoder(directory, precision="fp32").encode(texts())
    for row, text in enumerate(texts()):
        tokens = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            wanted = model(**tokens).last_hidden_state[0].mean(dim=0).numpy()
        cosine = wanted @ vectors[row] / np.linalg.norm(wanted) / np.linalg.norm(vectors[row])
        assert cosine > 0.99999


def test_tagger(tmp_path):
    directory = tiny_model("bert_token", tmp_path / "tagger")
    theirs = transformers.pipeline("token-classification", model=str(directory), device="cpu",
                                   aggregation_strategy="first")
    ours = brim.Tagger(directory, precision="fp32")
    for text in texts()[:50]:
        wanted, got = theirs(text), ours(text)
        assert [(e["entity_group"], e["start"], e["end"]) for e in got] == [
            (e["entity_group"], e["start"], e["end"]) for e in wanted]
        assert all(abs(a["score"] - b["score"]) < 1e-5 for a, b in zip(wanted, got, strict=True))
