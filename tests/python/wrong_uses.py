# SPDX-License-Identifier: Apache-2.0
"""Incorrect calls and the expected exceptions, used by test_wrong_uses.py."""

from __future__ import annotations

import csv
import pathlib

import brim
import numpy as np
from brim import BadData, BadModel, Cancelled, DoesNotFit, UsageError
from conftest import tiny_model

REFUSED = (UsageError, BadData)
SERIES = {"unique_id": ["a"] * 40, "ds": list(range(40)), "y": [float(i % 7) for i in range(40)]}


class Bench:
    """Models and files for the incorrect calls."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.empty = folder / "empty"
        self.empty.mkdir()
        self.model = tiny_model("bert_sequence", folder / "classifier")
        self.tagger = tiny_model("bert_token", folder / "tagger")
        self.encoder = brim.Encoder(tiny_model("bert_encoder", folder / "encoder"))
        self.clf = brim.Classifier(self.model)
        self.closed = brim.Classifier("vader")
        self.closed.close()
        self.file = folder / "rows.csv"
        with open(self.file, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text", "label"], *([f"word{i}", "a" if i % 2 else "b"] for i in range(20))])

    @property
    def out(self) -> pathlib.Path:
        return self.folder / "out"

    def train(self, rows, **settings):
        return brim.train(self.model, rows, output_dir=self.out, progress=False, **settings)


CONSTRUCTOR = {
    "a model that does not exist": (UsageError, lambda b: brim.Classifier("no-such-model")),
    "an empty directory": (BadModel, lambda b: brim.Classifier(b.empty)),
    "None as a model": (UsageError, lambda b: brim.Classifier(None)),
    "a number as a model": (UsageError, lambda b: brim.Classifier(7)),
    "an unknown device": (UsageError, lambda b: brim.Classifier(b.model, device="toaster")),
    "None as a device": (UsageError, lambda b: brim.Classifier(b.model, device=None)),
    "an unknown precision": (UsageError, lambda b: brim.Classifier(b.model, precision="fp7")),
    "a number as a precision": (UsageError, lambda b: brim.Classifier(b.model, precision=16)),
    "an unknown memory limit": (UsageError, lambda b: brim.Classifier(b.model, memory_limit="lots")),
    "a number as a memory limit": (UsageError, lambda b: brim.Classifier(b.model, memory_limit=6 << 30)),
    "a memory limit that is too small": (DoesNotFit, lambda b: brim.Classifier(memory_limit="1MiB")),
    "negative threads": (UsageError, lambda b: brim.Classifier(b.model, threads=-1)),
    "a word for threads": (UsageError, lambda b: brim.Classifier(b.model, threads="two")),
    "half a thread": (UsageError, lambda b: brim.Classifier(b.model, threads=0.5)),
    "a negative length": (UsageError, lambda b: brim.Classifier(b.model, max_length=-5)),
    "a word for a length": (UsageError, lambda b: brim.Classifier(b.model, max_length="long")),
    "a negative length of an encoder": (UsageError, lambda b: brim.Encoder(b.folder / "encoder", max_length=-5)),
    "an unknown long_text": (UsageError, lambda b: brim.Classifier(b.model, long_text="sometimes")),
    "None as long_text": (UsageError, lambda b: brim.Classifier(b.model, long_text=None)),
    "an unknown keyword": (TypeError, lambda b: brim.Classifier(b.model, colour="red")),
    "a tagger as a classifier": (UsageError, lambda b: brim.Classifier(b.tagger)),
    "a classifier as a tagger": (UsageError, lambda b: brim.Tagger(b.model)),
    "rules as an encoder": (UsageError, lambda b: brim.Encoder("vader")),
    "an unknown pooling": (UsageError, lambda b: brim.Encoder(b.folder / "encoder", pooling="max")),
    "an unknown default prompt": (UsageError, lambda b: brim.Encoder(b.folder / "encoder", default_prompt_name="query")),
    "an unknown aggregation": (UsageError, lambda b: brim.Tagger(b.tagger, aggregation_strategy="none")),
}

CALL = {
    "no text": (REFUSED, lambda b: b.clf(None)),
    "a number": (REFUSED, lambda b: b.clf(5)),
    "bytes": (REFUSED, lambda b: b.clf(b"bytes")),
    "a list with None": (BadData, lambda b: b.clf(["a", None])),
    "a list of numbers": (BadData, lambda b: b.clf([1, 2])),
    "top_k below one": (UsageError, lambda b: b.clf("a", top_k=-1)),
    "top_k of zero": (UsageError, lambda b: b.clf(["a"], top_k=0)),
    "a word for top_k": (UsageError, lambda b: b.clf("a", top_k="all")),
    "an unknown function": (UsageError, lambda b: b.clf("a", function_to_apply="softplus")),
    "an unknown argument": (UsageError, lambda b: b.clf("a", colour="red")),
    "dicts without texts": (UsageError, lambda b: b.clf([{"txt": "a"}])),
    "some pairs": (UsageError, lambda b: b.clf([{"text": "a", "text_pair": "b"}, {"text": "a"}])),
    "a closed model": (Cancelled, lambda b: b.closed("a")),
}

PREDICT = {
    "one str": (UsageError, lambda b: b.clf.predict("one text")),
    "an unknown on_error": (UsageError, lambda b: b.clf.predict(["a"], on_error="skip")),
    "a column of a list": (UsageError, lambda b: b.clf.predict(["a"], column="text")),
    "a column that does not exist": (UsageError, lambda b: b.clf.predict({"a": ["x"]}, column="text")),
    "two columns": (UsageError, lambda b: b.clf.predict({"a": ["x"], "b": ["y"]})),
    "two dimensions": (BadData, lambda b: b.clf.predict(np.array([["a", "b"]]))),
    "numbers": (BadData, lambda b: b.clf.predict(np.arange(3))),
    "too few pairs": (UsageError, lambda b: b.clf.predict(["a", "b"], pairs=["c"])),
    "one str as pairs": (UsageError, lambda b: b.clf.predict(["a"], pairs="b")),
}

ENCODE = {
    "vectors of tokens": (UsageError, lambda b: b.encoder.encode("a", output_value="token_embeddings")),
    "vectors of bytes": (UsageError, lambda b: b.encoder.encode("a", precision="int8")),
    "another device": (UsageError, lambda b: b.encoder.encode("a", device="cuda:7")),
    "an unknown prompt": (UsageError, lambda b: b.encoder.encode("a", prompt_name="query")),
    "a prompt that is no str": (UsageError, lambda b: b.encoder.encode("a", prompt=5)),
    "no sentences": (REFUSED, lambda b: b.encoder.encode(None)),
}

TRAIN = {
    "a file that does not exist": (UsageError, lambda b: b.train("no.csv")),
    "a number as rows": (UsageError, lambda b: b.train(7)),
    "fewer labels than texts": (UsageError, lambda b: b.train((["a", "b"], ["x"]))),
    "rows without labels": (UsageError, lambda b: b.train({"text": ["a"], "other": ["x"]})),
    "a missing label": (BadData, lambda b: b.train((["a", "b"], ["x", None]))),
    "an unknown setting": (UsageError, lambda b: b.train(b.file, colour="red")),
    "a word for a number": (UsageError, lambda b: b.train(b.file, num_train_epochs="many")),
    "a dict as a setting": (UsageError, lambda b: b.train(b.file, learning_rate={"a": 1})),
    "a model that does not exist": (UsageError, lambda b: brim.train("no-such-model", b.file, output_dir=b.out)),
}

PLAN = {
    "an unknown GPU": (UsageError, lambda b: brim.plan(device="toaster")),
    "an unknown task": (UsageError, lambda b: brim.plan(task="guess")),
    "an unknown limit": (UsageError, lambda b: brim.plan(limit="lots")),
    "a negative length": (UsageError, lambda b: brim.plan(max_length=-5)),
    "a word for a length": (UsageError, lambda b: brim.plan(typical_length="short")),
    "a limit that is too small": (DoesNotFit, lambda b: brim.plan(str(b.model), device="rtx3070", limit="1MiB")),
    "a model that does not exist": (UsageError, lambda b: brim.plan("no-such-model")),
}

FORECAST = {
    "a file that does not exist": (UsageError, lambda b: brim.forecast.predict("no.csv", horizon=1)),
    "a number as series": (UsageError, lambda b: brim.forecast.predict(7, horizon=1)),
    "no horizon": (UsageError, lambda b: brim.forecast.predict(SERIES)),
    "a negative horizon": (UsageError, lambda b: brim.forecast.predict(SERIES, horizon=-1)),
    "an unknown model": (REFUSED + (BadModel,), lambda b: brim.forecast.predict(SERIES, model="oracle", horizon=1)),
    "an unknown setting": (UsageError, lambda b: brim.forecast.predict(SERIES, horizon=1, colour="red")),
    "neither model nor forecasts": (UsageError, lambda b: brim.forecast.evaluate(SERIES, SERIES)),
    "columns of unequal length": (REFUSED, lambda b: brim.forecast.predict({**SERIES, "y": [1.0]}, horizon=1)),
    "no folds": (UsageError, lambda b: brim.forecast.roll(SERIES, horizon=1, folds=0, output_dir=b.out)),
}

BULK = {
    "no inputs": (UsageError, lambda b: brim.bulk.plan([], b.out)),
    "None as inputs": (UsageError, lambda b: brim.bulk.plan(None, b.out)),
    "a file that does not exist": (UsageError, lambda b: brim.bulk.plan("no/*.parquet", b.out)),
    "a file that is not Parquet": (BadData, lambda b: brim.bulk.plan(b.file, b.out)),
    "shards without rows": (UsageError, lambda b: brim.bulk.plan(b.file, b.out, rows_per_shard=0)),
    "a word for rows": (UsageError, lambda b: brim.bulk.plan(b.file, b.out, rows_per_shard="many")),
    "an unknown on_error": (UsageError, lambda b: brim.bulk.plan(b.file, b.out, on_error="skip")),
    "a str to keep": (UsageError, lambda b: brim.bulk.plan(b.file, b.out, keep="id")),
    "an unknown setting": (UsageError, lambda b: brim.bulk.plan(b.file, b.out, colour="red")),
    "a setting out of range": (UsageError, lambda b: brim.bulk.plan(b.file, b.out, max_length=-5)),
    "a folder without a job": (UsageError, lambda b: brim.bulk.load(b.empty)),
    "no tries": (UsageError, lambda b: brim.bulk.run(brim.bulk.Job("x", "", "", {}, ()), tries=0)),
}

BATCH_SCORER = {
    "batches of none": (UsageError, lambda b: brim.BatchScorer("vader", batch_size=0)),
    "a word for a size": (UsageError, lambda b: brim.BatchScorer("vader", batch_size="ten")),
    "a text that is none": (UsageError, lambda b: brim.BatchScorer("vader").score_or_queue(None, {})),
    "labels of another model": (UsageError, lambda b: brim.BatchScorer("vader", labels={"good": 1})),
}

GROUPS = {"constructor": CONSTRUCTOR, "call": CALL, "predict": PREDICT, "encode": ENCODE, "train": TRAIN, "plan": PLAN,
          "forecast": FORECAST, "bulk": BULK, "batch scorer": BATCH_SCORER}
WRONG_USES = {f"{group}: {name}": use for group, uses in GROUPS.items() for name, use in uses.items()}
