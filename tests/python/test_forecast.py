# SPDX-License-Identifier: Apache-2.0
"""brim.forecast: forecasts with tables as input and output."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys

import brim
import numpy as np
import pytest
from brim import _program, _series
from conftest import SOURCE

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
    times = brim.forecast.predict(numpy, model="snaive", season=7, horizon=7)["ds"]
    assert times.dtype == np.dtype("datetime64[D]") and times.astype(str).tolist() == found["ds"]
    assert brim.forecast.evaluate(columns, series(63, 70), forecasts=found)["smape"] == 0
    levels = [list(brim.forecast.predict(columns, model="ets", horizon=2, held_out=20, level=level).columns)
              for level in ([80, 90], (80, 90), np.array([80, 90]), "80,90")]
    assert levels[0][-1].endswith("-hi-90") and all(one == levels[0] for one in levels)


def test_predict_from_pandas_and_files(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(series())
    frame["ds"] = pd.to_datetime(frame["ds"])
    frame.loc[3, "y"] = None
    found = brim.forecast.predict(frame, model="naive", horizon=2).to_pandas()
    assert found["Naive"].tolist() == [16.0, 16.0, 26.0, 26.0] and found["ds"].iloc[0] == pd.Timestamp("2024-03-04")
    frame.to_csv(tmp_path / "s.csv", index=False)
    again = brim.forecast.predict(tmp_path / "s.csv", model="naive", horizon=2).to_pandas()
    assert again["Naive"].tolist() == found["Naive"].tolist() and (again["ds"] == found["ds"]).all()


def typed(ids, times):
    """Two series of 30 points: each id with all times."""
    return {"unique_id": [one for one in ids for _ in times], "ds": list(times) * len(ids),
            "y": [float(i % 7 + 10 * k) for k in range(len(ids)) for i in range(len(times))]}


@pytest.mark.parametrize("ids, times", [
    ([7, 3], list(range(30))), (["b", "a"], DAYS[:30]), ([1.5, 2.5], [datetime.datetime(2024, 3, d + 1) for d in range(30)]),
])
def test_ids_and_times_keep_their_types(ids, times):
    found = brim.forecast.predict(typed(ids, times), model="naive", horizon=2)
    assert found["unique_id"] == [ids[0]] * 2 + [ids[1]] * 2 and type(found["unique_id"][0]) is type(ids[0])
    step = times[1] - times[0]
    assert found["ds"][:2] == [times[-1] + step, times[-1] + 2 * step] and type(found["ds"][0]) is type(times[0])


@pytest.mark.parametrize("zone, freq", [("Europe/Berlin", "D"), ("Europe/Berlin", "h"), ("UTC", "15min"), (None, "MS")])
def test_time_zones_of_pandas(zone, freq):
    pd = pytest.importorskip("pandas")
    times = pd.date_range("2024-03-10", periods=40, freq=freq, tz=zone)  # Berlin changes to summer time on March 31
    frame = pd.DataFrame(typed(["a", "b"], times))
    frame["unique_id"] = frame["unique_id"].astype("category")
    known, later = frame[frame["ds"] < times[37]], frame[frame["ds"] >= times[37]]
    found = brim.forecast.predict(known, model="naive", horizon=3).to_pandas()
    assert found.dtypes["ds"] == frame.dtypes["ds"] and found.dtypes["unique_id"] == frame.dtypes["unique_id"]
    assert len(later.merge(found, on=["unique_id", "ds"])) == 6


def test_tables_of_polars():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(typed(["a", "b"], [datetime.datetime(2024, 3, d + 1) for d in range(30)]))
    for table in (frame, frame.lazy()):
        found = brim.forecast.predict(table, model="naive", horizon=1).to_polars()
        assert found.schema["ds"].is_temporal() and found["unique_id"].to_list() == ["a", "b"]


def test_rows_are_sorted_and_extra_columns_named():
    rows = typed([2, 1], DAYS[:30])
    wanted = brim.forecast.predict(rows, model="naive", horizon=2)
    order = np.random.default_rng(0).permutation(60)
    shuffled = {name: [values[i] for i in order] for name, values in rows.items()}
    with pytest.warns(UserWarning, match="price"):
        found = brim.forecast.predict({**shuffled, "price": [1.0] * 60}, model="naive", horizon=2)
    by_row = lambda f: sorted(zip(f["unique_id"], f["ds"], f["Naive"].tolist()))
    assert by_row(found) == by_row(wanted)
    with pytest.raises(brim.BadData, match="equal as texts"):
        brim.forecast.predict(typed([1, "1"], DAYS[:30]), model="naive", horizon=2)


def test_nbeats(tmp_path):
    pd = pytest.importorskip("pandas")
    small = {"max_steps": 20, "n_blocks": 1, "mlp_units": 8, "device": "cpu", "threads": 1}
    frame = pd.DataFrame(typed(["a", "b"], pd.date_range("2024-01-01", periods=80, tz="Asia/Tokyo")))
    model = brim.forecast.NBEATS(h=3, input_size=6, **small).fit(frame)
    found = model.predict(level=[80])
    assert list(found.columns) == ["unique_id", "ds", "NBEATS", "NBEATS-lo-80", "NBEATS-hi-80"] and len(found) == 6
    assert found.dtypes["ds"] == frame.dtypes["ds"] and (found["NBEATS-lo-80"] <= found["NBEATS-hi-80"]).all()
    windows = brim.forecast.NBEATS(h=2, input_size=4, output_dir=tmp_path / "out", **small).cross_validation(frame, n_windows=3)
    assert set(windows.columns) == {"unique_id", "ds", "cutoff", "y", "NBEATS"} and len(windows) == 12
    assert windows.dtypes["cutoff"] == frame.dtypes["ds"] and windows["cutoff"].nunique() == 3
    merged = windows.merge(frame, on=["unique_id", "ds"])
    assert len(merged) == 12 and np.allclose(merged["y_x"], merged["y_y"])
    with pytest.raises(brim.UsageError, match="not fitted"):
        brim.forecast.NBEATS(h=3).predict()


def test_covariates_of_tables(tmp_path):
    """Columns reach the program by the settings of the training, and by the model afterwards."""
    pd = pytest.importorskip("pandas")
    promotion = np.random.default_rng(5).integers(0, 2, 160)
    frame = pd.DataFrame(typed(["a", "b"], pd.date_range("2024-01-01", periods=80)))
    frame["promotion"], frame["visits"], frame["note"] = promotion, np.arange(160) % 9, "x"
    frame["y"] += 5 * promotion
    known, ahead = frame[frame["ds"] < "2024-03-15"], frame[frame["ds"] >= "2024-03-15"].drop(columns="y")
    model = brim.forecast.NBEATS(h=6, input_size=12, futr_exog_list=["promotion"], hist_exog_list=["visits"], max_steps=20,
                                 n_blocks=1, mlp_units=8, losses="mae", device="cpu", threads=1, output_dir=tmp_path)
    with pytest.warns(UserWarning, match="forecasts: note$"):
        model.fit(known)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert [column["name"] for column in config["covariates"]["columns"]] == ["promotion", "visits"]
    with pytest.warns(UserWarning, match="note"):
        found = model.predict(futr_df=ahead.iloc[::-1])
    assert len(found) == 12 and found["ds"].iloc[0] == pd.Timestamp("2024-03-15")
    rows = pd.concat([known, ahead]).sort_values(["unique_id", "ds"])
    with pytest.warns(UserWarning, match="note"):
        assert model.predict(rows).equals(found)
    with pytest.warns(UserWarning, match="note"):
        assert not model.predict(futr_df=ahead.assign(promotion=1 - ahead["promotion"])).equals(found)
    with pytest.warns(UserWarning, match="note"), pytest.raises(brim.BadData, match="promotion has no value"):
        model.predict()


SMALL = {"h": 3, "input_size": 6, "max_steps": 20, "n_blocks": 1, "mlp_units": 8, "losses": "mae", "device": "cpu", "threads": 1}


def test_future_tables_have_only_future_columns(recwarn):
    """The target of futr_df is ignored. Without ids, all tables are the same series."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"ds": pd.date_range("2024-01-01", periods=60), "y": [float(i % 7) for i in range(60)],
                          "promotion": [float(i % 3) for i in range(60)], "visits": np.arange(60) % 9})
    known, ahead = frame[:57], frame[57:]
    model = brim.forecast.NBEATS(**SMALL, futr_exog_list=["promotion"], hist_exog_list=["visits"]).fit(known)
    found = model.predict(futr_df=ahead[["ds", "promotion"]])
    assert len(found) == 3 and found["ds"].iloc[0] == ahead["ds"].iloc[0]
    assert model.predict(futr_df=ahead).equals(found)
    actual = brim.forecast.evaluate(known, ahead[["ds", "y", "promotion"]], model=model._model, device="cpu")
    assert actual["series"] == 1 and actual["points"] == 3
    known, ahead = known[["ds", "y"]], ahead[["ds", "y"]]
    assert brim.forecast.evaluate(known, ahead, forecasts=found)["smape"] == pytest.approx(actual["smape"])
    assert not recwarn.list
    with pytest.warns(UserWarning, match="futr_df has no effect"):
        naive = brim.forecast.predict(known, model="naive", horizon=3, futr_df=ahead)
    assert naive["ds"][0] == ahead["ds"].iloc[0]


