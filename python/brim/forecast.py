# SPDX-License-Identifier: Apache-2.0
"""Time series forecasting: predict, train, roll and evaluate, with tables or files. Runs the program; settings are the
options of `brim forecast`, with underscores."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import _program
from ._texts import _column_keys
from .errors import UsageError
from .training import _is_missing, _list, _paths


_SWITCHES = ("components", "extend", "keep_models", "shared_weights")  # pass False on: a preset may set true


class Forecasts:
    """Forecasts by column: `unique_id`, `ds` (times as in the data) and one or more columns per model."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def to_pandas(self) -> Any:
        """A pandas.DataFrame; `ds` is converted to times if possible."""
        pd = importlib.import_module("pandas")
        frame = pd.DataFrame(self.columns)
        for name in ("ds", "cutoff"):
            if name in frame and len(frame) and not str(frame[name].iloc[0]).isdigit():
                with contextlib.suppress(ValueError, TypeError):  # for example quarters stay strings
                    frame[name] = pd.to_datetime(frame[name])
        return frame

    def to_arrow(self) -> Any:
        return importlib.import_module("pyarrow").table(self.columns)

    def __repr__(self) -> str:
        series = len(set(self.columns.get("unique_id", [])))
        return f"brim.Forecasts({len(self):,} rows of {series:,} series: {', '.join(self.columns)})"


def predict(data: Any, *, model: str | os.PathLike[str] = "naive2", horizon: int = 0, **settings: Any) -> Forecasts:
    """Forecasts with a model directory written by `train`, whose horizon it uses, or with naive, snaive or naive2."""
    _refuse_output(settings, "omit it; predict returns the forecasts, and to_pandas().to_csv(...) writes them")
    given = {"model": os.fspath(model), "horizon": horizon or None, **settings}
    return _table(_run("predict", {"data": data}, given))


def train(data: Any, *, horizon: int, output_dir: str | os.PathLike[str], **settings: Any) -> str:
    """Trains an ensemble of N-BEATS models and returns its directory. The same call resumes an interrupted run."""
    _refuse_output(settings, "set the directory with output_dir=")
    _run("train", {"data": data}, {"horizon": horizon, "output": os.fspath(output_dir), **settings})
    return os.fspath(output_dir)


def roll(data: Any, *, horizon: int, folds: int, output_dir: str | os.PathLike[str], **settings: Any) -> Forecasts:
    """Rolling backtest: trains and forecasts at every cutoff. `output_dir` also gets the report."""
    _refuse_output(settings, "set the directory with output_dir=")
    folder = pathlib.Path(output_dir)
    _run("roll", {"data": data}, {"horizon": horizon, "folds": folds, "output": os.fspath(output_dir), **settings})
    return _table((folder / "forecasts.csv").read_text(encoding="utf-8"))


def evaluate(data: Any, actual: Any, *, model: str | os.PathLike[str] | None = None, forecasts: Any = None,
             **settings: Any) -> dict[str, Any]:
    """Evaluates a model's forecasts, or `forecasts`: sMAPE, MASE, OWA and skill against naive, as in `--json`."""
    if (model is None) == (forecasts is None):
        raise UsageError("exactly one of model and forecasts is required", "pass model= or forecasts=")
    tables = {"data": data, "actual": actual}
    if isinstance(forecasts, Forecasts):
        forecasts = forecasts.columns
    if forecasts is not None:
        tables["forecast"] = forecasts
    given = {"model": None if model is None else os.fspath(model), "json": True, **settings}
    return dict(json.loads(_run("eval", tables, given)))


def _refuse_output(settings: dict[str, Any], remedy: str) -> None:
    """Rejects the program's --output, because the results are read from another location."""
    if "output" in settings:
        raise UsageError(f"output={settings['output']!r}: not a setting of this function", remedy)


def _run(verb: str, tables: dict[str, Any], settings: dict[str, Any]) -> str:
    with contextlib.ExitStack() as written:
        files = [word for name, rows in tables.items() for path in written.enter_context(_files(name, rows))
                 for word in (f"--{name}", path)]
        out, error = _program.run(["forecast", verb, *files, *_flags(settings), "-q"])
    if error:
        raise error
    return out


def _flags(settings: dict[str, Any]) -> list[str]:
    words = []
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is False and name in _SWITCHES:
            words.append(f"{flag}=false")
        elif isinstance(value, (list, tuple)):
            words += [flag, ",".join(str(one) for one in value)]
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words


@contextlib.contextmanager
def _files(name: str, rows: Any) -> Iterator[list[str]]:
    """Yields file names unchanged, or the name of a temporary file with a table."""
    paths = _paths(rows)
    if paths is not None:
        yield paths
        return
    rows = _with_index(rows)
    keys = _column_keys(rows)
    if keys is None:
        raise UsageError(f"{name}: expected series, got {type(rows).__name__}", "pass files, or a table of unique_id, ds and y")
    columns = [[_cell(value) for value in _values(rows[key])] for key in keys]
    if len({len(column) for column in columns}) > 1:
        counts = ", ".join(f"{key} {len(column):,}" for key, column in zip(keys, columns, strict=True))
        raise UsageError(f"{name}: columns of unequal length: {counts}", "use the same number of rows in each")
    with tempfile.TemporaryDirectory(prefix="brim-") as folder:
        path = pathlib.Path(folder) / f"{name}.csv"  # the id of the series, if there is no id column
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([str(key) for key in keys])
            writer.writerows(zip(*columns, strict=True))
        yield [str(path)]


def _with_index(rows: Any) -> Any:
    """Converts named and time levels of a pandas index to columns."""
    if not hasattr(rows, "reset_index") or not hasattr(rows, "columns"):
        return rows
    levels = [rows.index.get_level_values(number) for number in range(rows.index.nlevels)]
    names = ["ds" if level.name is None and type(level).__name__ in ("DatetimeIndex", "PeriodIndex") else level.name for level in levels]
    added = [i for i, name in enumerate(names) if name is not None and name not in rows.columns]  # set_index(drop=False) keeps the column
    return rows.rename_axis(index=names).reset_index(level=added) if added else rows


def _values(column: Any) -> list[Any]:
    if isinstance(column, np.ndarray) and column.dtype.kind == "M":
        return [str(value) for value in np.datetime_as_string(column, unit="auto")]
    return _list(column)


def _cell(value: Any) -> str:
    return "" if _is_missing(value) or type(value).__name__ == "NaTType" else str(value)


def _table(text: str) -> Forecasts:
    names, *rows = csv.reader(io.StringIO(text))
    columns: dict[str, Any] = {}
    for i, name in enumerate(names):
        cells = [row[i] for row in rows]
        columns[name] = cells if name in ("unique_id", "ds", "cutoff") else np.array([float(c) if c else np.nan for c in cells])
    return Forecasts(columns)
