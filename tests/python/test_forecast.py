# SPDX-License-Identifier: Apache-2.0
"""brim.forecast: forecasts of the program with tables as input and output."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys

import brim
import numpy as np
import pytest
from brim import _program

DAYS = [datetime.date(2024, 1, 1) + datetime.timedelta(days=i) for i in range(70)]


def series(first=0, last=63):
    days = DAYS[first:last]
    return {"unique_id": ["a"] * len(days) + ["b"] * len(days), "ds": [str(d) for d in days] * 2,
            "y": [float(i % 7 + k) for k in (10, 20) for i in range(first, last)]}


def test_predict_from_tables():
    found = brim.forecast.predict(series(), model="snaive", season=7, horizon=7)
    assert list(found.columns) == ["unique_id", "ds", "SeasonalNaive"] and len(found) == 14
    assert found["ds"][:2] == ["2024-03-04", "2024-03-05"] and found["unique_id"][7] == "b"
    assert found["SeasonalNaive"].tolist() == series(63, 70)["y"]
    columns = series()
    numpy = {**columns, "ds": np.array(columns["ds"], "datetime64[D]"), "y": np.array(columns["y"])}
    assert brim.forecast.predict(numpy, model="snaive", season=7, horizon=7).columns["ds"] == found["ds"]
    assert brim.forecast.evaluate(columns, series(63, 70), forecasts=found)["smape"] == 0


def test_predict_from_pandas_and_files(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(series())
    frame["ds"] = pd.to_datetime(frame["ds"])
    frame.loc[3, "y"] = None
    found = brim.forecast.predict(frame, model="naive", horizon=2).to_pandas()
    assert found["Naive"].tolist() == [16.0, 16.0, 26.0, 26.0] and found["ds"].iloc[0] == pd.Timestamp("2024-03-04")
    frame.to_csv(tmp_path / "s.csv", index=False)
    assert brim.forecast.predict(tmp_path / "s.csv", model="naive", horizon=2).to_pandas().equals(found)


def test_an_index_of_pandas_is_read():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(series())
    frame["ds"] = pd.to_datetime(frame["ds"])
    found = brim.forecast.predict(frame, model="snaive", season=7, horizon=7)
    for indexed in (frame.set_index("ds"), frame.set_index("unique_id"), frame.set_index(["unique_id", "ds"]), frame.set_index("ds", drop=False),
                    frame.set_index("ds").rename_axis(None), frame.set_index(["unique_id", "ds"]).rename_axis(["unique_id", None])):
        before = indexed.copy()
        again = brim.forecast.predict(indexed, model="snaive", season=7, horizon=7)
        assert again["unique_id"] == found["unique_id"] and again["ds"] == found["ds"]
        assert again["SeasonalNaive"].tolist() == found["SeasonalNaive"].tolist()
        assert indexed.equals(before) and indexed.index.names == before.index.names


def test_columns_with_numeric_names():
    columns = series()
    wide = {"ds": columns["ds"][:63], 0: columns["y"][:63], 1: columns["y"][63:]}
    found = brim.forecast.predict(wide, model="snaive", season=7, horizon=7)
    assert found["unique_id"] == ["0"] * 7 + ["1"] * 7 and found["SeasonalNaive"].tolist() == series(63, 70)["y"]
    pd = pytest.importorskip("pandas")
    assert brim.forecast.predict(pd.DataFrame(wide), model="snaive", season=7, horizon=7).columns["ds"] == found["ds"]


def test_train_and_roll(tmp_path):
    small = {"lookbacks": 3, "max_steps": 20, "n_blocks": 1, "mlp_units": 8, "device": "cpu", "threads": 1}
    model = brim.forecast.train(series(), horizon=5, output_dir=tmp_path / "model", **small)
    found = brim.forecast.predict(series(), model=model)
    assert len(found) == 10 and np.isfinite(found["NBEATS"]).all()
    assert brim.forecast.evaluate(series(), series(63, 68), model=model)["horizon"] == 5
    rolled = brim.forecast.roll(series(), horizon=2, folds=3, output_dir=tmp_path / "rolled", **small)
    assert len(rolled) == 12 and {"cutoff", "y", "NBEATS"} <= set(rolled.columns)
    assert (tmp_path / "rolled" / "report.html").exists()


def test_false_overrides_a_preset(tmp_path):
    small = {"preset": "interpretable", "lookbacks": 3, "max_steps": 2, "mlp_units": 8, "device": "cpu", "threads": 1}
    for given, wanted in ((None, True), (False, False), (True, True)):
        model = brim.forecast.train(series(), horizon=5, output_dir=tmp_path / str(given), shared_weights=given, trace=False, **small)
        config = json.loads((tmp_path / str(given) / "config.json").read_text())
        assert {stack["shared"] for lane in config["lanes"] for stack in lane["stacks"]} == {wanted}
        assert len(brim.forecast.predict(series(), model=model, components=False).columns) == 3


def test_knows_every_switch_of_the_program():
    """Flags that the help shows without a value, except for bare ones."""
    help_text = "".join(_program.run(["forecast", verb, "--help-all"])[0] for verb in ("train", "roll", "predict", "eval"))
    switches = {name.replace("-", "_") for name in re.findall(r"^  (?:-\w, )?--([a-z-]+)(?:  |$)", help_text, re.M)}
    assert switches - {"help", "help_all", "json", "quiet"} == set(brim.forecast._SWITCHES)


def test_rejects_invalid_arguments(tmp_path):
    for call, kind in ((lambda: brim.forecast.predict(7, horizon=1), brim.UsageError),
                       (lambda: brim.forecast.predict("no.csv", horizon=1), brim.UsageError),
                       (lambda: brim.forecast.predict({"a": ["x"], "b": ["z"]}, horizon=1), brim.BadData),
                       (lambda: brim.forecast.predict(series(), horizon=1, colour="red"), brim.UsageError),
                       (lambda: brim.forecast.predict(series(), model=tmp_path), (brim.BadModel, brim.UsageError)),
                       (lambda: brim.forecast.evaluate(series(), series()), brim.UsageError)):
        with pytest.raises(kind):
            call()
    for call, remedy in ((lambda: brim.forecast.predict(series(), horizon=1, output="f.csv"), "to_csv"),
                         (lambda: brim.forecast.train(series(), horizon=1, output_dir=tmp_path / "a", output="b"), "output_dir="),
                         (lambda: brim.forecast.roll(series(), horizon=1, folds=2, output_dir=tmp_path / "a", output="b"), "output_dir=")):
        with pytest.raises(brim.UsageError, match="output=") as caught:
            call()
        assert remedy in caught.value.remedy


def test_interrupt_reaches_the_program(tmp_path):
    code = """
import os, signal, sys, threading, time, brim
def stop():
    while not os.path.isdir(os.path.join(sys.argv[1], "state")):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=stop, daemon=True).start()
rows = {"unique_id": ["a"] * 200, "ds": list(range(200)), "y": [float(i % 9) for i in range(200)]}
try:
    brim.forecast.train(rows, horizon=5, output_dir=sys.argv[1], max_steps=100000, device="cpu", threads=1)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m"], capture_output=True, text=True)
    assert done.stdout == "interrupted\n", done
    assert not (tmp_path / "m" / "model.safetensors").exists()
