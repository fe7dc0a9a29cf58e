# SPDX-License-Identifier: Apache-2.0
"""brim.compare, brim.gpu_stats and brim.load_model: choosing among models, and the GPUs they run on."""

from __future__ import annotations

import html
import json
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

from . import _brim
from ._log import forward_log
from ._model import model_arguments, pull_model
from ._options import ModelOptions, check_model_options, checked, path, words
from .classifier import Classifier
from .encoder import Encoder
from .errors import Error, UsageError, renamed
from .tagger import Tagger
from .training import _paths, _written


class GpuStats(TypedDict):
    """One GPU; readings that it does not provide are None. `brim monitor --json` has further ones."""

    index: int
    name: str | None
    driver: str | None
    healthy: bool
    utilization_pct: float | None
    vram_used_mb: float | None
    vram_free_mb: float | None
    vram_total_mb: float | None
    temperature_c: float | None
    power_w: float | None


class Comparison:
    """Models on the same rows. `data` is the output of `brim compare --json`."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    @property
    def models(self) -> list[dict[str, Any]]:
        """One dict per model: `name`, `accuracy`, `rows_per_second`, `planned_bytes`, …"""
        return list(self.data["models"])

    @property
    def pairs(self) -> list[dict[str, Any]]:
        """One dict per pair of models: `a`, `b`, `agreement` and, with labels, `mcnemar`."""
        return list(self.data["pairs"])

    @property
    def recommended(self) -> str | None:
        """The fastest model whose accuracy is close to the best; None without labels."""
        found = self.data.get("recommended")
        return str(found) if found is not None else None

    def __getitem__(self, model: str) -> dict[str, Any]:
        for one in self.models:
            if one["name"] == model:
                return one
        raise UsageError(f"{model!r} was not compared", f"use one of {', '.join(m['name'] for m in self.models)}")

    def _table(self) -> list[list[str]]:
        rows = [["model", "accuracy", "macro F1", "rows/s", "load s"]]
        for m in self.models:
            scores = [m.get("accuracy"), m.get("macro_f1")]
            rows.append([m["name"], *("–" if value is None else f"{value:.4f}" for value in scores),
                         f"{m['rows_per_second']:,.0f}", f"{m['load_seconds']:.2f}"])
        return rows

    def __repr__(self) -> str:
        rows = self._table()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
                 for row in rows]
        return "\n".join(lines + ([f"recommended: {self.recommended}"] if self.recommended else []))

    def _repr_html_(self) -> str:
        head, *rows = [[html.escape(cell) for cell in row] for row in self._table()]
        body = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows)
        note = f"<p>recommended: {html.escape(self.recommended)}</p>" if self.recommended else ""
        return f"<table><tr><th>{'</th><th>'.join(head)}</th></tr>{body}</table>{note}"


@checked
def compare(models: Sequence[str | os.PathLike[str]], data: Any, *, text: str | None = None, label: str = "label",
            max_loss: float = 0.01, **options: Unpack[ModelOptions]) -> Comparison:
    """Compares models on the same rows: accuracy, agreement, speed and memory.

    >>> brim.compare(["vader", "finbert"], df).recommended

    `models`: two or more names or directories, or "vader".
    `data`: one or several files, a table with texts and labels (pandas, polars, pyarrow, datasets, dict), (texts, labels),
    or a list of texts, for which only agreement, speed and memory are known.
    `text`, `label`: the columns of a table.
    `max_loss`: accuracy that a recommended faster model may lose.
    `options`: those of Classifier, except for `adapter`.
    """
    if isinstance(models, (str, os.PathLike)) or not isinstance(models, Sequence) or len(models) < 2:
        raise UsageError(f"models={models!r}: two or more models are needed", 'pass a list: ["vader", "finbert"]')
    if not isinstance(max_loss, (int, float)) or isinstance(max_loss, bool) or not 0 <= max_loss < 1:
        raise UsageError(f"max_loss={max_loss!r} is not a share of accuracy", "use a number from 0 to below 1")
    check_model_options({name: value for name, value in options.items() if name != "pull"})
    if adapter := options.get("adapter"):
        raise UsageError(f"adapter={str(adapter)!r}: compare opens models without adapters",
                         "merge it into its model first, and name the result in models")
    if text is not None:
        words("text", text, '"text"')
    words("label", label, '"label"')
    names = [path("models", one) for one in models]
    if options.get("pull"):
        for name in names:
            pull_model(name)
    arguments = model_arguments(options)
    with tempfile.TemporaryDirectory(prefix="brim-") as folder:
        file = pathlib.Path(folder) / "data.jsonl"
        given = _texts_only(data, file) or _paths(data) or [_written(data, file, text, label, False)]
        column = text if _paths(data) is not None and text is not None else ""
        try:
            found = _brim.compare_models(models=names, data=given, text_column=column,
                                         label_column="" if label == "label" else label, max_loss=max_loss, **arguments)
        except Error as error:
            raise renamed(error, {"text_column": "text", "label_column": "label"}, {str(file): "data"}) from None
        finally:
            forward_log()
    return Comparison(json.loads(found))


def _texts_only(data: Any, file: pathlib.Path) -> list[str] | None:
    """Writes a list of texts; None if `data` is something else. File names are lists of str too: those exist."""
    if not isinstance(data, list) or not data or not all(isinstance(one, str) for one in data):
        return None
    if all(os.path.exists(one) for one in data):
        return None
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in data), encoding="utf-8")
    return [str(file)]


@checked
def gpu_stats() -> list[GpuStats]:
    """Readings of the GPUs now; an empty list without a GPU or its driver."""
    return [_stats(gpu) for gpu in _brim.read_gpus()]


def _stats(gpu: dict[str, Any]) -> GpuStats:
    def megabytes(key: str) -> float | None:
        return None if gpu[key] is None else round(gpu[key] / 2**20, 1)
    share = gpu["utilization"]
    return {"index": gpu["index"], "name": gpu["name"] or None, "driver": gpu["driver"] or None, "healthy": gpu["healthy"],
            "utilization_pct": None if share is None else round(100 * share, 1), "vram_used_mb": megabytes("used_bytes"),
            "vram_free_mb": megabytes("free_bytes"), "vram_total_mb": megabytes("total_bytes"),
            "temperature_c": gpu["temperature_c"], "power_w": gpu["power_w"]}


@checked
def load_model(name: str | os.PathLike[str] = "", **options: Unpack[ModelOptions]) -> Classifier | Tagger | Encoder:
    """Opens a model by name or directory, as the class that its files call for: Classifier (also for "vader"), Tagger (also
    for GLiNER models), or Encoder for models without a head. `options` are those of Classifier.

    >>> brim.load_model("finbert")("profits rose")
    """
    model, adapter = path("name", name), path("adapter", options.get("adapter") or "")
    if options.get("pull"):
        pull_model(model)
        if adapter:
            pull_model(adapter)
    kind = _brim.model_kind(model, adapter)
    if kind == "tagger":
        return Tagger(name, **options)
    return Encoder(name, **options) if kind == "embedder" else Classifier(name, **options)
