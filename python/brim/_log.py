# SPDX-License-Identifier: Apache-2.0
"""The logger "brim"."""

from __future__ import annotations

import logging

from . import _brim

_log = logging.getLogger("brim")


def forward_log() -> None:
    """Passes the library's log lines to the logger "brim"."""
    for is_warning, line in _brim.take_log():
        _log.log(logging.WARNING if is_warning else logging.INFO, "%s", line)
