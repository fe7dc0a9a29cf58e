# SPDX-License-Identifier: Apache-2.0
"""Scores a Parquet file into another one: its columns plus `label`, `score` and optionally `all_scores`."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from typing import Any

from ._model import OnError
from ._storage import writing
from ._texts import named_column
from .classifier import Classifier
from .errors import BadData, UsageError
from .results import imported

_ROWS = 60_000  # rows per call
_PARQUET = "check that it is a Parquet file"


def score_file(source: str, target: str, *, column: str | None = None, all_scores: bool = False,
               on_error: OnError = "raise", progress: bool = False, **settings: Any) -> tuple[int, float]:
    """Returns rows and seconds. The target is created when it is complete; `settings` are those of Classifier."""
    pa, pq = imported("pyarrow"), imported("pyarrow.parquet")
    for name in (source, target):
        if not name.lower().endswith(".parquet"):
            raise UsageError(f"{name}: not a .parquet file", "use .parquet for input and output")
    if os.path.exists(target) and os.path.exists(source) and os.path.samefile(source, target):
        raise UsageError(f"{target}: the output would overwrite the input", "use another file")
    began, done = time.perf_counter(), 0
    try:
        with _opened(pq, source) as file:
            names = file.schema_arrow.names
            text = named_column(names, column)
            for name in ("label", "score", *(["all_scores"] if all_scores else [])):
                if name in names:
                    raise UsageError(f"{source}: column {name!r} already exists", "rename it")
            with _draft(target) as draft, Classifier(**settings) as classifier:
                writer: Any = None
                for batch in _tables(pa, file, source):
                    result = classifier.predict(batch[text], on_error=on_error, progress=progress)
                    scored = result.to_arrow(all_scores=all_scores)
                    for name in scored.column_names:
                        batch = batch.append_column(name, scored[name])
                    with writing(target):
                        writer = writer or pq.ParquetWriter(draft, batch.schema)
                        writer.write_table(batch)
                    done += batch.num_rows
                with writing(target):
                    writer.close()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadData(f"{source}: {error}", _PARQUET) from None
    return done, time.perf_counter() - began


def _opened(pq: Any, source: str) -> Any:
    try:
        return pq.ParquetFile(source)
    except FileNotFoundError:
        raise UsageError(f"{source}: no such file", "use an existing file") from None
    except OSError as error:
        raise BadData(f"{source}: {error}", _PARQUET) from None


@contextlib.contextmanager
def _draft(target: str) -> Iterator[str]:
    """A temporary file next to the target, renamed to it when complete."""
    path = f"{target}.{secrets.token_hex(4)}.part"
    with writing(target):
        open(path, "xb").close()  # tempfile would create one without read permission for others
    try:
        yield path
        with writing(target):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            os.replace(path, target)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _tables(pa: Any, file: Any, source: str) -> Any:
    """Yields several row groups at a time; for a file without rows one empty table, to keep its columns."""
    waiting: list[Any] = []
    for group in range(file.num_row_groups):
        try:
            waiting.append(file.read_row_group(group))
        except OSError as error:  # raised by pyarrow for a corrupt page
            raise BadData(f"{source}: {error}", _PARQUET) from None
        if sum(table.num_rows for table in waiting) >= _ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting or file.metadata.num_rows == 0:
        yield pa.concat_tables(waiting) if waiting else file.schema_arrow.empty_table()
