#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks forecasting on the GPU and the CPU of this machine against PyTorch; prints one table.

  forecast.py --brim PROGRAM --data DIR --logs DIR [--work DIR] [--seconds 350] [--tiny] [PART…]

DIR contains m4_weekly_train.csv, m4_hourly_{train,test}.csv, tourism/, m3/, exchange_rate.txt.gz and stocks/. nbeats_bench must be
in PROGRAM's build folder. Each part has its own time limit and log; parts that would start after --seconds are skipped and listed.
--tiny runs every part with a few steps, on the CPU if there is no GPU.
"""
import argparse
import concurrent.futures
import csv
import filecmp
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
flags = argparse.ArgumentParser()
for name in ("brim", "data", "logs"):
    flags.add_argument("--" + name, required=True)
flags.add_argument("--work", default="/dev/shm/brim-forecast")
flags.add_argument("--seconds", type=float, default=350)
flags.add_argument("--plan-runs", type=int, default=200)
flags.add_argument("--tiny", action="store_true")
flags.add_argument("parts", nargs="*")
a = flags.parse_args()
BENCH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(a.brim))), "forecast", "nbeats_bench")
HAS_GPU = shutil.which("nvidia-smi") is not None
ON = "cuda" if HAS_GPU else "cpu"
CORES = sorted(os.sched_getaffinity(0))
OTHER_CORES = CORES[2:] or CORES  # the first two are reserved for the CPU parts
BEGAN = time.time()
shutil.rmtree(a.work, ignore_errors=True)
for folder in (a.logs, a.work):
    os.makedirs(folder, exist_ok=True)
os.environ.setdefault("BRIM_CACHE", a.work + "/cache")
table, lock, splitting, started = [], threading.Lock(), threading.Lock(), []


def row(name, text):
    with lock:
        table.append(f"{name:<66} {text}")
        print(f"[{time.time() - BEGAN:5.0f} s] {table[-1]}", flush=True)
        with open(f"{a.logs}/table.txt", "a") as f:
            f.write(table[-1] + "\n")


def run(name, command, timeout, cores=None, env=None):
    """Returns exit code, seconds and output of a command; appends the output to the log `name`."""
    cores = cores or OTHER_CORES
    begin = time.time()
    with open(f"{a.logs}/{name}.log", "a") as log:
        log.write("$ " + " ".join(map(str, command)) + "\n")
        log.flush()
        p = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=log, text=True,
                             env=dict(os.environ, **(env or {})), preexec_fn=lambda: os.sched_setaffinity(0, cores))
        try:
            out, _ = p.communicate(timeout=timeout)
            code = p.returncode
        except subprocess.TimeoutExpired:
            p.kill()
            out, code = p.communicate()[0], "timeout"
        seconds = time.time() - begin
        log.write(f"{out}\n= exit {code} in {seconds:.2f} s\n")
    return code, seconds, out


def last_line(name):
    lines = [x for x in open(f"{a.logs}/{name}.log", errors="replace").read().splitlines() if x.strip() and not x.startswith("= exit")]
    return lines[-1][-300:] if lines else ""


def brim(name, verb, *args, timeout=60, cores=None, env=None, device=ON):
    return run(name, [a.brim, "forecast", verb, *args, "--device", device], timeout, cores, env)


def fresh(name):
    path = f"{a.work}/{name}"
    shutil.rmtree(path, ignore_errors=True)
    return path


def series(name):
    return f"{a.data}/{name}"


def hold_back(name, horizon, before=0):
    """Splits the rows of a wide file into training points and the last `horizon` points, after dropping the last `before` points."""
    train, last = f"{a.work}/{os.path.basename(name)}.train{before}.csv", f"{a.work}/{os.path.basename(name)}.last{before}.csv"
    with splitting:  # other parts may be reading the files
        if not os.path.exists(last):
            split(series(name), train, last, horizon, before)
    return train, last


def split(source, train, last, horizon, before):
    with open(source, newline="") as f, open(train, "w", newline="") as t, open(last, "w", newline="") as l:
        rows = csv.reader(f)
        header = next(rows)
        t, l = csv.writer(t), csv.writer(l)
        t.writerow(header)
        l.writerow(header[: horizon + 1])
        for r in rows:
            while r and not r[-1]:
                r.pop()
            r = r[: len(r) - before]
            if len(r) - 1 - horizon >= 2:
                t.writerow(r[:-horizon])
                l.writerow([r[0], *r[-horizon:]])


def scores(name, data, actual, model, season, extra=(), cores=None, device=ON):
    code, _, out = brim(name, "eval", "--data", data, "--actual", actual, "--model", model, "--season", season, "--json", *extra,
                        timeout=60, cores=cores, device=device)
    return json.loads(out) if code == 0 else None


def figures(e):
    return "eval FAILED" if e is None else f"OWA {e['owa']:.4f} sMAPE {e['smape']:.3f} MASE {e['mase']:.3f} MAPE {e['mape']:.2f} (naive MASE {e['naive']['mase']:.3f})"


TINY = ["--n-blocks", "2", "--mlp-units", "64,64,64,64", "--batch-size", "64"] if a.tiny else []


def steps(n):
    return ["--max-steps", str(max(2, n // 500) if a.tiny else n)]


# ---- GPU


def warm():
    """Warm-up: the first run on a machine profiles the GPU and caches the result."""
    for i in (1, 2):
        out = fresh("warm")
        code, seconds, _ = brim("warm", "train", "--data", series("tourism/tourism_yearly_train.csv"), "--horizon", "4", "--max-steps", "5", "-o", out, timeout=90)
        row(f"a small training, whole process, run {i}", f"exit {code}, {seconds:.2f} s" + ("" if code == 0 else ": " + last_line("warm")))


def lanes():
    if not os.path.exists(BENCH):
        row("nbeats_bench", f"not built: {BENCH}")
        return
    small = ["--blocks", "2", "--width", "64", "--windows", "64", "--steps", "2"] if a.tiny else []
    for name, args in (("30x4x512, 1,024 windows, bf16, 16 lanes", ["--lanes", "16"]), ("the same, 18 lanes", ["--lanes", "18"]), ("the same, 1 lane", ["--lanes", "1"]),
                       ("3x4x64, 256 windows, bf16, 250 lanes", "--lanes 250 --blocks 3 --width 64 --windows 256 --lookback 20 --horizon 5".split())):
        code, _, out = run("lanes", [BENCH, "--device", ON, "--precision", "bf16", *args, *small], 60)
        row("one step, " + name, " · ".join(out.splitlines()[1:3]) if code == 0 else f"FAILED ({code}): {last_line('lanes')}")


def weekly():
    train, last = hold_back("m4_weekly_train.csv", 13)
    out, forecasts = fresh("weekly"), f"{a.work}/weekly.csv"
    code, seconds, _ = brim("weekly", "train", "--data", train, "--horizon", "13", "--freq", "W", "--preset", "paper", "-o", out, *steps(5000), *TINY, timeout=150)
    line = last_line("weekly")
    if code != 0:
        row("weekly paper ensemble, 18 lanes", f"FAILED ({code}): {line}")
        return
    code, more, _ = brim("weekly", "predict", "--data", train, "--model", out, "-o", forecasts, timeout=60)
    row("weekly paper ensemble, 18 lanes x 5,000 steps, file to forecasts", f"{seconds + more:.1f} s (train {seconds:.1f}, predict {more:.1f}, exit {code}) · {line}")
    row("weekly paper ensemble on the last 13 points of train", figures(scores("weekly", train, last, out, 1)))


def fast():
    train, last = hold_back("m4_weekly_train.csv", 13)
    out = fresh("fast")
    code, seconds, _ = brim("fast", "train", "--data", train, "--horizon", "13", "--freq", "W", "-o", out, *steps(1500), timeout=60)
    row("weekly `fast`, 8 lanes, whole process", f"{seconds:.2f} s, exit {code} · {figures(scores('fast', train, last, out, 1)) if code == 0 else last_line('fast')}")


def weekly_defaults():
    """Data, horizon and frequency only against the fixed steps of the presets: mean OWA over the last four horizons of train."""
    tries = {"defaults": ["--freq", "W", *(steps(1500) if a.tiny else [])], "fast": ["--held-out", "0", *steps(1500)], "paper": ["--preset", "paper", "--held-out", "0", *steps(5000)]}
    for title, how in tries.items():
        owa, took = [], []
        for k in range(4):
            train, last = hold_back("m4_weekly_train.csv", 13, 13 * k)
            out = fresh("weekly_defaults")
            code, seconds, _ = brim("weekly_defaults", "train", "--data", train, "--horizon", "13", *how, *TINY, "--memory-limit", "12GB", "-o", out, timeout=150)
            e = scores("weekly_defaults", train, last, out, 1) if code == 0 else None
            owa.append(e["owa"] if e else float("inf"))
            took.append(seconds)
        row(f"weekly, last four horizons of train, {title}", f"mean OWA {sum(owa) / 4:.4f} ({', '.join(f'{x:.4f}' for x in owa)}) · {max(took):.1f} s")


EIGHT = ["AAPL", "AMZN", "BA", "GE", "GOOG", "JPM", "MSFT", "XOM"]
FOLDS = ["--horizon", "5", "--input-size", "20", "--losses", "mae", "--n-blocks", "3", "--mlp-units", "64,64,64,64", "--batch-size", "256", "--target-column", "Close"]
DATA8 = fresh("eight")
os.makedirs(DATA8)
for s in EIGHT:
    if os.path.exists(series(f"stocks/{s}.csv")):  # parts that read them say so where they are missing
        shutil.copy(series(f"stocks/{s}.csv"), DATA8)
rolled = {}


def folds():
    n = "6" if a.tiny else "250"
    for i in (1, 2):
        out = fresh("folds")
        code, seconds, _ = brim("folds", "roll", "--data", DATA8, "--folds", n, *FOLDS, "--max-steps", "100", "-o", out, timeout=60)
        rolled["seconds"] = seconds
        row(f"{n} folds x 100 steps of 3x4x64, 8 stocks, whole process, run {i}", f"{seconds:.2f} s, exit {code} · {last_line('folds')}")


def loop():
    n = "2" if a.tiny else "6"
    code, _, out = run("loop", [sys.executable, f"{HERE}/rolling_peer.py", "--data", DATA8, "--folds", n, "--steps", "10" if a.tiny else "100", "--device", ON], 90)
    row("the same with a loop of new PyTorch models, autocast fp16", out.strip() if code == 0 else f"FAILED ({code}): {last_line('loop')}")
    if code == 0 and "seconds" in rolled:
        each = float(out.split(" s a fold")[0].split()[-1])
        row("250 folds of that loop against Brim", f"{250 * each:.0f} s over {rolled['seconds']:.2f} s: {250 * each / rolled['seconds']:.0f}x")


def large_loop():
    """The same loop, and Brim's roll, with a network of the paper's size."""
    size = ["--blocks", "2", "--width", "64", "--windows", "64"] if a.tiny else ["--blocks", "30", "--width", "512", "--windows", "1024"]
    code, _, out = run("large_loop", [sys.executable, f"{HERE}/rolling_peer.py", "--data", DATA8, "--folds", "2", "--steps", "50", "--device", ON, *size], 60)
    row("loop of new PyTorch models of 30x4x512, 50 steps per fold", out.strip() if code == 0 else f"FAILED ({code}): {last_line('large_loop')}")
    n, out_dir = "4" if a.tiny else "64", fresh("large")
    small = TINY or ["--n-blocks", "30", "--mlp-units", "512,512,512,512", "--batch-size", "1024"]
    code2, seconds, _ = brim("large_loop", "roll", "--data", DATA8, "--folds", n, "--horizon", "5", "--input-size", "20", "--losses", "mae", "--target-column", "Close",
                             *small, "--max-steps", "50", "-o", out_dir, timeout=60)
    text = f"{seconds:.2f} s for {n} folds, exit {code2} · {last_line('large_loop')}"
    if code == 0 and code2 == 0:
        text += f" · {float(out.split(' s a fold')[0].split()[-1]) * int(n) / seconds:.0f}x"
    row("the same with `forecast roll`, whole process", text)


def hourly():
    out = fresh("hourly")
    code, seconds, _ = brim("hourly", "train", "--data", series("m4_hourly_train.csv"), "--horizon", "48", "--freq", "H", "--preset", "paper", "-o", out, *steps(5000), *TINY, timeout=200)
    row("hourly paper ensemble, 18 lanes, test (concurrent with other parts)", f"{seconds:.0f} s · " + (figures(scores("hourly", series("m4_hourly_train.csv"), series("m4_hourly_test.csv"), out, 24))
                                                                                              if code == 0 else f"FAILED ({code}): {last_line('hourly')}"))


def defaults(name, horizon, freq, season):
    """Data, horizon and frequency only: trains on train and evaluates on test."""
    title, out = os.path.basename(name), fresh("defaults-" + os.path.basename(name))
    code, seconds, _ = brim(title, "train", "--data", series(name + "_train.csv"), "--horizon", horizon, "--freq", freq, *(steps(1500) if a.tiny else []), *TINY,
                            "-o", out, timeout=300)
    if code != 0:
        row(f"{title}, defaults", f"FAILED ({code}): {last_line(title)}")
        return
    e = scores(title, series(name + "_train.csv"), series(name + "_test.csv"), out, season, ("--level", "80,95"))
    covered = ", ".join(f"{level['level']:g} %: {100 * level['coverage']:.1f} %" for level in e["levels"]) if e else ""
    row(f"{title}, defaults, test", f"{figures(e)} · coverage of {covered} · {seconds:.1f} s")


def tourism():
    defaults("tourism/tourism_yearly", 4, "Y", 1)
    defaults("tourism/tourism_quarterly", 8, "Q", 4)


def m3():
    defaults("m3/m3_yearly", 6, "Y", 1)
    defaults("m3/m3_quarterly", 8, "Q", 4)
    defaults("m3/m3_other", 8, "index", 1)


def m4_hourly():
    defaults("m4_hourly", 48, "H", 24)


def coverage():
    """Intervals of rolling forecasts with the default shrinkage: one training for all folds."""
    for name, data, extra in (("48 stocks", series("stocks"), ["--target-column", "Close"]), ("8 exchange rates", series("exchange_rate.txt.gz"), [])):
        out = fresh("coverage")
        code, seconds, _ = brim("coverage", "roll", "--data", data, *extra, "--horizon", 5, "--folds", 6 if a.tiny else 65, "--step", 5, "--refit", 65,
                                *(steps(1500) if a.tiny else []), "-o", out, timeout=300)
        if code != 0:
            row(f"{name}, coverage", f"FAILED ({code}): {last_line('coverage')}")
            continue
        j = json.load(open(out + "/roll.json"))
        row(f"{name}, 65 folds, coverage", f"{json.dumps(j['levels'])} · MAE over naive's {j['mae_over_naive']:.4f} · {seconds:.1f} s")


def prices():
    for name, data, extra in (("48 stocks", series("stocks"), ["--target-column", "Close"]), ("8 exchange rates", series("exchange_rate.txt.gz"), [])):
        out = fresh("prices")
        code, seconds, output = brim("prices", "roll", "--data", data, *extra, "--horizon", "5", "--folds", "6" if a.tiny else "100", "--step", "5", "--refit", "5", "--lookbacks", "4,6",
                                   "--losses", "mae", "--repeats", "2", "--max-steps", "5" if a.tiny else "500", "-o", out, timeout=90)
        if code != 0:
            row(f"{name}, 100 folds, shrinkage", f"FAILED ({code}): {last_line('prices')}")
            continue
        j = json.load(open(out + "/roll.json"))
        row(f"{name}, 100 folds, shrinkage: MAE over naive's", f"{j['mae_over_naive']:.4f}, p {j['against_naive']['p_value']:.2g}, {seconds:.1f} s · {output.strip()}")


def kills():
    """Kills runs at random and checks that the resumed output is identical; once with another memory limit."""
    n = "4" if a.tiny else "80"
    roll = ["--data", DATA8, "--folds", n, *FOLDS, "--max-steps", "20" if a.tiny else "400", "--save-steps", "5" if a.tiny else "50"]
    train = ["--data", DATA8, "--horizon", "5", "--target-column", "Close", "--max-steps", "20" if a.tiny else "1500", "--save-steps", "5" if a.tiny else "100", *TINY]
    r = random.Random(7)
    for verb, args, file in (("roll", roll, "forecasts.csv"), ("train", train, "model.safetensors")):
        whole, cut = fresh("kill-whole"), fresh("kill-cut")
        code, seconds, _ = brim("kills", verb, *args, "-o", whole, timeout=60)
        killed = 0
        for _ in range(8):
            wait = seconds * r.uniform(0.3, 0.8)
            p = subprocess.Popen([a.brim, "forecast", verb, *args, "--device", ON, "-o", cut, "-q"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                p.wait(wait)
                break
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
                killed += 1
        code2, _, _ = brim("kills", verb, *args, "-o", cut, timeout=60) if not os.path.exists(f"{cut}/{file}") else (0, 0, "")
        same = code == 0 and code2 == 0 and filecmp.cmp(f"{whole}/{file}", f"{cut}/{file}", shallow=False)
        row(f"forecast {verb} killed {killed} times: identical output", f"{'yes' if same else 'NO'} (exits {code}, {code2}; {os.path.getsize(f'{whole}/{file}') if code == 0 else 0:,} bytes; {seconds:.1f} s whole)")


def plans():
    """Compares planned memory with NVML's figure for the process, for random shapes, limits and covariates."""
    sys.path.insert(0, HERE)
    from plan_check import Gpu, watch
    gpu, peaks, stop = Gpu(), {}, threading.Event()
    threading.Thread(target=watch, args=(gpu, peaks, stop), daemon=True).start()
    r, cases, results = random.Random(11), [], []
    for i in range(a.plan_runs):
        limit, blocks, width, windows = r.choice([1, 2, 4, 6, 8, 12, 24]), r.choice([3, 6, 12, 30]), r.choice([64, 128, 256, 512]), r.choice([64, 256, 1024, 4096])
        lookback, nfolds, precision, members = r.choice([20, 40, 120]), r.choice([1, 3, 9, 40]), r.choice(["bf16", "bf16", "tf32", "fp32"]), r.choice([1, 2, 4])
        # Weight initialization runs at 200 million per second on the host; keep it to a few seconds.
        while nfolds > 1 and (nfolds + 1) * members * blocks * 4 * width * width > 6e8:
            nfolds = {40: 9, 9: 3, 3: 1}[nfolds]
        columns = r.choice([[], ["--future-columns", "Open"], ["--past-columns", "Volume,High"], ["--future-columns", "Open,Low", "--past-columns", "Volume", "--calendar"]])
        cases.append((i, limit, blocks, width, windows, lookback, nfolds, precision, members, columns))
    cases.sort(key=lambda c: c[1])  # largest limits first; small ones fill the remaining memory
    free_gib = 120  # GiB available to concurrent runs
    changed = threading.Condition()

    def worker():
        nonlocal free_gib
        while time.time() - BEGAN < a.seconds:
            with changed:
                if not cases:
                    return
                fits = [n for n, c in enumerate(cases) if c[1] <= free_gib]
                if not fits:
                    changed.wait(1)
                    continue
                case = cases.pop(fits[-1])
                free_gib -= case[1]
            try:
                one_plan(*case)
            finally:
                with changed:
                    free_gib += case[1]
                    changed.notify_all()

    def one_plan(i, limit, blocks, width, windows, lookback, nfolds, precision, members, columns):
        out = fresh(f"plan{i}")
        command = [a.brim, "forecast", "roll", "--data", DATA8, "--target-column", "Close", "--horizon", "5", "--input-size", str(lookback), "--losses", "mae",
                   "--repeats", str(members), "--n-blocks", str(blocks), "--mlp-units", ",".join([str(width)] * 4), "--batch-size", str(windows), "--folds", str(nfolds),
                   "--max-steps", "3", *columns, "--precision", precision, "--memory-limit", f"{limit}GiB", "--device", ON, "-o", out]
        p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, err = p.communicate(timeout=45)
        except subprocess.TimeoutExpired:
            p.kill()
            _, err = p.communicate()
        planned = json.load(open(out + "/roll.json"))["memory"]["planned_bytes"] if p.returncode == 0 else 0
        with lock:
            results.append(dict(code=p.returncode, limit=limit << 30, planned=planned, held=peaks.get(p.pid, 0), error=err.strip().splitlines()[-1:], command=command[3:]))
        shutil.rmtree(out, ignore_errors=True)

    for precision in ("bf16", "tf32", "fp32"):  # measures the size of the CUDA context once
        one_plan(-1, 4, 3, 64, 64, 20, 1, precision, 1, [])
    threads = [threading.Thread(target=worker) for _ in range(max(2, len(CORES) - 2))]
    [t.start() for t in threads]
    [t.join() for t in threads]
    stop.set()
    json.dump(results, open(f"{a.logs}/plans.json", "w"))
    ran = [x for x in results if x["code"] == 0]
    MIB = 1 << 20
    gaps = sorted((x["held"] - x["planned"]) / MIB for x in ran if x["held"])
    row("planned against used, rolling runs", f"{len(results)} runs, {len(ran)} ran, {sum(x['code'] == 5 for x in results)} do not fit, {sum(x['code'] not in (0, 5) for x in results)} failed, "
        f"{sum(x['held'] > x['limit'] for x in ran)} over the limit, {sum(x['held'] > x['planned'] for x in ran)} over the plan, "
        f"{sum(x['planned'] - x['held'] > max(32 * MIB, 0.02 * x['planned']) for x in ran)} loose, {sum(x['held'] == 0 for x in ran)} unseen; used minus planned, MiB: "
        + (f"{gaps[0]:.1f}, {gaps[len(gaps) // 2]:.1f}, {gaps[-1]:.1f}" if gaps else "none"))
    for x in results:
        if x["code"] not in (0, 5) or x["held"] > x["planned"] > 0:
            row("planned against used, case", f"exit {x['code']} held {x['held'] / MIB:.0f} planned {x['planned'] / MIB:.0f} MiB {x['error']} {' '.join(x['command'])}")


