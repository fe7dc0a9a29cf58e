# SPDX-License-Identifier: Apache-2.0
"""A job of brim.bulk on a Ray cluster: an actor per share of the machine, each with its model open. A lost actor is
replaced, and its shard has had a try; a shard that is run twice is published once."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from . import bulk
from ._options import whole
from ._progress import bar
from .classifier import Classifier
from .errors import Error, TimedOut, UsageError

_NEEDED = "install it on every node, or pass runtime_env to ray.init"


def score(job: bulk.Job, *, num_cpus: float = 1, num_gpus: float = 0, workers: int | None = None, tries: int = 3,
          start_timeout: float = 300, progress: bool = False) -> list[tuple[bulk.Shard, Error]]:
    """Scores every missing shard; those that failed `tries` times are returned with their error. An actor takes
    `num_cpus` cores, and as many threads, and `num_gpus` cards; there are as many as the cluster holds, or `workers`.
    Shards go to actors that have started. If none starts within `start_timeout` seconds, for want of free cores or
    cards, brim.TimedOut is raised."""
    ray = _ray()
    whole("tries", tries)
    if workers is not None:
        whole("workers", workers)
    if not ray.is_initialized():
        ray.init()
    shards = job.missing()
    if not shards:
        return []
    most = _capacity(ray.cluster_resources(), num_cpus, num_gpus)
    pool = _Pool(ray, num_cpus, num_gpus, start_timeout)
    try:
        pool.start(min(len(shards), workers or most))
        with bar(len(shards), " shards", progress) as update:
            return pool.run(shards, tries, update)
    finally:
        pool.kill()


class _Pool:
    """Actors and their work. An actor that waits for resources gets no shard, so that it holds up nothing."""

    def __init__(self, ray: Any, num_cpus: float, num_gpus: float, start_timeout: float) -> None:
        self._ray, self._cpus, self._gpus, self._start_timeout = ray, num_cpus, num_gpus, start_timeout
        # Without Ray's own retries: it would run a shard that kills its worker for ever.
        self._made = ray.remote(_Worker).options(num_cpus=num_cpus, num_gpus=num_gpus, max_restarts=0,
                                                 max_task_retries=0)
        self._starting: dict[Any, Any] = {}  # by the result of their first call
        self._running: dict[Any, tuple[Any, bulk.Shard, int]] = {}
        self._idle: list[Any] = []
        self._replacements = 0

    def start(self, count: int) -> None:
        for _ in range(count):
            actor = self._made.remote(max(1, int(self._cpus)))
            self._starting[actor.ready.remote()] = actor
        self._replacements += count * 3

    def run(self, shards: list[bulk.Shard], tries: int,
            update: Callable[[int], None] | None) -> list[tuple[bulk.Shard, Error]]:
        waiting = [(shard, 1) for shard in reversed(shards)]
        failed: list[tuple[bulk.Shard, Error]] = []
        while waiting or self._running:
            while waiting and self._idle:
                actor, (shard, attempt) = self._idle.pop(), waiting.pop()
                self._running[actor.run.remote(shard)] = (actor, shard, attempt)
            ready = self._next()
            error = _outcome(self._ray, ready)
            if ready in self._starting:
                actor = self._starting.pop(ready)
                if error is None:
                    self._idle.append(actor)
                elif not self._replace(actor) and not self._running and not self._idle and not self._starting:
                    return failed + [(shard, error) for shard, _ in reversed(waiting)]
                continue
            actor, shard, attempt = self._running.pop(ready)
            if not isinstance(error, _Lost):
                self._idle.append(actor)
            elif attempt < tries or waiting:
                self._replace(actor, counted=False)  # its shard's attempts bound these
            if error is not None and attempt < tries:
                waiting.insert(0, (shard, attempt + 1))  # behind the others
            elif error is not None:
                failed.append((shard, error))
            if update:
                update(len(shards) - len(waiting) - len(self._running))
        return failed

    def kill(self) -> None:
        for actor in [*self._idle, *self._starting.values(), *(actor for actor, _, _ in self._running.values())]:
            self._ray.kill(actor)

    def _next(self) -> Any:
        """The next result. Bounded while nothing but actors that have not started is waited for."""
        refs = [*self._running, *self._starting]
        timeout = None if self._running else self._start_timeout
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=timeout)
        if ready:
            return ready[0]
        free, total = self._ray.available_resources(), self._ray.cluster_resources()
        raise TimedOut(f"no Ray worker started within {self._start_timeout:g} s: it needs {self._cpus:g} cores and "
                       f"{self._gpus:g} cards, {free.get('CPU', 0):g} of {total.get('CPU', 0):g} cores and "
                       f"{free.get('GPU', 0):g} of {total.get('GPU', 0):g} cards are free",
                       "end the other actors and jobs, lower num_cpus or num_gpus, or raise start_timeout")

    def _replace(self, actor: Any, counted: bool = True) -> bool:
        """Another actor for one that died. Those that die at the start are replaced a bounded number of times."""
        self._ray.kill(actor)
        if counted:
            self._replacements -= 1
            if self._replacements < 0:
                return False
        other = self._made.remote(max(1, int(self._cpus)))
        self._starting[other.ready.remote()] = other
        return True


class Scorer:
    """For `ds.map_batches(brim.ray.Scorer, batch_format="pyarrow", fn_constructor_args=("my-model",), concurrency=2)`:
    the batch with `label` and `score`. Slower than `score`: rows pass through Ray's store."""

    def __init__(self, model: str = "", text: str = "text", **settings: Any) -> None:
        self._classifier, self._text = Classifier(model, **settings), text

    def __call__(self, batch: Any) -> Any:
        return bulk.with_labels(self._classifier, batch, self._text)


class _Lost(Error):
    """Ray reports an error in place of a result, usually that the worker died."""


class _Worker:
    def __init__(self, threads: int) -> None:
        self._threads = threads

    def ready(self) -> None:
        """Returns once the actor has its resources and the module is imported."""

    def run(self, shard: bulk.Shard) -> Error | None:
        try:
            bulk.run_shard(shard, threads=self._threads)
        except Error as error:
            return error
        return None


def _outcome(ray: Any, ready: Any) -> Error | None:
    try:
        result: Error | None = ray.get(ready)
        return result
    except ray.exceptions.RayError as error:
        if "No module named 'brim" in str(error):
            raise UsageError("a Ray worker has no module brim", _NEEDED) from None
        return _Lost(f"Ray: {error}")


def _capacity(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """Number of actors that the whole cluster holds at once."""
    counts = [int(resources.get(name, 0) / wanted) for name, wanted in (("CPU", cpus), ("GPU", gpus)) if wanted > 0]
    if counts and min(counts) < 1:
        raise UsageError(f"num_cpus={cpus}, num_gpus={gpus}: the cluster has {resources.get('CPU', 0):.0f} cores and "
                         f"{resources.get('GPU', 0):.0f} cards", "lower num_cpus or num_gpus")
    return min(counts, default=1)


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UsageError("Ray is not installed", "pip install ray") from None
