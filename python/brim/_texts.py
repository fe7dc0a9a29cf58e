# SPDX-License-Identifier: Apache-2.0
"""Converts lists, numpy, pyarrow, pandas, polars and datasets to texts that the library can read without copies."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from . import _brim
from .errors import BadData, UsageError


class _Arrow(Protocol):
    """Columns and tables of pyarrow, pandas and polars."""

    def __arrow_c_stream__(self, requested_schema: Any = ...) -> Any: ...


Table: TypeAlias = dict[str, list[str]] | npt.NDArray[Any] | _Arrow


def texts_of(source: Any, column: str | None = None) -> _brim.Texts:
    """Views of the texts of `source`, or of one column if it is a table."""
    found = column_of(source, column)
    return _brim.Texts.from_sequence(found) if isinstance(found, (list, tuple)) else _texts_of_column(found)


def values_of(source: Any, column: str | None = None) -> list[Any]:
    """The values of `source` as Python objects; rows without a text keep their value, such as None."""
    found = column_of(source, column)
    if getattr(found, "ndim", 1) != 1:
        raise BadData(f"an array of shape {found.shape} was given", "pass a one-dimensional array")
    for method in ("to_pylist", "tolist", "to_list"):  # pyarrow, numpy and pandas, polars
        if hasattr(found, method):
            return list(getattr(found, method)())
    return list(found)


def index_of(source: Any) -> Any:
    """The index of a pandas DataFrame or Series, else None."""
    pd = sys.modules.get("pandas")
    return source.index if pd is not None and isinstance(source, (pd.DataFrame, pd.Series)) else None


def column_of(source: Any, column: str | None) -> Any:
    """The column of texts if `source` is a table, else `source`. Raises for other types."""
    given: Any = source
    if isinstance(source, (list, tuple)) and column is None:
        return source
    if isinstance(source, str):
        raise UsageError("expected many texts, got one str", "put it into a list: [text]")
    if isinstance(source, (bytes, bytearray, memoryview)):
        raise BadData(f"expected texts, got {type(source).__name__}", 'decode it: data.decode("utf-8")')
    if source is None:
        raise BadData("expected texts, got None", "pass a list of str, an array or a column")
    if type(source).__name__ == "RecordBatchReader":
        source = given.read_all()
    if isinstance(source, dict) and type(source).__module__.startswith("datasets."):
        raise UsageError(f"expected texts, got a {type(source).__name__}", f'select a split: data["{next(iter(source), "train")}"]')
    names = _column_names(source)
    if names is not None:
        return column_of(_column(source, names, column if column is None else str(column)), None)
    if column is not None:
        raise UsageError(f'column="{column}": {type(source).__name__} has no columns', "pass a table, or omit column=")
    if type(source).__module__.partition(".")[0] == "datasets" and hasattr(source, "column_name"):
        return column_of(given.source, given.column_name)  # a lazy column
    if not isinstance(source, Iterable) and not any(hasattr(source, f"__arrow_c_{kind}__") for kind in ("stream", "array")):
        raise BadData(f"expected texts, got {type(source).__name__}", "pass a list of str, an array or a column")
    return source


def _column_names(source: Any) -> list[str] | None:
    """Column names of a table of any library; None if `source` is not a table."""
    keys = _column_keys(source)
    return None if keys is None else [str(key) for key in keys]


def _column_keys(source: Any) -> list[Any] | None:
    """The table's own column keys, which may be numbers instead of strings."""
    if isinstance(source, dict):
        return list(source)
    if _is_lazy_frame(source):
        return list(source.collect_schema().names())
    names = getattr(source, "column_names", None)  # pyarrow, datasets
    if isinstance(names, list):
        return names
    names = getattr(source, "columns", None)  # pandas, polars
    return None if names is None or callable(names) else list(names)


def _is_lazy_frame(source: Any) -> bool:
    return type(source).__name__ == "LazyFrame" and type(source).__module__.startswith("polars")


def collected(source: Any) -> Any:
    """Computes a LazyFrame of polars; other tables are returned unchanged."""
    return source.collect() if _is_lazy_frame(source) else source


def check_unique(names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"the table has {names.count(twice)} columns named {twice!r}", "rename them")