def peer():
    size = ["--blocks", "2", "--width", "64", "--windows", "64", "--steps", "2"] if a.tiny else []
    code, seconds, out = run("peer", [sys.executable, f"{HERE}/nbeats_peer.py", "--lanes", "16", "--device", ON, *size], 120)
    row("PyTorch, 16 lanes by bmm, compiled, captured", f"{out.strip()} ({seconds:.0f} s with compilation)" if code == 0 else f"FAILED ({code}): {last_line('peer')}")


# ---- one and two cores


def core(precision="bf16"):
    one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    small = {"30x4x512, 1,024 windows": (["--blocks", "30", "--width", "512", "--windows", "1024"], "1"), "6x4x128, 256 windows": (["--blocks", "6", "--width", "128", "--windows", "256"], "20")}
    for name, (size, n) in small.items():
        if a.tiny:
            size = ["--blocks", "2", "--width", "64", "--windows", "64"]
        if os.path.exists(BENCH):
            code, _, out = run("core", [BENCH, "--device", "cpu", "--precision", precision, "--lanes", "1", "--threads", "1", "--steps", n, *size], 60, CORES[:1])
            row(f"one core, {name}, {precision}", " · ".join(out.splitlines()[:2]) if code == 0 else f"FAILED ({code}): {last_line('core')}")
        code, _, out = run("core", [sys.executable, f"{HERE}/nbeats_peer.py", "--device", "cpu", "--precision", precision, "--lanes", "1", "--steps", n, *size], 60, CORES[:1], one)
        row(f"one core, {name}, PyTorch {precision}", out.strip() if code == 0 else f"FAILED ({code}): {last_line('core')}")


