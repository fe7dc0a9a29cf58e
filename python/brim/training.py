# SPDX-License-Identifier: Apache-2.0
"""brim.train: like `brim train`, with tables or files as input and a result with plots for notebooks."""

from __future__ import annotations

import contextlib
import html
import importlib
import json
import logging
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import _brim
from ._log import forward_log
from ._options import checked, path, utf8, words
from ._texts import _column_names, check_unique, collected, named_column
from .classifier import Classifier
from .errors import BadData, Error, UsageError, renamed

_log = logging.getLogger("brim")
_OnProgress = Callable[[float, float, str, list[str]], None]


class Training:
    """A finished run: the model in `output_dir`, its log and its figures."""

    def __init__(self, output_dir: str, figures: dict[str, Any]) -> None:
        self.output_dir = output_dir
        self.figures = figures

    @property
    def history(self) -> list[dict[str, Any]]:
        """One dict per logged step and evaluation, as in trainer_state.json."""
        state = json.loads((pathlib.Path(self.output_dir) / "trainer_state.json").read_text(encoding="utf-8"))
        return list(state["log_history"])

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the best evaluation, or of the last one if none was selected; empty without evaluations."""
        rows = [row for row in self.history if "eval_loss" in row]
        best = [row for row in rows if row["step"] == self.figures["best_step"]]
        return {name: value for name, value in (best or rows or [{}])[-1].items() if name.startswith("eval_")}

    def plots(self) -> list[str]:
        """Curves and plan of the report as SVG."""
        page = (pathlib.Path(self.output_dir) / "report.html").read_text(encoding="utf-8")
        return re.findall(r"<svg .*?</svg>", page, re.S)

    def classifier(self, **settings: Any) -> Classifier:
        """Opens the trained model, or the base model with the trained adapter; `settings` are those of Classifier."""
        adapter = pathlib.Path(self.output_dir) / "adapter_config.json"
        if not adapter.is_file():
            return Classifier(self.output_dir, **settings)
        base = json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"]
        return Classifier(base, adapter=self.output_dir, **settings)

    def _summary(self) -> str:
        best = self.figures["best_metric"]
        shown = "" if best is None else f", best {self.figures['best_metric_name']} {best:.4f}"
        return f"{self.figures['steps']:,} steps in {self.figures['seconds']:.1f} s{shown}"

    def __repr__(self) -> str:
        return f"brim.Training({self.output_dir!r}: {self._summary()})"

    def _repr_html_(self) -> str:
        drawn = "".join(f"<div style='flex:1 1 22em;max-width:36em'>{plot}</div>" for plot in self.plots()[:4])
        return (f"<p><b>{html.escape(self.output_dir)}</b>: {html.escape(self._summary())}</p>"
                f"<div style='display:flex;flex-wrap:wrap'>{drawn}</div>")


@checked
def train(model: str | os.PathLike[str], train: Any, validation: Any = None, *, output_dir: str | os.PathLike[str],
          text: str | None = None, label: str | list[str] = "label", progress: bool = True, **settings: Any) -> Training:
    """Fine-tunes `model` on rows of texts and labels: one or several files, a table of any library, or (texts, labels).
    `settings` are those of `brim train`, with Hugging Face's names; `teacher` may be a list. Ctrl-C writes a checkpoint
    first; resume_from_checkpoint="last" continues from it.

    `train`, `validation`: files (csv, tsv, jsonl, CoNLL), tables of pandas, polars, pyarrow or datasets, dicts of columns,
    or (texts, labels). `output_dir`: the directory of the model and its log.
    `text`, `label`: columns of a table; a list of labels trains a multi-label model.
    `progress`: show a bar of tqdm.
    `settings`: for example num_train_epochs=3, learning_rate=2e-5, per_device_train_batch_size=16, max_length=128,
    eval_strategy="epoch", metric_for_best_model="f1", early_stopping_patience=2, seed=42, or PEFT's lora_r=8,
    lora_alpha=16, target_modules=["query", "value"]; docs/training-settings.md has all.
    """
    folder = path("output_dir", output_dir)
    given: list[tuple[str, str]] = [("model", path("model", model)), ("output_dir", folder)]
    if text is not None:
        words("text", text, '"text"')
    for one in [label] if isinstance(label, str) or not isinstance(label, (list, tuple)) else label:
        words("label", one, '"label"')
    names: dict[str, str] = {}  # temporary files by the argument they hold
    if _paths(train) is not None and text is not None:
        given.append(("text_column", text))
    if label != "label":
        given += [("label_column", one) for one in ([label] if isinstance(label, str) else label)]
    given += [(name, one) for name, value in settings.items() if value is not None for one in _words(name, value)]
    try:
        with tempfile.TemporaryDirectory(prefix="brim-") as written, _progress_callback(progress) as on_progress:
            for name, rows in (("train", train), ("val", validation)):
                if rows is not None:
                    file = pathlib.Path(written) / f"{name}.jsonl"
                    names[str(file)] = "train" if name == "train" else "validation"
                    taught = name == "train" and bool(settings.get("teacher"))
                    files = _paths(rows, names[str(file)]) or [_written(rows, file, text, label, taught)]
                    given += [(name, one) for one in files]
            figures = _brim.train(given, on_progress)
    except Error as error:
        raise renamed(error, {"output": "output_dir"}, names) from None
    except KeyboardInterrupt:
        step = _last_checkpoint(folder)
        if step is None:
            _log.warning("interrupted; %s has no checkpoint, so the next run starts from the beginning", folder)
        else:
            _log.warning('interrupted; resume_from_checkpoint="last" continues from step %d, checkpoint-%d in %s', step, step, folder)
        raise
    finally:
        forward_log()
    return Training(folder, figures)


def _last_checkpoint(folder: str) -> int | None:
    """Step of the last checkpoint. None if the run was interrupted before its first step or the disk is full."""
    found = [re.fullmatch(r"checkpoint-([0-9]+)", path.name) for path in pathlib.Path(folder).glob("checkpoint-*") if path.is_dir()]
    return max((int(match[1]) for match in found if match), default=None)


def _paths(rows: Any, name: str = "data") -> list[str] | None:
    """File names; None if `rows` has no file names."""
    if isinstance(rows, (str, os.PathLike)):
        return [path(name, rows)]
    if isinstance(rows, list) and rows and all(isinstance(row, (str, os.PathLike)) for row in rows):
        return [path(name, row) for row in rows]
    return None


def _written(rows: Any, path: pathlib.Path, text: str | None, label: str | list[str], taught: bool) -> str:
    """Writes a table or (texts, labels) to a file. Resumed runs identify rows by content, not by file name.
    With `taught`, a label may be None: the row is trained on the teachers only."""
    labels = [label] if isinstance(label, str) else list(label)
    if isinstance(rows, tuple) and len(rows) == 2:
        columns = {"text": _list(rows[0]), labels[0]: _list(rows[1])}
    else:
        rows = collected(rows)
        names = _column_names(rows)
        if names is None:
            raise UsageError(f"expected rows of texts and labels, got {type(rows).__name__}",
                             "pass files, a table, or (texts, labels)")
        check_unique(names)
        missing = [name for name in labels if name not in names]
        if missing:
            raise UsageError(f"no column {missing[0]!r}", f'set label="…" to one of {", ".join(names)}')
        others = [name for name in names if name not in labels]
        columns = {"text": _list(rows[named_column(others, text)]), **{name: _list(rows[name]) for name in labels}}
    if len({len(column) for column in columns.values()}) != 1:
        raise UsageError(f"{', '.join(f'{len(c):,} of {n}' for n, c in columns.items())}", "pass one label per text")
    known = {name: [None if _is_missing(value) else value for value in column] for name, column in columns.items()}
    for name in labels:  # pandas converts integers to floats if values are missing
        if None in known[name] and all(value is None or (isinstance(value, float) and value.is_integer()) for value in known[name]):
            known[name] = [None if value is None else int(value) for value in known[name]]
    lines = []
    for row, values in enumerate(zip(*known.values(), strict=True)):
        for name, value in zip(columns, values, strict=True):
            good = isinstance(value, str if name == "text" else (str, int, float, bool))
            if not good and not (taught and name != "text" and value is None):
                error = BadData(f"row {row}: {name} is {columns[name][row]!r}", "remove such rows")
                error.row = row
                raise error
        lines.append(json.dumps({n: v for n, v in zip(columns, values, strict=True) if v is not None}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def _is_missing(value: Any) -> bool:
    """None, NaN, or pandas' NA, which equals nothing."""
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and value != value)


