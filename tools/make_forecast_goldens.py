#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/forecast/: synthetic series in M4's format, with forecasts of naive, snaive and Naive2, sMAPE and MASE,
computed with numpy only: R's decompose as two convolutions, its acf as np.correlate. Also the Diebold-Mariano test on
synthetic differences, with the p-value by integrating Student's density.

    python tools/make_forecast_goldens.py
"""
import math
import pathlib

import numpy as np

TARGET = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "forecast"
HORIZON, SEASON = 8, 4


def made_up():
    rng = np.random.default_rng(7)
    t = np.arange(200)
    wave = 1 + 0.3 * np.sin(2 * np.pi * t / SEASON + 0.4)
    yield "seasonal", (50 + 0.5 * t[:60]) * wave[:60] + rng.normal(0, 1, 60)
    yield "seasonal_odd_end", (400 - t[:47]) * wave[:47] + rng.normal(0, 3, 47)
    yield "walk", 100 + np.cumsum(rng.normal(0, 1, 90))
    yield "noise", 20 + rng.normal(0, 2, 70)
    yield "short", np.array([3.0, 5.0, 4.0, 6.0, 5.5, 7.0, 6.5, 8.0, 9.0, 10.0, 8.5, 9.5, 11.0, 10.0])
    yield "growing", np.exp(0.03 * t[:80]) * wave[:80] * 10


def is_seasonal(x, m):
    n = len(x)
    if n < 3 * m or m > int(10 * math.log10(n)):
        return False
    centred = x - x.mean()
    acf = np.correlate(centred, centred, "full")[n - 1:] / (centred @ centred)
    return abs(acf[m]) > 1.645 / math.sqrt(n) * math.sqrt(1 + 2 * np.sum(acf[1:m] ** 2))


def indices(x, m):
    kernel = np.r_[0.5, np.ones(m - 1), 0.5] / m if m % 2 == 0 else np.ones(m) / m
    trend = np.convolve(x, kernel, "valid")
    half = len(kernel) // 2
    ratio = np.full(len(x), np.nan)
    ratio[half:half + len(trend)] = x[half:half + len(trend)] / trend
    figure = np.array([np.nanmean(ratio[i::m]) for i in range(m)])
    return figure / figure.mean()


def forecasts(x, m, horizon):
    season = np.ones(m)
    if is_seasonal(x, m):
        season = indices(x, m)
    steps = np.arange(len(x), len(x) + horizon) % m
    return {"naive": np.full(horizon, x[-1]), "snaive": np.resize(x[-m:], horizon),
            "naive2": x[-1] / season[(len(x) - 1) % m] * season[steps]}


def smape(f, y):
    return np.mean(200 * np.abs(f - y) / (np.abs(f) + np.abs(y)))


def student_two_sided(t, df):
    """Twice the tail of the density, by Simpson's rule over u in x = |t| + u / (1 - u)."""
    log_c = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    u = np.linspace(0, 1, 200001)[:-1]
    x = abs(t) + u / (1 - u)
    density = np.exp(log_c - (df + 1) / 2 * np.log1p(x * x / df)) / (1 - u) ** 2
    density = np.r_[density, 0.0 if df > 1 else density[-1]]
    weights = np.ones(200001)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return 2 * float(weights @ density) / 3 / 200000


def diebold_mariano(d, lags):
    n, centred = len(d), d - d.mean()
    cov = [centred[k:] @ centred[:n - k] / n for k in range(lags + 1)]
    spread = cov[0] + 2 * sum(cov[1:])
    h = lags + 1
    s = d.mean() / math.sqrt(spread / n) * math.sqrt((n + 1 - 2 * h + h * (h - 1) / n) / n)
    return s, student_two_sided(s, n - 1)


def main():
    TARGET.mkdir(parents=True, exist_ok=True)
    train, test, golden = [], [], []
    longest = max(len(x) for _, x in made_up()) - HORIZON
    for name, x in made_up():
        x = np.float32(np.round(x, 3)).astype(np.float64)
        history, actual = x[:-HORIZON], x[-HORIZON:]
        written = [f"{np.float32(v)}" for v in history]
        train.append(",".join([name, *written, *[""] * (longest - len(history))]))
        test.append(",".join([name, *[f"{np.float32(v)}" for v in actual]]))
        scale = np.mean(np.abs(history[SEASON:] - history[:-SEASON]))
        for model, f in forecasts(history, SEASON, HORIZON).items():
            figures = [smape(f, actual), np.mean(np.abs(f - actual)) / scale, *f]
            golden.append(",".join([name, model, *[f"{v:.12g}" for v in figures]]))
    (TARGET / "train.csv").write_text("\n".join([",".join(["id", *[f"V{i + 1}" for i in range(longest)]]), *train, ""]))
    (TARGET / "test.csv").write_text("\n".join([",".join(["id", *[f"V{i + 1}" for i in range(HORIZON)]]), *test, ""]))
    (TARGET / "baselines.csv").write_text("\n".join(["id,model,smape,mase," + ",".join(f"f{i + 1}" for i in range(HORIZON)), *golden, ""]))
    rng = np.random.default_rng(3)
    lines = ["lags,statistic,p_value,differences"]
    for n, lags, shift in ((10, 0, 0.5), (40, 4, -0.3), (250, 0, 0.02), (25, 1, 0.0)):
        noise = np.convolve(rng.normal(0, 1, n + lags), np.ones(lags + 1) / (lags + 1), "valid")
        d = np.round(noise + shift, 6)
        s, p = diebold_mariano(d, lags)
        lines.append(f"{lags},{s:.12g},{p:.12g}," + " ".join(f"{v:.6f}" for v in d))
    (TARGET / "diebold_mariano.csv").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
