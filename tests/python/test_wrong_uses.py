# SPDX-License-Identifier: Apache-2.0
"""Incorrect calls raise typed errors with a suggested fix."""

from __future__ import annotations

import pickle

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
    if kind is TypeError:  # raised by Python
        assert "unexpected keyword" in str(error)
        return
    assert isinstance(error, brim.Error) and error.problem and error.remedy, repr(error)
    assert "\n" not in error.remedy and not bench.out.exists()
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error)
