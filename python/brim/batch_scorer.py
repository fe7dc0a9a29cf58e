# SPDX-License-Identifier: Apache-2.0
"""Queues texts with the items they belong to, scores them in batches and stores the scores in the items."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

from ._options import checked, whole
from .classifier import Classifier
from .errors import BadData, UsageError

_log = logging.getLogger("brim")
_SIGNS = {"negative": -1.0, "neg": -1.0, "bearish": -1.0, "neutral": 0.0, "neu": 0.0, "positive": 1.0, "pos": 1.0,
          "bullish": 1.0}
_SERVER_ONLY = ("FEATURE_ADAPTIVE_SENTIMENT", "MARKET_STATUS_OVERRIDE", "SENTIMENT_MODEL_OPEN", "SENTIMENT_MODEL_CLOSED")
_FALSE = ("0", "false", "no", "off")
_NUMBERED = {2: (-1.0, 1.0), 3: (-1.0, 0.0, 1.0)}  # LABEL_0, LABEL_1, … for two or three labels


class BatchScorer:
    """Stores `sentiment_score`, from -1 (negative) to 1 (positive), in each item: as a dict key or an attribute. An
    invalid text gets None. If a call fails, its batch stays queued for the next one.

    `labels` maps each label of the model to "negative", "neutral", "positive" or a number from -1 to 1. It is needed
    unless the labels are named negative, positive and perhaps neutral, or LABEL_0 to LABEL_1 or LABEL_2."""

    @checked
    def __init__(self, model: Classifier | str = "", batch_size: int = 10, key: str = "sentiment_score",
                 labels: Mapping[str, str | float] | None = None) -> None:
        self.batch_size = whole("batch_size", batch_size)
        self.classifier = model if isinstance(model, Classifier) else Classifier(model)
        self.key = key
        self._signed = _signed_by(self.classifier._open().score_names, labels)
        self._waiting: list[tuple[str, Any]] = []
        self._lock = threading.Lock()

    @classmethod
    def from_env(cls, model: Classifier | str | None = None, env: Mapping[str, str] | None = None) -> BatchScorer:
        """Reads SENTIMENT_MODEL_NAME (unless `model` is given) and SENTIMENT_BATCH_SIZE (default 10). If only the latter
        is set, the model is finbert, as in `brim serve`. Warns about variables that need `brim serve`."""
        variables = os.environ if env is None else env
        for name in _SERVER_ONLY:
            if (value := variables.get(name, "")) and value.lower() not in _FALSE:
                _log.warning("%s=%s has no effect here; use a queue of `brim serve`", name, value)
        size = variables.get("SENTIMENT_BATCH_SIZE", "")
        default_model = "finbert" if size else ""
        size = size or "10"
        if not (size.isascii() and size.isdigit() and 1 <= int(size) <= 100_000):  # as for brim serve
            raise UsageError(f"SENTIMENT_BATCH_SIZE={size} is invalid", "use a whole number from 1 to 100,000")
        return cls(variables.get("SENTIMENT_MODEL_NAME", "") or default_model if model is None else model, int(size))

    @checked
    def score_or_queue(self, text: str, item: Any) -> float | None:
        """Queues the text. If it completes a batch, the batch is scored and the score of this text is returned."""
        if not isinstance(text, str):
            raise UsageError(f"expected a text, got {type(text).__name__}", "pass a str")
        with self._lock:
            self._waiting.append((text, item))
            if len(self._waiting) < self.batch_size:
                return None
            batch, self._waiting = self._waiting, []
        return self._apply(batch)[-1]

    @checked
    def flush_and_apply(self, items: Iterable[Any] | None = None) -> list[Any]:
        """Scores all queued texts. Returns `items` in their order, or the items of the batch."""
        with self._lock:
            batch, self._waiting = self._waiting, []
        self._apply(batch)
        return [item for _, item in batch] if items is None else list(items)

    def __len__(self) -> int:
        return len(self._waiting)

    def _apply(self, batch: list[tuple[str, Any]]) -> list[float | None]:
        if not batch:
            return []
        try:
            scores = self._scores([text for text, _ in batch])
        except BaseException:
            with self._lock:
                self._waiting = batch + self._waiting
            raise
        failure: Exception | None = None
        for (_, item), score in zip(batch, scores, strict=True):
            try:
                if isinstance(item, MutableMapping):
                    item[self.key] = score
                else:
                    setattr(item, self.key, score)
            except Exception as error:  # keep the other items' scores; queued again, it would fail every later batch
                failure = failure or error
        if failure is not None:
            raise failure
        return scores

    def _scores(self, texts: list[str]) -> list[float | None]:
        result = self.classifier.predict(texts, on_error="null")
        for _, error in result.errors:
            if not isinstance(error, BadData):  # for example a device failure, not an invalid text
                raise error
            _log.warning("a text has no score: %s", error.problem)
        unread = {row for row, _ in result.errors}
        return [None if row in unread else self._signed(values) for row, values in enumerate(result.scores.tolist())]


def _signed_by(names: list[str], labels: Mapping[str, str | float] | None) -> Callable[[list[float]], float]:
    """Maps a row of scores to one number: VADER's compound, or the sum of the scores times their labels' signs."""
    if labels is None and "compound" in names:
        compound = names.index("compound")
        return lambda row: row[compound]
    signs = _known_signs(names) if labels is None else _mapped_signs(names, labels)
    return lambda row: sum(sign * value for sign, value in zip(signs, row, strict=True))


def _known_signs(names: list[str]) -> list[float]:
    lower = [name.lower() for name in names]
    numbered = _NUMBERED.get(len(names))
    if numbered is not None and sorted(lower) == [f"label_{i}" for i in range(len(names))]:
        return [numbered[int(name[-1])] for name in lower]
    signs = [_SIGNS.get(name) for name in lower]
    known = [sign for sign in signs if sign is not None]
    if len(known) != len(names) or sorted(known) not in ([-1.0, 1.0], [-1.0, 0.0, 1.0]):
        example = ", ".join(f'"{name}": …' for name in names[:2])
        raise UsageError(f"cannot map the labels {', '.join(names)} to negative, neutral and positive",
                         f'map each to a number from -1 to 1: BatchScorer(…, labels={{{example}}})')
    return known


def _mapped_signs(names: list[str], labels: Mapping[str, str | float]) -> list[float]:
    if not isinstance(labels, Mapping):
        raise UsageError(f"labels={labels!r} is not a dict", f'map each label to a number from -1 to 1: {{"{names[0]}": …}}')
    if set(labels) != set(names):
        raise UsageError(f"labels maps {', '.join(map(str, labels)) or 'nothing'}; the model has {', '.join(names)}",
                         "map each label of the model once")
    signs = []
    for name in names:
        value = labels[name]
        sign = _SIGNS.get(value.lower()) if isinstance(value, str) else value
        if not isinstance(sign, (int, float)) or not -1 <= sign <= 1:
            raise UsageError(f"labels[{name!r}]={value!r} is invalid", 'use "negative", "neutral", "positive" or -1 to 1')
        signs.append(float(sign))
    return signs