def test_tables_without_ids_are_the_series_of_a_file(tmp_path):
    known = {"ds": list(range(20)), "y": [float(i) for i in range(20)]}
    (tmp_path / "shop.csv").write_text("ds,y\n" + "".join(f"{ds},{y}\n" for ds, y in zip(*known.values())))
    later = {"ds": [20, 21], "y": [19.0, 19.0]}
    for data in (known, tmp_path / "shop.csv"):
        assert brim.forecast.evaluate(data, later, model="naive")["smape"] == 0


@pytest.mark.parametrize("freq", ["h", "D"])
def test_tables_of_a_call_share_one_time_zone(freq):
    pd = pytest.importorskip("pandas")
    times = pd.date_range("2024-03-01", periods=60, freq=freq, tz="Europe/Berlin")
    frame = pd.DataFrame({"unique_id": "a", "ds": times, "y": np.arange(60.0)})
    known, later = frame[:59], frame[59:]  # the one row of `later` has one time of day at any frequency
    found = brim.forecast.predict(known, model="naive", horizon=1)
    assert found["ds"] == [times[59]]
    in_utc = later.assign(ds=later["ds"].dt.tz_convert("UTC"))
    for actual in (later, in_utc):
        for given in ({"model": "naive"}, {"forecasts": found}, {"forecasts": found.to_pandas()}):
            scores = brim.forecast.evaluate(known, actual, **given)
            assert scores["horizon"] == 1 and scores["mae"] == 1
    naive = later.assign(ds=later["ds"].dt.tz_localize(None))
    if freq == "D":
        assert brim.forecast.evaluate(known, naive, model="naive")["horizon"] == 1
        return
    for data, actual in ((known, naive), (known.assign(ds=known["ds"].dt.tz_localize(None)), in_utc)):
        with pytest.raises(brim.BadData, match="times of .* have a time zone, those of .* have none"):
            brim.forecast.evaluate(data, actual, model="naive")


