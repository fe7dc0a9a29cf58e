# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs in the formats of several libraries."""

from __future__ import annotations

import brim
import numpy as np
import pytest

TEXTS = ["I love this", "what a waste of money", "", "ok then, this text is longer than twelve bytes", "naïve café 😀"]


@pytest.fixture(scope="module")
def wanted(clf):
    return clf.predict(TEXTS).scores.tobytes()


def same(clf, wanted, source, **settings):
    return clf.predict(source, **settings).scores.tobytes() == wanted


def test_python_and_numpy(clf, wanted):
    assert same(clf, wanted, tuple(TEXTS)) and same(clf, wanted, (t for t in TEXTS))
    assert same(clf, wanted, np.array(TEXTS, dtype=object)) and same(clf, wanted, np.array(TEXTS))
    assert same(clf, wanted, {"text": TEXTS, "id": [0] * 5}) and same(clf, wanted, {"t": TEXTS}, column="t")
    if hasattr(np, "dtypes") and hasattr(np.dtypes, "StringDType"):
        assert same(clf, wanted, np.array(TEXTS, dtype=np.dtypes.StringDType()))
    with pytest.raises(brim.BadData, match="bytes"):
        clf.predict(np.array([b"x"]))


def test_columns_with_names_that_are_no_str(clf, wanted):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({0: TEXTS, 1: TEXTS[::-1]}, index=[9, 9, 7, 5, 3])
    assert same(clf, wanted, frame, column=0) and same(clf, wanted, frame, column="0")
    assert same(clf, wanted, pd.DataFrame({("a", "text"): TEXTS, ("a", "id"): 0}), column=("a", "text"))
    with pytest.raises(brim.UsageError, match="no such column"):
        clf.predict(frame, column=2)


def test_streams_of_batches(clf, wanted):
    pa = pytest.importorskip("pyarrow")
    batches = [pa.record_batch({"text": part, "id": [0] * len(part)}) for part in (TEXTS[:2], TEXTS[2:])]
    for column in (None, "text"):
        assert same(clf, wanted, pa.RecordBatchReader.from_batches(batches[0].schema, batches), column=column)
    with pytest.raises(brim.BadData, match="run_end_encoded"):
        clf.predict(pa.RunEndEncodedArray.from_arrays([2, 4], ["great", "awful"]))
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": TEXTS, "id": [0] * 5}).to_iterable_dataset()
    assert same(clf, wanted, rows) and same(clf, wanted, rows, column="text")
    with pytest.raises(brim.UsageError, match="DatasetDict") as caught:
        clf.predict(datasets.DatasetDict({"test": datasets.Dataset.from_dict({"text": TEXTS})}))
    assert 'data["test"]' in caught.value.remedy


def test_pyarrow(clf, wanted):
    pa = pytest.importorskip("pyarrow")
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        array = pa.array(TEXTS, kind)
        assert same(clf, wanted, array), kind
        assert same(clf, wanted, pa.chunked_array([array[:2], array[2:2], array[2:]])), kind
        padded = pa.array(["x", "and another one that is long", *TEXTS, "y"], kind)
        assert same(clf, wanted, padded.slice(2, 5)), kind
    assert same(clf, wanted, pa.array(TEXTS).dictionary_encode())
    assert same(clf, wanted, pa.chunked_array([pa.array(["z", *TEXTS]).dictionary_encode().slice(1)]))
    table = pa.table({"id": list(range(5)), "body": TEXTS})
    assert same(clf, wanted, table, column="body")
    with pytest.raises(brim.UsageError, match='column="txt"') as caught:
        clf.predict(table, column="txt")
    assert 'column="body"' in caught.value.remedy
    with pytest.raises(brim.UsageError, match="2 columns"):
        clf.predict(table)
    with pytest.raises(brim.BadData, match="no texts"):
        clf.predict(table, column="id")


def test_pyarrow_nulls(clf):
    pa = pytest.importorskip("pyarrow")
    for array in (pa.array(["a", None, "c"]), pa.array(["a", None, "c"]).dictionary_encode(),
                  pa.array(["x", "a", None, "c"]).slice(1), pa.array(["a", None, "c"], pa.string_view())):
        with pytest.raises(brim.BadData, match="row 1 is null"):
            clf.predict(array)
        assert [label is None for label in clf.predict(array, on_error="null").labels] == [False, True, False]
    assert clf.predict(pa.nulls(2), on_error="null").labels == [None, None]
    assert len(clf.predict(pa.array([], pa.int64()))) == 0 and len(clf.predict(pa.array([], pa.string()))) == 0


