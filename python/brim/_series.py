# SPDX-License-Identifier: Apache-2.0
"""Tables of series as files for the program, and its forecasts with the types of the table: ids, times and time zones."""

from __future__ import annotations

import csv
import datetime
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._model import warn
from ._options import utf8
from ._texts import _column_keys, check_unique, collected
from .errors import BadData, UsageError
from .training import _is_missing, _list

_IDS = ("unique_id", "item_id", "series_id", "id", "series", "ticker", "symbol")
_TIMES = ("ds", "timestamp", "datetime", "date", "time")
_TARGETS = ("y", "target", "value")


class Types:
    """Types of the ids and times of a table."""

    def __init__(self) -> None:
        self.ids: dict[str, Any] = {}
        self.time: Callable[[str], Any] | None = None
        self.time_array: Any = None  # dtype of a numpy array of times
        self.pandas: dict[str, Any] = {}  # dtypes of a pandas table by the columns of forecasts

    def restored(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Columns of forecasts with these types."""
        out = dict(columns)
        if self.ids and "unique_id" in out:
            out["unique_id"] = [self.ids.get(one, one) for one in out["unique_id"]]
        for name in ("ds", "cutoff"):
            if self.time is not None and name in out:
                times = [self.time(text) for text in out[name]]
                out[name] = times if self.time_array is None else np.array(times, self.time_array)
        return out


class Covariates:
    """Columns of a table that are inputs of the forecasts."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.future: list[str] = []
        self.categories: dict[str, set[str]] = {}  # by categorical column: those of the model


class Clock:
    """How the zoned times of a call's tables are written: in local time if the times of all tables are at the same time of day,
    otherwise in UTC. Complete once all tables are read."""

    def __init__(self) -> None:
        self.zone: datetime.tzinfo | None = None  # that of the first table with a zone
        self._times_of_day: set[datetime.time] = set()
        self._tables: dict[bool, str] = {}  # names of the first tables with and without a zone

    def add(self, name: str, times: Sequence[datetime.datetime]) -> None:
        zone = times[0].tzinfo if times else None
        if any((one.tzinfo is None) != (zone is None) for one in times):
            raise BadData(f"{name}: some times have a time zone, others have none", "convert them to one time zone")
        self._tables.setdefault(zone is not None, name)
        if zone is not None:
            self.zone = zone if self.zone is None else self.zone
        self._times_of_day.update((one if zone is None else one.astimezone(self.zone)).time() for one in times)

    @property
    def is_local(self) -> bool:
        return len(self._times_of_day) == 1

    def written(self, times: Sequence[Any]) -> list[Any]:
        """Times of a table with a zone, without it."""
        if not self.is_local and False in self._tables:
            raise BadData(f"the times of {self._tables[True]} have a time zone, those of {self._tables[False]} have none",
                          "convert them to one time zone")
        zone = self.zone if self.is_local else datetime.timezone.utc
        return [one.astimezone(zone).replace(tzinfo=None) if _is_datetime(one) else one for one in times]

    def restored(self, naive: Any) -> Any:
        """The time that was written as `naive`."""
        if hasattr(naive, "tz_localize"):
            if self.is_local:
                return naive.tz_localize(self.zone, ambiguous=True, nonexistent="shift_forward")
            return naive.tz_localize("UTC").tz_convert(self.zone)
        if self.is_local:
            localize: Any = getattr(self.zone, "localize", None)  # pytz
            return localize(naive) if localize else naive.replace(tzinfo=self.zone)
        return naive.replace(tzinfo=datetime.timezone.utc).astimezone(self.zone)


class Table:
    """The columns of a table of series, checked and sorted by time."""

    def __init__(self, name: str, rows: Any, settings: dict[str, Any], covariates: Covariates, clock: Clock) -> None:
        rows = _with_index(collected(rows))
        keys = _column_keys(rows)
        if keys is None:
            raise UsageError(f"{name}: expected series, got {type(rows).__name__}", "pass files, or a table of unique_id, ds and y")
        names = [str(key) for key in keys]
        check_unique(names)
        self.types = Types()
        self._name = name
        self.names = names
        self._categories = covariates.categories
        self._clock = clock
        self._zoned: str | None = None  # the column of times, if they have a zone
        self._cells = [_values(rows[key]) for key in keys]
        if len({len(column) for column in self._cells}) > 1:
            counts = ", ".join(f"{key} {len(column):,}" for key, column in zip(names, self._cells, strict=True))
            raise UsageError(f"{name}: columns of unequal length: {counts}", "use the same number of rows in each")
        ident = _named("id_column", settings, names, _IDS)
        time = _named("time_column", settings, names, _TIMES)
        target = _named("target_column", settings, names, _TARGETS, covariates.names)
        has_values = target is not None or name == "futr_df"
        is_long = has_values and (ident or time) is not None and settings.get("layout") in (None, "auto", "long")
        if is_long:
            if name == "futr_df" and target is not None:  # its values are not known when the forecasts are made
                self._drop([target])
            if name != "forecasts":  # which have a column per model
                self._keep([one for one in (ident, time, target, *covariates.names) if one is not None])
            self._sort(ident, time)
        if is_long and ident is not None:
            self._read_ids(name, self._column(ident))
        if time is not None:
            self._read_times(name, time, rows[keys[names.index(time)]])
        if hasattr(rows, "dtypes") and hasattr(rows, "iloc"):
            for column, own in (("unique_id", ident if is_long else None), ("ds", time), ("cutoff", time)):
                if own is not None:
                    self.types.pandas[column] = rows[keys[names.index(own)]].dtype

    def write(self, path: pathlib.Path) -> None:
        cells = []
        for name, values in zip(self.names, self._cells, strict=True):
            values = self._clock.written(values) if name == self._zoned else values
            known = self._categories.get(name)
            cells.append([_cell(value) if known is None else _category(value, known) for value in values])
        try:
            with open(path, "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(self.names)
                writer.writerows(zip(*cells, strict=True))
        except UnicodeEncodeError:
            for text in itertools.chain(self.names, *cells):
                utf8(self._name, text)
            raise

    def _column(self, name: str) -> list[Any]:
        return self._cells[self.names.index(name)]

    def _keep(self, used: list[str]) -> None:
        """Leaves out columns that are not part of the series."""
        extra = [name for name in self.names if name not in used]
        if extra:
            warn(f"columns without an effect on the forecasts: {', '.join(extra)}")
            self._drop(extra)

    def _drop(self, columns: list[str]) -> None:
        self._cells = [cells for name, cells in zip(self.names, self._cells, strict=True) if name not in columns]
        self.names = [name for name in self.names if name not in columns]

    def _sort(self, ident: str | None, time: str | None) -> None:
        """Sorts the rows of each series by time, if they are not."""
        if time is None:
            return
        times, ids = self._column(time), self._column(ident) if ident is not None else None
        if any(_is_missing(one) or _is_nat(one) for one in times):
            return  # reported by the program
        keys: Sequence[Any] = times
        if isinstance(times[0] if times else None, str):
            try:
                keys = [datetime.datetime.fromisoformat(one) for one in times]
            except (ValueError, TypeError):
                return  # in other formats the order is checked by the program
        last: dict[Any, Any] = {}
        try:
            for row, key in enumerate(keys):
                one = None if ids is None else ids[row]
                if one in last and key < last[one]:
                    break
                last[one] = key
            else:
                return
            place = {one: i for i, one in enumerate(dict.fromkeys(ids or [None]))}
            order = sorted(range(len(keys)), key=lambda row: (place[None if ids is None else ids[row]], keys[row]))
        except TypeError:
            return  # times of several types
        self._cells = [[column[row] for row in order] for column in self._cells]

    def _read_ids(self, name: str, ids: list[Any]) -> None:
        for one in dict.fromkeys(ids):
            text = _cell(one)
            if text in self.types.ids:
                raise BadData(f"{name}: the ids {self.types.ids[text]!r} and {one!r} are equal as texts", "use ids of one type")
            self.types.ids[text] = one

    def _read_times(self, name: str, at: str, column: Any) -> None:
        times = self._column(at)
        first = next((one for one in times if not _is_missing(one) and not _is_nat(one)), None)
        if isinstance(column, np.ndarray) and column.dtype.kind == "M":
            self._clock.add(name, [one for one in column.astype("datetime64[us]").tolist() if _is_datetime(one)])
            self.types.time, self.types.time_array = np.datetime64, column.dtype
        elif isinstance(first, bool) or first is None:
            return
        elif isinstance(first, int):
            self.types.time = int
        elif isinstance(first, datetime.datetime):
            self._read_datetimes(name, at, type(first))
        elif isinstance(first, datetime.date):
            self.types.time = lambda text: datetime.date.fromisoformat(text[:10])
        elif type(first).__name__ == "Period":
            kind, freq = type(first), first.freq
            self.types.time = lambda text: kind(text, freq)
        elif isinstance(first, str):
            self.types.time = str

    def _read_datetimes(self, name: str, at: str, kind: Any) -> None:
        """`kind`: datetime or pandas.Timestamp."""
        times = [one for one in self._column(at) if _is_datetime(one)]
        self._clock.add(name, times)

        def parsed(text: str) -> Any:
            return kind.fromisoformat(text) if kind is datetime.datetime else kind(text)

        if times[0].tzinfo is None:
            self.types.time = parsed
        else:
            self._zoned = at
            self.types.time = lambda text: self._clock.restored(parsed(text))


def _named(option: str, settings: dict[str, Any], names: list[str], usual: Sequence[str], others: Sequence[str] = ()) -> str | None:
    """The column for an option, or one with a usual name that is not among `others`."""
    given = settings.get(option)
    if given is not None:
        return str(given) if str(given) in names else None  # missing columns are reported by the program
    lower = [name.lower() for name in names]
    return next((names[lower.index(one)] for one in usual if one in lower and names[lower.index(one)] not in others), None)


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


def _is_nat(value: Any) -> bool:
    return type(value).__name__ == "NaTType" or value is None


def _is_datetime(value: Any) -> bool:
    return isinstance(value, datetime.datetime) and not _is_nat(value)


def _category(value: Any, known: set[str]) -> str:
    """Text of a category: 1 and 1.0 are the same, because pandas converts integers to floats if values are missing. Models that were
    trained on files may know it as "1.0"."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or value % 1 != 0:
        return _cell(value)
    texts = (str(int(value)), str(value), f"{int(value)}.0")
    return next((text for text in texts if text in known), texts[0])


def _cell(value: Any) -> str:
    return "" if _is_missing(value) or type(value).__name__ == "NaTType" else str(value)
