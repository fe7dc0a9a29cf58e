# SPDX-License-Identifier: Apache-2.0
"""A progress bar by tqdm, where it is installed."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(rows: int) -> Iterator[Callable[[int], None] | None]:
    """A function to call with the rows done so far; None without tqdm."""
    try:
        tqdm = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        yield None
        return
    with tqdm(total=rows, unit=" texts", unit_scale=True) as shown:
        yield lambda done: shown.update(done - shown.n) and None
        shown.update(rows - shown.n)
