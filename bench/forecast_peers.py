#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Brim's ETS and Theta with statsforecast's AutoETS and AutoTheta; prints one line per data set and model.

  forecast_peers.py --brim PROGRAM --data DIR [--jobs 2] [--sets m3/m3_yearly,...] [--models ets,theta]

DIR holds the M3 and Tourism series: m3/m3_{yearly,quarterly,other}_{train,test}.csv, tourism/tourism_{yearly,quarterly}_{train,test}.csv.
Errors of both are computed by `brim forecast eval`. Times: of Brim the whole process of `brim forecast predict`, of statsforecast the call
of `forecast` on series in memory, after a call on ten series that compiles and starts the workers. Requires statsforecast.
"""
import argparse
import csv
import json
import os
import subprocess
import tempfile
import time

SETS = {  # horizon, season
    "m3/m3_yearly": (6, 1),
    "m3/m3_quarterly": (8, 4),
    "m3/m3_other": (8, 1),
    "tourism/tourism_yearly": (4, 1),
    "tourism/tourism_quarterly": (8, 4),
}
parser = argparse.ArgumentParser()
parser.add_argument("--brim", required=True)
parser.add_argument("--data", required=True)
parser.add_argument("--jobs", type=int, default=2)
parser.add_argument("--sets", default=",".join(SETS))
parser.add_argument("--models", default="ets,theta")
a = parser.parse_args()
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from statsforecast import StatsForecast  # noqa: E402
from statsforecast.models import AutoETS, AutoTheta  # noqa: E402


def series_of(path):
    """All series of a wide file as a long table with numbered points."""
    frames = []
    for name, *cells in list(csv.reader(open(path)))[1:]:
        values = [float(cell) for cell in cells if cell]
        frames.append(pd.DataFrame({"unique_id": name, "ds": np.arange(1, len(values) + 1), "y": values}))
    return pd.concat(frames, ignore_index=True)


def brim(*args):
    begin = time.perf_counter()
    done = subprocess.run([a.brim, "forecast", *map(str, args)], capture_output=True, text=True, check=True)
    return done.stdout, time.perf_counter() - begin


def scores(name, season, *what):
    files = ["--data", f"{a.data}/{name}_train.csv", "--actual", f"{a.data}/{name}_test.csv", "--season", season]
    return json.loads(brim("eval", *files, *what, "--baselines", "naive", "--json")[0])


def peer(model, table, horizon, season, path):
    """Writes the forecasts of statsforecast and returns its time."""
    models = [AutoETS(season_length=season) if model == "ets" else AutoTheta(season_length=season)]
    ten = table[table.unique_id.isin(table.unique_id.unique()[:10])]
    StatsForecast(models=models, freq=1, n_jobs=a.jobs).forecast(df=ten, h=horizon)
    begin = time.perf_counter()
    out = StatsForecast(models=models, freq=1, n_jobs=a.jobs).forecast(df=table, h=horizon)
    seconds = time.perf_counter() - begin
    out.to_csv(path, index=False)
    return seconds


with tempfile.TemporaryDirectory() as work:
    for name in a.sets.split(","):
        horizon, season = SETS[name]
        table = series_of(f"{a.data}/{name}_train.csv")
        for model in a.models.split(","):
            theirs = peer(model, table, horizon, season, f"{work}/peer.csv")
            _, ours = brim("predict", "--data", f"{a.data}/{name}_train.csv", "--model", model, "--horizon", horizon,
                           "--season", season, "--threads", a.jobs, "-q", "-o", f"{work}/brim.csv")
            own, other = scores(name, season, "--model", model), scores(name, season, "--forecast", f"{work}/peer.csv")
            row = {"set": name, "series": table.unique_id.nunique(), "model": model}
            for key in ("smape", "mase", "mape"):
                row[key] = [round(own[key], 4), round(other[key], 4)]
            row |= {"seconds": [round(ours, 3), round(theirs, 3)], "speedup": round(theirs / ours, 2)}
            print(json.dumps(row), flush=True)
