# SPDX-License-Identifier: Apache-2.0
"""Incorrect calls raise typed errors with a suggested fix."""

from __future__ import annotations

import pickle
import re
import sys

import brim
import brim.parquet
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


LIBRARIES = {
    "torch": lambda b: b.encoder.encode("a", convert_to_tensor=True), "torch of tokens": lambda b: b.encoder.encode("a", output_value=None),
    "torch of pairs": lambda b: b.cross.predict([("a", "b")], convert_to_tensor=True),
    "pandas": lambda b: brim.forecast.Forecasts({"y": [1.0]}).to_pandas(), "polars": lambda b: brim.forecast.Forecasts({"y": [1.0]}).to_polars(),
    "pyarrow": lambda b: brim.forecast.Forecasts({"y": [1.0]}).to_arrow(), "pyarrow of shards": lambda b: brim.bulk.plan(b.parquet(), b.out),
    "pyarrow of files": lambda b: brim.parquet.score_file("a.parquet", "b.parquet"), "pyarrow of results": lambda b: b.clf.predict(["a"]).to_arrow(),
    "ray": lambda b: brim.ray.score(brim.bulk.Job("x", "", "", {}, ())), "boto3": lambda b: brim.bulk.load("s3://bucket/job"),
    "pyspark": lambda b: brim.spark.schema(None),
}


@pytest.mark.parametrize("use", LIBRARIES)
def test_a_missing_library_is_named(use, bench, monkeypatch):
    name = use.partition(" ")[0]
    if name == "pyarrow":
        pytest.importorskip("pyarrow")
        bench.parquet()
    for module in [name, *(one for one in sys.modules if one.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    if use == "pyarrow of shards":
        monkeypatch.setattr(bench, "parquet", lambda: bench.folder / "rows.parquet")
    with pytest.raises(brim.UsageError, match=f"{name} is not installed") as caught:
        LIBRARIES[use](bench)
    assert caught.value.remedy == f"pip install {name}"


def test_there_are_enough_wrong_uses():
    assert len(WRONG_USES) >= 75
