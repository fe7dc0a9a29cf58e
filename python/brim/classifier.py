# SPDX-License-Identifier: Apache-2.0
"""Labels for texts, called as transformers.pipeline("text-classification") is."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from ._model import Model, OnError
from ._texts import index_of
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
        them, the best first. A generator or another iterator gives a generator. A pair is
        {"text": …, "text_pair": …}; many are a list of such dicts."""
        _check_call(function_to_apply, batch_size, ignored)
        if isinstance(inputs, str):
            result = self._dicts([inputs], None, top_k)
            return result if top_k is _UNSET else result[0]
        if isinstance(inputs, dict) and "text" in inputs and isinstance(inputs["text"], str):
            result = self._dicts(*_split([inputs]), top_k)
            return result if top_k is _UNSET else result[0]
        if isinstance(inputs, Iterator):
            return self._each(inputs, top_k)
        return self._dicts(*_split(inputs), top_k)

    def predict(self, texts: Any, *, pairs: Any = None, column: str | None = None, on_error: OnError = "raise",
                progress: bool = False) -> Result:
        """Many texts by columns, as fast as files: a list, a numpy array, a column or a table of pyarrow, pandas,
        polars or datasets (`column` names it there). Texts are not copied. `pairs` are as many second texts."""
        scorer = self._open()
        predictions, errors, seconds = self._score(texts, column, on_error, progress, pairs)
        return Result(predictions, scorer.labels, scorer.score_names, errors, seconds, index_of(texts))

    def stream(self, texts: Iterable[str], *, on_error: OnError = "raise") -> Iterator[Result]:
        """Results of a stream of texts in order, part by part, in bounded memory."""
        rest = iter(texts)
        while part := list(itertools.islice(rest, _CHUNK)):
            yield self.predict(part, on_error=on_error)

    def _each(self, texts: Iterator[str], top_k: int | None) -> Iterator[Any]:
        while part := list(itertools.islice(texts, _CHUNK)):
            yield from self._dicts(*_split(part), top_k)

    def _dicts(self, texts: Any, pairs: list[Any] | None, top_k: int | None) -> list[Any]:
        scorer = self._open()
        predictions, _, _ = self._score(texts, pairs=pairs)
        names = scorer.labels
        if top_k is _UNSET:
            return [{"label": names[label], "score": score}
                    for label, score in zip(predictions.label_ids.tolist(), predictions.label_scores.tolist(),
                                            strict=True)]
        names = scorer.score_names
        return [sorted(({"label": name, "score": score} for name, score in zip(names, row, strict=True)),
                       key=lambda entry: entry["score"], reverse=True)[:top_k]
                for row in predictions.scores.tolist()]


def _split(inputs: Any) -> tuple[Any, list[Any] | None]:
    """Texts, and second texts where `inputs` is a list of {"text": …, "text_pair": …}."""
    if not isinstance(inputs, list) or not inputs or not isinstance(inputs[0], dict):
        return inputs, None
    if not all(isinstance(one, dict) and "text" in one for one in inputs):
        raise UsageError('a list of dicts needs "text" in each', 'write {"text": …, "text_pair": …}')
    paired = [one.get("text_pair") is not None for one in inputs]
    if any(paired) and not all(paired):
        raise UsageError("some rows have a text_pair, some have none", "score them apart")
    texts = [one["text"] for one in inputs]
    return texts, [one["text_pair"] for one in inputs] if paired[0] else None


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
