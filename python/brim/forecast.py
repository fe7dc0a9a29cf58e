# SPDX-License-Identifier: Apache-2.0
"""Time series forecasting: predict, train, roll and evaluate, with tables or files. Settings are the options of `brim forecast`,
with underscores."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pathlib
import tempfile
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar, overload

import numpy as np

from . import _brim
from ._forecast_help import EVALUATE, MODELS, PREDICT, READING, ROLL, TRAIN, described
from ._log import forward_log
from ._model import warn
from ._options import checked, path, utf8, whole
from ._series import Clock, Covariates, Table, Types
from .errors import Error, UsageError, renamed
from .results import imported
from .training import _paths
_log = logging.getLogger("brim")
_ARGUMENTS = {"forecast": "forecasts", "output": "output_dir"}  # settings with another name here
_READING = ("freq", "id_column", "time_column", "target_column", "layout", "gaps", "delimiter", "device", "precision",
            "memory_limit", "leave_free", "threads")  # settings that predict needs too
_COVARIATES = {"futr_exog_list": "future_columns", "hist_exog_list": "past_columns", "stat_exog_list": "static_columns"}


class DataFrame(Protocol):
    """A data frame of pandas or polars."""

    @property
    def columns(self) -> Any: ...
    @property
    def corr(self) -> Any: ...
    @property
    def to_numpy(self) -> Any: ...


_Frame = TypeVar("_Frame")
_Other = TypeVar("_Other", bound=DataFrame)


class Forecasts:
    """Forecasts by column: `unique_id`, `ds` and one or more columns per model. Ids and times have the types of the data,
    including time zones; those of files are str."""

    def __init__(self, columns: dict[str, Any], dtypes: dict[str, Any] | None = None) -> None:
        self.columns = columns
        self._dtypes = dtypes  # dtypes of a pandas table; None if the data were files

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def to_pandas(self) -> Any:
        """A pandas.DataFrame. Times of files are converted if possible."""
        pd = imported("pandas")
        frame = pd.DataFrame(self.columns)
        for name, dtype in (self._dtypes or {}).items():
            if name in frame:
                frame[name] = frame[name].astype(dtype)
        if self._dtypes is None:
            for name in ("ds", "cutoff"):
                if name in frame and len(frame) and not str(frame[name].iloc[0]).isdigit():
                    with contextlib.suppress(ValueError, TypeError):  # for example quarters stay strings
                        frame[name] = pd.to_datetime(frame[name])
        return frame

    def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return imported("polars").DataFrame(self.columns)

    def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return imported("pyarrow").table(self.columns)

    def __repr__(self) -> str:
        series = len(set(self.columns.get("unique_id", [])))
        return f"brim.Forecasts({len(self):,} rows of {series:,} series: {', '.join(self.columns)})"


@described(MODELS, READING)
class NBEATS(Generic[_Frame]):
    """N-BEATS with the interface of NeuralForecast's models. Its frames have the columns unique_id, ds and y.

    >>> model = brim.forecast.NBEATS(h=12).fit(df)
    >>> model.predict(level=[80])      # unique_id, ds, NBEATS, NBEATS-lo-80, NBEATS-hi-80
    >>> brim.forecast.NBEATS(h=12).cross_validation(df, n_windows=3)

    `h`: points to forecast. `input_size`: points of input; default: an ensemble of several. `output_dir`: directory of the
    model; default: a temporary one. `alias`: name of the forecasts' column.
    `settings`: those of `train`, for example max_steps=500, learning_rate=1e-3, batch_size=256, random_seed=1,
    stack_types=["trend", "seasonality"], n_blocks=3, mlp_units=512, scaler_type="last", preset="paper", device="cpu", and
    covariates: futr_exog_list=["price"], hist_exog_list=["visits"], stat_exog_list=["region"], categorical=["region"].
    """

    @checked
    def __init__(self: NBEATS[Any], h: int, input_size: int | None = None, *, output_dir: str | os.PathLike[str] | None = None,
                 alias: str = "NBEATS", freq: str | None = None, **settings: Any) -> None:
        self.h = whole("h", h)
        self.input_size = None if input_size is None else whole("input_size", input_size)
        self.alias = alias
        self.settings = {**settings, **({} if freq is None else {"freq": freq})}
        self.output_dir = None if output_dir is None else path("output_dir", output_dir)
        self._data: Any = None
        self._model: str | None = None

    @overload
    def fit(self, df: _Other) -> NBEATS[_Other]: ...  # type: ignore[overload-overlap]
    @overload
    def fit(self, df: object) -> NBEATS[Forecasts]: ...
    @checked
    def fit(self, df: Any) -> NBEATS[Any]:
        """Trains on the series of a table."""
        folder = self._folder("model")
        alone = {} if "from" in self.settings else {"model": "nbeats"}  # a continued model keeps its combination
        self._model = train(df, horizon=self.h, output_dir=folder, input_size=self.input_size, **{**alone, **self.settings})
        self._data = df
        return self

    @overload
    def predict(self, df: None = ..., *, futr_df: object = ..., level: Sequence[float] | None = ...) -> _Frame: ...
    @overload
    def predict(self, df: _Other, *, futr_df: object = ...,  # type: ignore[overload-overlap]
                level: Sequence[float] | None = ...) -> _Other: ...
    @overload
    def predict(self, df: object, *, futr_df: object = ..., level: Sequence[float] | None = ...) -> Forecasts: ...
    @checked
    def predict(self, df: Any = None, *, futr_df: Any = None, level: Sequence[float] | None = None) -> Any:
        """Forecasts after the end of the series of `fit`, or of others, with prediction intervals of these levels in percent.
        `futr_df` has the future covariates of the points to forecast: unique_id, ds and the columns. Its target is ignored.
        Returns a frame of the library of the data (pandas, polars), or Forecasts."""
        if self._model is None:
            raise UsageError("this NBEATS is not fitted", "call fit(df) first")
        data = self._data if df is None else df
        reading = {name: self.settings[name] for name in _READING if name in self.settings}
        found = predict(data, model=self._model, futr_df=futr_df, level=_levels(level), alias=self.alias, **reading)
        return _like(data, found)

    @overload
    def cross_validation(self, df: _Other, *, n_windows: int = ..., step_size: int = ...,  # type: ignore[overload-overlap]
                         level: Sequence[float] | None = ..., refit: bool | int = ...) -> _Other: ...
    @overload
    def cross_validation(self, df: object, *, n_windows: int = ..., step_size: int = ..., level: Sequence[float] | None = ...,
                         refit: bool | int = ...) -> Forecasts: ...
    @checked
    def cross_validation(self, df: Any, *, n_windows: int = 1, step_size: int = 1, level: Sequence[float] | None = None,
                         refit: bool | int = True) -> Any:
        """Trains and forecasts at the last `n_windows` cutoffs, `step_size` points apart: unique_id, ds, cutoff, y and the
        forecasts, with prediction intervals of these levels in percent. `refit`: windows between trainings; False trains once."""
        windows = whole("n_windows", n_windows)
        every = windows if refit is False else 1 if refit is True else whole("refit", refit)
        found = roll(df, horizon=self.h, folds=windows, output_dir=self._folder("windows"), step=whole("step_size", step_size),
                     refit=every, input_size=self.input_size, level=_levels(level), alias=self.alias, **self.settings)
        if level is None:  # the report has intervals of 80 and 95 % then
            found.columns = {name: values for name, values in found.columns.items()
                             if not name.startswith((f"{self.alias}-lo-", f"{self.alias}-hi-"))}
        return _like(df, found)

    def _folder(self, name: str) -> str:
        if self.output_dir is not None:
            return os.path.join(self.output_dir, name)
        folder = tempfile.TemporaryDirectory(prefix="brim-")
        weakref.finalize(self, folder.cleanup)
        return os.path.join(folder.name, name)

    def __repr__(self) -> str:
        return f"brim.forecast.NBEATS(h={self.h}{'' if self._model is None else ', fitted'})"


def _levels(level: Sequence[float] | None) -> list[float] | None:
    if level is None:
        return None
    levels: list[Any] = list(level) if isinstance(level, Iterable) else [level]
    for one in levels:
        if isinstance(one, bool) or not isinstance(one, (int, float)) or not 0 < one < 100:
            raise UsageError(f"level={level!r} is not a list of percentages", "use level=[80, 95]")
    return levels


def _like(data: Any, found: Forecasts) -> Any:
    """The forecasts as a frame of the library of the data."""
    library = type(data).__module__.partition(".")[0]
    return found.to_pandas() if library == "pandas" else found.to_polars() if library == "polars" else found


@described(PREDICT, READING)
@checked
def predict(data: Any, *, model: str | os.PathLike[str] = "naive2", horizon: int = 0, futr_df: Any = None,
            **settings: Any) -> Forecasts:
    """Forecasts with a model directory written by `train`, whose horizon it uses, or with naive, snaive,
    naive2, theta, ets or auto.

    `data`: one or several files, or a table of any library. `horizon`: points to forecast.
    `futr_df`: a table with the future covariates of the points to forecast, unless they are rows of `data` without a
    target. Its target is ignored.
    """
    _refuse_output(settings, "omit it; predict returns the forecasts, and to_pandas().to_csv(...) writes them")
    _check_horizon(horizon, 0 if os.path.isdir(path("model", model)) else 1)
    given = {"model": path("model", model), "horizon": horizon or None, **settings}
    tables = {"data": data} if futr_df is None else {"data": data, "futr_df": futr_df}
    found, types = _run(_brim.predict_series, tables, given)
    return _table(found, types)


@described(TRAIN, MODELS, READING)
@checked
def train(data: Any, *, horizon: int, output_dir: str | os.PathLike[str], **settings: Any) -> str:
    """Trains an ensemble of N-BEATS models and returns its directory. The same call resumes an interrupted run.

    `data`: one or several files, or a table of any library. `horizon`: points to forecast.
    `output_dir`: the directory of the model.
    """
    _refuse_output(settings, "set the directory with output_dir=")
    folder = path("output_dir", output_dir)
    _check_horizon(horizon, 1)
    _run(_brim.train_forecaster, {"data": data}, {"horizon": horizon, "output": folder, **settings})
    return folder


@described(ROLL, MODELS, READING)
@checked
def roll(data: Any, *, horizon: int, folds: int, output_dir: str | os.PathLike[str], **settings: Any) -> Forecasts:
    """Rolling backtest: trains and forecasts at every cutoff. Without `level`, it has intervals of 80 and 95 %.

    `data`: one or several files, or a table of any library. `horizon`: points to forecast. `folds`: number of cutoffs.
    `output_dir`: the directory of the run and its report.
    """
    _refuse_output(settings, "set the directory with output_dir=")
    folder = path("output_dir", output_dir)
    _check_horizon(horizon, 1)
    whole("folds", folds)
    found, types = _run(_brim.roll_forecaster, {"data": data}, {"horizon": horizon, "folds": folds, "output": folder, **settings})
    return _table(found, types)


@described(EVALUATE, READING)
@checked
def evaluate(data: Any, actual: Any, *, model: str | os.PathLike[str] | None = None, forecasts: Any = None,
             **settings: Any) -> dict[str, Any]:
    """Evaluates a model's forecasts, or `forecasts`: sMAPE, MASE, OWA and skill against naive, as a dict.

    `data`: the series; `actual`: the values that follow them. Both are one or several files, or a table of any library.
    `model`: a model as for `predict`. `forecasts`: the result of `predict`, a table or a file.
    """
    if (model is None) == (forecasts is None):
        raise UsageError("exactly one of model and forecasts is required", "pass model= or forecasts=")
    tables = {"data": data, "actual": actual}
    if isinstance(forecasts, Forecasts):
        forecasts = forecasts.columns
    if forecasts is not None:
        tables["forecast"] = forecasts
    given = {"model": None if model is None else path("model", model), **settings}
    found: str = _run(_brim.evaluate_forecasts, tables, given)[0]
    return dict(json.loads(found))


def _check_horizon(horizon: Any, least: int) -> None:
    if whole("horizon", horizon, 0) < least:
        raise UsageError("horizon is missing", "pass the number of points to forecast: horizon=12")


def _refuse_output(settings: dict[str, Any], remedy: str) -> None:
    """Rejects the setting `output`, which these functions set themselves."""
    if "output" in settings:
        raise UsageError(f"output={settings['output']!r}: not a setting of this function", remedy)


def _run(call: Callable[[list[tuple[str, str]], Any], Any], tables: dict[str, Any], settings: dict[str, Any]) -> tuple[Any, Types | None]:
    """Returns the result of the call, and the types of the first table; None for files."""
    settings = {_COVARIATES.get(name, name): value for name, value in settings.items()}
    given = _settings(settings)
    covariates, clock = _covariates(settings), Clock()
    if "futr_df" in tables and not covariates.future:
        warn("futr_df has no effect on the forecasts: there are no future columns")
        tables = {name: rows for name, rows in tables.items() if name != "futr_df"}
    sources = {name: _paths(rows, _ARGUMENTS.get(name, name)) or Table(_ARGUMENTS.get(name, name), rows, settings, covariates, clock) for name, rows in tables.items()}
    stem = _stem(sources["data"])
    with contextlib.ExitStack() as written:
        names: dict[str, str] = {}
        for name, source in sources.items():
            if isinstance(source, Table):
                file = pathlib.Path(written.enter_context(tempfile.TemporaryDirectory(prefix="brim-"))) / f"{stem}.csv"
                source.write(file)
                names[str(file)] = _ARGUMENTS.get(name, name)
                source = [str(file)]
            given += [("data" if name == "futr_df" else name, one) for one in source]
        try:
            first = sources["data"]
            return call(given, _report), first.types if isinstance(first, Table) else None
        except Error as error:
            raise renamed(error, _ARGUMENTS, names) from None
        finally:
            forward_log()


def _stem(data: Table | list[str]) -> str:
    """Name of the tables' files without its suffix: without an id column, it is the id of the series, which all tables must share."""
    if isinstance(data, Table) or len(data) > 1:
        return "data"
    file = pathlib.PurePath(data[0])
    return (file.with_suffix("") if file.suffix in (".gz", ".zst") else file).stem or "data"