def test_categories_are_the_same_as_integers_and_floats():
    """pandas converts integers to floats if values are missing."""
    assert [_series._category(value, set()) for value in (1, 1.0, 0.5, True, None, float("nan"), "x")] == ["1", "1", "0.5", "True", "", "", "x"]
    assert [_series._category(value, {"1.0"}) for value in (1, 1.0)] == ["1.0", "1.0"]
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(typed(["a", "b"], pd.date_range("2024-01-01", periods=50)))
    frame["promotion"], frame["store"] = np.arange(100) % 3, [1] * 50 + [2] * 50
    frame["y"] += 50 * frame["store"]
    known, ahead = frame[frame["ds"] < "2024-02-17"], frame[frame["ds"] >= "2024-02-17"][["unique_id", "ds", "promotion"]]
    model = brim.forecast.NBEATS(**SMALL, futr_exog_list=["promotion"], stat_exog_list=["store"], categorical=["store"]).fit(known)
    rows = pd.concat([known, ahead]).sort_values(["unique_id", "ds"])
    assert rows["store"].dtype == float
    assert model.predict(rows).equals(model.predict(futr_df=ahead))
    assert not model.predict(rows.assign(store=3.0)).equals(model.predict(rows))


def test_predict_uses_the_device_settings_of_the_model(monkeypatch):
    settings = {"device": "cpu", "precision": "fp32", "memory_limit": "1GiB", "leave_free": "0", "threads": 1, "freq": "D", "max_steps": 5}
    model = brim.forecast.NBEATS(h=2, **settings)
    model._model, model._data = "model", series()
    given = {}
    monkeypatch.setattr(brim.forecast, "predict", lambda data, **rest: given.update(rest))
    model.predict()
    settings.pop("max_steps")  # only for training
    assert {name: given.get(name) for name in settings} == settings and "max_steps" not in given