def _list(column: Any) -> list[Any]:
    """Plain Python values of a column of any library."""
    for method in ("to_pylist", "tolist", "to_list"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return [value.item() if isinstance(value, np.generic) else value for value in column]


def _words(name: str, value: Any) -> list[str]:
    if isinstance(value, (list, tuple)):
        return [word for one in value for word in _words(name, one)]
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, (str, int, float, os.PathLike, np.number)):
        return [utf8(name, os.fspath(value) if isinstance(value, os.PathLike) else str(value))]
    raise UsageError(f"{name}={value!r}: a {type(value).__name__} is not a valid value", "use a number or a str")


@contextlib.contextmanager
def _progress_callback(progress: bool) -> Iterator[_OnProgress]:
    """Yields the progress callback of a run: a tqdm bar, if installed, and log lines to the logger "brim"."""
    bar: Any = None
    if progress:
        with contextlib.suppress(ImportError):
            bar = importlib.import_module("tqdm.auto").tqdm(unit=" steps")

    def on_progress(done: float, total: float, text: str, lines: list[str]) -> None:
        for line in lines:
            _log.info("%s", line)
        if bar is not None and total > 0:
            bar.total = round(total)
            bar.set_postfix_str(text, refresh=False)
            bar.update(round(done) - bar.n)

    try:
        yield on_progress
    finally:
        if bar is not None:
            bar.close()
