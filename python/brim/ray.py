# SPDX-License-Identifier: Apache-2.0
"""Runs a job of brim.bulk on a Ray cluster with one open model per actor. Lost actors are replaced, which counts as a try
of their shard. A shard that runs twice is published once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import bulk
from ._options import checked, number, whole
from ._progress import bar
from .classifier import Classifier
from .errors import Error, TimedOut, UsageError
from .results import imported

_NEEDED = "install it on every node, or pass runtime_env to ray.init"


@checked
def score(job: bulk.Job, *, num_cpus: float = 1, num_gpus: float = 0, workers: int | None = None, tries: int = 3,
          start_timeout: float = 300, progress: bool = False) -> list[tuple[bulk.Shard, Error]]:
    """Scores every missing shard; returns those that failed `tries` times with their errors. An actor uses `num_cpus`
    cores (and threads) and `num_gpus` GPUs. Starts `workers` actors; default: as many as fit the cluster. Raises
    brim.TimedOut if no actor starts within `start_timeout` seconds, because cores or GPUs are in use."""
    bulk.check_job(job)
    number("num_cpus", num_cpus)
    number("num_gpus", num_gpus)
    number("start_timeout", start_timeout)
    whole("tries", tries)
    if workers is not None:
        whole("workers", workers)
    ray = imported("ray")
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
    """Actors and their work. Shards are only assigned to actors that have started."""

    def __init__(self, ray: Any, num_cpus: float, num_gpus: float, start_timeout: float) -> None:
        self._ray, self._cpus, self._gpus, self._start_timeout = ray, num_cpus, num_gpus, start_timeout
        # Disable Ray's retries, which would repeat a shard that kills its worker forever.
        self._made = ray.remote(_Worker).options(num_cpus=num_cpus, num_gpus=num_gpus, max_restarts=0,
                                                 max_task_retries=0)
        self._starting: dict[Any, Any] = {}  # keyed by the result of the first call
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
                self._replace(actor, counted=False)  # limited by the attempts of its shard
            if error is not None and attempt < tries:
                waiting.insert(0, (shard, attempt + 1))  # after the others
            elif error is not None:
                failed.append((shard, error))
            if update:
                update(len(shards) - len(waiting) - len(self._running))
        return failed

    def kill(self) -> None:
        for actor in [*self._idle, *self._starting.values(), *(actor for actor, _, _ in self._running.values())]:
            self._ray.kill(actor)

    def _next(self) -> Any:
        """Waits for the next result; with a timeout if no actor has started."""
        refs = [*self._running, *self._starting]
        timeout = None if self._running else self._start_timeout
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=timeout)
        if ready:
            return ready[0]
        free, total = self._ray.available_resources(), self._ray.cluster_resources()
        raise TimedOut(f"no Ray worker started within {self._start_timeout:g} s: it needs {self._cpus:g} cores and "
                       f"{self._gpus:g} GPUs, {free.get('CPU', 0):g} of {total.get('CPU', 0):g} cores and "
                       f"{free.get('GPU', 0):g} of {total.get('GPU', 0):g} GPUs are free",
                       "stop other actors and jobs, lower num_cpus or num_gpus, or raise start_timeout")

    def _replace(self, actor: Any, counted: bool = True) -> bool:
        """Replaces an actor that died. The number of replacements for actors that die at startup is limited."""
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
    adds `label` and `score` to the batch. Slower than `score`, because rows pass through Ray's object store."""

    def __init__(self, model: str = "", text: str = "text", **settings: Any) -> None:
        self._classifier, self._text = Classifier(model, **settings), text

    def __call__(self, batch: Any) -> Any:
        return bulk.with_labels(self._classifier, batch, self._text)


class _Lost(Error):
    """Ray returned an error instead of a result, usually because the worker died."""


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
            raise UsageError("the module brim is missing on a Ray worker", _NEEDED) from None
        return _Lost(f"Ray: {error}")


def _capacity(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """Number of actors that fit the whole cluster."""
    counts = [int(resources.get(name, 0) / needed) for name, needed in (("CPU", cpus), ("GPU", gpus)) if needed > 0]
    if counts and min(counts) < 1:
        raise UsageError(f"num_cpus={cpus}, num_gpus={gpus}: the cluster has {resources.get('CPU', 0):.0f} cores and "
                         f"{resources.get('GPU', 0):.0f} GPUs", "lower num_cpus or num_gpus")
    return min(counts, default=1)
