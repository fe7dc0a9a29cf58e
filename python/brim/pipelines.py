# SPDX-License-Identifier: Apache-2.0
"""brim.pipeline: models by task, as transformers.pipeline opens them."""

from __future__ import annotations

import os
from typing import Any, Literal, TypeAlias, overload

from ._model import Model
from ._options import checked, choice, suggestion
from .classifier import Classifier
from .encoder import Encoder
from .errors import ArgumentError, UsageError
from .tagger import Tagger
from .zero_shot import ZeroShotClassifier

_Text: TypeAlias = Literal["text-classification", "sentiment-analysis"]
_Tokens: TypeAlias = Literal["token-classification", "ner"]
_CLASSES: dict[str, type[Model]] = {
    "text-classification": Classifier, "sentiment-analysis": Classifier, "token-classification": Tagger, "ner": Tagger,
    "zero-shot-classification": ZeroShotClassifier, "sentence-similarity": Encoder}
_MODEL = ("device", "precision", "memory_limit", "leave_free", "threads", "long_text", "pull", "adapter")
_CALLS: dict[type[Model], tuple[str, ...]] = {
    Classifier: ("top_k", "function_to_apply", "truncation", "max_length"),
    Tagger: ("aggregation_strategy", "ignore_labels", "stride"), ZeroShotClassifier: (), Encoder: ()}
_ACCEPTED = ("batch_size", "num_workers", "padding", "use_fast", "framework")  # without an effect on results
_PRECISIONS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "auto": "auto"}


@overload
def pipeline(task: _Text, model: str | os.PathLike[str] = ..., **options: Any) -> Classifier: ...
@overload
def pipeline(task: _Tokens, model: str | os.PathLike[str] = ..., **options: Any) -> Tagger: ...
@overload
def pipeline(task: Literal["zero-shot-classification"], model: str | os.PathLike[str] = ...,
             **options: Any) -> ZeroShotClassifier: ...
@overload
def pipeline(task: Literal["sentence-similarity"], model: str | os.PathLike[str] = ..., **options: Any) -> Encoder: ...
@checked
def pipeline(task: str, model: str | os.PathLike[str] = "", **options: Any) -> Model:
    """Opens a model by task, as transformers.pipeline does: "text-classification" or "sentiment-analysis" (Classifier),
    "token-classification" or "ner" (Tagger), "zero-shot-classification", "sentence-similarity" (Encoder).

    >>> brim.pipeline("text-classification", model="finbert", device=-1, top_k=None)("profits rose")

    `options` are those of the class, and options of its calls, which then are defaults. `dtype` or `torch_dtype`:
    "float32", "float16" or "bfloat16".
    """
    kind = _CLASSES[choice("task", task, _CLASSES)]
    calls = _CALLS[kind]
    opened: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for name, value in options.items():
        if name in ("dtype", "torch_dtype"):
            opened["precision"] = _precision(name, value)
        elif name == "tokenizer":
            if value is not None and str(value) != str(model):
                raise UsageError(f"tokenizer={value!r}: only the model's own tokenizer is supported", "omit it")
        elif name in calls:
            defaults[name] = value
        elif name in _MODEL or (name == "max_length" and kind is not Classifier):
            if value is not None or name in ("threads", "max_length"):
                opened[name] = value
        elif name not in _ACCEPTED:
            raise ArgumentError(f"{name}= is unknown", suggestion(name, [*_MODEL, *calls, "dtype"]))
    if kind is Tagger:
        opened["aggregation_strategy"] = defaults.pop("aggregation_strategy", None) or "none"
    made = kind(model, **opened)
    made._defaults = defaults
    return made


def _precision(name: str, value: Any) -> str:
    shown = str(value).removeprefix("torch.")
    if shown not in _PRECISIONS:
        raise UsageError(f"{name}={value!r} is not supported", f"use one of {', '.join(_PRECISIONS)}")
    return _PRECISIONS[shown]
