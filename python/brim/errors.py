# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class per kind of error, each with a code, the problem and a remedy."""

from __future__ import annotations

import re
from typing import Any


class Error(Exception):
    """Base class. `str(e)` is the problem, followed by a semicolon and the remedy, if any."""

    code = "internal"
    exit_code = 1  # exit code of the command line

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:  # OSError.__str__ would show the arguments
        return f"{self.problem}; {self.remedy}" if self.remedy else self.problem

    def __reduce__(self) -> tuple[type[Error], tuple[str, str], dict[str, Any]]:
        return type(self), (self.problem, self.remedy), dict(self.__dict__)  # includes the row of BadData, and notes


class UsageError(Error, ValueError):
    """An invalid setting or argument."""

    code = "usage"
    exit_code = 2


class BadData(Error, ValueError):
    """Invalid input. `row`: index of the text, if the error concerns a single one."""

    code = "bad_data"
    exit_code = 3
    row: int | None = None


class BadModel(Error):
    """An invalid model directory, weights, tokenizer or config."""

    code = "bad_model"
    exit_code = 4


class DoesNotFit(Error, MemoryError):
    """No plan fits the memory limit."""

    code = "does_not_fit"
    exit_code = 5


class DeviceLost(Error):
    """A kernel or the driver failed; this process can no longer use the device."""

    code = "device_lost"
    exit_code = 6


class CannotWrite(Error, OSError):
    """An unwritable path, or a full disk."""

    code = "cannot_write"
    exit_code = 7

    def __init__(self, problem: str, remedy: str = "") -> None:  # OSError would interpret two strings as errno and message
        super().__init__(problem, remedy)
        self.args = (str(self),)


class Diverged(Error, ArithmeticError):
    """The training loss is not finite."""

    code = "diverged"
    exit_code = 8


class Interrupted(Error):
    """Stopped by a signal."""

    code = "interrupted"
    exit_code = 130


class TimedOut(Error, TimeoutError):
    """The deadline passed before the work started."""

    code = "timed_out"


class Cancelled(Error):
    """Cancelled by the caller, or the model was closed."""

    code = "cancelled"


class Busy(Error):
    """Rejected: too much is waiting."""

    code = "busy"


_CLASSES: dict[str, type[Error]] = {
    c.code: c
    for c in (Error, UsageError, BadData, BadModel, DoesNotFit, DeviceLost, CannotWrite, Diverged, Interrupted,
              TimedOut, Cancelled, Busy)
}


def _in_python(text: str) -> str:
    """The library writes settings as `long_text=truncate`; Python writes long_text="truncate"."""
    def quoted(match: re.Match[str]) -> str:
        key, value = match.group(1), match.group(2)
        plain = re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value) is not None
        return f"{key}={value}" if plain else f'{key}="{value}"'
    return re.sub(r"`([a-z_]+)=([^`]*)`", quoted, text)


_SMALLEST_LIMIT = re.compile(r"Smallest limit that works: [^(]*\((.*)\)\Z")


def _parted(text: str) -> tuple[str, str]:
    """Splits a message into problem and remedy."""
    if smallest := _SMALLEST_LIMIT.search(text):
        return text, f"use {smallest[1]}"
    problem, found, download = text.partition("\nto download it: ")
    if found:
        return problem, download.replace("\n", " ")
    if match := re.fullmatch(r"(.*); ([^;\n]+)", text, re.S):
        return match[1], match[2]
    if match := re.fullmatch(r"(.*): ((?:use|set|give|name|choose) [^\n]+)", text, re.S):
        return match[1], match[2]
    return text, "use a readable file" if ": cannot open: " in text else ""


def from_library(code: str, problem: str, remedy: str) -> Error:
    """The exception of a library error."""
    problem, remedy = _in_python(problem), _in_python(remedy)
    if not remedy:
        problem, remedy = _parted(problem)
    return _CLASSES.get(code, Error)(problem, remedy)


def from_exit_code(exit_code: int, text: str, remedy: str = "") -> Error:
    """The exception for an exit code and the message printed with it; `remedy` is used if the message has none."""
    problem, found = _parted(text)
    return next((c for c in _CLASSES.values() if c.exit_code == exit_code), Error)(problem, found or remedy)
