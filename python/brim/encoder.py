# SPDX-License-Identifier: Apache-2.0
"""Vectors for texts, called as sentence_transformers.SentenceTransformer is."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _brim
from ._model import Model
from ._options import path, words
from ._texts import texts_of, values_of
from .classifier import note_once
from .errors import BadModel, UsageError


class Encoder(Model):
    """A model's vectors. Pooling, length, prompts and normalization are as the directory's sentence-transformers
    files say; `pooling` ("mean", "cls"), `max_length` and `prompts` replace theirs."""

    _kinds = ("embedder",)
    _wanted = "a model with vectors"

    def __init__(self, model: str | os.PathLike[str] = "", *, pooling: str | None = None, max_length: int | None = None,
                 prompts: dict[str, str] | None = None, default_prompt_name: str | None = None,
                 **options: Any) -> None:
        told = _SentenceFiles(_brim.find_model(path("model", model)))
        super().__init__(model, pooling=pooling or told.pooling or "mean", max_length=max_length or told.max_length,
                         **options)
        self._options.update(pooling=pooling, max_length=max_length, prompts=prompts,
                             default_prompt_name=default_prompt_name)
        self._normalize = told.normalize
        self.prompts = told.prompts if prompts is None else prompts
        self.default_prompt_name = default_prompt_name or told.default_prompt_name
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            raise UsageError(f'default_prompt_name="{self.default_prompt_name}" is not among prompts',
                             f"choose one of {sorted(self.prompts)}")

    def get_sentence_embedding_dimension(self) -> int:
        return int(self._score(["a"])[0].scores.shape[1])

    def encode(self, sentences: Any, prompt_name: str | None = None, prompt: str | None = None,
               batch_size: int | None = None, show_progress_bar: bool | None = None,
               output_value: str = "sentence_embedding", precision: str = "float32", convert_to_numpy: bool = True,
               convert_to_tensor: bool = False, device: str | None = None, normalize_embeddings: bool = False,
               column: str | None = None) -> Any:
        """float32[texts, width], or one vector for one str; torch tensors with `convert_to_tensor`."""
        if output_value != "sentence_embedding":
            raise UsageError(f'output_value="{output_value}" is not computed', "leave it out")
        if precision != "float32":
            raise UsageError(f'precision="{precision}": vectors are float32', "leave it out")
        if device is not None and str(device) != self._options["device"]:
            raise UsageError(f'device="{device}": the model is open on {self.device}', "name it in Encoder(…)")
        if batch_size is not None:
            note_once("batch_size", "batch_size is not needed: Brim packs batches by the memory plan")
        one = isinstance(sentences, str)
        texts = [sentences] if one else sentences
        before = self._prompt(prompt_name, prompt)
        if before:
            texts = [before + text if isinstance(text, str) else text for text in values_of(texts, column)]
            column = None
        predictions, _, _ = self._score(texts_of(texts, column), progress=bool(show_progress_bar))
        vectors: npt.NDArray[np.float32] = predictions.scores
        if normalize_embeddings or self._normalize:
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
            raise UsageError(f'prompt_name="{name}" is not among the prompts', f"choose one of {sorted(self.prompts)}")
        return self.prompts[name]


class _SentenceFiles:
    """What a sentence-transformers directory says beside its model; nothing where it is none."""

    def __init__(self, name: str) -> None:
        self.pooling: str | None = None
        self.max_length: int | None = None
        self.normalize = False
        self.prompts: dict[str, str] = {}
        self.default_prompt_name: str | None = None
        directory = pathlib.Path(name)
        modules = _json(directory / "modules.json") if name else None
        if not isinstance(modules, list):
            return
        for module in modules:
            self._read_module(directory / module.get("path", ""), str(module.get("type", "")).rpartition(".")[2])
        length = _json(directory / "sentence_bert_config.json")
        if isinstance(length, dict) and isinstance(length.get("max_seq_length"), int):
            self.max_length = length["max_seq_length"]
        config = _json(directory / "config_sentence_transformers.json")
        if isinstance(config, dict):
            self.prompts = {k: v for k, v in (config.get("prompts") or {}).items() if isinstance(v, str)}
            self.default_prompt_name = config.get("default_prompt_name")

    def _read_module(self, path: pathlib.Path, kind: str) -> None:
        if kind == "Normalize":
            self.normalize = True
        elif kind == "Pooling":
            config = _json(path / "config.json")
            told = config if isinstance(config, dict) else {}
            mode = told.get("pooling_mode") or [k.removeprefix("pooling_mode_") for k, v in told.items()
                                                if k.startswith("pooling_mode_") and v is True]
            names = {"mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls"}
            modes = [mode] if isinstance(mode, str) else mode
            if len(modes) != 1 or modes[0] not in names:
                raise BadModel(f"{path}: pooling {', '.join(modes) or 'of no kind'} is not computed",
                               "use a model that pools by mean or cls, or one of them: pooling=")
            self.pooling = names[modes[0]]
        elif kind != "Transformer":
            raise BadModel(f"{path}: a module of kind {kind} is not computed", "use a model without it")


def _json(path: pathlib.Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadModel(f"{path}: {error}", "fetch the model again") from None
