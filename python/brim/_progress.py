# SPDX-License-Identifier: Apache-2.0
"""A progress bar, if tqdm is installed."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def bar(rows: int, unit: str = " texts", enabled: bool = True) -> Iterator[Callable[[int], None] | None]:
    """Yields a function to call with the number done; None without tqdm or if `enabled` is false."""
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm if enabled else None
    except ImportError:
        tqdm = None
    if tqdm is None:
        yield None
        return
    with tqdm(total=rows, unit=unit, unit_scale=True) as shown:
        yield lambda done: shown.update(done - shown.n) and None
        shown.update(rows - shown.n)


@contextlib.contextmanager
def download_bar(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yields a function to call with the bytes done and in total; None without tqdm. Shows nothing before its first call."""
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        yield None
        return
    shown: list[Any] = []

    def update(done: int, total: int) -> None:
        if not shown:
            shown.append(tqdm(total=total, desc=name, unit="B", unit_scale=True, unit_divisor=1024))
        shown[0].update(done - shown[0].n)

    try:
        yield update
    finally:
        for one in shown:
            one.close()
