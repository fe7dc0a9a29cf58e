# SPDX-License-Identifier: Apache-2.0
"""Results of many texts as columns."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _brim
from .errors import Error, UsageError


class _Columns:
    """Copies of the prediction columns, for unpickled results."""

    def __init__(self, label_ids: npt.NDArray[np.int32], label_scores: npt.NDArray[np.float32],
                 scores: npt.NDArray[np.float32], truncated: npt.NDArray[np.uint8]) -> None:
        self.label_ids, self.label_scores, self.scores, self.truncated = label_ids, label_scores, scores, truncated

    def __len__(self) -> int:
        return len(self.scores)


class Result:
    """Results of `Classifier.predict`; row i belongs to text i. The arrays are views of the library's memory."""

    def __init__(self, predictions: _brim.Predictions | _Columns, names: list[str], score_names: list[str],
                 errors: list[tuple[int, Error]], seconds: float, index: Any = None) -> None:
        self._predictions = predictions
        self.label_names = names
        self.score_names = score_names
        self.errors = errors
        self.seconds = seconds
        self._index = index  # index of a pandas input, for to_pandas()

    def __len__(self) -> int:
        return len(self._predictions)

    def __getstate__(self) -> dict[str, Any]:
        p = self._predictions
        return {**self.__dict__, "_predictions": _Columns(p.label_ids, p.label_scores, p.scores, p.truncated)}

    @property
    def label_ids(self) -> npt.NDArray[np.int32]:
        """Indices into `label_names`; -1 for rows without a result."""
        return self._predictions.label_ids

    @property
    def labels(self) -> list[str | None]:
        """Label names; None for rows without a result."""
        names = [*self.label_names, None]  # -1 selects the last one
        return [names[i] for i in self.label_ids.tolist()]

    @property
    def score(self) -> npt.NDArray[np.float32]:
        """Score of the label; NaN for rows without a result."""
        return self._predictions.label_scores

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """All scores, [texts, score_names]."""
        return self._predictions.scores

    @property
    def truncated(self) -> npt.NDArray[np.bool_]:
        """True for texts that were truncated."""
        return self._predictions.truncated.view(np.bool_)

    @property
    def stats(self) -> dict[str, float]:
        return {"texts": len(self), "seconds": self.seconds, "texts_per_second": len(self) / max(self.seconds, 1e-9),
                "errors": len(self.errors), "truncated": int(self.truncated.sum())}

    def to_arrow(self, all_scores: bool = False) -> Any:
        """A pyarrow.Table: `label` (dictionary), `score` and, with `all_scores`, a list of all scores per text."""
        pa = imported("pyarrow")
        missing = self.label_ids < 0
        mask = missing if missing.any() else None
        labels = pa.DictionaryArray.from_arrays(pa.array(self.label_ids, mask=mask), pa.array(self.label_names))
        columns = {"label": labels, "score": pa.array(self.score, mask=mask)}
        if all_scores:
            columns["all_scores"] = pa.FixedSizeListArray.from_arrays(
                pa.array(self.scores.reshape(-1)), len(self.score_names),
                **({} if mask is None else {"mask": pa.array(missing)}))
        return pa.table(columns)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """A pandas.DataFrame: `label` (category) and `score`, with the index of a pandas input."""
        pd = imported("pandas")
        return pd.DataFrame({"label": pd.Categorical.from_codes(self.label_ids, categories=self.label_names),
                             "score": self.score}, index=self._index)

    def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return imported("polars").from_arrow(self.to_arrow())

    def __repr__(self) -> str:
        counts = np.bincount(self.label_ids[self.label_ids >= 0], minlength=len(self.label_names))
        shown = ", ".join(f"{name} {count:,}" for name, count in zip(self.label_names, counts.tolist(), strict=False))
        return f"brim.Result({len(self):,} texts in {self.seconds:.2f} s: {shown}; {len(self.errors)} without a result)"


def imported(name: str, package: str = "") -> Any:
    """A module of another library, `package` on PyPI."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = package or name.partition(".")[0]
        raise UsageError(f"{package} is not installed", f"pip install {package}") from None
