#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/forecast/smoothing.csv: synthetic series with forecasts of statsforecast's AutoETS and AutoTheta.
Needs statsforecast.

    python tools/make_smoothing_goldens.py
"""
import pathlib

import numpy as np
from statsforecast.models import AutoETS, AutoTheta

TARGET = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "forecast" / "smoothing.csv"
HORIZON = 8


def made_up():
    """Names, seasons and values of series with and without trend, season, noise and negative values."""
    rng = np.random.default_rng(11)
    t = np.arange(160)
    for season, length in ((1, 24), (1, 60), (4, 40), (4, 64), (12, 72), (12, 120)):
        wave = np.sin(2 * np.pi * t / season + 0.3) if season > 1 else np.zeros(len(t))
        for kind in range(4):
            noise = rng.normal(0, 1, length)
            x = t[:length]
            if kind == 0:
                y = 100 + 0.8 * x + 8 * wave[:length] + 2 * noise
            elif kind == 1:
                y = np.exp(4 + 0.01 * x + 0.15 * wave[:length] + 0.04 * noise)
            elif kind == 2:
                y = 200 + 3 * np.cumsum(noise) + 10 * wave[:length]
            else:
                y = 5 + 6 * wave[:length] + 2 * noise - 0.1 * x
            yield f"s{season}_n{length}_{kind}", season, y


def main():
    lines = ["id,season,points,values,ets,theta"]
    for name, season, values in made_up():
        values = np.float32(np.round(values, 3)).astype(np.float64)
        known = values[:-HORIZON]
        row = [name, str(season), str(len(known)), *[f"{v:.9g}" for v in values]]
        for model in (AutoETS(season_length=season), AutoTheta(season_length=season)):
            row += [f"{v:.9g}" for v in model.forecast(y=known, h=HORIZON)["mean"]]
        lines.append(",".join(row))
    TARGET.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
