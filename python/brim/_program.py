# SPDX-License-Identifier: Apache-2.0
"""The program that comes with the module."""

from __future__ import annotations

import pathlib
import re
import signal
import subprocess

from .errors import Error, from_exit_code


def path() -> str:
    return str(pathlib.Path(__file__).with_name("bin") / "brim")


def run(arguments: list[str]) -> tuple[str, Error | None]:
    """What it prints, and the error its exit code stands for."""
    with subprocess.Popen([path(), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, encoding="utf-8", errors="replace") as process:
        try:
            out, said = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)  # a notebook's interrupt does not reach it; it saves what it has
            process.wait()
            raise
    if process.returncode == 0:
        return out, None
    said = re.sub(r"^brim: warning: .*\n", "", said, flags=re.M).strip()
    text = re.sub(r"\Abrim[a-z ]*: (error: )?", "", said) or f"exit code {process.returncode}"
    return out, from_exit_code(process.returncode, text, f"see `brim help {arguments[0]}`")
