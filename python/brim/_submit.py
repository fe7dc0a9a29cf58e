# SPDX-License-Identifier: Apache-2.0
"""Single texts from threads and event loops, which the engine batches together."""

from __future__ import annotations

import asyncio
import select
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeAlias

from . import _brim
from ._texts import bad_text
from .errors import BadData, Error

# Turns label, score and scores into the result of a text.
Finish: TypeAlias = Callable[[Any, float, Any], Any]


def texts_of_one(text: Any) -> _brim.Texts:
    texts = _brim.Texts.from_sequence((text,))
    if texts.bad:
        raise _bad_text(texts.bad[0][1])
    return texts


def _bad_text(what: str) -> BadData:
    error = bad_text(0, what)
    return BadData(f"the text {error.problem.removeprefix('row 0 ')}", error.remedy.partition(", or set on_error=")[0])


def _complete(future: Future[Any] | asyncio.Future[Any], finish: Finish, label: Any, score: float, scores: Any,
              error: Error | None) -> None:
    if error is not None:
        future.set_exception(error)
        return
    try:
        result = finish(label, score, scores)
    except Exception as failure:  # belongs to the caller of this text
        future.set_exception(failure)
        return
    future.set_result(result)


class FutureQueue:
    """Futures for threads. One daemon thread completes them."""

    def __init__(self, scorer: _brim.Scorer) -> None:
        self._queue = _brim.AnswerQueue.open(scorer)
        self._pending: dict[int, tuple[Future[Any], Finish, Any]] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        threading.Thread(target=_deliver, args=(self._queue, self._pending, self._stopped), name="brim-futures",
                         daemon=True).start()
        weakref.finalize(self, _stop, self._queue, self._stopped)

    def submit(self, text: Any, pair: Any, options: _brim.CallOptions, finish: Finish, owner: Any) -> Future[Any]:
        """`owner` is kept alive until the text has its result."""
        texts, pairs = texts_of_one(text), None if pair is None else texts_of_one(pair)
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            ticket, self._next = self._next, self._next + 1
        self._pending[ticket] = future, finish, owner
        try:
            self._queue.submit(texts, pairs, ticket, options)
        except BaseException:
            self._pending.pop(ticket, None)
            raise
        return future


def _stop(queue: _brim.AnswerQueue, stopped: threading.Event) -> None:
    stopped.set()
    queue.wake()


def _deliver(queue: _brim.AnswerQueue, pending: dict[int, tuple[Future[Any], Finish, Any]],
             stopped: threading.Event) -> None:
    poll = select.poll()
    poll.register(queue.fileno(), select.POLLIN)
    while pending or not stopped.is_set():
        poll.poll()
        for ticket, label, score, scores, _, error in queue.take():
            future, finish, _owner = pending.pop(ticket)
            _complete(future, finish, label, score, scores, error)
            del future, finish, _owner  # the last reference to the model may be here


class LoopQueue:
    """Futures of one event loop, completed on its thread. Texts submitted in one turn of the loop run together."""

    def __init__(self, scorer: _brim.Scorer) -> None:
        self._queue = _brim.AnswerQueue.open(scorer)
        self._pending: dict[int, tuple[asyncio.Future[Any], Finish]] = {}
        self._collected: dict[_brim.CallOptions, list[tuple[str, str | None, asyncio.Future[Any], Finish]]] = {}
        self._next = 0

    def submit(self, text: Any, pair: Any, options: _brim.CallOptions, finish: Finish) -> asyncio.Future[Any]:
        if not isinstance(text, str):
            texts_of_one(text)
        if pair is not None and not isinstance(pair, str):
            texts_of_one(pair)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._collected:
            loop.call_soon(self._flush, loop)
        self._collected.setdefault(options, []).append((text, pair, future, finish))
        return future

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        collected, self._collected = self._collected, {}
        if not self._pending:
            loop.add_reader(self._queue.fileno(), self._deliver, loop)
        for options, rows in collected.items():
            for paired in (False, True):
                group = [row for row in rows if (row[1] is not None) == paired]
                if group:
                    self._hand_over(group, options)
        if not self._pending:
            loop.remove_reader(self._queue.fileno())

    def _hand_over(self, rows: list[tuple[str, str | None, asyncio.Future[Any], Finish]],
                   options: _brim.CallOptions) -> None:
        first, self._next = self._next, self._next + len(rows)
        try:
            texts = _brim.Texts.from_sequence([row[0] for row in rows])
            pairs = None if rows[0][1] is None else _brim.Texts.from_sequence([row[1] for row in rows])
            for i, row in enumerate(rows):
                self._pending[first + i] = row[2], row[3]
            self._queue.submit(texts, pairs, first, options)
        except BaseException as error:
            for i, row in enumerate(rows):
                self._pending.pop(first + i, None)
                if not row[2].done():
                    row[2].set_exception(error)
            return
        for i, what in [*texts.bad, *(pairs.bad if pairs is not None else [])]:  # lone surrogates
            future, _ = self._pending[first + i]
            if not future.done():
                future.set_exception(_bad_text(what))

    def _deliver(self, loop: asyncio.AbstractEventLoop) -> None:
        for ticket, label, score, scores, _, error in self._queue.take():
            future, finish = self._pending.pop(ticket)
            if not future.done():  # cancelled
                _complete(future, finish, label, score, scores, error)
        if not self._pending:
            loop.remove_reader(self._queue.fileno())