def _column(table: Any, names: list[str], column: str | None) -> Any:
    top, _, field = column.partition(".") if column is not None and column not in names else (column, "", "")
    if field and top in names:  # a field of a struct
        found = _column(table, names, top)
        for name in field.split("."):
            found = _field(found, name, column or "")
        return found
    column = named_column(names, column)
    if names.count(column) > 1:
        raise UsageError(f'column="{column}": the table has {names.count(column)} columns of this name', "rename them")
    if _is_lazy_frame(table):
        return table.select(column).collect()[column]
    if type(table).__module__.startswith("datasets."):
        if type(table).__name__ == "IterableDataset":
            return [row[column] for row in table]
        return table.with_format("arrow")[:][column]  # keeps the files mapped; table[column] would create a str per row
    return table[(_column_keys(table) or names)[names.index(column)]]  # pandas allows numbers as names


def _field(values: Any, name: str, column: str) -> Any:
    """One field of a column of structs."""
    kind = type(values).__module__.partition(".")[0]
    try:
        if kind == "pyarrow":
            return importlib.import_module("pyarrow.compute").struct_field(values, name)
        if kind == "polars" or (kind == "pandas" and hasattr(values.dtype, "pyarrow_dtype")):
            return values.struct.field(name)
        return [None if value is None else value[name] for value in values]
    except Exception as error:  # the class depends on the library
        raise UsageError(f'column="{column}": no field {name!r}: {error}', "use an existing field of the struct") from None


def named_column(names: list[str], column: str | None) -> str:
    """Name of a table's text column: the requested one, the only one, or "text"."""
    if column is None:
        if len(names) == 1:
            return names[0]
        if "text" in names:
            return "text"
        raise UsageError(f"the table has {len(names)} columns", f"select the column of texts: {_choice(names)}")
    if column not in names:
        close = difflib.get_close_matches(str(column), names, 1, 0.6)
        raise UsageError(f'column="{column}": no such column', f"did you mean {close[0]!r}?" if close else f"use one of: {_choice(names)}")
    return column


def _choice(names: list[str]) -> str:
    shown = ", ".join(f'column="{name}"' for name in names[:8])
    return (shown or "it has none") + (", …" if len(names) > 8 else "")


def _texts_of_column(source: Any) -> _brim.Texts:
    kind = type(source).__module__.partition(".")[0]
    if kind == "numpy":
        return _texts_of_numpy(source)
    if kind == "pandas" and not _is_arrow_backed(source):
        return _texts_of_numpy(source.to_numpy(dtype=object))  # without copying the strings
    if hasattr(source, "__arrow_c_stream__"):
        return _brim.Texts.from_stream(source.__arrow_c_stream__())
    if hasattr(source, "__arrow_c_array__"):
        return _brim.Texts.from_array(*source.__arrow_c_array__())
    return _brim.Texts.from_sequence(list(source))


def _is_arrow_backed(series: Any) -> bool:
    return hasattr(series, "__arrow_c_stream__") and hasattr(getattr(series, "array", None), "__arrow_array__") and (
        "pyarrow" in str(getattr(series.dtype, "storage", series.dtype)))


def _texts_of_numpy(array: Any) -> _brim.Texts:
    if getattr(array, "ndim", 1) != 1:
        raise BadData(f"an array of shape {array.shape} was given", "pass a one-dimensional array")
    return _brim.Texts.from_sequence(array.tolist())


def has_pairs(texts: Any) -> bool:
    return isinstance(texts, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in texts)


def check_pairs(rows: Iterable[Any], single: bool = True) -> None:
    """Raises for rows that are not pairs of texts, or with `single`, neither pairs nor texts."""
    for row, one in enumerate(rows):
        if single and isinstance(one, str):
            continue
        if isinstance(one, (str, bytes, dict, set)) or not hasattr(one, "__len__") or len(one) != 2:
            error = BadData(f"row {row} is not a pair of texts", 'pass a list of pairs: [("a", "b")]')
            error.row = row
            raise error


def bad_text(row: int, what: str) -> BadData:
    """The exception for a row without a valid text."""
    missing = what in ("None", "NaN", "null")
    if what == "a lone surrogate":
        problem, remedy = "has a lone surrogate, which is not valid UTF-8", 'replace it: text.encode("utf-8", "replace").decode()'
    elif what == "bytes":
        problem, remedy = "is bytes, not str", 'decode it: data.decode("utf-8")'
    else:
        problem, remedy = f"is {what}, not str", "drop such rows" if missing else "convert it: str(value)"
    error = BadData(f"row {row} {problem}", f'{remedy}, or set on_error="null" to get an empty result for it')
    error.row = row
    return error
