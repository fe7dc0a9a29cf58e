# SPDX-License-Identifier: Apache-2.0
"""Token classification with the interface of transformers.pipeline("token-classification")."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, Unpack, overload

import numpy as np

from . import _brim
from ._model import Model, OnError
from ._options import ModelOptions, checked, choice, names_of, number, whole, words
from ._texts import Table, column_of, values_of
from .classifier import LazyResults, is_lazy, warn_if_truncated
from .errors import BadData, UsageError

Strategy: TypeAlias = Literal["none", "simple", "first", "average", "max"]
_STRATEGIES = ("none", "simple", "first", "average", "max")


class Entity(TypedDict):
    """`entity_group` and, with aggregation_strategy="none", `entity` and `index` instead."""

    entity_group: NotRequired[str]
    entity: NotRequired[str]
    index: NotRequired[int]
    score: float
    word: str
    start: int
    end: int


class TaggerCall(TypedDict, total=False):
    """Options of Tagger's calls."""

    aggregation_strategy: Strategy | None
    ignore_labels: Sequence[str] | None
    stride: int | None
    delimiter: str
    column: str | None
    on_error: OnError
    progress: bool
    batch_size: int | None
    labels: str | Sequence[str] | None
    threshold: float | None
    nested: bool


class Tagger(Model):
    """A model that tags words.

    >>> brim.Tagger("my-ner")("Ada lives in London")
    [{'entity_group': 'PER', 'score': 0.99…, 'word': 'Ada', 'start': 0, 'end': 3}, …]

    `aggregation_strategy`: selects the tokens that determine a word's tag, as in transformers: "first", "max", "average"
    (their mean), "simple" (each token on its own), or "none" (tokens are not grouped). Other options: see Classifier.

    A GLiNER model has no labels of its own; each call names them:

    >>> brim.Tagger("my-gliner")("Ada lives in London", labels=["person", "city"])
    [{'entity_group': 'person', 'score': 0.98…, 'word': 'Ada', 'start': 0, 'end': 3}, …]
    """

    _kinds = ("tagger",)
    _wanted = "a model that tags words"
    _kept: tuple[tuple[Any, ...], _brim.ZeroShotLabels] | None = None  # labels of the last call

    @checked
    def __init__(self, model: str | os.PathLike[str] = "", *, aggregation_strategy: Strategy = "first",
                 **options: Unpack[ModelOptions]) -> None:
        self._strategy = choice("aggregation_strategy", aggregation_strategy, _STRATEGIES)
        super().__init__(model, **options)
        self._options["aggregation_strategy"] = aggregation_strategy

    def _start(self, model: str | os.PathLike[str], options: dict[str, Any], pooling: str | None = None,
               aggregation: str = "first") -> None:
        super()._start(model, options, pooling, self._strategy)

    @property
    def labels(self) -> list[str]:
        return self._open().labels

    @overload
    def __call__(self, inputs: str, **options: Unpack[TaggerCall]) -> list[Entity]: ...
    @overload
    def __call__(self, inputs: list[str] | tuple[str, ...] | list[list[str]], *, is_split_into_words: Literal[True],
                 **options: Unpack[TaggerCall]) -> list[list[Entity]]: ...
    @overload
    def __call__(self, inputs: list[str] | tuple[str, ...] | Table, *, is_split_into_words: Literal[False] = ...,
                 **options: Unpack[TaggerCall]) -> list[list[Entity]]: ...
    @overload
    def __call__(self, inputs: Iterator[str], **options: Unpack[TaggerCall]) -> Iterator[list[Entity]]: ...
    @checked
    def __call__(self, inputs: Any, *, aggregation_strategy: Strategy | None = None,
                 ignore_labels: Sequence[str] | None = None, stride: int | None = None,
                 is_split_into_words: bool = False, delimiter: str = " ", column: str | None = None,
                 on_error: OnError = "raise", progress: bool = False, batch_size: int | None = None,
                 labels: str | Sequence[str] | None = None, threshold: float | None = None,
                 nested: bool = False) -> Any:
        """Returns a list of entities for one str, else a list of such lists; for an iterator or a Dataset of torch they are
        computed while they are read.

        `aggregation_strategy`: for this call; default: that of the constructor.
        `ignore_labels`: labels to leave out; default: ["O"].
        `stride`: reads longer texts completely, in windows that share this number of tokens, instead of truncating them.
        `is_split_into_words`: a text is a list of words; the result is always a list of lists. `start` and `end` are those
        in the words joined by `delimiter`.
        `column`, `on_error`, `progress`: as in Classifier.predict.
        `labels`: GLiNER models only: kinds of entities to find; a list, or one str with commas. Entities have a score above
        `threshold` (default: 0.5); with `nested` they may contain each other.
        """
        defaults = self._defaults
        strategy = aggregation_strategy or defaults.get("aggregation_strategy") or self._options["aggregation_strategy"]
        choice("aggregation_strategy", strategy, _STRATEGIES)
        ignored = ignore_labels if ignore_labels is not None else defaults.get("ignore_labels")
        if isinstance(ignored, str):
            raise UsageError(f"ignore_labels={ignored!r} is not a list of labels", 'use a list: ["O"]')
        ignored = None if ignored is None else names_of("ignore_labels", ignored, '["O"]')
        stride = stride if stride is not None else defaults.get("stride")
        overlap = -1 if stride is None else whole("stride", stride, 0)
        if overlap >= self.max_length:
            raise UsageError(f"stride={stride}: the model reads {self.max_length} tokens at once", "use a smaller stride")
        if batch_size is not None:
            whole("batch_size", batch_size)
        outside = ignored is not None and "O" not in ignored
        changed = strategy != self._options["aggregation_strategy"]
        options = _brim.call_options(
            aggregation=strategy if changed else "", overlap=overlap, outside=outside,
            long_text="window-mean" if overlap >= 0 else "") if changed or overlap >= 0 or outside else None
        prepared = self._prepare(labels, threshold, nested, options)

        def entities(texts: Any) -> list[list[Entity]]:
            predictions, _, _ = self._score(texts, None, on_error, progress, labels=prepared, options=options)
            if overlap < 0 and self._options["long_text"] == "truncate":
                warn_if_truncated(predictions, self._open())
            found: list[list[Any]] = [predictions.entities(row) for row in range(len(predictions))]
            if strategy == "none":
                _name_unknown(found, texts)
            return found if ignored is None else [[e for e in row if _tag(e) not in ignored] for row in found]

        if is_split_into_words:
            return self._words(inputs, words("delimiter", delimiter, '" "'), entities)
        if isinstance(inputs, str):
            return entities([inputs])[0]
        return LazyResults(inputs, entities) if is_lazy(inputs) else entities(column_of(inputs, column))

    def _prepare(self, labels: str | Sequence[str] | None, threshold: float | None, nested: bool,
                 options: _brim.CallOptions | None) -> _brim.ZeroShotLabels | None:
        """The labels with their tokens; kept for the next call."""
        if labels is None:
            if threshold is not None or nested:
                raise UsageError(f"{'nested' if threshold is None else 'threshold'} requires labels",
                                 'name the entities to find: labels=["person", "city"]')
            return None
        if options is not None:
            raise UsageError("labels: aggregation_strategy, stride and ignore_labels are not supported",
                             'read long texts with Tagger(…, long_text="window-max")')
        names = names_of("labels", labels, '["person", "city"]')
        least = number("threshold", 0.5 if threshold is None else threshold, 0, 1)
        key = (tuple(names), least, bool(nested))
        kept = self._kept
        if kept is None or kept[0] != key:
            self._kept = kept = key, self._open().prepare_entities(names, least, bool(nested))
        return kept[1]

    def close(self) -> None:
        self._kept = None
        super().close()

    def _words(self, inputs: Any, delimiter: str, entities: Any) -> Any:
        """A list with the entities of a list of words, or one per list of words, as in transformers."""
        if isinstance(inputs, np.ndarray):
            inputs = inputs.tolist()
        if isinstance(inputs, str) or not isinstance(inputs, (list, tuple)):
            raise UsageError(f"is_split_into_words=True: expected a list of words, got {type(inputs).__name__}",
                             'pass ["Ada", "lives"], or a list of such lists')
        rows = [inputs] if all(isinstance(word, str) for word in inputs) else list(inputs)
        for row, text in enumerate(rows):
            if isinstance(text, str) or not isinstance(text, (list, tuple)) or not all(isinstance(w, str) for w in text):
                error = BadData(f"row {row} is not a list of words", 'pass lists of str: ["Ada", "lives"]')
                error.row = row
                raise error
        found = entities([" ".join(text) for text in rows])
        for text, row in zip(rows, found, strict=True):
            _move(row, text, len(delimiter))
        return found


def _move(entities: list[Entity], words: Sequence[str], width: int) -> None:
    """Converts positions in words joined by one space to positions in words joined by `width` characters."""
    begins = list(itertools.accumulate((len(word) + 1 for word in words), initial=0))
    for entity in entities:
        entity["start"] += (bisect.bisect_right(begins, entity["start"]) - 1) * (width - 1)
        entity["end"] += (bisect.bisect_right(begins, entity["end"] - 1) - 1) * (width - 1)


def _name_unknown(found: list[list[Any]], texts: Any) -> None:
    """Shows the text of tokens that are not in the vocabulary, as transformers does."""
    rows = [(row, e) for row, entities in enumerate(found) for e in entities if e["word"] in ("[UNK]", "<unk>")]
    if rows:
        known = values_of(texts)
        for row, entity in rows:
            entity["word"] = known[row][entity["start"]:entity["end"]]


def _tag(entity: Entity) -> str:
    return entity.get("entity") or entity.get("entity_group") or ""
