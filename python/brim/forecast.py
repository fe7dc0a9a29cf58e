# SPDX-License-Identifier: Apache-2.0
"""Forecasts of series, by the program: brim.forecast.predict, train, roll and evaluate, with tables as well as files. Settings
are those of `brim forecast …`, with underscores."""

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


_SWITCHES = ("components", "extend", "keep_models", "shared_weights")  # False is an answer: a preset may say true


class Forecasts:
    """Columns as the program writes them: `unique_id`, `ds` (as the data has its times) and one or more per model."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def to_pandas(self) -> Any:
        """A pandas.DataFrame; `ds` as times where it holds some."""
        pd = importlib.import_module("pandas")
        frame = pd.DataFrame(self.columns)
        for name in ("ds", "cutoff"):
            if name in frame and len(frame) and not str(frame[name].iloc[0]).isdigit():
                with contextlib.suppress(ValueError, TypeError):  # quarters, say, stay what they are
                    frame[name] = pd.to_datetime(frame[name])
        return frame

    def to_arrow(self) -> Any:
        return importlib.import_module("pyarrow").table(self.columns)

    def __repr__(self) -> str:
        series = len(set(self.columns.get("unique_id", [])))
        return f"brim.Forecasts({len(self):,} rows of {series:,} series: {', '.join(self.columns)})"


def predict(data: Any, *, model: str | os.PathLike[str] = "naive2", horizon: int = 0, **settings: Any) -> Forecasts:
    """What comes next: of a directory that `train` wrote, whose horizon it is, or of naive, snaive and naive2."""
    _refuse_output(settings, "leave it out: the forecasts are what predict gives, and to_pandas().to_csv(...) writes them")
    given = {"model": os.fspath(model), "horizon": horizon or None, **settings}
    return _table(_run("predict", {"data": data}, given))


def train(data: Any, *, horizon: int, output_dir: str | os.PathLike[str], **settings: Any) -> str:
    """Trains an ensemble of N-BEATS models; the directory, for `predict` and `evaluate`. The same call goes on after a kill."""
    _refuse_output(settings, "name the directory with output_dir=")
    _run("train", {"data": data}, {"horizon": horizon, "output": os.fspath(output_dir), **settings})
    return os.fspath(output_dir)


def roll(data: Any, *, horizon: int, folds: int, output_dir: str | os.PathLike[str], **settings: Any) -> Forecasts:
    """Trains again and again along the series and forecasts from every cutoff; `output_dir` has its report too."""
    _refuse_output(settings, "name the directory with output_dir=")
    folder = pathlib.Path(output_dir)
    _run("roll", {"data": data}, {"horizon": horizon, "folds": folds, "output": os.fspath(output_dir), **settings})
    return _table((folder / "forecasts.csv").read_text(encoding="utf-8"))


def evaluate(data: Any, actual: Any, *, model: str | os.PathLike[str] | None = None, forecasts: Any = None,
             **settings: Any) -> dict[str, Any]:
    """How good a model's forecasts, or those given, are: sMAPE, MASE, OWA and the skill against naive, as `--json` has them."""
    if (model is None) == (forecasts is None):
        raise UsageError("either a model or forecasts are measured", "give one of model= and forecasts=")
    tables = {"data": data, "actual": actual}
    if isinstance(forecasts, Forecasts):
        forecasts = forecasts.columns
    if forecasts is not None:
        tables["forecast"] = forecasts
    given = {"model": None if model is None else os.fspath(model), "json": True, **settings}
    return dict(json.loads(_run("eval", tables, given)))


def _refuse_output(settings: dict[str, Any], remedy: str) -> None:
    """The program's flag would take the results away from where they are looked for here."""
    if "output" in settings:
        raise UsageError(f"output={settings['output']!r}: no setting of this function", remedy)


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
    """Names of files as they are; a table as a file that is gone afterwards."""
    paths = _paths(rows)
    if paths is not None:
        yield paths
        return
    rows = _with_index(rows)
    keys = _column_keys(rows)
    if keys is None:
        raise UsageError(f"{name}: series are wanted, {type(rows).__name__} was given", "pass files, or a table of unique_id, ds and y")
    columns = [[_cell(value) for value in _values(rows[key])] for key in keys]
    if len({len(column) for column in columns}) > 1:
        counts = ", ".join(f"{key} {len(column):,}" for key, column in zip(keys, columns, strict=True))
        raise UsageError(f"{name}: columns of unequal length: {counts}", "give each the same number of rows")
    with tempfile.TemporaryDirectory(prefix="brim-") as folder:
        path = pathlib.Path(folder) / f"{name}.csv"  # without a column of ids the file's name is the series'
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([str(key) for key in keys])
            writer.writerows(zip(*columns, strict=True))
        yield [str(path)]


def _with_index(rows: Any) -> Any:
    """pandas keeps times and ids in the index as often as in columns: what has a name there, or is times, becomes a column."""
    if not hasattr(rows, "reset_index") or not hasattr(rows, "columns"):
        return rows
    levels = [rows.index.get_level_values(place) for place in range(rows.index.nlevels)]
    names = ["ds" if level.name is None and type(level).__name__ in ("DatetimeIndex", "PeriodIndex") else level.name for level in levels]
    added = [place for place, name in enumerate(names) if name is not None and name not in rows.columns]  # set_index(drop=False) has it twice
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
    for place, name in enumerate(names):
        cells = [row[place] for row in rows]
        columns[name] = cells if name in ("unique_id", "ds", "cutoff") else np.array([float(c) if c else np.nan for c in cells])
    return Forecasts(columns)
