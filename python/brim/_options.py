# SPDX-License-Identifier: Apache-2.0
"""Checks arguments by name, type and range. The library checks values that depend on the model or the device."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import os
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypedDict, TypeVar

from .errors import ArgumentError, UsageError

_P = ParamSpec("_P")
_R = TypeVar("_R")

ANY = 2**63 - 1
_LARGEST = 2**31 - 1  # limit of int in the native module
_MODEL_WORDS = {"precision": '"auto" or "bf16"', "memory_limit": '"6GiB" or "90%"', "leave_free": '"8GiB"',
                "long_text": '"truncate"'}
_MODEL_OPTIONS = ("device", "threads", "max_length", "adapter", *_MODEL_WORDS)
# Names of other libraries for the same option.
_ALIASES = {"gpu": "device", "n_jobs": "threads", "num_threads": "threads", "dtype": "precision", "torch_dtype": "precision",
            "epochs": "num_train_epochs", "n_epochs": "num_train_epochs", "lr": "learning_rate", "batch_size": "train_batch_size",
            "model_name_or_path": "model", "model_name": "model", "max_seq_length": "max_length", "max_len": "max_length",
            "text_column": "column", "fh": "horizon", "h": "horizon", "memory": "memory_limit", "limit": "memory_limit",
            "return_all_scores": "top_k", "n": "top_k", "k": "top_k", "labels": "candidate_labels", "gpus": "num_gpus"}


class ModelOptions(TypedDict, total=False):
    """Options of all models, see Classifier."""

    device: str | int
    precision: str
    memory_limit: str
    leave_free: str
    threads: int | None
    max_length: int | None
    long_text: str
    pull: bool
    adapter: str | os.PathLike[str] | None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Remedy for an unknown name: the most similar one, or the list."""
    names = list(known)
    alias = _ALIASES.get(name)
    close = [alias] if alias in names else difflib.get_close_matches(name, names, 1, 0.6)
    return f"did you mean {close[0]}=?" if close else f"use {', '.join(names)}" if names else "omit it"


def suggested_value(value: str, known: Iterable[str]) -> str:
    """Remedy for an unknown value, such as a column."""
    names = list(known)
    close = difflib.get_close_matches(value, names, 1, 0.6)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(names)}"


def checked(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Raises ArgumentError for unknown, missing and surplus arguments, and UsageError for arguments that the native module
    cannot convert."""
    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            trace = error.__traceback__
            if trace is not None and trace.tb_next is None:  # raised by the call itself, not within the function
                raise _argument_error(function, args, kwargs, error) from None
            if "incompatible function arguments" in str(error):
                raise UsageError(f"{function.__qualname__.removesuffix('.__init__')}: an argument has an invalid type or value") from None
            raise
    return call


def formerly(**names: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Also accepts arguments by their former names: formerly(old="new")."""
    def wrapped(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for old, new in names.items():
                if old in kwargs and new not in kwargs:
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)
        return call
    return wrapped


def _argument_error(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                    error: TypeError) -> ArgumentError:
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name != "self" and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    names = [p.name for p in parameters]
    if function.__name__ == "__init__" and args:  # options that a subclass passes on
        for kind in type(args[0]).__mro__[:-1]:
            names += [name for name in inspect.signature(kind).parameters if name not in (*names, "self", "options")]
    unknown = [name for name in kwargs if name not in names]
    if unknown:
        return ArgumentError(f"{unknown[0]}= is unknown", suggestion(unknown[0], names))
    try:
        signature.bind(*args, **kwargs)
    except TypeError as found:
        missing = [p.name for p in parameters if repr(p.name) in str(found)]
        if str(found).startswith("missing") and missing:
            return ArgumentError(f"argument {missing[0]} is missing", f"pass {missing[0]}=")
        if missing:
            return ArgumentError(f"argument {missing[0]} is given twice", "pass it once")
        positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        shown = f"{', '.join(positional)} may be positional" if positional else "no argument may be positional"
        return ArgumentError(f"too many positional arguments: {shown}", "pass the others by name")
    return ArgumentError(str(error))


def whole(name: str, value: Any, least: int = 1, most: int = _LARGEST) -> int:
    """`value` as an int from `least` to `most`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise UsageError(f"{name}={value!r} is not an integer of at least {least}", f"use {least} or more")
    if number > most:
        raise UsageError(f"{name} is greater than {most:,}", f"use {most:,} or less")
    return number


def number(name: str, value: Any, least: float = 0, most: float = 1e9) -> float:
    """`value` as a float from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise UsageError(f"{name}={value!r} is not a number from {least:g} to {most:g}", f"use a number from {least:g} to {most:g}")
    return float(value)


def words(name: str, value: Any, example: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name}={value!r} is not a str", f"use a str: {example}")
    return utf8(name, value)


def utf8(name: str, value: str, remedy: str = 'replace lone surrogates: text.encode("utf-8", "replace").decode()') -> str:
    """`value`, which must be valid UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name}={value!r} is not valid UTF-8", remedy) from None
    return value


def names_of(name: str, value: Any, example: str) -> list[str]:
    """`value`, which must be a list of str, or one str with commas."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, Iterable):
        raise UsageError(f"{name}={value!r} is not a list of str", f"use a list: {example}")
    return [words(name, one, example) for one in value]


def choice(name: str, value: Any, known: Iterable[str]) -> str:
    """`value`, which must be one of `known`."""
    names = list(known)
    if not isinstance(value, str) or value not in names:
        close = difflib.get_close_matches(value, names, 1, 0.6) if isinstance(value, str) else []
        listed = ", ".join(f'"{one}"' for one in names)
        shown = f'"{value}"' if isinstance(value, str) else repr(value)
        raise UsageError(f"{name}={shown} is unknown", f'did you mean "{close[0]}"?' if close else f"use one of {listed}")
    return value


def path(name: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise UsageError(f"{name}={value!r} is not a path", "use a str or a path")
    text = os.fspath(value)
    if not isinstance(text, str) or "\0" in text:
        raise UsageError(f"{name}={value!r} is not a path", "use a str or a path")
    return utf8(name, text, "rename the file or directory")


def device_name(device: Any) -> str:
    """A device as the library names it. Like transformers, -1 is the CPU and 0 the first GPU."""
    if isinstance(device, int) and not isinstance(device, bool):
        return "cpu" if device < 0 else f"cuda:{device}"
    if type(device).__module__ == "torch" and type(device).__name__ == "device":
        return str(device)
    if not isinstance(device, str):
        raise UsageError(f"device={device!r} is unknown", 'use "auto", "cpu" or "cuda:0"')
    return utf8("device", device)


def check_model_options(options: dict[str, Any]) -> None:
    """Checks keywords of Classifier; rejects unknown ones."""
    for name, value in options.items():
        if name not in _MODEL_OPTIONS:
            raise ArgumentError(f"{name}= is unknown", suggestion(name, _MODEL_OPTIONS))
        if name in _MODEL_WORDS:
            words(name, value, _MODEL_WORDS[name])
        elif name == "device":
            device_name(value)
        elif name == "adapter":
            path(name, "" if value is None else value)
        elif value is not None:
            whole(name, value, 0)  # 0: the default
