# SPDX-License-Identifier: Apache-2.0
"""A progress bar, if tqdm is installed."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator


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
