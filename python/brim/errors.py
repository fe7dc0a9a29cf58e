# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class per kind of error, each with a code, the problem and a remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


class Error(Exception):
    """Base class. `str(e)` is the problem, followed by a semicolon and the remedy, if any."""

    code = "internal"
    exit_code = 1  # exit code of the command line
    _remedy = "repeat the call; if it fails again, report it with this message"  # used if none is given

    def __init__(self, problem: str, remedy: str = "") -> None:
        self.problem = problem
        self.remedy = remedy or self._remedy
        super().__init__(f"{self.problem}; {self.remedy}")

    def __str__(self) -> str:  # OSError.__str__ would show the arguments
        return f"{self.problem}; {self.remedy}"

    def __reduce__(self) -> tuple[type[Error], tuple[str, str], dict[str, Any]]:
        return type(self), (self.problem, self.remedy), dict(self.__dict__)  # includes the row of BadData, and notes


class UsageError(Error, ValueError):
    """An invalid setting or argument."""

    code = "usage"
    exit_code = 2
    _remedy = "correct this argument; help() of the function or class lists its options"


class ArgumentError(UsageError, TypeError):
    """An unknown, missing or repeated argument."""


class BadData(Error, ValueError):
    """Invalid input. `row`: index of the text, if the error concerns a single one."""

    code = "bad_data"
    exit_code = 3
    _remedy = "correct or remove this input"
    row: int | None = None


class BadModel(Error):
    """An invalid model directory, weights, tokenizer or config."""

    code = "bad_model"
    exit_code = 4
    _remedy = "check the files of the model, or download it again"


class DoesNotFit(Error, MemoryError):
    """No plan fits the memory limit."""

    code = "does_not_fit"
    exit_code = 5
    _remedy = "raise the memory limit, or use a smaller max_length or model"


class DeviceLost(Error):
    """A kernel or the driver failed; this process can no longer use the device."""

    code = "device_lost"
    exit_code = 6
    _remedy = "start the process again, and check the GPU with nvidia-smi"


class CannotWrite(Error, OSError):
    """An unwritable path, or a full disk."""

    code = "cannot_write"
    exit_code = 7
    _remedy = "use a writable path with enough free space"

    def __init__(self, problem: str, remedy: str = "") -> None:  # OSError would interpret two strings as errno and message
        super().__init__(problem, remedy)
        self.args = (str(self),)


class Diverged(Error, ArithmeticError):
    """The training loss is not finite."""

    code = "diverged"
    exit_code = 8
    _remedy = "lower learning_rate, and check the labels"


class Interrupted(Error):
    """Stopped by a signal."""

    code = "interrupted"
    exit_code = 130
    _remedy = "repeat the call to continue"


class TimedOut(Error, TimeoutError):
    """The deadline passed before the work started."""

    code = "timed_out"
    _remedy = "allow more time, or submit fewer texts"


class Cancelled(Error):
    """Cancelled by the caller, or the model was closed."""

    code = "cancelled"
    _remedy = "open the model again"


class Busy(Error):
    """Rejected: too much is waiting."""

    code = "busy"
    _remedy = "wait for some results before submitting more texts"


_NOT_FOUND = re.compile(r"model '([^']*)' not found; searched")
_CLASSES: dict[str, type[Error]] = {
    c.code: c
    for c in (Error, UsageError, BadData, BadModel, DoesNotFit, DeviceLost, CannotWrite, Diverged, Interrupted,
              TimedOut, Cancelled, Busy)
}


_FUNCTIONS = {"train": "brim.train", "plan": "brim.plan", "compare": "brim.compare", "forecast train": "brim.forecast.train",
              "forecast predict": "brim.forecast.predict", "forecast roll": "brim.forecast.roll",
              "forecast eval": "brim.forecast.evaluate"}


def _in_python(text: str) -> str:
    """The library writes settings as `long_text=truncate`; Python writes long_text="truncate"."""
    def argument(key: str, value: str) -> str:
        if value in ("true", "false"):
            return f"{key}={value.capitalize()}"
        plain = re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value) is not None
        return f"{key}={value}" if plain else f'{key}="{value}"'

    def called(match: re.Match[str]) -> str:
        function = _FUNCTIONS.get(match[1])
        if function is None:
            return match[0]
        arguments = ", ".join(argument(*word.split("=", 1)) for word in match[2].split())
        return f"{function}({arguments})" if arguments else function
    text = re.sub(r"`brim ((?:forecast )?[a-z]+)((?: [a-z_]+=[^` ]+)*)`", called, text)
    return re.sub(r"`([a-z_]+)=([^`]*)`", lambda match: argument(match[1], match[2]), text)


_SMALLEST_LIMIT = re.compile(r"Smallest limit that works: [^(]*\((.*)\)\Z")


def _parted(text: str) -> tuple[str, str]:
    """Splits a message into problem and remedy."""
    if smallest := _SMALLEST_LIMIT.search(text):
        return text, f"use {smallest[1]}"
    problem, found, download = text.partition("\nto download it: ")
    if found:
        return problem, download.replace("\n", " ")
    if match := re.fullmatch(r"(.*) \((did you mean [^)]+\?)\)", text, re.S):
        return match[1], match[2]
    if match := re.fullmatch(r"(.*); ([^;\n]+)", text, re.S):
        return match[1], match[2]
    if match := re.fullmatch(r"(.*): ((?:use|set|give|name|choose) [^\n]+)", text, re.S):
        return match[1], match[2]
    return text, "use a readable file" if ": cannot open: " in text else ""


def _download_of(problem: str) -> str:
    """Remedy for a missing model."""
    missing = _NOT_FOUND.search(problem)
    if missing is None:
        return ""
    return f"pass the path of its directory, or download it with pull=True (or brim pull {missing[1]})"


def from_library(code: str, problem: str, remedy: str) -> Error:
    """The exception of a library error."""
    problem, remedy = _in_python(problem), _in_python(remedy)
    if not remedy:
        problem, remedy = _parted(problem)
    if re.fullmatch(r'[a-z_]+=("[^"]*"|-?[0-9.]+)', problem):
        problem += " is invalid"
    remedy = _download_of(problem) or remedy
    return _CLASSES.get(code, Error)(problem, remedy)


def renamed(error: Error, options: Mapping[str, str], files: Mapping[str, str] | None = None) -> Error:
    """The error with the names of arguments instead of those of the library's settings and of temporary files."""
    def shown(text: str) -> str:
        for file, argument in (files or {}).items():
            text = text.replace(file, argument)
        for name, argument in options.items():
            text = re.sub(rf"(?<![\w.]){name}(?==)|(?<=`){name}(?=`)", argument, text)
        return text
    problem, remedy = shown(error.problem), shown(error.remedy)
    if (problem, remedy) == (error.problem, error.remedy):
        return error
    other = type(error)(problem, remedy)
    other.__dict__.update({name: value for name, value in error.__dict__.items() if name not in ("problem", "remedy")})
    return other