def test_an_index_of_pandas_is_read():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(series())
    frame["ds"] = pd.to_datetime(frame["ds"])
    found = brim.forecast.predict(frame, model="snaive", season=7, horizon=7)
    for indexed in (frame.set_index("ds"), frame.set_index("unique_id"), frame.set_index(["unique_id", "ds"]), frame.set_index("ds", drop=False),
                    frame.set_index("ds").rename_axis(None), frame.set_index(["unique_id", "ds"]).rename_axis(["unique_id", None])):
        before = indexed.copy()
        again = brim.forecast.predict(indexed, model="snaive", season=7, horizon=7)
        assert again["unique_id"] == found["unique_id"] and list(again["ds"]) == list(found["ds"])
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
    assert len(found) == 10 and np.isfinite(found["Auto"]).all()
    assert brim.forecast.evaluate(series(), series(63, 68), model=model)["horizon"] == 5
    rolled = brim.forecast.roll(series(), horizon=2, folds=3, output_dir=tmp_path / "rolled", **small)
    assert len(rolled) == 12 and {"cutoff", "y", "NBEATS"} <= set(rolled.columns)
    assert (tmp_path / "rolled" / "report.html").exists()


def test_false_overrides_a_preset(tmp_path):
    small = {"preset": "interpretable", "lookbacks": 3, "max_steps": 2, "mlp_units": 8, "device": "cpu", "threads": 1}
    for given, wanted in ((None, True), (False, False), (True, True)):
        model = brim.forecast.train(series(), horizon=5, output_dir=tmp_path / str(given), shared_weights=given, **small)
        config = json.loads((tmp_path / str(given) / "config.json").read_text())
        assert {stack["shared"] for lane in config["lanes"] for stack in lane["stacks"]} == {wanted}
        assert len(brim.forecast.predict(series(), model=model, components=False).columns) == 3