def test_pyarrow_bytes_that_are_not_utf8(clf):
    pa = pytest.importorskip("pyarrow")
    array = pa.array([b"good", b"bad \xff"]).view(pa.string())
    with pytest.raises(brim.BadData, match="row 1: .*UTF-8"):
        clf.predict(array)
    assert clf.predict(array, on_error="null").labels[1] is None


def test_columns_beyond_2_gib(vader):
    """64-bit offsets: a text behind 2 GiB of untouched memory (of null rows)."""
    pa = pytest.importorskip("pyarrow")
    data = np.zeros((1 << 31) + 64, np.uint8)
    data[:5], data[-5:] = np.frombuffer(b"great", np.uint8), np.frombuffer(b"awful", np.uint8)
    offsets = np.array([0, 5, len(data) - 5, len(data)], np.int64)
    column = pa.Array.from_buffers(pa.large_string(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(offsets), pa.py_buffer(data)], 1)
    for source in (column, pa.chunked_array([column, column])):
        assert vader.predict(source, on_error="null").labels[:3] == ["positive", None, "negative"]
        with pytest.raises(brim.BadData, match="row 1 is null"):
            vader.predict(source)


def test_pandas(clf, wanted):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"id": range(5), "text": TEXTS})
    assert same(clf, wanted, frame["text"]) and same(clf, wanted, frame) and same(clf, wanted, frame, column="text")
    assert same(clf, wanted, frame["text"].astype(object)) and same(clf, wanted, frame["text"].astype("category"))
    assert same(clf, wanted, frame["text"].astype("string[python]"))
    assert same(clf, wanted, pd.concat([frame, frame])["text"].iloc[5:])
    with pytest.raises(brim.BadData, match="row 1"):
        clf.predict(pd.Series(["a", None]))
    with pytest.raises(brim.UsageError, match="missing"):
        clf.predict(frame, column="missing")
    assert len(clf.predict(frame.iloc[:0])) == 0
    with pytest.raises(brim.UsageError):
        clf.predict(pd.DataFrame())
    back = clf.predict(frame).to_pandas()
    assert list(back.columns) == ["label", "score"] and back["label"].tolist() == clf.predict(TEXTS).labels


def test_to_pandas_keeps_the_index_of_the_input(vader):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"id": range(4), "text": ["great", "awful", "awful", "great"]}, index=[7, 3, 9, 1])
    chosen = frame[frame["id"] % 2 == 1].copy()
    for source in (chosen, chosen["text"]):
        chosen["label"] = vader.predict(source).to_pandas()["label"]
        assert chosen["label"].tolist() == ["negative", "positive"]
        assert vader.predict(source).to_pandas().index.tolist() == [3, 1]
    named = chosen.set_index(pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["x", "y"]))
    assert vader.predict(named).to_pandas().index.equals(named.index)
    assert vader.predict(["great", "awful"]).to_pandas().index.tolist() == [0, 1]
    repeated = pd.Series(["great", None], index=[5, 5])
    assert vader.predict(repeated, on_error="null").to_pandas().index.tolist() == [5, 5]


def test_columns_with_numbers_as_names(clf, wanted):
    pd = pytest.importorskip("pandas")
    assert same(clf, wanted, pd.DataFrame([[text] for text in TEXTS]))
    twice = pd.DataFrame([["a", "b"]], columns=["text", "text"])
    with pytest.raises(brim.UsageError, match="2 columns of this name"):
        clf.predict(twice)


def test_polars(clf, wanted):
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"id": range(5), "text": TEXTS})
    assert same(clf, wanted, frame["text"]) and same(clf, wanted, frame)
    assert same(clf, wanted, frame["text"].cast(pl.Categorical))
    assert len(clf.predict(frame.head(0))) == 0 and len(clf.predict(pl.Series([]))) == 0
    with pytest.raises(brim.UsageError, match="missing"):
        clf.predict(frame, column="missing")
    assert clf.predict(frame).to_polars()["label"].to_list() == clf.predict(TEXTS).labels


def test_datasets(clf, wanted):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"id": list(range(5)), "text": TEXTS})
    assert same(clf, wanted, data) and same(clf, wanted, data, column="text") and same(clf, wanted, data["text"])
    again = datasets.concatenate_datasets([data, data]).select(range(5, 10))
    assert same(clf, wanted, again)
    assert data.map(lambda rows: {"label": [a["label"] for a in clf(rows["text"])]}, batched=True)["label"][0] == "positive"


def test_to_arrow(clf):
    pa = pytest.importorskip("pyarrow")
    result = clf.predict(["I love this", None], on_error="null")
    table = result.to_arrow(all_scores=True)
    assert table["label"].to_pylist() == ["positive", None] and table["score"].null_count == 1
    assert table["all_scores"].type == pa.list_(pa.float32(), 3) and table["all_scores"].null_count == 1
    assert pa.table(result)["label"].to_pylist() == ["positive", None]
