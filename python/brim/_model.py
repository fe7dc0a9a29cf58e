# SPDX-License-Identifier: Apache-2.0
"""Base class of Classifier, Encoder, Tagger and ZeroShotClassifier: opening, closing, pickling and bulk scoring."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, TypeVar

from . import _brim
from ._log import forward_log
from ._options import check_model_options, checked, choice, device_name, path
from ._progress import bar, download_bar
from ._submit import Finish, FutureQueue, LoopQueue
from ._texts import bad_text, texts_of
from ._tokenizer import Tokenizer
from .errors import BadData, Cancelled, Error, UsageError
from .plans import Plan

OnError = Literal["raise", "null"]
Self = TypeVar("Self", bound="Model")


class Model:
    """An open model. Thread-safe. The keywords have the same names and meaning as the options of `brim score`."""

    _kinds: tuple[str, ...] = ()
    _wanted = ""

    @checked
    def __init__(self, model: str | os.PathLike[str] = "", *, device: str | int = "auto", precision: str = "auto",
                 memory_limit: str = "auto", leave_free: str = "", threads: int | None = None,
                 max_length: int | None = None, long_text: str = "truncate", pull: bool = False,
                 adapter: str | os.PathLike[str] | None = None) -> None:
        self._start(model, {"device": device, "precision": precision, "memory_limit": memory_limit,
                            "leave_free": leave_free, "threads": threads, "max_length": max_length,
                            "long_text": long_text, "pull": pull, "adapter": adapter})

    def _start(self, model: str | os.PathLike[str], options: dict[str, Any], pooling: str | None = None,
               aggregation: str = "first") -> None:
        """Opens the model. `options` are those of ModelOptions."""
        model = path("model", model)
        if options.get("pull"):
            pull_model(model)
            if options.get("adapter"):
                pull_model(path("adapter", options["adapter"]))
        check_model_options({name: value for name, value in options.items() if name != "pull"})
        self._options: dict[str, Any] = {"model": model, **options}
        self._defaults: dict[str, Any] = {}  # options of calls, set by brim.pipeline
        self._idle = threading.Condition()
        self._process = os.getpid()
        self._callers: list[int] = []  # threads whose calls run
        self._futures: FutureQueue | None = None
        self._loops: weakref.WeakKeyDictionary[Any, LoopQueue] = weakref.WeakKeyDictionary()
        self._scorer: _brim.Scorer | None = open_scorer(self._options, pooling, aggregation)
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

    @property
    def max_length(self) -> int:
        """Most tokens per text, including special ones; 0 for VADER."""
        return self._open().max_length

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return Tokenizer(self._open())

    def close(self) -> None:
        """Waits for running calls of other threads, cancels submitted texts that have not started, and frees the device.
        Later calls raise brim.Cancelled."""
        scorer, self._scorer = self._scorer, None
        if scorer is None:
            return
        with self._idle:
            me = threading.get_ident()
            if self._process != os.getpid():  # the callers are threads of the parent
                self._callers.clear()
            self._idle.wait_for(lambda: all(caller == me for caller in self._callers))
        scorer.close()
        self._futures, self._loops = None, weakref.WeakKeyDictionary()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "defaults": self._defaults}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["options"])  # type: ignore[misc]
        self._defaults = state["defaults"]

    def __repr__(self) -> str:
        name = self._options["model"] or "default"
        where = f"{self._scorer.device}, {self._scorer.precision}" if self._scorer else "closed"
        return f"brim.{type(self).__name__}({name!r}: {where})"

    def _open(self) -> _brim.Scorer:
        if self._scorer is None:
            raise Cancelled("the model was closed", "open it again")
        return self._scorer

    def _check_device(self, device: Any) -> None:
        """Accepts the device that the model is open on."""
        if device is None:
            return
        name, opened = device_name(device), device_name(self._options["device"])
        kind = "cpu" if self.device.startswith("cpu") else "cuda"
        if name not in (opened, kind, "auto", "cuda:0" if kind == "cuda" and opened in ("auto", "cuda") else kind):
            raise UsageError(f'device="{name}": the model is open on {self.device}', "set it when opening the model")

    @contextlib.contextmanager
    def _call(self) -> Iterator[_brim.Scorer]:
        """The scorer during a call, for which close() waits."""
        me = threading.get_ident()
        with self._idle:
            scorer = self._open()
            self._callers.append(me)
        try:
            yield scorer
        finally:
            with self._idle:
                self._callers.remove(me)
                self._idle.notify_all()

    def _score(self, texts: Any, column: str | None = None, on_error: OnError = "raise",
               progress: bool = False, pairs: Any = None, prompt: str | None = None,
               labels: _brim.ZeroShotLabels | None = None,
               options: _brim.CallOptions | None = None) -> tuple[_brim.Predictions, list[tuple[int, Error]], float]:
        """Returns the predictions, the errors by row, and the elapsed seconds."""
        choice("on_error", on_error, ("raise", "null"))
        self._open()
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
        with self._call() as scorer:
            if progress:
                with bar(len(views)) as update:
                    predictions = scorer.score(views, update, seconds, prompt, labels, options)
            else:
                predictions = scorer.score(views, None, seconds, prompt, labels, options)
        forward_log()
        failed = predictions.errors
        if failed and on_error == "raise":
            raise _with_row(*failed[0])
        errors: list[tuple[int, Error]] = [(row, bad_text(row, what)) for row, what in bad]
        known = {row for row, _ in bad}
        errors += [(row, error) for row, error in failed if row not in known]
        errors.sort(key=lambda e: e[0])
        return predictions, errors, time.perf_counter() - began

    def _future(self, text: Any, pair: Any, options: _brim.CallOptions, finish: Finish) -> Future[Any]:
        with self._idle:
            scorer = self._open()
            if self._futures is None:
                self._futures = FutureQueue(scorer)
            futures = self._futures
        return futures.submit(text, pair, options, finish, self)

    def _in_loop(self, text: Any, pair: Any, options: _brim.CallOptions, finish: Finish) -> asyncio.Future[Any]:
        scorer = self._open()
        loop = asyncio.get_running_loop()
        queue = self._loops.get(loop)
        if queue is None:
            with self._idle:
                queue = self._loops[loop] = LoopQueue(scorer)
        return queue.submit(text, pair, options, finish)


def model_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the native module for checked options of a model; absent ones have their defaults."""
    device = options.get("device")
    return {"device": device_name("auto" if device is None else device),
            "precision": options.get("precision") or "auto", "memory_limit": options.get("memory_limit") or "auto",
            "leave_free": options.get("leave_free") or "", "threads": cores(options.get("threads")),
            "max_length": options.get("max_length") or 0,
            "long_text": (options.get("long_text") or "truncate").replace("_", "-")}


def open_scorer(options: dict[str, Any], pooling: str | None = None, aggregation: str = "first") -> _brim.Scorer:
    """Opens a model with checked options."""
    scorer = _brim.Scorer.open(model=options["model"], pooling=pooling, aggregation=aggregation,
                               adapter=path("adapter", options.get("adapter") or ""), **model_arguments(options))
    forward_log()
    return scorer


def warn(text: str) -> None:
    """Issues a warning at the line outside of this package."""
    frame, level = sys._getframe(1), 2
    package = os.path.dirname(__file__)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)


def pull_model(model: str) -> str:
    """The directory of a model; one that is not on this machine is downloaded from the Hugging Face hub first."""
    with download_bar(model) as update:
        return _brim.pull_model(model, update)


def _with_row(row: int, error: Error) -> Error:
    """The same error with its row."""
    if not isinstance(error, BadData):
        return error
    located = BadData(f"row {row}: {error.problem}", error.remedy or 'set on_error="null" to get an empty result for it')
    located.row = row
    return located


def cores(threads: int | None) -> int:
    if threads is not None:
        return threads
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isascii() and wanted.isdigit() and int(wanted) <= 1024 else 0
