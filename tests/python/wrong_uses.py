# SPDX-License-Identifier: Apache-2.0
"""Incorrect calls and the expected exceptions, used by test_wrong_uses.py."""

from __future__ import annotations

import asyncio
import csv
import pathlib

import brim
import numpy as np
from brim import ArgumentError, BadData, BadModel, Cancelled, DoesNotFit, UsageError
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
        self.ner = brim.Tagger(self.tagger)
        self.cross = brim.CrossEncoder(tiny_model("bert_pair", folder / "cross"))
        self.closed = brim.Classifier("vader")
        self.closed.close()
        self.file = folder / "rows.csv"
        with open(self.file, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text", "label"], *([f"word{i}", "a" if i % 2 else "b"] for i in range(20))])

    @property
    def out(self) -> pathlib.Path:
        return self.folder / "out"

    def parquet(self):
        import pyarrow.parquet as pq
        from pyarrow import table

        pq.write_table(table({"text": ["a"], "id": [1]}), self.folder / "rows.parquet")
        return self.folder / "rows.parquet"

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
    "an unknown keyword": (ArgumentError, lambda b: brim.Classifier(b.model, colour="red")),
    "a tagger as a classifier": (UsageError, lambda b: brim.Classifier(b.tagger)),
    "a classifier as a tagger": (UsageError, lambda b: brim.Tagger(b.model)),
    "rules as an encoder": (UsageError, lambda b: brim.Encoder("vader")),
    "an unknown pooling": (UsageError, lambda b: brim.Encoder(b.folder / "encoder", pooling="max")),
    "an unknown default prompt": (UsageError, lambda b: brim.Encoder(b.folder / "encoder", default_prompt_name="query")),
    "an unknown aggregation": (UsageError, lambda b: brim.Tagger(b.tagger, aggregation_strategy="last")),
    "a misspelt keyword": (ArgumentError, lambda b: brim.Classifier(b.model, max_lenght=64)),
    "a keyword of another library": (ArgumentError, lambda b: brim.Classifier(b.model, n_jobs=2)),
    "a misspelt keyword of a tagger": (ArgumentError, lambda b: brim.Tagger(b.tagger, agregation_strategy="max")),
    "two models": (ArgumentError, lambda b: brim.Classifier(b.model, b.model)),
    "a fraction as a device": (UsageError, lambda b: brim.Classifier(b.model, device=1.5)),
    "a list of devices": (UsageError, lambda b: brim.Classifier(b.model, device=["cpu"])),
    "a number as memory to leave free": (UsageError, lambda b: brim.Classifier(b.model, leave_free=8)),
    "a path with a null byte": (UsageError, lambda b: brim.Classifier("a\0b")),
    "a number as pooling": (UsageError, lambda b: brim.Encoder(b.folder / "encoder", pooling=1)),
    "a list of prompts": (UsageError, lambda b: brim.Encoder(b.folder / "encoder", prompts=["query: "])),
    "an unknown similarity": (UsageError, lambda b: brim.Encoder(b.folder / "encoder", similarity_fn_name="jaccard")),
    "vectors of no numbers": (UsageError, lambda b: brim.Encoder(b.folder / "encoder", truncate_dim=0)),
    "no model of a cross-encoder": (ArgumentError, lambda b: brim.CrossEncoder()),
    "an unknown activation": (UsageError, lambda b: brim.CrossEncoder(b.model, activation_fn="tanh")),
    "an unknown task": (UsageError, lambda b: brim.pipeline("text-clasification")),
    "an unknown option of a pipeline": (ArgumentError, lambda b: brim.pipeline("ner", model=b.tagger, agregation="max")),
    "another tokenizer": (UsageError, lambda b: brim.pipeline("text-classification", model=b.model, tokenizer="gpt2")),
    "an unknown type of numbers": (UsageError, lambda b: brim.pipeline("text-classification", model=b.model, dtype="float8")),
    "a name that does not exist": (UsageError, lambda b: brim.load_model("no-such-model")),
    "more threads than an int": (UsageError, lambda b: brim.Classifier(b.model, threads=2**31)),
    "a length beyond an int": (UsageError, lambda b: brim.Classifier(b.model, max_length=2**63)),
    "a model that is not UTF-8": (UsageError, lambda b: brim.Classifier("\udcff")),
    "a device that is not UTF-8": (UsageError, lambda b: brim.Classifier(b.model, device="\ud83d")),
    "a limit that is not UTF-8": (UsageError, lambda b: brim.Classifier(b.model, memory_limit="\ud83d")),
    "an adapter that is not UTF-8": (UsageError, lambda b: brim.Classifier(b.model, adapter="\udcff")),
    "a prompt that is not UTF-8": (UsageError, lambda b: brim.Encoder(b.folder / "encoder", prompts={"query": "\ud83d"})),
    "a GPU beyond an int": (UsageError, lambda b: brim.Classifier(b.model, device=2**31)),
    "too short a length": (UsageError, lambda b: brim.Classifier(b.model, max_length=1)),
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
    "a dict with a number": (BadData, lambda b: b.clf([{"text": 5}])),
    "no argument": (ArgumentError, lambda b: b.clf()),
    "two positional arguments": (ArgumentError, lambda b: b.clf("a", "b")),
    "a misspelt argument": (ArgumentError, lambda b: b.clf("a", topk=2)),
    "a negative length": (UsageError, lambda b: b.clf("a", max_length=-5)),
    "a word for a length": (UsageError, lambda b: b.clf("a", max_length="long")),
    "a length without room for text": (UsageError, lambda b: b.clf("a", max_length=1)),
    "truncation of one text of a pair": (UsageError, lambda b: b.clf("a", truncation="only_first")),
    "a number as truncation": (UsageError, lambda b: b.clf("a", truncation=3)),
    "a negative batch size": (UsageError, lambda b: b.clf(["a"], batch_size=-1)),
    "a text that is too long": (BadData, lambda b: b.clf("word1 " * 2000, truncation=False)),
    "a submitted number": (BadData, lambda b: b.clf.submit(5)),
    "a submitted list": (BadData, lambda b: b.clf.submit(["a", "b"])),
    "top_k of a submitted text": (UsageError, lambda b: b.clf.submit("a", top_k=0)),
    "an awaited number": (BadData, lambda b: asyncio.run(b.clf.ascore(5))),
    "a text submitted to a closed model": (Cancelled, lambda b: b.closed.submit("a")),
    "an unknown strategy": (UsageError, lambda b: b.ner("ada", aggregation_strategy="last")),
    "a str as ignored labels": (UsageError, lambda b: b.ner("ada", ignore_labels="O")),
    "a negative stride": (UsageError, lambda b: b.ner("ada", stride=-1)),
    "one str split into words": (UsageError, lambda b: b.ner("ada", is_split_into_words=True)),
    "numbers as words": (BadData, lambda b: b.ner([[1, 2]], is_split_into_words=True)),
    "a number to tokenize": (UsageError, lambda b: b.clf.tokenizer.tokenize(5)),
    "the tokenizer of rules": (UsageError, lambda b: brim.Classifier("vader").tokenizer.encode("a")),
    "a closed model": (Cancelled, lambda b: b.closed("a")),
    "a length beyond an int": (UsageError, lambda b: b.clf("a", max_length=2**63)),
    "a stride beyond an int": (UsageError, lambda b: b.ner("a", stride=2**31)),
    "a stride of all tokens": (UsageError, lambda b: b.ner("a", stride=b.ner.max_length)),
    "a number as ignored labels": (UsageError, lambda b: b.ner("a", ignore_labels=5)),
    "labels of a tagger with labels": (UsageError, lambda b: b.ner("a", labels=["a"])),
    "a number as labels": (UsageError, lambda b: b.ner("a", labels=5)),
    "a token beyond an int": (UsageError, lambda b: b.clf.tokenizer.decode([2**31])),
    "one token": (UsageError, lambda b: b.clf.tokenizer.decode(5)),
    "a number as texts": (UsageError, lambda b: b.clf.tokenizer(5)),
    "a lone surrogate": (BadData, lambda b: b.clf("\ud83d")),
    "a lone surrogate to tokenize": (UsageError, lambda b: b.clf.tokenizer.tokenize("\ud83d")),
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
    "an unknown option": (ArgumentError, lambda b: b.clf.predict(["a"], colum="text")),
    "a misspelt column": (UsageError, lambda b: b.clf.predict({"text": ["x"], "id": ["y"]}, column="txt")),
    "a field that does not exist": (UsageError, lambda b: b.clf.predict({"a": [{"b": "x"}]}, column="a.c")),
    "one str as a stream": (UsageError, lambda b: b.clf.stream("text")),
    "an unknown on_error of a stream": (UsageError, lambda b: b.clf.stream(["text"], on_error="skip")),
    "one str as pairs of texts": (UsageError, lambda b: b.cross.predict("ab")),
    "three texts as a pair": (BadData, lambda b: b.cross.predict([("a", "b", "c")])),
    "a number as a query": (UsageError, lambda b: b.cross.rank(5, ["a"])),
    "one str as documents": (UsageError, lambda b: b.cross.rank("a", "b")),
}

