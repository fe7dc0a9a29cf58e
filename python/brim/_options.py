# SPDX-License-Identifier: Apache-2.0
"""Checks arguments by type and range. The library checks values that depend on the model or the device."""

from __future__ import annotations

import operator
import os
from typing import Any

from .errors import UsageError

_MODEL_WORDS = {"precision": '"auto" or "bf16"', "memory_limit": '"6GiB" or "90%"', "leave_free": '"8GiB"',
                "long_text": '"truncate"'}
_MODEL_OPTIONS = ("device", "threads", "max_length", *_MODEL_WORDS)


def whole(name: str, value: Any, least: int = 1) -> int:
    """`value` as an int of at least `least`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise UsageError(f"{name}={value!r} is not an integer of at least {least}", f"use {least} or more")
    return number


def words(name: str, value: Any, example: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name}={value!r} is not a str", f"use a str: {example}")
    return value


def path(name: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise UsageError(f"{name}={value!r} is not a path", "use a str or a path")
    return os.fspath(value)


def check_model_options(options: dict[str, Any]) -> None:
    """Checks keywords of Classifier; rejects unknown ones."""
    for name, value in options.items():
        if name not in _MODEL_OPTIONS:
            raise UsageError(f"{name}= is unknown", f"use {', '.join(_MODEL_OPTIONS)}")
        if name in _MODEL_WORDS:
            words(name, value, _MODEL_WORDS[name])
        elif name != "device" and value is not None:
            whole(name, value, 0)  # 0: the default
        elif name == "device" and value is None:
            raise UsageError("device=None is unknown", 'use "auto", "cpu" or "cuda:0"')