def core_fp32():
    core("fp32")


def two_cores():
    train, last = hold_back("m4_weekly_train.csv", 13)
    out = fresh("two")
    code, seconds, _ = brim("two_cores", "train", "--data", train, "--horizon", "13", "--freq", "W", "-o", out, *steps(1500), timeout=150, cores=CORES[:2], device="cpu")
    row("weekly `fast`, two cores, whole process", f"{seconds:.1f} s, exit {code} · " + (figures(scores("two_cores", train, last, out, 1, cores=CORES[:2], device="cpu")) if code == 0 else last_line("two_cores")))


def presets():
    """Variants of the `fast` preset on weekly series: mean OWA of the last 13 points of train and the 13 before them."""
    sets = [hold_back("m4_weekly_train.csv", 13, before) for before in (0, 13)]
    eighteen = "--lookbacks 4,5,5,6,6,7,7,8,8"
    tries = ["", eighteen, f"{eighteen} --num-lr-decays 6", "--losses smape,mape,mase --lookbacks 4,5,6,6,7,8", "--history-size 10", "--history-size 40", "--random-seed 2"]

    def measured(job):
        i, (flags, (train, last)) = job
        out = fresh(f"presets{i}")
        code, took, _ = brim(f"presets{i}", "train", "--data", train, "--horizon", "13", "--freq", "W", "-o", out, *steps(1500), *flags.split(), timeout=60)
        e = scores(f"presets{i}", train, last, out, 1) if code == 0 else None
        return (e["owa"] if e else float("inf")), took  # failed variants rank last

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        got = list(pool.map(measured, enumerate(itertools.product(tries, sets))))
    ranked = sorted(((got[2 * i][0] + got[2 * i + 1][0]) / 2, f"{flags or 'as it is'}: {got[2 * i][0]:.4f} {got[2 * i + 1][0]:.4f} ({got[2 * i][1]:.1f} s)") for i, flags in enumerate(tries))
    row("`fast` weekly variants, OWA of two holdouts, best first", "; ".join(f"{mean:.4f} {text}" for mean, text in ranked))