ENCODE = {
    "an unknown output": (UsageError, lambda b: b.encoder.encode("a", output_value="tokens")),
    "an unknown precision": (UsageError, lambda b: b.encoder.encode("a", precision="int4")),
    "no argument": (ArgumentError, lambda b: b.encoder.encode()),
    "a misspelt argument": (ArgumentError, lambda b: b.encoder.encode("a", normalise_embeddings=True)),
    "bytes of one text": (UsageError, lambda b: b.encoder.encode("a", precision="int8")),
    "no dimensions": (UsageError, lambda b: b.encoder.encode("a", truncate_dim=0)),
    "vectors of different widths": (UsageError, lambda b: b.encoder.similarity([[1, 2]], [[1, 2, 3]])),
    "words as vectors": (UsageError, lambda b: b.encoder.similarity(["a"], ["b"])),
    "a negative length": (UsageError, lambda b: setattr(b.encoder, "max_seq_length", -5)),
    "another device": (UsageError, lambda b: b.encoder.encode("a", device="cuda:7")),
    "an unknown prompt": (UsageError, lambda b: b.encoder.encode("a", prompt_name="query")),
    "a prompt that is no str": (UsageError, lambda b: b.encoder.encode("a", prompt=5)),
    "a prompt that is not UTF-8": (UsageError, lambda b: b.encoder.encode("a", prompt="\ud83d")),
    "three texts as a pair": (BadData, lambda b: b.encoder.encode([("a", "b", "c")])),
    "a length beyond an int": (UsageError, lambda b: setattr(b.encoder, "max_seq_length", 2**63)),
    "a number to tokenize": (REFUSED, lambda b: b.encoder.tokenize(5)),
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
    "no output directory": (ArgumentError, lambda b: brim.train(b.model, b.file)),
    "None as an output directory": (UsageError, lambda b: brim.train(b.model, b.file, output_dir=None)),
    "None as a model": (UsageError, lambda b: brim.train(None, b.file, output_dir=b.out)),
    "a misspelt setting": (UsageError, lambda b: b.train(b.file, learning_rte=1e-3)),
    "a negative learning rate": (UsageError, lambda b: b.train(b.file, learning_rate=-1)),
    "no epochs": (UsageError, lambda b: b.train(b.file, num_train_epochs=-1)),
    "a number as a column": (UsageError, lambda b: b.train(b.file, text=5)),
    "a file that is not UTF-8": (UsageError, lambda b: b.train("\udcff.csv")),
    "a setting that is not UTF-8": (UsageError, lambda b: b.train(b.file, optim="\ud83d")),
    "an output that is not UTF-8": (UsageError, lambda b: brim.train(b.model, b.file, output_dir="\udcff")),
    "a label that is a list": (BadData, lambda b: b.train((["a"], [["x"]]))),
}

