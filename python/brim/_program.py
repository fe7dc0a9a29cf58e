# SPDX-License-Identifier: Apache-2.0
"""The program that comes with the module."""

from __future__ import annotations

import pathlib
import subprocess

from .errors import Error, from_exit_code


def path() -> str:
    return str(pathlib.Path(__file__).with_name("bin") / "brim")


def run(arguments: list[str]) -> tuple[str, Error | None]:
    """What it prints, and the error its exit code stands for."""
    done = subprocess.run([path(), *arguments], capture_output=True, text=True, encoding="utf-8", errors="replace",
                          check=False)
    if done.returncode == 0:
        return done.stdout, None
    said = done.stderr.strip().removeprefix("brim: ").removeprefix("error: ") or f"exit code {done.returncode}"
    return done.stdout, from_exit_code(done.returncode, said)
