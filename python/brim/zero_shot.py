# SPDX-License-Identifier: Apache-2.0
"""Zero-shot classification with the interface of transformers.pipeline("zero-shot-classification")."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack, overload

import numpy as np

from . import _brim
from ._model import Model, OnError
from ._options import ModelOptions, checked, names_of, whole, words
from ._texts import index_of, values_of
from .errors import ArgumentError, UsageError
from .results import Result

_TEMPLATE = "This example is {}."
_MOST_PREPARED = 16  # label sets kept with their tokenized hypotheses


class ZeroShotScores(TypedDict):
    sequence: str
    labels: list[str]
    scores: list[float]


class ZeroShotClassifier(Model):
    """An NLI model that classifies texts by label names.

    >>> clf = brim.ZeroShotClassifier("models/nli")
    >>> clf("Shares rose after the results", ["earnings", "merger", "lawsuit"])
    {'sequence': 'Shares rose after the results', 'labels': ['earnings', …], 'scores': [0.93…, …]}
    """

    _kinds = ("classifier",)
    _wanted = "an NLI model"

    @checked
    def __init__(self, model: str | os.PathLike[str], **options: Unpack[ModelOptions]) -> None:
        super().__init__(model, **options)
        self._prepared: dict[tuple[Any, ...], _brim.ZeroShotLabels] = {}
        try:
            self._prepare(["any"], _TEMPLATE, False)
        except Exception:
            self.close()
            raise

    @overload
    def __call__(self, sequences: str, candidate_labels: str | Sequence[str] | None = ..., *,
                 hypothesis_template: str = ..., multi_label: bool = ..., batch_size: int | None = ...,
                 truncation: object = ..., padding: object = ..., num_workers: int | None = ...) -> ZeroShotScores: ...
    @overload
    def __call__(self, sequences: list[str] | tuple[str, ...], candidate_labels: str | Sequence[str] | None = ..., *,
                 hypothesis_template: str = ..., multi_label: bool = ..., batch_size: int | None = ...,
                 truncation: object = ..., padding: object = ..., num_workers: int | None = ...) -> list[ZeroShotScores]: ...
    @checked
    def __call__(self, sequences: str | Sequence[str], candidate_labels: str | Sequence[str] | None = None, *,
                 hypothesis_template: str = _TEMPLATE, multi_label: bool = False, batch_size: int | None = None,
                 truncation: object = None, padding: object = None,
                 num_workers: int | None = None) -> ZeroShotScores | list[ZeroShotScores]:
        """Returns {"sequence", "labels", "scores"} for one str, labels by descending score, else a list of such dicts.
        `candidate_labels`: a list, or one str with commas. With `multi_label` the labels are independent of each other.
        `batch_size`, `truncation`, `padding`, `num_workers`: accepted, but not needed."""
        if batch_size is not None:
            whole("batch_size", batch_size)
        labels = self._prepare(candidate_labels, hypothesis_template, multi_label)
        texts = [sequences] if isinstance(sequences, str) else values_of(sequences)
        if not texts:
            raise UsageError("sequences is empty", "pass at least one text")
        predictions, _, _ = self._score(texts, labels=labels)
        names = labels.labels
        results: list[ZeroShotScores] = []
        for text, scores in zip(texts, np.asarray(predictions.scores), strict=True):
            order = np.argsort(scores, kind="stable")[::-1]
            results.append({"sequence": text, "labels": [names[i] for i in order], "scores": scores[order].tolist()})
        return results[0] if isinstance(sequences, str) else results

    @checked
    def predict(self, texts: Any, candidate_labels: str | Sequence[str], *, hypothesis_template: str = _TEMPLATE,
                multi_label: bool = False, column: str | None = None, on_error: OnError = "raise",
                progress: bool = False) -> Result:
        """Scores many texts with the throughput of a file; see Classifier.predict. The columns are the labels in the order
        given."""
        labels = self._prepare(candidate_labels, hypothesis_template, multi_label)
        predictions, errors, seconds = self._score(texts, column, on_error, progress, labels=labels)
        return Result(predictions, labels.labels, labels.labels, errors, seconds, index_of(texts))

    def close(self) -> None:
        self._prepared = {}
        super().close()

    def _prepare(self, labels: str | Sequence[str] | None, template: str, multi_label: bool) -> _brim.ZeroShotLabels:
        """The labels with their tokenized hypotheses, which are kept for the next call."""
        if labels is None:
            raise ArgumentError("argument candidate_labels is missing", 'pass label names: ["earnings", "merger"]')
        names = names_of("candidate_labels", labels, '["earnings", "merger"]')
        words("hypothesis_template", template, '"This example is {}."')
        key = (tuple(names), template, bool(multi_label))
        found = self._prepared.get(key)
        if found is None:
            found = self._open().prepare_labels(names, template, bool(multi_label))
            while len(self._prepared) >= _MOST_PREPARED:
                self._prepared.pop(next(iter(self._prepared)), None)
            self._prepared[key] = found
        return found