PLAN = {
    "an unknown GPU": (UsageError, lambda b: brim.plan(device="toaster")),
    "an unknown task": (UsageError, lambda b: brim.plan(task="guess")),
    "an unknown limit": (UsageError, lambda b: brim.plan(limit="lots")),
    "a number as a limit": (UsageError, lambda b: brim.plan(limit=6)),
    "a misspelt argument": (ArgumentError, lambda b: brim.plan(devise="cpu")),
    "an unknown precision": (UsageError, lambda b: brim.plan(precision="fp7")),
    "one model to compare": (UsageError, lambda b: brim.compare(["vader"], ["a"])),
    "a str as models to compare": (UsageError, lambda b: brim.compare("vader", ["a"])),
    "no rows to compare": (UsageError, lambda b: brim.compare(["vader", "default"], 7)),
    "a loss above one": (UsageError, lambda b: brim.compare(["vader", "default"], ["a"], max_loss=5)),
    "an adapter to compare with": (UsageError, lambda b: brim.compare(["vader", "default"], ["a"], adapter=b.model)),
    "an argument of gpu_stats": (ArgumentError, lambda b: brim.gpu_stats(0)),
    "a negative length": (UsageError, lambda b: brim.plan(max_length=-5)),
    "a word for a length": (UsageError, lambda b: brim.plan(typical_length="short")),
    "a limit that is too small": (DoesNotFit, lambda b: brim.plan(str(b.model), device="rtx3070", limit="1MiB")),
    "a model that does not exist": (UsageError, lambda b: brim.plan("no-such-model")),
    "a length beyond an int": (UsageError, lambda b: brim.plan(max_length=2**63)),
    "a model that is not UTF-8": (UsageError, lambda b: brim.plan("\ud83d")),
    "a number as a label column": (UsageError, lambda b: brim.compare(["vader", "default"], ["a"], label=5)),
    "a model to load that is not UTF-8": (UsageError, lambda b: brim.load_model("\udcff")),
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
    "no horizon at all": (ArgumentError, lambda b: brim.forecast.train(SERIES, output_dir=b.out)),
    "a word for a horizon": (UsageError, lambda b: brim.forecast.predict(SERIES, horizon="two")),
    "a number as a model": (UsageError, lambda b: brim.forecast.predict(SERIES, model=7, horizon=1)),
    "a dict as a setting": (UsageError, lambda b: brim.forecast.predict(SERIES, horizon=1, season={})),
    "text as values": (BadData, lambda b: brim.forecast.predict({**SERIES, "y": ["x"] * 40}, horizon=1)),
    "two columns of one name": (UsageError, lambda b: brim.forecast.predict({1: [1.0] * 40, "1": [2.0] * 40}, horizon=1)),
    "a negative h": (UsageError, lambda b: brim.forecast.NBEATS(h=-1)),
    "no h": (ArgumentError, lambda b: brim.forecast.NBEATS()),
    "a model that is not fitted": (UsageError, lambda b: brim.forecast.NBEATS(h=2).predict()),
    "a level above 100 of a forecast": (UsageError, lambda b: brim.forecast.predict(SERIES, horizon=1, level=np.array([101]))),
    "a setting of training": (UsageError, lambda b: brim.forecast.predict(SERIES, horizon=1, max_steps=5)),
    "a level above 100": (UsageError, lambda b: brim.forecast.NBEATS(h=2).cross_validation(SERIES, level=[800])),
    "no windows": (UsageError, lambda b: brim.forecast.NBEATS(h=2).cross_validation(SERIES, n_windows=0)),
    "a horizon beyond an int": (UsageError, lambda b: brim.forecast.predict(SERIES, horizon=2**63)),
    "an id that is not UTF-8": (UsageError, lambda b: brim.forecast.predict({**SERIES, "unique_id": ["\ud83d"] * 40}, horizon=1)),
    "a setting that is not UTF-8": (UsageError, lambda b: brim.forecast.predict(SERIES, horizon=1, alias="\ud83d")),
    "an object as a level": (UsageError, lambda b: brim.forecast.NBEATS(h=2).cross_validation(SERIES, level=object())),
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
    "a column to score that does not exist": (UsageError, lambda b: brim.bulk.plan(b.parquet(), b.out, text="txt")),
    "a column of numbers": (UsageError, lambda b: brim.bulk.plan(b.parquet(), b.out, text="id")),
    "a number to keep": (UsageError, lambda b: brim.bulk.plan(b.file, b.out, keep=[1])),
    "a misspelt setting": (UsageError, lambda b: brim.bulk.plan(b.file, b.out, max_lenght=64)),
    "a str as a shard": (UsageError, lambda b: brim.bulk.run_shard("part-0")),
    "a str as a job": (UsageError, lambda b: brim.bulk.run("out")),
    "None as a job": (UsageError, lambda b: brim.bulk.finish(None)),
    "shards beyond an int": (UsageError, lambda b: brim.bulk.plan(b.file, b.out, rows_per_shard=2**63)),
    "a column that is not UTF-8": (UsageError, lambda b: brim.bulk.plan(b.file, b.out, text="\ud83d")),
    "a column to keep that is not UTF-8": (UsageError, lambda b: brim.bulk.plan(b.file, b.out, keep=["\ud83d"])),
    "a str as a job on Ray": (UsageError, lambda b: brim.ray.score("out")),
    "half a try on Ray": (UsageError, lambda b: brim.ray.score(brim.bulk.Job("x", "", "", {}, ()), tries=0.5)),
    "a word for cores on Ray": (UsageError, lambda b: brim.ray.score(brim.bulk.Job("x", "", "", {}, ()), num_cpus="two")),
    "a str as a job on Spark": (UsageError, lambda b: brim.spark.score("out", None)),
    "no session of Spark": (UsageError, lambda b: brim.spark.score(brim.bulk.Job("x", "", "", {}, ()), None)),
    "a misspelt option on Spark": (ArgumentError, lambda b: brim.spark.score("out", None, trys=2)),
    "no tries": (UsageError, lambda b: brim.bulk.run(brim.bulk.Job("x", "", "", {}, ()), tries=0)),
}

BATCH_SCORER = {
    "batches of none": (UsageError, lambda b: brim.BatchScorer("vader", batch_size=0)),
    "a word for a size": (UsageError, lambda b: brim.BatchScorer("vader", batch_size="ten")),
    "a text that is none": (UsageError, lambda b: brim.BatchScorer("vader").score_or_queue(None, {})),
    "an unknown option": (ArgumentError, lambda b: brim.BatchScorer("vader", size=2)),
    "labels of another model": (UsageError, lambda b: brim.BatchScorer("vader", labels={"good": 1})),
}

GROUPS = {"constructor": CONSTRUCTOR, "call": CALL, "predict": PREDICT, "encode": ENCODE, "train": TRAIN, "plan": PLAN,
          "forecast": FORECAST, "bulk": BULK, "batch scorer": BATCH_SCORER}
WRONG_USES = {f"{group}: {name}": use for group, uses in GROUPS.items() for name, use in uses.items()}