def precision():
    """Accuracy cost of bf16 operands: the same runs in bf16 and fp32, two seeds, on the CPU."""
    sets = [("weekly, last 13 of train", *hold_back("m4_weekly_train.csv", 13), 13, "W", 1), ("hourly, test", series("m4_hourly_train.csv"), series("m4_hourly_test.csv"), 48, "H", 24)]
    for name, train, last, horizon, freq, season in sets:
        got = {}
        for p in ("bf16", "fp32"):
            for seed in (1, 2):
                out = fresh("precision")
                code, seconds, _ = brim("precision", "train", "--data", train, "--horizon", horizon, "--freq", freq, "--precision", p, "--random-seed", seed, "-o", out, *steps(1500),
                                        timeout=120, cores=CORES[-8:], device="cpu")
                e = scores("precision", train, last, out, season, cores=CORES[-8:], device="cpu") if code == 0 else None
                got.setdefault(p, []).append(f"{e['owa']:.4f} ({seconds:.0f} s)" if e else f"FAILED ({code}): {last_line('precision')}")
        row(f"`fast` {name}, CPU, OWA by seed", "; ".join(f"{p} {', '.join(v)}" for p, v in got.items()))


def part(f):
    name = f.__name__
    if a.parts and name not in a.parts:
        return
    if time.time() - BEGAN > a.seconds:
        row(name, f"skipped: time limit of {a.seconds:.0f} s reached")
        return
    try:
        f()
    except Exception as e:  # a failing part does not stop the others
        row(name, f"FAILED: {type(e).__name__}: {e}")


