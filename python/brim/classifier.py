# SPDX-License-Identifier: Apache-2.0
"""Text classification with the interface of transformers.pipeline("text-classification")."""

from __future__ import annotations

import itertools
import operator
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload

from . import _brim
from ._model import Model, OnError, warn
from ._options import ANY, ModelOptions, checked, choice, whole
from ._texts import Table, _column_names, index_of
from .errors import UsageError
from .results import Result

UNSET: Any = object()
_CHUNK = 8192  # texts per call when reading a stream
_PATIENCE = 0.02  # seconds to collect texts of a slow stream
_TRUNCATIONS = {True: True, "longest_first": True, False: False, "do_not_truncate": False}
_T = TypeVar("_T")

Truncation: TypeAlias = bool | Literal["longest_first", "do_not_truncate"] | None
_Function: TypeAlias = Literal["sigmoid", "softmax", "none"] | None


class Score(TypedDict):
    label: str
    score: float


class TextPair(TypedDict):
    """A text and an optional second text."""

    text: str
    text_pair: str | None


class TextOptions(TypedDict, total=False):
    """Options of single texts."""

    function_to_apply: _Function
    truncation: Truncation
    max_length: int | None


class CallOptions(TextOptions, total=False):
    """Options of Classifier's calls."""

    padding: bool | str
    batch_size: int | None
    num_workers: int | None


