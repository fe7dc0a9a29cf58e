# SPDX-License-Identifier: Apache-2.0
"""Token classification with the interface of transformers.pipeline("token-classification")."""

from __future__ import annotations

import os
from typing import Any

from ._model import Model, OnError
from ._texts import texts_of
from .errors import UsageError


class Tagger(Model):
    """A model that tags words.

    >>> brim.Tagger("my-ner")("Ada lives in London")
    [{'entity_group': 'PER', 'score': 0.99…, 'word': 'Ada', 'start': 0, 'end': 3}, …]
    """

    _kinds = ("tagger",)
    _wanted = "a model that tags words"

    @property
    def labels(self) -> list[str]:
        return self._open().labels

    def __init__(self, model: str | os.PathLike[str] = "", *, aggregation_strategy: str = "first",
                 **settings: Any) -> None:
        """`aggregation_strategy`: selects the tokens that determine a word's tag, as in transformers: "first", "max",
        "average" (their mean), or "simple" (each token on its own)."""
        super().__init__(model, aggregation=aggregation_strategy, **settings)
        self._options["aggregation_strategy"] = aggregation_strategy

    def __call__(self, inputs: Any, *, aggregation_strategy: str | None = None, column: str | None = None,
                 on_error: OnError = "raise", progress: bool = False) -> Any:
        """Returns a list of entities for one str, else a list of such lists."""
        opened = self._options["aggregation_strategy"]
        if aggregation_strategy not in (None, opened):
            raise UsageError(f'aggregation_strategy="{aggregation_strategy}": the model was opened with "{opened}"',
                             f'reopen it: brim.Tagger(model, aggregation_strategy="{aggregation_strategy}")')
        one = isinstance(inputs, str)
        predictions, _, _ = self._score(texts_of([inputs] if one else inputs, column), None, on_error, progress)
        if one:
            return predictions.entities(0)
        return [predictions.entities(row) for row in range(len(predictions))]
