# SPDX-License-Identifier: Apache-2.0
"""The program that is installed with the module. The module itself uses the library only."""

from __future__ import annotations

import pathlib


def path() -> str:
    return str(pathlib.Path(__file__).with_name("bin") / "brim")
