# SPDX-License-Identifier: Apache-2.0
"""Embeddings with the interface of sentence_transformers.SentenceTransformer."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _brim
from ._model import Model
from ._options import path, words
from ._texts import texts_of
from .classifier import note_once
from .errors import UsageError


class Encoder(Model):
    """An embedding model. Pooling, length, case, prompts, normalization and dimensions are read from the directory's
    sentence-transformers files; `pooling` ("mean", "cls"), `max_length` and `prompts` override them."""

    _kinds = ("embedder",)
    _wanted = "a model that computes vectors"

    def __init__(self, model: str | os.PathLike[str] = "", *, pooling: str | None = None, max_length: int | None = None,
                 prompts: dict[str, str] | None = None, default_prompt_name: str | None = None,
                 **options: Any) -> None:
        known, default = _brim.find_prompts(path("model", model))
        super().__init__(model, pooling=pooling or "auto", max_length=max_length, **options)
        self._options.update(pooling=pooling, max_length=max_length, prompts=prompts,
                             default_prompt_name=default_prompt_name)
        self.prompts = known if prompts is None else prompts
        self.default_prompt_name = default_prompt_name or default or None
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            raise UsageError(f'default_prompt_name="{self.default_prompt_name}" is not among prompts',
                             f"use one of {sorted(self.prompts)}")

    def get_sentence_embedding_dimension(self) -> int:
        return int(self._score(["a"])[0].scores.shape[1])

    def encode(self, sentences: Any, prompt_name: str | None = None, prompt: str | None = None,
               batch_size: int | None = None, show_progress_bar: bool | None = None,
               output_value: str = "sentence_embedding", precision: str = "float32", convert_to_numpy: bool = True,
               convert_to_tensor: bool = False, device: str | None = None, normalize_embeddings: bool = False,
               column: str | None = None) -> Any:
        """float32[texts, width], or one vector for a single str; torch tensors with `convert_to_tensor`."""
        if output_value != "sentence_embedding":
            raise UsageError(f'output_value="{output_value}" is not supported', "omit it")
        if precision != "float32":
            raise UsageError(f'precision="{precision}": vectors are float32', "omit it")
        if device is not None and str(device) != self._options["device"]:
            raise UsageError(f'device="{device}": the model is open on {self.device}', "set it in Encoder(…)")
        if batch_size is not None:
            note_once("batch_size", "batch_size is ignored: the memory plan sets the batch size")
        one = isinstance(sentences, str)
        texts = [sentences] if one else sentences
        predictions, _, _ = self._score(texts_of(texts, column), progress=bool(show_progress_bar),
                                        prompt=self._prompt(prompt_name, prompt))
        vectors: npt.NDArray[np.float32] = predictions.scores
        if normalize_embeddings:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        if convert_to_tensor or not convert_to_numpy:
            tensor = importlib.import_module("torch").from_numpy(vectors)
            return tensor[0] if one else tensor if convert_to_tensor else list(tensor)
        return vectors[0] if one else vectors

    def _prompt(self, name: str | None, prompt: str | None) -> str:
        if prompt is not None:
            return words("prompt", prompt, '"query: "')
        name = name if name is not None else self.default_prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            raise UsageError(f'prompt_name="{name}" is not among the prompts', f"use one of {sorted(self.prompts)}")
        return self.prompts[name]