def _report(done: float, total: float, text: str, lines: list[str]) -> None:
    for line in lines:
        _log.info("%s", line)


def _settings(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values as the library reads them; None is left out."""
    given = []
    for name, value in settings.items():
        if value is None:
            continue
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, (str, int, float, bool, list, tuple, np.number, np.bool_, os.PathLike)):
            raise UsageError(f"{name}={value!r}: a {type(value).__name__} is not a valid value", "use a number, a str or a list")
        if isinstance(value, (bool, np.bool_)):
            text = "true" if value else "false"
        else:
            text = ",".join(str(one) for one in value) if isinstance(value, (list, tuple)) else str(value)
        given.append((name, utf8(name, text)))
    return given


def _covariates(settings: dict[str, Any]) -> Covariates:
    """Covariates of the settings and of the model. Other columns of a table have no effect."""
    found = Covariates()
    for key in _COVARIATES.values():
        names = _words(settings.get(key))
        found.names += names
        found.future += names if key == "future_columns" else []
    found.categories = {name: set() for name in _words(settings.get("categorical"))}
    for model in (settings.get("model"), settings.get("from")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # reported by the library
            config = json.loads((pathlib.Path(str(model)) / "config.json").read_text(encoding="utf-8"))
            for column in config.get("covariates", {})["columns"]:
                name = str(column["name"])
                found.names.append(name)
                found.future += [name] if column["kind"] == "future" else []
                if column["categories"]:
                    found.categories[name] = {str(one) for one in column["categories"]}
    return found


def _words(given: Any) -> list[str]:
    """Names of a setting: a list, or a str with commas."""
    given = given.split(",") if isinstance(given, str) else given
    return [str(one).strip() for one in given] if isinstance(given, (list, tuple, np.ndarray)) else []


def _table(columns: dict[str, Any], types: Types | None) -> Forecasts:
    return Forecasts(columns) if types is None else Forecasts(types.restored(columns), types.pandas)
