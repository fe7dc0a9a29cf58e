#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures `brim forecast train` with data, horizon and frequency only; prints one line per data set and forecast.

  forecast_defaults.py --brim PROGRAM --data DIR [--sets m3/m3_yearly,...] [--held-back K] [--device cpu] [FLAGS OF TRAIN...]

DIR holds the M3, Tourism and M4 series (see forecast_peers.py). By default, forecasts are measured on the test files. With --held-back K,
K >= 1, they are measured on the K-th last horizon of the training files, which is removed first: use this to compare settings.
"N-BEATS" is the same training without the models it is combined with. Times include all trials; `cpu` is the processor time of both cores.
"""
import argparse
import csv
import json
import os
import resource
import subprocess
import tempfile
import time

SETS = {  # horizon, frequency, season
    "m3/m3_yearly": (6, "Y", 1),
    "m3/m3_quarterly": (8, "Q", 4),
    "m3/m3_other": (8, "index", 1),
    "tourism/tourism_yearly": (4, "Y", 1),
    "tourism/tourism_quarterly": (8, "Q", 4),
    "m4_hourly": (48, "H", 24),
    "m4_weekly": (13, "W", 1),
}
parser = argparse.ArgumentParser()
parser.add_argument("--brim", required=True)
parser.add_argument("--data", required=True)
parser.add_argument("--sets", default=",".join(list(SETS)[:5]))
parser.add_argument("--held-back", type=int, default=0)
parser.add_argument("--device", default="cpu")
a, flags = parser.parse_known_args()


def brim(*args):
    done = subprocess.run([a.brim, "forecast", *map(str, args), "--device", a.device], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, args))}: {done.stderr}")
    return done


def files_of(name, work):
    """Training and test file, or the training file split before its `held_back`-th last horizon."""
    train = f"{a.data}/{name}_train.csv"
    if a.held_back == 0:
        return train, f"{a.data}/{name}_test.csv"
    horizon, _, season = SETS[name]
    known, later = f"{work}/known.csv", f"{work}/later.csv"
    with open(train, newline="") as f, open(known, "w", newline="") as k, open(later, "w", newline="") as l:
        rows, k, l = csv.reader(f), csv.writer(k), csv.writer(l)
        header = next(rows)
        k.writerow(header)
        l.writerow(header[: horizon + 1])
        for row in rows:
            while row and not row[-1]:
                row.pop()
            row = row[: len(row) - (a.held_back - 1) * horizon]
            if len(row) - 1 - horizon >= max(4, season + 2):
                k.writerow(row[:-horizon])
                l.writerow([row[0], *row[-horizon:]])
    return known, later


def measure(name, work):
    horizon, frequency, season = SETS[name]
    known, later = files_of(name, work)
    out = f"{work}/model"
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    log = brim("train", "--data", known, "--horizon", horizon, "--freq", frequency, "-o", out, *flags).stderr
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print("\n".join(x for x in log.splitlines() if x.startswith(("history:", "lookbacks:", "held out:", "steps:", "forecasts:"))))
    path = f"{out}/config.json"
    config = json.load(open(path))

    def scored(combined, baselines):
        json.dump(config | {"combined": combined}, open(path, "w"))
        return json.loads(brim("eval", "--data", known, "--actual", later, "--model", out, "--freq", frequency, "--season", season,
                               "--level", "80,95", "--baselines", baselines, "--json").stdout)

    def line(title, scores):
        return f"{name}, {title}: " + " ".join(f"{key} {scores[key]:.4g}" for key in ("smape", "mase", "mape", "owa"))

    default = scored(config["combined"], "theta,ets")
    covered = ", ".join(f"{level['level']:g} %: {100 * level['coverage']:.1f} %" for level in default["levels"])
    print(f"{line('default', default)} · coverage {covered} · {seconds:.1f} s, cpu {cpu:.1f} s", flush=True)
    print(line("N-BEATS", scored(["nbeats"], "naive")))
    for key in ("theta", "ets", "naive"):
        print(line(key, default[key]), flush=True)


for one in a.sets.split(","):
    with tempfile.TemporaryDirectory() as work:
        measure(one, work)
