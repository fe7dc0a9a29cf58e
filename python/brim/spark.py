# SPDX-License-Identifier: Apache-2.0
"""Runs a job of brim.bulk on Spark with one task per shard. Spark handles lost executors, retries and speculation; a shard
that runs twice is published once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from . import bulk
from ._options import checked, whole
from .classifier import Classifier
from .errors import Error, UsageError, from_library
from .results import imported


@checked
def score(job: bulk.Job, spark: Any, *, threads: int | None = None,
          tries: int = 3) -> list[tuple[bulk.Shard, Error]]:
    """Scores every missing shard; returns those that failed `tries` times with their errors. Executors need the module
    and the model's directory. `threads`: per task; default: spark.task.cpus."""
    bulk.check_job(job)
    whole("tries", tries)
    if threads is not None:
        whole("threads", threads)
    if not hasattr(spark, "conf") or not hasattr(spark, "range"):
        raise UsageError(f"expected a SparkSession, got {type(spark).__name__}", "pass the session")
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
    """For `df.mapInArrow(brim.spark.scorer("my-model"), brim.spark.schema(df))`: adds `label` and `score` to the
    rows. Slower than `score`, because rows pass through Spark's workers."""
    return functools.partial(_label, model, text, settings)


def schema(df: Any) -> Any:
    """The schema of `df` plus the columns added by a scorer."""
    types = imported("pyspark.sql.types")
    return types.StructType([*df.schema.fields, types.StructField("label", types.StringType()),
                             types.StructField("score", types.FloatType())])


def _collected(rows: Any) -> Any:
    try:
        return rows.collect()
    except Exception as error:  # the class depends on the kind of session
        if "No module named 'brim" in str(error) or "No module named 'numpy" in str(error):
            raise UsageError("the module brim is missing on a Spark executor",
                             "install it there, and set PYSPARK_PYTHON to the interpreter that has it") from None
        raise


def _run(output: str, ids: list[int], threads: int, batches: Iterator[Any]) -> Iterator[Any]:
    pa = imported("pyarrow")
    shards = bulk.load(output).shards
    for batch in batches:
        for row in batch.column(0).to_pylist():
            outcome: list[Any] = [None, None, None]
            try:
                bulk.run_shard(shards[ids[row]], threads=threads)
            except Error as error:
                outcome = [error.code, error.problem, error.remedy]
            values = [[ids[row]], *([value] for value in outcome)]
            types = [pa.int64(), pa.string(), pa.string(), pa.string()]
            yield pa.RecordBatch.from_arrays([pa.array(v, k) for v, k in zip(values, types, strict=True)],
                                             ["id", "code", "problem", "remedy"])


def _label(model: str, text: str, settings: dict[str, Any], batches: Iterator[Any]) -> Iterator[Any]:
    pa = imported("pyarrow")
    classifier = _opened(model, tuple(sorted(settings.items())))
    for batch in batches:
        yield from bulk.with_labels(classifier, pa.Table.from_batches([batch]), text, plain=True).to_batches()


@functools.lru_cache(maxsize=1)
def _opened(model: str, settings: tuple[tuple[str, Any], ...]) -> Classifier:
    """One open model per Spark process."""
    if not isinstance(model, str):
        raise UsageError("the model must be a name or a directory", "pass a str; executors open it themselves")
    return Classifier(model, **dict(settings))
