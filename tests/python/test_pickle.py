# SPDX-License-Identifier: Apache-2.0
"""Errors and results survive pickling."""

from __future__ import annotations

import copy
import pickle

import brim
import numpy as np
import pytest


def test_pickled_errors_keep_their_attributes():
    error = brim.BadData("row 3 is None, not str", "drop such rows")
    error.row = 3
    error.add_note("of the second file")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert again.row == 3 and again.__notes__ == ["of the second file"] and again.remedy == "drop such rows"
    for kind in (getattr(brim, name) for name in brim.__all__):
        if isinstance(kind, type) and issubclass(kind, brim.Error):
            again = pickle.loads(pickle.dumps(kind("a problem", "a remedy")))
            assert type(again) is kind and again.args == kind("a problem", "a remedy").args


def test_results_pickle(vader):
    result = vader.predict(["great", None, "awful"], on_error="null")
    for again in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result), copy.copy(result)):
        assert again.labels == result.labels == ["positive", None, "negative"] and len(again) == 3
        assert np.array_equal(again.scores, result.scores, equal_nan=True) and again.scores.dtype == np.float32
        assert again.score[0] == result.score[0] and again.truncated.tolist() == [False] * 3
        assert [(row, error.row) for row, error in again.errors] == [(1, 1)] and repr(again) == repr(result)
        assert pickle.loads(pickle.dumps(again)).labels == result.labels


def test_results_pickle_with_their_index(vader):
    pd = pytest.importorskip("pandas")
    result = vader.predict(pd.Series(["great", "awful"], index=[5, 3]))
    frame = pickle.loads(pickle.dumps(result)).to_pandas()
    assert frame.index.tolist() == [5, 3] and frame["label"].tolist() == ["positive", "negative"]
