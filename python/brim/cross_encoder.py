# SPDX-License-Identifier: Apache-2.0
"""Scores of text pairs with the interface of sentence_transformers.CrossEncoder."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, Unpack, overload

import numpy as np
import numpy.typing as npt

from . import _brim
from ._model import Model
from ._options import ANY, ModelOptions, checked, choice, formerly, path, whole, words
from ._texts import check_pairs, values_of
from .errors import UsageError
from .results import imported

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
    def predict(self, inputs: object, batch_size: int | None = ..., show_progress_bar: bool | None = ...,
                activation_fn: Any = ..., apply_softmax: bool | None = ..., convert_to_numpy: Literal[True] = ...,
                convert_to_tensor: Literal[False] = ..., device: Any = ..., prompt: str | None = ...) -> Scores: ...
    @overload
    def predict(self, inputs: object, batch_size: int | None = ..., show_progress_bar: bool | None = ...,
                activation_fn: Any = ..., apply_softmax: bool | None = ..., convert_to_numpy: bool = ...,
                convert_to_tensor: bool = ..., device: Any = ..., prompt: str | None = ...) -> Any: ...
    @formerly(sentences="inputs")
    @checked
    def predict(self, inputs: Any, batch_size: int | None = None, show_progress_bar: bool | None = None,
                activation_fn: Any = None, apply_softmax: bool | None = False, convert_to_numpy: bool = True,
                convert_to_tensor: bool = False, device: Any = None, prompt: str | None = None) -> Any:
        """float32[pairs], or [pairs, num_labels] for a model with several scores; one row less deep for a single pair.

        `inputs`: a list of pairs (two str), or one pair.
        `activation_fn`: for this call. `apply_softmax`: softmax of the scores, if there are several.
        `convert_to_numpy`, `convert_to_tensor`: arrays, torch tensors, or with both False a list of tensors.
        `show_progress_bar`: a bar of tqdm. `batch_size`: accepted, but not needed.
        `device`: that of the model. `prompt`: prepended to the first text of each pair.
        """
        self._check_device(device)
        if batch_size is not None:
            whole("batch_size", batch_size)
        one = isinstance(inputs, (list, tuple)) and len(inputs) == 2 and all(isinstance(s, str) for s in inputs)
        firsts, seconds = _pairs([inputs] if one else inputs)
        if prompt is not None:
            prefix = words("prompt", prompt, '"query: "')
            firsts = [prefix + text if isinstance(text, str) else text for text in firsts]
        function = self._activation if activation_fn is None else _activation(activation_fn)
        scores = self._score(firsts, progress=bool(show_progress_bar), pairs=seconds,
                             options=_brim.call_options(function=function))[0].scores
        if apply_softmax and self.num_labels > 1:
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores = powers / powers.sum(axis=1, keepdims=True)
        result: Any = scores[:, 0] if self.num_labels == 1 else scores
        if convert_to_tensor or not convert_to_numpy:
            result = imported("torch").from_numpy(np.ascontiguousarray(result))
            return result[0] if one else result if convert_to_tensor else list(result)
        return result[0] if one else result

    @checked
    def rank(self, query: str, documents: Sequence[str], top_k: int | None = None, return_documents: bool = False,
             batch_size: int | None = None, show_progress_bar: bool | None = None, activation_fn: Any = None,
             apply_softmax: bool = False, device: Any = None, prompt: str | None = None) -> list[Ranked]:
        """The documents by descending score for the query: a list of dicts of `corpus_id`, `score` and, with
        `return_documents`, `text`. `top_k`: the best ones only. Other options as in predict."""
        if self.num_labels != 1:
            raise UsageError(f"rank() needs a model with one score, this one has {self.num_labels}", "use predict()")
        words("query", query, '"a question"')
        most = None if top_k is None else whole("top_k", top_k, 1, ANY)
        if isinstance(documents, str):
            raise UsageError("documents is one str", "put it into a list: [text]")
        texts = values_of(documents)
        scores = self.predict([(query, text) for text in texts], batch_size, show_progress_bar, activation_fn, apply_softmax,
                              device=device, prompt=prompt)
        rows: list[Ranked] = []
        for i in np.argsort(-scores, kind="stable")[:most].tolist():
            row: Ranked = {"corpus_id": i, "score": float(scores[i])}
            if return_documents:
                row["text"] = texts[i]
            rows.append(row)
        return rows


def _pairs(inputs: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(inputs, (str, bytes)) or not hasattr(inputs, "__iter__"):
        raise UsageError(f"expected pairs of texts, got {type(inputs).__name__}", 'pass a list of pairs: [("a", "b")]')
    rows = list(inputs)
    check_pairs(rows, False)
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
