# SPDX-License-Identifier: Apache-2.0
"""Labels for texts, called as transformers.pipeline("text-classification") is."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from . import _brim
from ._model import Model, OnError
from ._texts import texts_of
from .errors import UsageError
from .results import Result

_UNSET: Any = object()
_CHUNK = 8192  # texts of a stream that are scored at once


class Classifier(Model):
    """A text classifier, or VADER's rules (model="vader"). Without a name the default model.

    >>> clf = brim.Classifier()
    >>> clf("great stuff")
    [{'label': 'positive', 'score': 0.98…}]
    >>> clf.predict(many_texts).scores
    """

    _kinds = ("classifier", "rules")
    _wanted = "a text classifier"

    @property
    def labels(self) -> list[str]:
        return self._open().labels

    def __call__(self, inputs: Any, *, top_k: int | None = _UNSET, function_to_apply: str | None = None,
                 batch_size: int | None = None, **ignored: Any) -> Any:
        """One str gives a list of one dict, many give a list of dicts; with `top_k` (None: all) each text has a list of
        them, the best first. A generator or another iterator gives a generator."""
        _check_call(function_to_apply, batch_size, ignored)
        if isinstance(inputs, str):
            result = self._dicts(texts_of([inputs]), top_k)
            return result if top_k is _UNSET else result[0]
        if isinstance(inputs, dict) and "text" in inputs and isinstance(inputs["text"], str):
            if inputs.get("text_pair") is not None:
                raise UsageError("text pairs are not scored yet", "pass one text")
            return self(inputs["text"]) if top_k is _UNSET else self(inputs["text"], top_k=top_k)
        if isinstance(inputs, Iterator):
            return self._each(inputs, top_k)
        return self._dicts(texts_of(inputs), top_k)

    def predict(self, texts: Any, *, column: str | None = None, on_error: OnError = "raise",
                progress: bool = False) -> Result:
        """Many texts by columns, as fast as files: a list, a numpy array, a column or a table of pyarrow, pandas,
        polars or datasets (`column` names it there). Texts are not copied."""
        scorer = self._open()
        predictions, errors, seconds = self._score(texts, column, on_error, progress)
        return Result(predictions, scorer.labels, scorer.score_names, errors, seconds)

    def stream(self, texts: Iterable[str], *, on_error: OnError = "raise") -> Iterator[Result]:
        """Results of a stream of texts in order, part by part, in bounded memory."""
        rest = iter(texts)
        while part := list(itertools.islice(rest, _CHUNK)):
            yield self.predict(part, on_error=on_error)

    def _each(self, texts: Iterator[str], top_k: int | None) -> Iterator[Any]:
        while part := list(itertools.islice(texts, _CHUNK)):
            yield from self._dicts(texts_of(part), top_k)

    def _dicts(self, texts: _brim.Texts, top_k: int | None) -> list[Any]:
        scorer = self._open()
        predictions, _, _ = self._score(texts)
        names = scorer.labels
        if top_k is _UNSET:
            return [{"label": names[label], "score": score}
                    for label, score in zip(predictions.label_ids.tolist(), predictions.label_scores.tolist(),
                                            strict=True)]
        names = scorer.score_names
        return [sorted(({"label": name, "score": score} for name, score in zip(names, row, strict=True)),
                       key=lambda entry: entry["score"], reverse=True)[:top_k]
                for row in predictions.scores.tolist()]


_noted: set[str] = set()


def note_once(key: str, text: str) -> None:
    """A warning that is worth hearing once per process."""
    if key not in _noted:
        _noted.add(key)
        warnings.warn(text, stacklevel=4)


def _check_call(function_to_apply: str | None, batch_size: int | None, ignored: dict[str, Any]) -> None:
    if function_to_apply == "none":
        raise UsageError('function_to_apply="none": Brim gives probabilities, not logits', "leave it out")
    if batch_size is not None:
        note_once("batch_size", "batch_size is not needed: Brim packs batches by the memory plan")
    for name in ignored:
        if name in ("truncation", "padding", "num_workers"):
            note_once(name, f"{name} is not needed: texts are packed without padding, long ones follow long_text=")
        else:
            raise UsageError(f"{name}= is unknown", "see help(brim.Classifier)")
