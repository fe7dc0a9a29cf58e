# SPDX-License-Identifier: Apache-2.0
"""Odd values of every argument: each call succeeds, or raises a typed error with a remedy."""

from __future__ import annotations

import inspect
import pickle
import warnings

import brim
import pytest
from conftest import tiny_model

ODD = {"None": None, "minus one": -1, "2**31": 2**31, "2**63": 2**63, "10**400": 10**400, "a fraction": 1.5, "NaN": float("nan"),
       "a lone surrogate": "\ud83d", "bytes": b"x", "an empty list": [], "an empty dict": {}, "a list of None": [None],
       "a list of a surrogate": ["\ud83d"], "an object": object()}
SERIES = {"unique_id": ["a"] * 40, "ds": list(range(40)), "y": [float(i % 7) for i in range(40)]}


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Functions by name with valid arguments."""
    folder = tmp_path_factory.mktemp("odd")
    model, ner_dir = tiny_model("bert_sequence", folder / "classifier"), tiny_model("bert_token", folder / "tagger")
    cross_dir, encoder_dir = tiny_model("bert_pair", folder / "cross"), tiny_model("bert_encoder", folder / "encoder")
    small = {"threads": 1, "precision": "fp32"}
    clf, ner = brim.Classifier(model, **small), brim.Tagger(ner_dir, **small)
    encoder, cross = brim.Encoder(encoder_dir, **small), brim.CrossEncoder(cross_dir, **small)
    vectors = encoder.encode(["ada", "paris"])
    return {
        "Classifier": (brim.Classifier, {"model": model}), "Tagger": (brim.Tagger, {"model": ner_dir}),
        "Encoder": (brim.Encoder, {"model": encoder_dir}), "CrossEncoder": (brim.CrossEncoder, {"model": cross_dir}),
        "pipeline": (brim.pipeline, {"task": "text-classification", "model": model}), "load_model": (brim.load_model, {"name": model}),
        "call": (clf.__call__, {"inputs": ["ada"]}), "predict": (clf.predict, {"texts": ["ada"]}),
        "stream": (lambda **given: list(clf.stream(**given)), {"texts": ["ada"], "on_error": "null", "function_to_apply": None}),
        "submit": (lambda **given: clf.submit(**given).result(30), {
            "text": "ada", "text_pair": None, "top_k": 1, "function_to_apply": None, "truncation": None, "max_length": None}),
        "tag": (ner.__call__, {"inputs": ["ada"]}), "encode": (encoder.encode, {"inputs": ["ada"]}),
        "encoder.tokenize": (encoder.tokenize, {"texts": ["ada"]}),
        "similarity": (encoder.similarity, {"embeddings1": vectors, "embeddings2": vectors}),
        "cross.predict": (cross.predict, {"inputs": [("ada", "paris")]}), "cross.rank": (cross.rank, {"query": "ada", "documents": ["a"]}),
        "tokenize": (clf.tokenizer.tokenize, {"text": "ada"}), "tokenizer.encode": (clf.tokenizer.encode, {"text": "ada"}),
        "tokenizer": (clf.tokenizer.__call__, {"text": "ada"}), "decode": (clf.tokenizer.decode, {"token_ids": [1]}),
        "plan": (brim.plan, {"model": str(model), "device": "rtx3070"}),
        "compare": (brim.compare, {"models": ["vader", "vader"], "data": (["good"], ["positive"])}),
        "forecast.predict": (brim.forecast.predict, {"data": SERIES, "model": "naive", "horizon": 1, "level": 80, "season": 1, "alias": "a"}),
        "NBEATS": (brim.forecast.NBEATS, {"h": 1}),
        "bulk.plan": (brim.bulk.plan, {"inputs": str(folder / "none.parquet"), "output": str(folder / "out")}),
        "bulk.load": (brim.bulk.load, {"output": str(folder / "out")}), "bulk.run": (brim.bulk.run, {"job": None}),
        "bulk.run_shard": (brim.bulk.run_shard, {"shard": None}), "bulk.finish": (brim.bulk.finish, {"job": None}),
        "ray.score": (brim.ray.score, {"job": None}), "spark.score": (brim.spark.score, {"job": None, "spark": None}),
        "BatchScorer": (brim.BatchScorer, {"model": "vader"}),
    }


def arguments(function, valid):
    """Names of the arguments of a function, and the options of models."""
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if any(p.kind == p.VAR_KEYWORD for p in parameters) and isinstance(function, type):
        names += ["device", "precision", "memory_limit", "leave_free", "threads", "max_length", "long_text", "adapter"]
    return [*dict.fromkeys([*names, *valid])]


NAMES = ["Classifier", "Tagger", "Encoder", "CrossEncoder", "pipeline", "load_model", "call", "predict", "stream", "submit", "tag", "encode",
         "encoder.tokenize", "similarity", "cross.predict", "cross.rank", "tokenize", "tokenizer.encode", "tokenizer", "decode", "plan",
         "compare", "forecast.predict", "NBEATS", "bulk.plan", "bulk.load", "bulk.run", "bulk.run_shard", "bulk.finish", "ray.score",
         "spark.score", "BatchScorer"]


@pytest.mark.parametrize("name", NAMES)
def test_odd_values(name, calls):
    if name.startswith(("bulk", "ray", "spark")):
        pytest.importorskip("pyarrow")
    function, valid = calls[name]
    wrong = []
    for argument in arguments(function, valid):
        for shown, value in ODD.items():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    function(**{**valid, argument: value})
            except brim.Error as error:
                text = str(error)
                pickle.loads(pickle.dumps(error))
                if not error.remedy or "incompatible function" in text or len(text) > 2000:
                    wrong.append(f"{argument}={shown}: {text:.200}")
            except Exception as error:
                wrong.append(f"{argument}={shown}: {error!r:.200}")
    assert not wrong, "\n".join(wrong)
