# SPDX-License-Identifier: Apache-2.0
"""A progress bar by tqdm, where it is installed."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(rows: int, unit: str = " texts", wanted: bool = True) -> Iterator[Callable[[int], None] | None]:
    """A function to call with what is done so far; None without tqdm, or where none is wanted."""
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm if wanted else None
    except ImportError:
        tqdm = None
    if tqdm is None:
        yield None
        return
    with tqdm(total=rows, unit=unit, unit_scale=True) as shown:
        yield lambda done: shown.update(done - shown.n) and None
        shown.update(rows - shown.n)
