# SPDX-License-Identifier: Apache-2.0
"""A job of brim.bulk on Spark: a task per shard, of which Spark sees a number and an error. Lost executors, retries and
speculation are Spark's; a shard that is run twice is published once."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from . import bulk
from ._options import whole
from .classifier import Classifier
from .errors import Error, UsageError, from_library


def score(job: bulk.Job, spark: Any, *, threads: int | None = None,
          tries: int = 3) -> list[tuple[bulk.Shard, Error]]:
    """Every missing shard; those that failed `tries` times are returned with their error. Executors need the module
    and, for models on disk, the model. `threads`: of a task, as many as spark.task.cpus unless given."""
    whole("tries", tries)
    cores = threads or int(spark.conf.get("spark.task.cpus", "1"))
    shards = {shard.id: shard for shard in job.missing()}
    errors: dict[int, Error] = {}
    left = sorted(shards)
    for _ in range(tries):
        if not left:
            break
        rows = spark.range(0, len(left), 1, len(left)).mapInArrow(
            functools.partial(_run, job.place, left, cores), "id long, code string, problem string, remedy string")
        errors = {row["id"]: from_library(row["code"], row["problem"], row["remedy"])
                  for row in _collected(rows) if row["code"] is not None}
        left = sorted(errors)
    return [(shards[number], errors[number]) for number in left]


def scorer(model: str = "", text: str = "text", **settings: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For `df.mapInArrow(brim.spark.scorer("my-model"), brim.spark.schema(df))`: the rows with `label` and `score`.
    Slower than `score`: rows pass through Spark's workers."""
    return functools.partial(_label, model, text, settings)


def schema(df: Any) -> Any:
    """That of `df` with what a scorer adds."""
    types = importlib.import_module("pyspark.sql.types")
    return types.StructType([*df.schema.fields, types.StructField("label", types.StringType()),
                             types.StructField("score", types.FloatType())])


def _collected(rows: Any) -> Any:
    try:
        return rows.collect()
    except Exception as error:  # of a class that depends on how the session is connected
        if "No module named 'brim" in str(error) or "No module named 'numpy" in str(error):
            raise UsageError("a Spark executor has no module brim",
                             "install it there, and set PYSPARK_PYTHON to the interpreter that has it") from None
        raise


def _run(place: str, ids: list[int], threads: int, batches: Iterator[Any]) -> Iterator[Any]:
    pa = importlib.import_module("pyarrow")
    shards = bulk.load(place).shards
    for batch in batches:
        for row in batch.column(0).to_pylist():
            told: list[Any] = [None, None, None]
            try:
                bulk.run_shard(shards[ids[row]], threads=threads)
            except Error as error:
                told = [error.code, error.problem, error.remedy]
            values = [[ids[row]], *([value] for value in told)]
            kinds = [pa.int64(), pa.string(), pa.string(), pa.string()]
            yield pa.RecordBatch.from_arrays([pa.array(v, k) for v, k in zip(values, kinds, strict=True)],
                                             ["id", "code", "problem", "remedy"])


def _label(model: str, text: str, settings: dict[str, Any], batches: Iterator[Any]) -> Iterator[Any]:
    pa = importlib.import_module("pyarrow")
    classifier = _opened(model, tuple(sorted(settings.items())))
    for batch in batches:
        yield from bulk.with_labels(classifier, pa.Table.from_batches([batch]), text, plain=True).to_batches()


@functools.lru_cache(maxsize=1)
def _opened(model: str, settings: tuple[tuple[str, Any], ...]) -> Classifier:
    """One open model per process of Spark's."""
    if not isinstance(model, str):
        raise UsageError("a model's name or directory is wanted", "executors open it themselves")
    return Classifier(model, **dict(settings))
