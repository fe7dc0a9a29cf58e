# SPDX-License-Identifier: Apache-2.0
"""Text classification with the interface of transformers.pipeline("text-classification")."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from ._model import Model, OnError
from ._options import whole
from ._texts import index_of
from .errors import UsageError
from .results import Result

_UNSET: Any = object()
_CHUNK = 8192  # texts per call when reading a stream


class Classifier(Model):
    """A text classifier, or VADER's rules (model="vader"). Default: the default model.

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
        """Returns a list of one dict for one str, else a list of dicts; with `top_k` (None: all) a list of dicts per
        text, best first. For an iterator returns a generator. A pair is {"text": …, "text_pair": …}; many are a list of such
        dicts. `function_to_apply`: "sigmoid", "softmax" or "none" (logits); default: the model's own."""
        _check_call(batch_size, ignored)
        if top_k is not _UNSET and top_k is not None:
            whole("top_k", top_k)
        function = self._function(function_to_apply)
        if isinstance(inputs, str):
            result = self._dicts([inputs], None, top_k, function)
            return result if top_k is _UNSET else result[0]
        if isinstance(inputs, dict) and "text" in inputs and isinstance(inputs["text"], str):
            result = self._dicts(*_split([inputs]), top_k, function)
            return result if top_k is _UNSET else result[0]
        if isinstance(inputs, Iterator):
            return self._each(inputs, top_k, function)
        return self._dicts(*_split(inputs), top_k, function)

    def predict(self, texts: Any, *, pairs: Any = None, column: str | None = None, on_error: OnError = "raise",
                progress: bool = False, function_to_apply: str | None = None) -> Result:
        """Scores many texts with the throughput of a file: a list, a numpy array, a column or a table of pyarrow, pandas,
        polars or datasets (`column` selects its column). Texts are not copied. `pairs`: one second text per text.
        `function_to_apply`: "sigmoid", "softmax" or "none" (logits); default: the model's own."""
        scorer = self._open()
        function = self._function(function_to_apply)
        predictions, errors, seconds = self._score(texts, column, on_error, progress, pairs, function)
        return Result(predictions, scorer.labels, scorer.score_names, errors, seconds, index_of(texts))

    def stream(self, texts: Iterable[str], *, on_error: OnError = "raise",
               function_to_apply: str | None = None) -> Iterator[Result]:
        """Yields the results of a stream of texts in order, in parts, with bounded memory."""
        rest = iter(texts)
        while part := list(itertools.islice(rest, _CHUNK)):
            yield self.predict(part, on_error=on_error, function_to_apply=function_to_apply)

    def _function(self, name: str | None) -> str:
        """The engine's name of a function; empty: the model's own."""
        if name is None:
            return ""
        known = name.lower() if isinstance(name, str) else ""  # transformers accepts any case
        if known not in ("sigmoid", "softmax", "none"):
            raise UsageError(f"function_to_apply={name!r} is unknown", 'use "sigmoid", "softmax", "none" or None')
        if self._open().kind == "rules":
            raise UsageError(f'function_to_apply="{name}": VADER\'s rules have no logits', "omit it")
        return known

    def _each(self, texts: Iterator[str], top_k: int | None, function: str) -> Iterator[Any]:
        while part := list(itertools.islice(texts, _CHUNK)):
            yield from self._dicts(*_split(part), top_k, function)

    def _dicts(self, texts: Any, pairs: list[Any] | None, top_k: int | None, function: str) -> list[Any]:
        scorer = self._open()
        predictions, _, _ = self._score(texts, pairs=pairs, function=function)
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
    """Texts, and second texts if `inputs` is a list of {"text": …, "text_pair": …}."""
    if not isinstance(inputs, list) or not inputs or not isinstance(inputs[0], dict):
        return inputs, None
    if not all(isinstance(one, dict) and "text" in one for one in inputs):
        raise UsageError('a dict has no "text"', 'use {"text": …, "text_pair": …}')
    paired = [one.get("text_pair") is not None for one in inputs]
    if any(paired) and not all(paired):
        raise UsageError("only some rows have a text_pair", "score rows with and without a text_pair apart")
    texts = [one["text"] for one in inputs]
    return texts, [one["text_pair"] for one in inputs] if paired[0] else None


_noted: set[str] = set()


def note_once(key: str, text: str) -> None:
    """Issues a warning once per process."""
    if key not in _noted:
        _noted.add(key)
        warnings.warn(text, stacklevel=4)


def _check_call(batch_size: int | None, ignored: dict[str, Any]) -> None:
    if batch_size is not None:
        note_once("batch_size", "batch_size is ignored: the memory plan sets the batch size")
    for name in ignored:
        if name in ("truncation", "padding", "num_workers"):
            note_once(name, f"{name} is ignored: texts are packed without padding; long texts follow long_text=")
        else:
            raise UsageError(f"{name}= is unknown", "see help(brim.Classifier)")
