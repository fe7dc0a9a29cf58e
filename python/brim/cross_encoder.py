# SPDX-License-Identifier: Apache-2.0
"""Scores of text pairs with the interface of sentence_transformers.CrossEncoder."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, Unpack, overload

import numpy as np
import numpy.typing as npt

from . import _brim
from ._model import Model
from ._options import ModelOptions, checked, choice, path, whole
from .errors import BadData, UsageError

Activation: TypeAlias = Literal["sigmoid", "softmax", "none"]
Scores: TypeAlias = npt.NDArray[np.float32]


class Ranked(TypedDict):
    corpus_id: int
    score: float
    text: NotRequired[str]


class CrossEncoder(Model):
    """A model that scores pairs, such as a reranker.

    >>> brim.CrossEncoder("ms-marco-MiniLM-L6-v2").predict([("a question", "an answer"), ("a question", "a recipe")])
    array([8.2, -11.1], dtype=float32)

    `activation_fn`: "sigmoid", "softmax", "none", or the torch function of the same name; default: as in the model's files,
    else sigmoid for a model with one score and none for others. Other options: see Classifier.
    """

    _kinds = ("classifier",)
    _wanted = "a model that scores pairs"

    @checked
    def __init__(self, model: str | os.PathLike[str], *, activation_fn: Any = None, **options: Unpack[ModelOptions]) -> None:
        chosen = None if activation_fn is None else _activation(activation_fn)
        super().__init__(model, **options)
        self._options["activation_fn"] = chosen
        if chosen is None:
            chosen = _configured(path("model", model)) or ("sigmoid" if len(self._open().score_names) == 1 else "none")
        self._activation = chosen

    @property
    def num_labels(self) -> int:
        """Scores per pair."""
        return len(self._open().score_names)

    @property
    def activation_fn(self) -> str:
        return self._activation

    @overload
    def predict(self, sentences: object, batch_size: int | None = ..., show_progress_bar: bool | None = ...,
                activation_fn: Any = ..., apply_softmax: bool | None = ..., convert_to_numpy: Literal[True] = ...,
                convert_to_tensor: Literal[False] = ...) -> Scores: ...
    @overload
    def predict(self, sentences: object, batch_size: int | None = ..., show_progress_bar: bool | None = ...,
                activation_fn: Any = ..., apply_softmax: bool | None = ..., convert_to_numpy: bool = ...,
                convert_to_tensor: bool = ...) -> Any: ...
    @checked
    def predict(self, sentences: Any, batch_size: int | None = None, show_progress_bar: bool | None = None,
                activation_fn: Any = None, apply_softmax: bool | None = False, convert_to_numpy: bool = True,
                convert_to_tensor: bool = False) -> Any:
        """float32[pairs], or [pairs, num_labels] for a model with several scores; one row less deep for a single pair.

        `sentences`: a list of pairs (two str), or one pair.
        `activation_fn`: for this call. `apply_softmax`: softmax of the scores, if there are several.
        `convert_to_numpy`, `convert_to_tensor`: arrays, torch tensors, or with both False a list of tensors.
        `show_progress_bar`: a bar of tqdm. `batch_size`: accepted, but not needed.
        """
        if batch_size is not None:
            whole("batch_size", batch_size)
        one = isinstance(sentences, (list, tuple)) and len(sentences) == 2 and all(isinstance(s, str) for s in sentences)
        firsts, seconds = _pairs([sentences] if one else sentences)
        function = self._activation if activation_fn is None else _activation(activation_fn)
        scores = self._score(firsts, progress=bool(show_progress_bar), pairs=seconds,
                             options=_brim.call_options(function=function))[0].scores
        if apply_softmax and self.num_labels > 1:
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores = powers / powers.sum(axis=1, keepdims=True)
        result: Any = scores[:, 0] if self.num_labels == 1 else scores
        if convert_to_tensor or not convert_to_numpy:
            result = importlib.import_module("torch").from_numpy(np.ascontiguousarray(result))
            return result[0] if one else result if convert_to_tensor else list(result)
        return result[0] if one else result

    @checked
    def rank(self, query: str, documents: Sequence[str], top_k: int | None = None, return_documents: bool = False,
             batch_size: int | None = None, show_progress_bar: bool | None = None, activation_fn: Any = None,
             apply_softmax: bool = False) -> list[Ranked]:
        """The documents by descending score for the query: a list of dicts of `corpus_id`, `score` and, with
        `return_documents`, `text`. `top_k`: the best ones only. Other options as in predict."""
        if self.num_labels != 1:
            raise UsageError(f"rank() needs a model with one score, this one has {self.num_labels}", "use predict()")
        if not isinstance(query, str):
            raise UsageError(f"query={query!r} is not a str", "pass one text")
        if isinstance(documents, str):
            raise UsageError("documents is one str", "put it into a list: [text]")
        most = None if top_k is None else whole("top_k", top_k)
        texts = list(documents)
        scores = self.predict([(query, text) for text in texts], batch_size, show_progress_bar, activation_fn, apply_softmax)
        rows: list[Ranked] = []
        for i in np.argsort(-scores, kind="stable")[:most].tolist():
            row: Ranked = {"corpus_id": i, "score": float(scores[i])}
            if return_documents:
                row["text"] = texts[i]
            rows.append(row)
        return rows


def _pairs(sentences: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(sentences, (str, bytes)) or not hasattr(sentences, "__iter__"):
        raise UsageError(f"expected pairs of texts, got {type(sentences).__name__}", 'pass a list of pairs: [("a", "b")]')
    rows = list(sentences)
    for row, pair in enumerate(rows):
        if isinstance(pair, (str, bytes)) or not hasattr(pair, "__len__") or len(pair) != 2:
            error = BadData(f"row {row} is not a pair of texts", 'pass a list of pairs: [("a", "b")]')
            error.row = row
            raise error
    return [pair[0] for pair in rows], [pair[1] for pair in rows]


def _activation(function: Any) -> str:
    """The engine's name of an activation, which may be a module of torch."""
    if isinstance(function, str):
        return choice("activation_fn", function.rpartition(".")[2].lower().replace("identity", "none"), ("sigmoid", "softmax", "none"))
    name = type(function).__name__ if type(function).__module__.startswith("torch.nn") else getattr(function, "__name__", "")
    known = {"sigmoid": "sigmoid", "softmax": "softmax", "identity": "none"}.get(name.lower())
    if known is None:
        raise UsageError(f"activation_fn={function!r} is not supported", 'use "sigmoid", "softmax" or "none"')
    return known


def _configured(model: str) -> str | None:
    """The activation named in the model's config.json."""
    try:
        config = json.loads((pathlib.Path(_brim.find_model(model)) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    own = config.get("sentence_transformers") or {}
    name = own.get("activation_fn") or config.get("sbert_ce_default_activation_function")
    return _activation(name) if isinstance(name, str) else None
