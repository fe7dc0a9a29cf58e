# SPDX-License-Identifier: Apache-2.0
"""Base class of Classifier, Encoder and Tagger: opening, closing, pickling and bulk scoring."""

from __future__ import annotations

import logging
import os
import time
from types import TracebackType
from typing import Any, Literal, TypeVar

from . import _brim
from ._options import check_model_options, path
from ._progress import bar
from ._texts import bad_text, texts_of
from .errors import BadData, Cancelled, Error, UsageError
from .plans import Plan

_log = logging.getLogger("brim")

OnError = Literal["raise", "null"]
Self = TypeVar("Self", bound="Model")


class Model:
    """An open model. Thread-safe. The keywords have the same names and meaning as the options of `brim score`."""

    _kinds: tuple[str, ...] = ()
    _wanted = ""

    def __init__(self, model: str | os.PathLike[str] = "", *, device: str | int = "auto", precision: str = "auto",
                 memory_limit: str = "auto", leave_free: str = "", threads: int | None = None,
                 max_length: int | None = None, long_text: str = "truncate", pooling: str | None = None,
                 aggregation: str = "first") -> None:
        model = path("model", model)
        check_model_options({"device": device, "precision": precision, "memory_limit": memory_limit,
                             "leave_free": leave_free, "threads": threads, "max_length": max_length,
                             "long_text": long_text})
        self._options: dict[str, Any] = {
            "model": model, "device": device, "precision": precision, "memory_limit": memory_limit,
            "leave_free": leave_free, "threads": threads, "max_length": max_length, "long_text": long_text,
        }
        self._scorer: _brim.Scorer | None = _brim.Scorer.open(
            model=model, device=_device(device), precision=precision, memory_limit=memory_limit,
            leave_free=leave_free, threads=_threads(threads), max_length=max_length or 0,
            long_text=long_text.replace("_", "-"), pooling=pooling, aggregation=aggregation)
        forward_log()
        if self._scorer.kind not in self._kinds:
            kind = self._scorer.kind
            self.close()
            raise UsageError(f'model="{model}" is a {kind}, {type(self).__name__} requires {self._wanted}',
                             {"tagger": "open it as brim.Tagger", "classifier": "open it as brim.Classifier"}.get(
                                 kind, "use another model"))

    @property
    def device(self) -> str:
        """Name of the device, such as "NVIDIA H200"."""
        return self._open().device

    @property
    def precision(self) -> str:
        return self._open().precision

    @property
    def plan(self) -> Plan:
        """The memory plan: bytes by purpose."""
        scorer = self._open()
        values = scorer.plan()
        return Plan({"task": "score", "model": self._options["model"] or "default", "fits": True,
                     "device": {"name": scorer.device}, "precision": scorer.precision,
                     "limit_bytes": values["limit_bytes"], "peak_bytes": values["peak_bytes"], "bytes": values["bytes"],
                     "token_budget": values["tokens_per_batch"], "tokens_per_second": values["tokens_per_second"]})

    def close(self) -> None:
        """Frees the device after running calls have finished. Later calls raise brim.Cancelled."""
        if self._scorer is not None:
            self._scorer.close()
            self._scorer = None

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self._options

    def __setstate__(self, options: dict[str, Any]) -> None:
        self.__init__(**options)  # type: ignore[misc]

    def __repr__(self) -> str:
        name = self._options["model"] or "default"
        where = f"{self._scorer.device}, {self._scorer.precision}" if self._scorer else "closed"
        return f"brim.{type(self).__name__}({name!r}: {where})"

    def _open(self) -> _brim.Scorer:
        if self._scorer is None:
            raise Cancelled("the model was closed", "open it again")
        return self._scorer

    def _score(self, texts: Any, column: str | None = None, on_error: OnError = "raise",
               progress: bool = False, pairs: Any = None,
               function: str = "", prompt: str | None = None) -> tuple[_brim.Predictions, list[tuple[int, Error]], float]:
        """Returns the predictions, the errors by row, and the elapsed seconds."""
        if on_error not in ("raise", "null"):
            raise UsageError(f'on_error="{on_error}" is unknown', 'use "raise" or "null"')
        scorer = self._open()
        began = time.perf_counter()
        views = texts if isinstance(texts, _brim.Texts) else texts_of(texts, column)
        seconds = texts_of(pairs) if pairs is not None else None
        bad = views.bad
        if seconds is not None:
            if len(seconds) != len(views):
                raise UsageError(f"{len(views)} texts but {len(seconds)} second texts", "pass one second text per text")
            bad = sorted({row: (row, what) for row, what in [*seconds.bad, *bad]}.values())
        if bad and on_error == "raise":  # before computing anything
            raise bad_text(*bad[0])
        if progress:
            with bar(len(views)) as update:
                predictions = scorer.score(views, update, seconds, function, prompt)
        else:
            predictions = scorer.score(views, None, seconds, function, prompt)
        forward_log()
        failed = predictions.errors
        if failed and on_error == "raise":
            raise _with_row(*failed[0])
        errors: list[tuple[int, Error]] = [(row, bad_text(row, what)) for row, what in bad]
        known = {row for row, _ in bad}
        errors += [(row, error) for row, error in failed if row not in known]
        errors.sort(key=lambda e: e[0])
        return predictions, errors, time.perf_counter() - began


def forward_log() -> None:
    """Passes the library's log lines to the logger "brim"."""
    for is_warning, line in _brim.take_log():
        _log.log(logging.WARNING if is_warning else logging.INFO, "%s", line)


def _with_row(row: int, error: Error) -> Error:
    """The same error with its row."""
    if not isinstance(error, BadData):
        return error
    located = BadData(f"row {row}: {error.problem}", error.remedy or 'set on_error="null" to get an empty result for it')
    located.row = row
    return located


def _device(device: Any) -> str:
    if isinstance(device, int):  # like transformers: -1 is the CPU
        return "cpu" if device < 0 else f"cuda:{device}"
    return str(device)


def _threads(threads: int | None) -> int:
    if threads is not None:
        return threads
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isascii() and wanted.isdigit() else 0
