# SPDX-License-Identifier: Apache-2.0
"""Compares labels, scores and vectors with transformers in fp32; skipped if that is not installed (run-tests --all)."""

from __future__ import annotations

import json
import pathlib
import subprocess

import brim
import numpy as np
import pytest
from brim import _program
from conftest import SOURCE, tiny_model

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


@pytest.mark.parametrize("function", ["sigmoid", "softmax", "none", None])
def test_function_to_apply(directory, function):
    theirs = transformers.pipeline("text-classification", model=str(directory), device="cpu")
    with brim.Classifier(directory, precision="fp32") as ours:
        wanted = theirs(texts(), top_k=None, function_to_apply=function)
        got = ours(texts(), top_k=None, function_to_apply=function)
        for a, b in zip(wanted, got, strict=True):
            by_label = {entry["label"]: entry["score"] for entry in a}
            assert all(abs(entry["score"] - by_label[entry["label"]]) < 1e-5 for entry in b)
        one, other = theirs(texts()[0], function_to_apply=function), ours(texts()[0], function_to_apply=function)
        assert one[0]["label"] == other[0]["label"] and abs(one[0]["score"] - other[0]["score"]) < 1e-5


def test_default_model(tweets, tmp_path):
    directory = str(tmp_path / "default")  # its int8 weights are in Brim's format
    subprocess.run([_program.path(), "models", "export", "default", "--precision", "fp32", "-o", directory], check=True)
    theirs = transformers.pipeline("text-classification", model=directory, device="cpu")
    with brim.Classifier(directory, precision="fp32") as ours:
        for a, b in zip(theirs(tweets, truncation=True), ours(tweets), strict=True):
            assert a["label"] == b["label"] and abs(a["score"] - b["score"]) < 1e-5


# Seeded models with the tokenizers of the tests of src/text. Large weights make the labels differ.
FAMILIES = {"bert": "bert_uncased", "distilbert": "bert_uncased", "roberta": "byte_bpe", "xlm-roberta": "spm_unigram_first",
            "camembert": "spm_unigram_first"}


def made_model(family, kind, folder, **more):
    torch.manual_seed(7)
    files = SOURCE / "tests" / "data" / "tokenizers" / FAMILIES[family]
    pad = "[PAD]" if FAMILIES[family].startswith("bert") else "<pad>"
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(files / "tokenizer.json"), pad_token=pad,
                                                     unk_token=pad.replace("PAD", "UNK").replace("pad", "unk"),
                                                     model_max_length=512)
    tokenizer.save_pretrained(folder)
    shape = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    if family == "distilbert":
        shape = {"dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 96}
    positions = 512 if pad == "[PAD]" else 512 + 1 + tokenizer.pad_token_id
    config = transformers.AutoConfig.for_model(family, vocab_size=len(tokenizer), max_position_embeddings=positions,
                                               pad_token_id=tokenizer.pad_token_id, initializer_range=0.2, **shape, **more)
    model = kind.from_config(config).eval()
    model.save_pretrained(folder)
    return str(folder)


def many_texts(n=1000):
    """Texts of the tokenizer tests, and rows of words."""
    lines = (SOURCE / "tests" / "data" / "tokenizers" / "bert_uncased" / "golden.jsonl").read_text().split("\n")
    odd = [json.loads(line)["text"] for line in lines if line]
    odd = [text for text in odd if text.isprintable() and text.strip()]
    random = np.random.default_rng(3)
    return [" ".join(random.choice(odd, size=random.integers(1, 4))) for _ in range(n)]


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, tmp_path):
    """Equal labels and scores within 1e-5 for a thousand texts."""
    labels = {i: f"class{i}" for i in range(4)}
    folder = made_model(family, transformers.AutoModelForSequenceClassification, tmp_path, num_labels=4, id2label=labels)
    theirs = transformers.pipeline("text-classification", model=folder, device="cpu", top_k=None, truncation=True)
    wanted, texts = [], many_texts()
    for begin in range(0, len(texts), 100):
        wanted += theirs(texts[begin:begin + 100], batch_size=1)
    with brim.Classifier(folder, precision="fp32", device="cpu") as ours:
        result = ours.predict(texts)
    assert len(set(result.labels)) > 1
    for row, scores in enumerate(wanted):
        by_label = {entry["label"]: entry["score"] for entry in scores}
        assert all(abs(by_label[name] - result.scores[row, i]) < 1e-5 for i, name in enumerate(result.score_names)), texts[row]
        ordered = sorted(by_label.values())
        assert result.labels[row] == max(by_label, key=by_label.get) or ordered[-1] - ordered[-2] < 1e-5


@pytest.mark.parametrize("pooling, normalize", [("mean", True), ("cls", False)])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_encoder_against_sentence_transformers(family, pooling, normalize, tmp_path):
    peer = pytest.importorskip("sentence_transformers")
    made_model(family, transformers.AutoModel, tmp_path / "plain")
    parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    words = parts.Transformer(str(tmp_path / "plain"), max_seq_length=128)
    pooled = parts.Pooling(48, pooling_mode=pooling)
    modules = [words, pooled] + ([parts.Normalize()] if normalize else [])
    theirs = peer.SentenceTransformer(modules=modules, device="cpu")
    theirs.save(str(tmp_path / "saved"))
    texts = many_texts(200)
    wanted = theirs.encode(texts)
    with brim.Encoder(tmp_path / "saved", precision="fp32", device="cpu") as ours:
        got = ours.encode(texts)
    lengths = np.linalg.norm(wanted, axis=1) * np.linalg.norm(got, axis=1)
    assert ((wanted * got).sum(axis=1) / lengths).min() > 0.99999
    assert np.allclose(wanted, got, atol=1e-4)


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


@pytest.mark.parametrize("strategy", ["first", "simple", "average", "max"])
def test_tagger(strategy, tmp_path):
    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    folder = made_model("bert", transformers.AutoModelForTokenClassification, tmp_path, num_labels=len(labels),
                        id2label=dict(enumerate(labels)))
    theirs = transformers.pipeline("token-classification", model=folder, device="cpu", aggregation_strategy=strategy)
    # transformers treats a token whose length differs from its text's, as with split accents, as a continuation.
    texts, found = [text.lower() for text in many_texts(400) if text.isascii()][:60], 0
    with brim.Tagger(folder, precision="fp32", device="cpu", aggregation_strategy=strategy) as ours:
        for text, got in zip(texts, ours(texts), strict=True):
            wanted = theirs(text)
            assert [(e["entity_group"], e["start"], e["end"]) for e in got] == [
                (e["entity_group"], e["start"], e["end"]) for e in wanted], text
            assert all(abs(a["score"] - b["score"]) < 1e-5 for a, b in zip(wanted, got, strict=True))
            found += len(got)
    assert found > 60
