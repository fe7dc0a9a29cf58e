# SPDX-License-Identifier: Apache-2.0
"""A job of brim.bulk on a Ray cluster: an actor per share of the machine, each with its model open. One that is lost is
replaced, which its shard counts as a try; a shard that is run twice is published once."""

from __future__ import annotations

import importlib
from typing import Any

from . import bulk
from ._progress import bar
from .classifier import Classifier
from .errors import Error, UsageError

_NEEDED = "install it on every node, or pass runtime_env to ray.init"


def score(job: bulk.Job, *, num_cpus: float = 1, num_gpus: float = 0, workers: int | None = None, tries: int = 3,
          progress: bool = False) -> list[tuple[bulk.Shard, Error]]:
    """Every missing shard; those that failed `tries` times are returned with their error. An actor takes `num_cpus`
    cores, and as many threads, and `num_gpus` cards; there are as many as the cluster holds, or `workers`."""
    ray = _ray()
    if not ray.is_initialized():
        ray.init()
    shards = job.missing()
    if not shards:
        return []
    count = min(len(shards), workers or _room(ray.cluster_resources(), num_cpus, num_gpus))
    # Ray's own retries run a shard that kills its worker for ever; without them an actor that restarts refuses shards.
    made = ray.remote(_Worker).options(num_cpus=num_cpus, num_gpus=num_gpus, max_restarts=0, max_task_retries=0)
    threads = max(1, int(num_cpus))
    actors = [made.remote(threads) for _ in range(count)]
    waiting = [(shard, 1) for shard in reversed(shards)]
    running: dict[Any, tuple[Any, bulk.Shard, int]] = {}
    failed: list[tuple[bulk.Shard, Error]] = []

    def give(actor: Any) -> None:
        if waiting:
            shard, attempt = waiting.pop()
            running[actor.run.remote(shard)] = (actor, shard, attempt)

    done = 0
    with bar(len(shards), " shards", progress) as update:
        for actor in actors:
            give(actor)
        while running:
            (ready,), _ = ray.wait(list(running), num_returns=1)
            actor, shard, attempt = running.pop(ready)
            error = _outcome(ray, ready)
            if isinstance(error, _Lost):
                actors.remove(actor)
                ray.kill(actor)
                actor = made.remote(threads)
                actors.append(actor)
            if error is None or attempt >= tries:
                done += 1
                if error is not None:
                    failed.append((shard, error))
            else:
                waiting.insert(0, (shard, attempt + 1))  # behind the others
            if update:
                update(done)
            give(actor)
    for actor in actors:
        ray.kill(actor)
    return failed


class Scorer:
    """For `ds.map_batches(brim.ray.Scorer, batch_format="pyarrow", fn_constructor_args=("my-model",), concurrency=2)`:
    the batch with `label` and `score`. Slower than `score`: rows pass through Ray's store."""

    def __init__(self, model: str = "", text: str = "text", **settings: Any) -> None:
        self._classifier, self._text = Classifier(model, **settings), text

    def __call__(self, batch: Any) -> Any:
        return bulk.with_labels(self._classifier, batch, self._text)


class _Lost(Error):
    """What Ray reports in place of a result, mostly that the worker died."""


class _Worker:
    def __init__(self, threads: int) -> None:
        self._threads = threads

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


def _room(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """Actors that the cluster holds at once."""
    rooms = [int(resources.get(name, 0) / wanted) for name, wanted in (("CPU", cpus), ("GPU", gpus)) if wanted > 0]
    if rooms and min(rooms) < 1:
        raise UsageError(f"num_cpus={cpus}, num_gpus={gpus}: the cluster has {resources.get('CPU', 0):.0f} cores and "
                         f"{resources.get('GPU', 0):.0f} cards", "ask for less")
    return min(rooms, default=1)


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UsageError("Ray is not installed", "pip install ray") from None