def after(*functions):
    def do():
        for f in functions:
            part(f)

    t = threading.Thread(target=do)
    t.start()
    started.append(t)


open(f"{a.logs}/table.txt", "w").close()
if HAS_GPU:
    row("GPU", subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip())
model_name = [x.split(":")[1].strip() for x in open("/proc/cpuinfo") if x.startswith("model name")]
row("cores", f"{len(CORES)} of {model_name[0] if model_name else os.uname().machine}" + (", AMX" if "amx_bf16" in open("/proc/cpuinfo").read() else ""))
after(core, two_cores, precision, core_fp32)  # on dedicated cores
for timed in (warm, lanes, folds, weekly, loop, large_loop, fast, weekly_defaults):  # exclusive use of the GPU
    part(timed)
gpu_parts = len(started)
after(hourly)
after(tourism)
after(m3, m4_hourly)
after(kills, prices, coverage, presets)
for t in started[gpu_parts:]:
    t.join()
if HAS_GPU:
    part(plans)
if HAS_GPU and a.seconds - (time.time() - BEGAN) < 60:
    row("peer", "skipped: not enough time left for compilation")
else:
    part(peer)
for t in started:
    t.join()
row("total", f"{time.time() - BEGAN:.0f} s")
shutil.rmtree(a.work, ignore_errors=True)
print("\n== table\n" + "\n".join(table))