class Classifier(Model):
    """A text classifier, or VADER's rules (model="vader"). Default: the default model.

    >>> clf = brim.Classifier()
    >>> clf("great stuff")
    [{'label': 'positive', 'score': 0.98…}]
    >>> clf.predict(many_texts).scores

    `model`: a directory, a model name, or "vader".
    `device`: "auto", "cpu", "cuda", "cuda:1"; as in transformers also -1 (CPU), 0, 1, … (GPUs), or a torch.device.
    `precision`: "auto", "fp32", "tf32", "bf16", "fp16", "fp8" or "int8".
    `memory_limit`: memory the process may use on the device: "6GiB", "90%".
    `leave_free`: memory to leave free for other processes instead: "8GiB".
    `threads`: CPU threads; default: OMP_NUM_THREADS, or all cores.
    `max_length`: tokens per text; default: the model's maximum.
    `long_text`: longer texts: "truncate", "window-mean", "window-max" or "error".
    `pull`: download a missing model from the Hugging Face hub.
    `adapter`: LoRA adapter for the model, in PEFT's format; its head and labels replace the model's.
    """

    _kinds = ("classifier", "rules")
    _wanted = "a text classifier"

    @checked
    def __init__(self, model: str | os.PathLike[str] = "", **options: Unpack[ModelOptions]) -> None:
        super().__init__(model, **options)

    @property
    def labels(self) -> list[str]:
        return self._open().labels

    @overload
    def __call__(self, inputs: str, *, top_k: int | None = ..., **options: Unpack[CallOptions]) -> list[Score]: ...
    @overload
    def __call__(self, inputs: TextPair, **options: Unpack[CallOptions]) -> Score: ...
    @overload
    def __call__(self, inputs: TextPair, *, top_k: int | None, **options: Unpack[CallOptions]) -> list[Score]: ...
    @overload
    def __call__(self, inputs: list[str] | tuple[str, ...] | list[TextPair] | list[str | TextPair] | Table,
                 **options: Unpack[CallOptions]) -> list[Score]: ...
    @overload
    def __call__(self, inputs: list[str] | tuple[str, ...] | list[TextPair] | list[str | TextPair] | Table, *, top_k: int | None,
                 **options: Unpack[CallOptions]) -> list[list[Score]]: ...
    @overload
    def __call__(self, inputs: Iterator[str] | Iterator[TextPair], **options: Unpack[CallOptions]) -> Iterator[Score]: ...
    @overload
    def __call__(self, inputs: Iterator[str] | Iterator[TextPair], *, top_k: int | None,
                 **options: Unpack[CallOptions]) -> Iterator[list[Score]]: ...
    @checked
    def __call__(self, inputs: Any, *, top_k: int | None = UNSET, function_to_apply: _Function = None,
                 truncation: Truncation = None, max_length: int | None = None, padding: bool | str = False,
                 batch_size: int | None = None, num_workers: int | None = None) -> Any:
        """Returns a list of one dict for one str, one dict for a pair {"text": …, "text_pair": …}, else a list of dicts;
        with `top_k` (None: all) a list of dicts per text, best first. For an iterator or a Dataset of torch the results
        are computed while they are read. As in transformers, a `top_k` of brim.pipeline returns a list of lists for one str.

        `function_to_apply`: "sigmoid", "softmax" or "none" (logits); default: the model's own.
        `truncation`: False raises brim.BadData for longer texts; True truncates without a warning.
        `max_length`: tokens per text, at most the model's.
        `padding`, `batch_size`, `num_workers`: accepted, but not needed: texts are packed according to the memory plan.
        """
        if batch_size is not None:
            whole("batch_size", batch_size)
        is_given, top_k = top_k is not UNSET, self._top_k(top_k)
        options = self._call_options(function_to_apply, truncation, max_length)
        warns = truncation is None and max_length is None and not (
            self._defaults.get("truncation") is not None or self._defaults.get("max_length") is not None)
        if isinstance(inputs, str):
            result = self._dicts([inputs], top_k, options, warns)
            return result[0] if is_given else result
        if isinstance(inputs, dict) and "text" in inputs and isinstance(inputs["text"], str):
            return self._dicts([inputs], top_k, options, warns)[0]
        if is_lazy(inputs):
            return LazyResults(inputs, lambda part: self._dicts(part, top_k, options, warns))
        return self._dicts(inputs, top_k, options, warns)

    @checked
    def predict(self, texts: Any, *, pairs: Any = None, column: str | None = None, on_error: OnError = "raise",
                progress: bool = False, function_to_apply: _Function = None, truncation: Truncation = None,
                max_length: int | None = None) -> Result:
        """Scores many texts with the throughput of a file.

        `texts`: a list, a numpy array, a column or a table of pyarrow, pandas, polars or datasets. They are not copied.
        `pairs`: one second text per text.
        `column`: the column of a table.
        `on_error`: "raise", or "null" for empty results for invalid texts, which Result.errors lists.
        `progress`: show a bar of tqdm.
        `function_to_apply`, `truncation`, `max_length`: as in a call.
        """
        scorer = self._open()
        options = self._call_options(function_to_apply, truncation, max_length)
        predictions, errors, seconds = self._score(texts, column, on_error, progress, pairs, options=options)
        return Result(predictions, scorer.labels, scorer.score_names, errors, seconds, index_of(texts))

    @checked
    def stream(self, texts: Iterable[str], *, on_error: OnError = "raise",
               function_to_apply: _Function = None) -> Iterator[Result]:
        """Yields the results of a stream of texts in order, in parts, with bounded memory."""
        choice("on_error", on_error, ("raise", "null"))
        if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
            raise UsageError(f"expected many texts, got {type(texts).__name__}", "pass an iterable of str")
        self._call_options(function_to_apply, None, None)
        return self._stream(iter(texts), on_error, function_to_apply)

    @overload
    def submit(self, text: str, *, text_pair: str | None = ..., **options: Unpack[TextOptions]) -> Future[Score]: ...
    @overload
    def submit(self, text: str, *, text_pair: str | None = ..., top_k: int | None,
               **options: Unpack[TextOptions]) -> Future[list[Score]]: ...
    @checked
    def submit(self, text: str, *, text_pair: str | None = None, top_k: int | None = UNSET,
               function_to_apply: _Function = None, truncation: Truncation = None,
               max_length: int | None = None) -> Future[Any]:
        """A concurrent.futures.Future of the result of one text: a dict, or with `top_k` (None: all) a list of dicts.
        Texts of all threads and event loops are batched together. Options as in a call."""
        options, finish = self._request(top_k, function_to_apply, truncation, max_length)
        return self._future(text, text_pair, options, finish)

    @overload
    async def ascore(self, text: str, *, text_pair: str | None = ..., **options: Unpack[TextOptions]) -> Score: ...
    @overload
    async def ascore(self, text: str, *, text_pair: str | None = ..., top_k: int | None,
                     **options: Unpack[TextOptions]) -> list[Score]: ...
    @checked
    async def ascore(self, text: str, *, text_pair: str | None = None, top_k: int | None = UNSET,
                     function_to_apply: _Function = None, truncation: Truncation = None,
                     max_length: int | None = None) -> Any:
        """Like submit, for asyncio: `await clf.ascore(text)`."""
        options, finish = self._request(top_k, function_to_apply, truncation, max_length)
        return await self._in_loop(text, text_pair, options, finish)

    def _request(self, top_k: int | None, function: Any, truncation: Any,
                 max_length: Any) -> tuple[_brim.CallOptions, Any]:
        if top_k is UNSET and function is None and truncation is None and max_length is None and not self._defaults:
            return _NO_OPTIONS, _best
        options = self._call_options(function, truncation, max_length) or _NO_OPTIONS
        most = self._top_k(top_k)
        if most is UNSET:
            return options, _best
        names = self._open().score_names
        return options, lambda _, __, scores: _ranked(names, scores, most)

    def _top_k(self, top_k: int | None) -> int | None:
        """The number of labels; None: all; UNSET: the best one, not in a list."""
        top_k = self._defaults.get("top_k", UNSET) if top_k is UNSET else top_k
        return top_k if top_k is UNSET or top_k is None else whole("top_k", top_k, 1, ANY)

    def _call_options(self, function: Any, truncation: Any, max_length: Any) -> _brim.CallOptions | None:
        """Options that differ from those of the model. None: the default of brim.pipeline, or the model's."""
        if self._defaults:
            function = self._defaults.get("function_to_apply") if function is None else function
            truncation = self._defaults.get("truncation") if truncation is None else truncation
            max_length = self._defaults.get("max_length") if max_length is None else max_length
        name = self._function(function)
        if truncation is None and max_length is None:
            return _brim.call_options(function=name) if name else None
        long_text, longest = self._long_text(truncation, max_length)
        if self._open().kind == "rules" or not (name or long_text or longest):
            return None
        return _brim.call_options(function=name, max_length=longest, long_text=long_text)

    def _long_text(self, truncation: Any, max_length: Any) -> tuple[str, int]:
        """The engine's options for truncation; empty and 0: those of the model."""
        if truncation is not None and (not isinstance(truncation, (bool, str)) or truncation not in _TRUNCATIONS):
            raise UsageError(f"truncation={truncation!r} is not supported", 'use True, False or "longest_first"')
        longest = 0 if max_length is None else whole("max_length", max_length)
        opened = self._options["long_text"].replace("_", "-")
        if truncation is not None and not _TRUNCATIONS[truncation]:
            return "error" if opened == "truncate" else "", 0
        return "" if opened == "truncate" else "truncate", longest

    def _function(self, name: Any) -> str:
        """The engine's name of a function; empty: the model's own."""
        if name is None:
            return ""
        known = name.lower() if isinstance(name, str) else ""  # transformers accepts any case
        if known not in ("sigmoid", "softmax", "none"):
            raise UsageError(f"function_to_apply={name!r} is unknown", 'use "sigmoid", "softmax", "none" or None')
        if self._open().kind == "rules":
            raise UsageError(f'function_to_apply="{name}": VADER\'s rules have no logits', "omit it")
        return known

    def _stream(self, rest: Iterator[str], on_error: OnError, function: _Function) -> Iterator[Result]:
        while part := list(itertools.islice(rest, _CHUNK)):
            yield self.predict(part, on_error=on_error, function_to_apply=function)

    def _dicts(self, inputs: Any, top_k: int | None, options: _brim.CallOptions | None, warns: bool) -> list[Any]:
        """The results of texts and pairs, which may be mixed."""
        if not isinstance(inputs, (list, tuple)) or not any(isinstance(one, dict) for one in inputs):
            return self._rows(inputs, None, top_k, options, warns)
        rows = [one if isinstance(one, dict) else {"text": one} for one in inputs]
        if not all("text" in row for row in rows):
            raise UsageError('a dict has no "text"', 'use {"text": …, "text_pair": …}')
        paired = [row.get("text_pair") is not None for row in rows]
        results: list[Any] = [None] * len(rows)
        for second in (False, True):
            chosen = [i for i, has in enumerate(paired) if has == second]
            if chosen:
                texts = [rows[i]["text"] for i in chosen]
                pairs = [rows[i]["text_pair"] for i in chosen] if second else None
                for i, result in zip(chosen, self._rows(texts, pairs, top_k, options, warns), strict=True):
                    results[i] = result
        return results

    def _rows(self, texts: Any, pairs: list[Any] | None, top_k: int | None, options: _brim.CallOptions | None,
              warns: bool) -> list[Any]:
        scorer = self._open()
        predictions, _, _ = self._score(texts, pairs=pairs, options=options)
        if warns:
            warn_if_truncated(predictions, scorer)
        names = scorer.labels
        if top_k is UNSET:
            return [{"label": names[label], "score": score}
                    for label, score in zip(predictions.label_ids.tolist(), predictions.label_scores.tolist(),
                                            strict=True)]
        return [_ranked(scorer.score_names, row, top_k) for row in predictions.scores.tolist()]


