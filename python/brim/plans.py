# SPDX-License-Identifier: Apache-2.0
"""Memory and speed of a model on a device, which need not be present."""

from __future__ import annotations

import html
import json
import os
from typing import Any

from . import _brim
from ._options import checked, choice, device_name, path, whole, words
from ._log import forward_log
from .errors import Error, renamed


class Plan:
    """A plan, shown as a table, in notebooks with bars. `data` is the output of `brim plan --json`."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes by purpose; they sum to `peak_bytes`."""
        return {purpose: int(count) for purpose, count in self.data.get("bytes", {}).items() if count}

    @property
    def peak_bytes(self) -> int:
        return int(self.data["peak_bytes"])

    @property
    def limit_bytes(self) -> int:
        return int(self.data["limit_bytes"])

    @property
    def tokens_per_batch(self) -> int:
        return int(self.data["token_budget"])

    @property
    def tokens_per_second(self) -> float:
        """Predicted throughput."""
        return float(self.data["tokens_per_second"])

    def _head(self) -> str:
        return f"{self.data.get('task', 'score')} {self.data.get('model', '')} on {self.data['device']['name']}"

    def _foot(self) -> str:
        return f"{self.tokens_per_batch:,} tokens per batch, {self.tokens_per_second:,.0f} tokens/s predicted"

    def __repr__(self) -> str:
        rows = [*self.bytes.items(), ("total", self.peak_bytes)]
        lines = [f"  {name:<16}{_size(count):>12}" for name, count in rows]
        return "\n".join([self._head(), *lines, f"  {'of':<16}{_size(self.limit_bytes):>12}", self._foot()])

    def _repr_html_(self) -> str:
        def row(name: str, count: int) -> str:
            share = 100 * count / max(self.limit_bytes, 1)
            return (f"<tr><td>{html.escape(name)}</td><td style='text-align:right'>{_size(count)}</td>"
                    f"<td style='text-align:left;font-family:monospace;color:#4878a8'>{'█' * max(1, round(share / 4))}"
                    f" {share:.0f} %</td></tr>")
        rows = "".join(row(name, count) for name, count in [*self.bytes.items(), ("total", self.peak_bytes)])
        return (f"<table><caption>{html.escape(self._head())}</caption>{rows}"
                f"<tr><td>limit</td><td style='text-align:right'>{_size(self.limit_bytes)}</td><td></td></tr></table>"
                f"<p>{html.escape(self._foot())}</p>")


@checked
def plan(model: str | os.PathLike[str] = "", *, task: str = "score", device: str = "auto", limit: str = "auto", precision: str = "auto",
         max_length: int = 0, typical_length: int = 0) -> Plan:
    """Plans `model` on `device`: a card by name ("rtx3070", "h200"), "cpu", "cuda" or "auto". Does not open the model.
    Raises brim.DoesNotFit with the smallest sufficient limit.

    `task`: "score" or "train". `limit`: memory for the process, "6GiB" or "90%". `precision`: as for Classifier.
    `max_length`: tokens per text; `typical_length`: tokens of a usual text. 0: those of the model.
    """
    given = path("model", model)
    choice("task", task, ("score", "train"))
    words("limit", limit, '"6GiB" or "90%"')
    words("precision", precision, '"auto" or "bf16"')
    try:
        found = _brim.plan_model(model=given, training=task == "train", device=device_name(device), precision=precision,
                                 memory_limit=limit, max_length=whole("max_length", max_length, 0),
                                 typical_length=whole("typical_length", typical_length, 0))
    except Error as error:
        raise renamed(error, {"memory_limit": "limit"}) from None
    finally:
        forward_log()
    return Plan(json.loads(found))


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
