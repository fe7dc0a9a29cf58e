# SPDX-License-Identifier: Apache-2.0
"""Incorrect calls raise typed errors with a suggested fix."""

from __future__ import annotations

import pickle
import re

import brim
import pytest
from wrong_uses import WRONG_USES, Bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("wrong"))


@pytest.mark.parametrize("use", WRONG_USES)
def test_wrong_use(use, bench):
    kind, call = WRONG_USES[use]
    if use.startswith("bulk"):
        pytest.importorskip("pyarrow")
    with pytest.raises(kind) as caught:
        call(bench)
    error = caught.value
    assert isinstance(error, brim.Error) and error.problem and error.remedy, repr(error)
    for internal in ("incompatible function", "nb::", "/brim-", "`brim ", "Traceback"):
        assert internal not in str(error), str(error)
    assert not re.search(r"(^|[\s`'(])--[a-z]", str(error)), str(error)
    assert "\n" not in error.remedy and not bench.out.exists()
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)


@pytest.mark.parametrize("use, meant", [
    ("constructor: a misspelt keyword", "max_length"), ("constructor: a keyword of another library", "threads"),
    ("constructor: an unknown task", "text-classification"), ("call: a misspelt argument", "top_k"),
    ("predict: a misspelt column", "text"), ("encode: a misspelt argument", "normalize_embeddings"),
    ("train: a misspelt setting", "learning_rate"), ("plan: a misspelt argument", "device"),
    ("bulk: a misspelt setting", "max_length"), ("bulk: a column to score that does not exist", "text"),
])
def test_misspelt_names_get_a_suggestion(use, meant, bench):
    if use.startswith("bulk"):
        pytest.importorskip("pyarrow")
    with pytest.raises(brim.Error, match=rf"did you mean .?{meant}") as caught:
        WRONG_USES[use][1](bench)
    assert meant in caught.value.remedy


def test_there_are_enough_wrong_uses():
    assert len(WRONG_USES) >= 75
