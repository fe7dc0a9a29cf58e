# SPDX-License-Identifier: Apache-2.0
"""Embeddings with the interface of sentence_transformers.SentenceTransformer."""

from __future__ import annotations

import json
import os
import pathlib
import select
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, Unpack, overload

import numpy as np
import numpy.typing as npt

from . import _brim
from ._model import Model, open_scorer, pull_model
from ._options import ModelOptions, checked, choice, formerly, path, utf8, whole, words
from ._texts import bad_text, check_pairs, has_pairs, texts_of, values_of
from .errors import UsageError
from .results import imported

Vectors: TypeAlias = npt.NDArray[np.float32]
_PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


class Encoder(Model):
    """An embedding model.

    >>> brim.Encoder("all-MiniLM-L6-v2").encode(["great stuff", "awful"]).shape
    (2, 384)

    Pooling, length, case, prompts, normalization and dimensions are read from the directory's sentence-transformers files.
    `pooling` ("mean", "cls"), `max_length`, `prompts`, `default_prompt_name`, `truncate_dim` and `similarity_fn_name`
    ("cosine", "dot", "euclidean", "manhattan") override them; `prompts` are added to those of the files. Other options: see
    Classifier.
    """

    _kinds = ("embedder",)
    _wanted = "a model that computes vectors"

    @checked
    def __init__(self, model: str | os.PathLike[str] = "", *, pooling: Literal["mean", "cls", "auto"] | None = None,
                 prompts: dict[str, str] | None = None, default_prompt_name: str | None = None,
                 truncate_dim: int | None = None, similarity_fn_name: str | None = None,
                 **options: Unpack[ModelOptions]) -> None:
        if options.get("pull"):
            pull_model(path("model", model))
        known, default = _brim.find_prompts(path("model", model))
        self._pooling = "auto" if pooling is None else choice("pooling", pooling, ("mean", "cls", "auto"))
        self.truncate_dim = None if truncate_dim is None else whole("truncate_dim", truncate_dim)
        self._similarity = choice("similarity_fn_name", similarity_fn_name or _similarity_of(str(model)), _SIMILARITIES)
        self.prompts = known if prompts is None else {**known, **_checked_prompts(prompts)}
        if default_prompt_name is not None:
            words("default_prompt_name", default_prompt_name, '"query"')
        self.default_prompt_name = default_prompt_name or default or None
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            raise UsageError(f'default_prompt_name="{self.default_prompt_name}" is not among prompts',
                             f"use one of {sorted(self.prompts)}")
        self._tokens: _brim.Scorer | None = None  # the model without pooling, opened when it is needed
        super().__init__(model, **options)
        self._options.update(pooling=pooling, prompts=prompts, default_prompt_name=default_prompt_name,
                             truncate_dim=truncate_dim, similarity_fn_name=similarity_fn_name)

    def _start(self, model: str | os.PathLike[str], options: dict[str, Any], pooling: str | None = None,
               aggregation: str = "first") -> None:
        super()._start(model, options, self._pooling, aggregation)

    @property
    def max_seq_length(self) -> int:
        """Most tokens per text. Setting it opens the model again."""
        return self.max_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        before = self._options
        changed = {**before, "max_length": whole("max_seq_length", value)}
        self.close()
        try:
            self._start_again(changed)
        except BaseException:
            self._start_again(before)
            raise

    def _start_again(self, options: dict[str, Any]) -> None:
        defaults = self._defaults
        self._start(options["model"], {name: options[name] for name in ModelOptions.__annotations__})
        self._options, self._defaults = options, defaults

    @property
    def similarity_fn_name(self) -> str:
        """The function of similarity(): "cosine", "dot", "euclidean" or "manhattan". It may be set."""
        return self._similarity

    @similarity_fn_name.setter
    def similarity_fn_name(self, value: str) -> None:
        self._similarity = choice("similarity_fn_name", value, _SIMILARITIES)
        self._options["similarity_fn_name"] = self._similarity

    def close(self) -> None:
        super().close()
        tokens, self._tokens = self._tokens, None
        if tokens is not None:
            tokens.close()

    def get_sentence_embedding_dimension(self) -> int:
        """The length of a vector."""
        width = int(self._score(["a"])[0].scores.shape[1])
        return width if self.truncate_dim is None else min(width, self.truncate_dim)

    get_embedding_dimension = get_sentence_embedding_dimension

    def tokenize(self, texts: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
        """`input_ids` and `attention_mask` of the texts, padded with zeros."""
        rows = [self.tokenizer.encode(text, truncation=True) for text in values_of([texts] if isinstance(texts, str) else texts)]
        ids = np.zeros((len(rows), max(map(len, rows), default=0)), np.int64)
        mask = np.zeros_like(ids)
        for row, found in enumerate(rows):
            ids[row, :len(found)], mask[row, :len(found)] = found, 1
        return {"input_ids": ids, "attention_mask": mask}

    @overload
    def encode(self, inputs: str, prompt_name: str | None = ..., prompt: str | None = ..., batch_size: int | None = ...,
               show_progress_bar: bool | None = ..., output_value: Literal["sentence_embedding"] = ...,
               precision: Literal["float32"] = ..., convert_to_numpy: Literal[True] = ...,
               convert_to_tensor: Literal[False] = ..., device: Any = ..., normalize_embeddings: bool = ...,
               truncate_dim: int | None = ..., column: str | None = ...) -> Vectors: ...
    @overload
    def encode(self, inputs: object, prompt_name: str | None = ..., prompt: str | None = ...,
               batch_size: int | None = ..., show_progress_bar: bool | None = ...,
               output_value: Literal["sentence_embedding"] = ..., precision: Literal["float32"] = ...,
               convert_to_numpy: Literal[True] = ..., convert_to_tensor: Literal[False] = ..., device: Any = ...,
               normalize_embeddings: bool = ..., truncate_dim: int | None = ...,
               column: str | None = ...) -> Vectors: ...
    @overload
    def encode(self, inputs: object, prompt_name: str | None = ..., prompt: str | None = ...,
               batch_size: int | None = ..., show_progress_bar: bool | None = ..., output_value: str | None = ...,
               precision: str = ..., convert_to_numpy: bool = ..., convert_to_tensor: bool = ..., device: Any = ...,
               normalize_embeddings: bool = ..., truncate_dim: int | None = ..., column: str | None = ...) -> Any: ...
    @formerly(sentences="inputs")
    @checked
    def encode(self, inputs: Any, prompt_name: str | None = None, prompt: str | None = None,
               batch_size: int | None = None, show_progress_bar: bool | None = None,
               output_value: str | None = "sentence_embedding", precision: str = "float32",
               convert_to_numpy: bool = True, convert_to_tensor: bool = False, device: Any = None,
               normalize_embeddings: bool = False, truncate_dim: int | None = None, column: str | None = None) -> Any:
        """float32[texts, width], or one vector for a single str.

        `inputs`: texts, or pairs of two str, of which only the first gets the prompt: [("a", "b")].

        `prompt_name`, `prompt`: prepended to every text: one of `prompts` by name, or a str.
        `output_value`: "token_embeddings" for a list of arrays with one vector per token, including special ones; None for
        a list of dicts with `token_embeddings`, `sentence_embedding`, `input_ids` and `attention_mask`. Both open the model
        a second time when first used.
        `precision`: "int8", "uint8", "binary" or "ubinary" quantize as sentence-transformers does; the integer types
        scale by the range of these texts, at least two.
        `convert_to_numpy`, `convert_to_tensor`: arrays, torch tensors, or with both False a list of tensors.
        `normalize_embeddings`: scale vectors to length 1, after `truncate_dim`.
        `column`, `show_progress_bar`: the column of a table; a bar of tqdm.
        `batch_size`: accepted, but not needed: the memory plan sets the batch size.
        """
        choice("precision", precision, _PRECISIONS)
        if output_value is not None:
            choice("output_value", output_value, ("sentence_embedding", "token_embeddings"))
        self._check_device(device)
        if batch_size is not None:
            whole("batch_size", batch_size)
        width = self.truncate_dim if truncate_dim is None else whole("truncate_dim", truncate_dim)
        one = isinstance(inputs, str)
        texts = [inputs] if one else inputs
        prefix = self._prompt(prompt_name, prompt)
        as_tensor = convert_to_tensor or not convert_to_numpy
        if output_value != "sentence_embedding":
            found = self._token_outputs(values_of(texts, column), prefix, output_value, as_tensor, width)
            return found[0] if one else found
        vectors = self._vectors(texts, column, bool(show_progress_bar), prefix)[:, :width]
        if normalize_embeddings:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        result: Any = vectors if precision == "float32" else _quantized(vectors, precision)
        if as_tensor:
            tensor = imported("torch").from_numpy(np.ascontiguousarray(result))
            return tensor[0] if one else tensor if convert_to_tensor else list(tensor)
        return result[0] if one else result

    @formerly(sentences="inputs")
    @checked
    def encode_query(self, inputs: Any, prompt_name: str | None = None, prompt: str | None = None,
                     **options: Any) -> Vectors:
        """encode() with the prompt "query", or without a prompt if the model has none of this name."""
        found: Vectors = self.encode(inputs, *self._task_prompt(prompt_name, prompt, ("query",)), **options)
        return found

    @formerly(sentences="inputs")
    @checked
    def encode_document(self, inputs: Any, prompt_name: str | None = None, prompt: str | None = None,
                        **options: Any) -> Vectors:
        """encode() with the prompt "document", "passage" or "corpus", or without a prompt if the model has none of them."""
        found: Vectors = self.encode(inputs, *self._task_prompt(prompt_name, prompt, _DOCUMENT_PROMPTS), **options)
        return found

    @checked
    def similarity(self, embeddings1: npt.ArrayLike, embeddings2: npt.ArrayLike) -> Vectors:
        """Similarity of every vector of the first argument with every one of the second, by `similarity_fn_name`.
        Distances are negative."""
        a, b = _matrix("embeddings1", embeddings1), _matrix("embeddings2", embeddings2)
        _check_widths(a, b)
        if self._similarity == "cosine":
            a, b = _unit(a), _unit(b)
        if self._similarity in ("cosine", "dot"):
            return a @ b.T
        difference = a[:, None, :] - b[None, :, :]
        return -_length(difference, self._similarity)

    @checked
    def similarity_pairwise(self, embeddings1: npt.ArrayLike, embeddings2: npt.ArrayLike) -> Vectors:
        """Similarity of each vector of the first argument with the one at the same position of the second."""
        a, b = _matrix("embeddings1", embeddings1), _matrix("embeddings2", embeddings2)
        _check_widths(a, b)
        if len(a) != len(b):
            raise UsageError(f"{len(a)} vectors but {len(b)} second vectors", "pass as many of each")
        if self._similarity == "cosine":
            a, b = _unit(a), _unit(b)
        if self._similarity in ("cosine", "dot"):
            return np.asarray((a * b).sum(axis=1))
        return -_length(a - b, self._similarity)

    def _task_prompt(self, name: str | None, prompt: str | None, known: Sequence[str]) -> tuple[str | None, str | None]:
        """Name and text of the prompt of a task. Without one, the text is empty: the default prompt is not for tasks."""
        if name is not None or prompt is not None:
            return name, prompt
        found = next((one for one in known if one in self.prompts), None)
        return found, "" if found is None else None

    def _prompt(self, name: str | None, prompt: str | None) -> str:
        if prompt is not None:
            return words("prompt", prompt, '"query: "')
        name = name if name is not None else self.default_prompt_name
        if name is None:
            return ""
        return self.prompts[choice("prompt_name", name, self.prompts)] if self.prompts else _no_prompts(name)

    def _vectors(self, texts: Any, column: str | None, progress: bool, prefix: str) -> Vectors:
        """Vectors of texts and pairs, which may be mixed."""
        if column is not None or not has_pairs(texts):
            return self._score(texts_of(texts, column), progress=progress, prompt=prefix)[0].scores
        check_pairs(texts)
        firsts = [one if isinstance(one, str) else one[0] for one in texts]
        bad = [*texts_of(firsts).bad, *texts_of(["" if isinstance(one, str) else one[1] for one in texts]).bad]
        if bad:
            raise bad_text(*min(bad))
        found: Vectors | None = None
        for paired in (False, True):
            rows = [row for row, one in enumerate(texts) if isinstance(one, str) != paired]
            if rows:
                seconds = [texts[row][1] for row in rows] if paired else None
                part = self._score([firsts[row] for row in rows], progress=progress, pairs=seconds, prompt=prefix)[0].scores
                found = np.empty((len(firsts), part.shape[1]), np.float32) if found is None else found
                found[rows] = part
        assert found is not None
        return found

    def _token_outputs(self, texts: list[Any], prefix: str, output_value: str | None, as_tensor: bool,
                       width: int | None) -> list[Any]:
        """Vectors of tokens per text, with those of the texts if `output_value` is None."""
        if has_pairs(texts):
            raise UsageError(f"output_value={output_value!r} is not supported for pairs", 'omit it to get one vector per pair')
        torch = imported("torch") if as_tensor or output_value is None else None

        def converted(array: Any) -> Any:
            return array if torch is None else torch.from_numpy(array)
        tokens = [converted(array) for array in self._token_vectors(texts, prefix)]
        if output_value is not None:
            return tokens
        vectors = self._score(texts, prompt=prefix)[0].scores
        rows = []
        for text, of_tokens, vector in zip(texts, tokens, vectors, strict=True):
            ids = np.array(self.tokenizer.encode(prefix + text, truncation=True), np.int64)
            rows.append({"input_ids": converted(ids), "attention_mask": converted(np.ones_like(ids)),
                         "token_embeddings": of_tokens, "sentence_embedding": converted(vector[:width])})
        return rows

    def _token_vectors(self, texts: list[Any], prefix: str) -> list[Vectors]:
        if self._tokens is None:
            self._open()
            self._tokens = open_scorer(self._options, "none")
        views = texts_of(texts)
        if views.bad:
            raise bad_text(*views.bad[0])
        queue = _brim.AnswerQueue.open(self._tokens)
        queue.submit(views, None, 0, _brim.call_options(prompt=prefix))
        found: dict[int, Vectors] = {}
        poll = select.poll()
        poll.register(queue.fileno(), select.POLLIN)
        while len(found) < len(texts):
            poll.poll()
            for row, _, count, data, _, error in queue.take():
                if error is not None:
                    raise error
                found[row] = np.frombuffer(data, np.float32).reshape(int(count), -1).copy()
        return [found[row] for row in range(len(texts))]


def _no_prompts(name: str) -> str:
    raise UsageError(f'prompt_name="{name}": the model has no prompts', "pass prompt=, or prompts= in Encoder(…)")


def _checked_prompts(prompts: Any) -> dict[str, str]:
    if not isinstance(prompts, Mapping) or not all(isinstance(one, str) for pair in prompts.items() for one in pair):
        raise UsageError(f"prompts={prompts!r} is not a dict of str", 'use {"query": "query: "}')
    return {name: utf8("prompts", prompt) for name, prompt in prompts.items()}


def _similarity_of(model: str) -> str:
    """The function named in the model's files."""
    try:
        file = pathlib.Path(_brim.find_model(model)) / "config_sentence_transformers.json"
        return str(json.loads(file.read_text(encoding="utf-8")).get("similarity_fn_name") or "cosine")
    except (OSError, ValueError):
        return "cosine"


def _quantized(vectors: Vectors, precision: str) -> npt.NDArray[np.integer[Any]]:
    if precision in ("binary", "ubinary"):
        bits = np.packbits(vectors > 0, axis=1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    if len(vectors) == 0:
        return vectors.astype(np.int8 if precision == "int8" else np.uint8)
    if len(vectors) == 1:
        raise UsageError(f'precision="{precision}": one text has no range of values', "encode several texts together, or use float32")
    least = vectors.min(axis=0)
    step = (vectors.max(axis=0) - least) / 255
    levels: Vectors = np.clip(np.floor((vectors - least) / np.where(step > 0, step, 1)), 0, 255)
    return levels.astype(np.uint8) if precision == "uint8" else (levels - 128).astype(np.int8)


def _matrix(name: str, vectors: Any) -> Vectors:
    try:
        array = np.asarray(vectors.detach().cpu() if hasattr(vectors, "detach") else vectors, np.float32)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{name} does not consist of numbers", "pass vectors of encode()") from None
    if array.ndim not in (1, 2):
        raise UsageError(f"{name} has {array.ndim} dimensions", "pass one vector, or a matrix of vectors")
    return array.reshape(1, -1) if array.ndim == 1 else array


def _check_widths(a: Vectors, b: Vectors) -> None:
    if a.shape[1] != b.shape[1]:
        raise UsageError(f"vectors of {a.shape[1]} and {b.shape[1]} numbers", "pass vectors of one model")


def _unit(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def _length(difference: Vectors, similarity: str) -> Vectors:
    if similarity == "euclidean":
        return np.asarray(np.sqrt((difference ** 2).sum(axis=-1)))
    return np.asarray(np.abs(difference).sum(axis=-1))