_NO_OPTIONS = _brim.call_options()


def _best(label: str, score: float, _: list[float]) -> Score:
    return {"label": label, "score": score}


def _ranked(names: list[str], scores: Sequence[float], most: int | None) -> list[Score]:
    entries: list[Score] = [{"label": name, "score": score} for name, score in zip(names, scores, strict=True)]
    return sorted(entries, key=operator.itemgetter("score"), reverse=True)[:most]


def warn_if_truncated(predictions: _brim.Predictions, scorer: _brim.Scorer) -> None:
    count = int(predictions.truncated.sum())
    if count:
        shown = "1 text was" if count == 1 else f"{count:,} texts were"
        warn(f"{shown} truncated to {scorer.max_length} tokens; pass truncation=True to accept this, or open the model with "
             'long_text="window-mean" to read longer texts completely')


def is_lazy(inputs: Any) -> bool:
    """Whether to read inputs one by one: iterators, and datasets of torch such as transformers' KeyDataset."""
    if isinstance(inputs, Iterator):
        return True
    if isinstance(inputs, (list, tuple, str, bytes, dict)) or inputs is None or _column_names(inputs) is not None:
        return False
    if type(inputs).__module__.partition(".")[0] in ("numpy", "pandas", "pyarrow", "polars", "datasets"):
        return False
    if any(hasattr(inputs, f"__arrow_c_{kind}__") for kind in ("stream", "array")):
        return False
    sized = hasattr(inputs, "__getitem__") and hasattr(inputs, "__len__")
    return (sized and not hasattr(inputs, "__iter__")) or type(inputs).__module__.startswith("torch.") or any(
        kind.__module__.startswith("torch.utils.data") for kind in type(inputs).__mro__)


class LazyResults(Generic[_T]):
    """Results computed while they are read; len() if the inputs have one."""

    def __init__(self, inputs: Any, score: Any) -> None:
        self._inputs = inputs
        self._results: Iterator[_T] = _lazily(inputs, score)

    def __iter__(self) -> Iterator[_T]:
        return self

    def __next__(self) -> _T:
        return next(self._results)

    def __len__(self) -> int:
        return len(self._inputs)


def _lazily(inputs: Any, score: Any) -> Iterator[Any]:
    rest = iter(inputs) if hasattr(inputs, "__iter__") else (inputs[i] for i in range(len(inputs)))
    for first in rest:
        part, until = [first], time.monotonic() + _PATIENCE
        while len(part) < _CHUNK and time.monotonic() < until:
            following = next(rest, UNSET)
            if following is UNSET:
                break
            part.append(following)
        yield from score(part)