def test_same_forecasts_as_the_program(tmp_path):
    """Forecasts, backtests, evaluations and trained models are those of `brim forecast`."""
    def run(*words):
        done = subprocess.run([_program.path(), "forecast", *map(str, words), "-q"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def write(name, columns):
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values()))]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return tmp_path / name

    known, later = write("known.csv", series()), write("later.csv", series(63, 68))
    small = {"lookbacks": 3, "max_steps": 5, "n_blocks": 1, "mlp_units": 8, "device": "cpu", "threads": 1}
    flags = [word for name, value in small.items() for word in (f"--{name.replace('_', '-')}", value)]
    model = brim.forecast.train(known, horizon=5, output_dir=tmp_path / "ours", **small)
    run("train", "--data", known, "--horizon", 5, "--output", tmp_path / "theirs", *flags)
    assert (tmp_path / "ours" / "model.safetensors").read_bytes() == (tmp_path / "theirs" / "model.safetensors").read_bytes()
    rows = [line.split(",") for line in run("predict", "--data", known, "--model", model, "--level", 80).splitlines()]
    found = brim.forecast.predict(known, model=model, level=80)
    assert list(found.columns) == rows[0] and found["ds"] == [row[1] for row in rows[1:]]
    for i, name in enumerate(rows[0][2:], 2):
        assert np.allclose(found[name], [float(row[i]) for row in rows[1:]], rtol=1e-5)
    assert brim.forecast.evaluate(known, later, model="ets") == json.loads(
        run("eval", "--data", known, "--actual", later, "--model", "ets", "--json"))
    rolled = brim.forecast.roll(known, horizon=2, folds=2, output_dir=tmp_path / "rolled", **small)
    run("roll", "--data", known, "--horizon", 2, "--folds", 2, "--output", tmp_path / "again", *flags)
    ours, theirs = ((tmp_path / name / "forecasts.csv").read_text() for name in ("rolled", "again"))
    assert ours == theirs and len(rolled) == ours.count("\n") - 1


def test_settings_of_other_functions_are_refused(tmp_path):
    for call in (lambda: brim.forecast.predict(series(), horizon=1, max_steps=5),
                 lambda: brim.forecast.evaluate(series(), series(63, 70), model="naive", horizon=3),
                 lambda: brim.forecast.train(series(), horizon=1, output_dir=tmp_path / "m", folds=2)):
        with pytest.raises(brim.UsageError, match="not a setting") as caught:
            call()
        assert caught.value.remedy
    for call, problem, remedy in ((lambda: brim.forecast.train(series(), horizon=1, output_dir=tmp_path / "m", preset="fats"),
                                   'preset="fats" is invalid', "fast"),
                                  (lambda: brim.forecast.train(series(), horizon=1, output_dir=tmp_path / "m", model="ets"),
                                   'model="ets"', 'brim.forecast.predict(model="ets")')):
        with pytest.raises(brim.UsageError) as caught:
            call()
        assert problem in caught.value.problem and remedy in caught.value.remedy


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


def test_interrupt_stops_a_training(tmp_path):
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


def test_lone_surrogates_of_a_table():
    for wrong in ({**series(), "unique_id": ["a\ud83d"] * 126}, {**series(), "pri\ud83dce": [1.0] * 126}):
        with pytest.raises(brim.UsageError, match="UTF-8") as caught:
            brim.forecast.predict(wrong, model="naive", horizon=1, past_columns=[name for name in wrong if "pri" in name])
        assert caught.value.remedy


@pytest.mark.parametrize("command, function", [("train", brim.forecast.train), ("predict", brim.forecast.predict),
                                               ("roll", brim.forecast.roll), ("eval", brim.forecast.evaluate)])
def test_docstrings_list_all_settings(command, function):
    reference = (SOURCE / "docs" / "reference" / "flags.md").read_text(encoding="utf-8")
    part = reference.split(f"\n## brim forecast {command}\n")[1].split("\n## ")[0]
    flags = [name.replace("-", "_") for name in re.findall(r"^\| `(?:-\w, )?--([a-z-]+)", part, re.M)]
    other = {"config", "quiet", "trace", "json", "output", "forecast"}
    missing = [name for name in flags if name not in other and not re.search(rf"\b{name}\b", function.__doc__)]
    assert len(flags) > 20 and not missing
