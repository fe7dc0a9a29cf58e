# SPDX-License-Identifier: Apache-2.0
"""Runs the program that is installed with the module."""

from __future__ import annotations

import pathlib
import re
import signal
import subprocess

from .errors import Error, from_exit_code


def path() -> str:
    return str(pathlib.Path(__file__).with_name("bin") / "brim")


def run(arguments: list[str], remedy: str = "", *, names: dict[str, str] | None = None,
        renamed: dict[str, str] | None = None) -> tuple[str, Error | None]:
    """Returns its output, and the error for its exit code. `remedy`: for errors without one. Messages show the arguments
    `names` instead of these temporary files, and `renamed` options."""
    with subprocess.Popen([path(), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, encoding="utf-8", errors="replace") as process:
        try:
            out, messages = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)  # interrupts of a notebook do not reach it; it saves its state
            process.wait()
            raise
    if process.returncode == 0:
        return out, None
    messages = re.sub(r"^brim: warning: .*\n", "", messages, flags=re.M).strip()
    text = re.sub(r"\Abrim[a-z ]*: (error: )?", "", messages) or f"exit code {process.returncode}"
    for written, shown in (names or {}).items():
        text = text.replace(written, shown)
    return out, from_exit_code(process.returncode, text, remedy, renamed)
