# SPDX-License-Identifier: Apache-2.0
"""Types of the main calls, checked by mypy and pyright; never run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from typing import assert_type

import brim
import numpy as np
import numpy.typing as npt
from brim.classifier import Score
from brim.comparison import GpuStats
from brim.cross_encoder import Ranked
from brim.tagger import Entity
from brim.zero_shot import ZeroShotScores

Floats = npt.NDArray[np.float32]


def classifiers(clf: brim.Classifier, texts: list[str], lines: Iterator[str]) -> None:
    assert_type(clf("a"), list[Score])
    assert_type(clf("a", top_k=None), list[Score])
    assert_type(clf({"text": "a", "text_pair": "b"}), Score)
    assert_type(clf({"text": "a", "text_pair": "b"}, top_k=2), list[Score])
    assert_type(clf(texts), list[Score])
    assert_type(clf(texts, truncation=True, max_length=8), list[Score])
    assert_type(clf(texts, top_k=2, function_to_apply="none"), list[list[Score]])
    assert_type(clf(lines), Iterator[Score])
    assert_type(clf(lines, top_k=None), Iterator[list[Score]])
    assert_type(clf.predict(texts), brim.Result)
    assert_type(clf.predict(texts).scores, Floats)
    assert_type(clf.predict(texts).labels, list[str | None])
    assert_type(clf.stream(lines), Iterator[brim.Result])
    assert_type(clf.submit("a"), Future[Score])
    assert_type(clf.submit("a", top_k=3), Future[list[Score]])
    assert_type(clf.labels, list[str])
    assert_type(clf.tokenizer.encode("a"), list[int])


async def awaited(clf: brim.Classifier) -> None:
    assert_type(await clf.ascore("a"), Score)
    assert_type(await clf.ascore("a", top_k=None), list[Score])
    assert_type(await asyncio.gather(*(clf.ascore(text) for text in ["a", "b"])), list[Score])


def others(ner: brim.Tagger, encoder: brim.Encoder, cross: brim.CrossEncoder, nli: brim.ZeroShotClassifier, texts: list[str]) -> None:
    assert_type(ner("a"), list[Entity])
    assert_type(ner(texts), list[list[Entity]])
    assert_type(ner(texts, is_split_into_words=True), list[list[Entity]])
    assert_type(encoder.encode("a"), Floats)
    assert_type(encoder.encode(texts, normalize_embeddings=True), Floats)
    assert_type(encoder.encode([("a", "b")]), Floats)
    assert_type(encoder.encode_query("a"), Floats)
    assert_type(encoder.similarity(encoder.encode(texts), encoder.encode(texts)), Floats)
    assert_type(cross.predict([("a", "b")]), Floats)
    assert_type(cross.rank("a", texts), list[Ranked])
    assert_type(nli("a", ["x", "y"]), ZeroShotScores)
    assert_type(nli(texts, ["x", "y"]), list[ZeroShotScores])


def functions(texts: list[str]) -> None:
    assert_type(brim.pipeline("text-classification"), brim.Classifier)
    assert_type(brim.pipeline("ner", model="m"), brim.Tagger)
    assert_type(brim.pipeline("zero-shot-classification", model="m"), brim.ZeroShotClassifier)
    assert_type(brim.plan(device="rtx3070"), brim.Plan)
    assert_type(brim.train("m", "a.csv", output_dir="out"), brim.Training)
    assert_type(brim.compare(["vader", "default"], texts), brim.Comparison)
    assert_type(brim.gpu_stats(), list[GpuStats])
    assert_type(brim.forecast.predict("a.csv", horizon=1), brim.forecast.Forecasts)
    model = brim.forecast.NBEATS(h=1)
    assert_type(model.fit("a.csv"), brim.forecast.NBEATS[brim.forecast.Forecasts])
    assert_type(model.fit("a.csv").predict(level=[80]), brim.forecast.Forecasts)
    assert_type(model.predict({"y": [1.0]}), brim.forecast.Forecasts)
    assert_type(model.cross_validation("a.csv", n_windows=2), brim.forecast.Forecasts)


class Frame:
    """Stands for the data frames of pandas and polars."""

    columns: list[str] = []
    corr: object = None
    to_numpy: object = None


def frames(df: Frame) -> None:
    model = brim.forecast.NBEATS(h=1)
    assert_type(model.fit(df).predict(), Frame)
    assert_type(model.predict(df), Frame)
    assert_type(model.fit("a.csv").predict(df), Frame)
    assert_type(model.cross_validation(df), Frame)
