#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans against what the driver counts: random models, tasks, lengths, precisions and limits, each a short run.

  plan_check.py --brim PROGRAM --models DIR --texts FILE --train CSV [--runs 200] [--parallel 4] [--seed 1] [--json OUT]

DIR holds tiny, minilm, distil, roberta-base and roberta-large as bench/gpu/make_model.py writes them. A run's bytes are
NVML's for its process, polled every 10 ms. Fails (exit 1) when a run ends with an error other than "does not fit", holds more
than its limit, or more than its plan. Then the same beside a neighbour that takes half of the free memory, before and during.
"""
import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import threading
import time

GIB, MIB = 1 << 30, 1 << 20


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]


class Card:
    def __init__(self):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        assert self.lib.nvmlInit_v2() == 0
        self.handle = ctypes.c_void_p()
        assert self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle)) == 0

    def by_process(self):
        n = ctypes.c_uint(64)
        rows = (Process * 64)()
        if self.lib.nvmlDeviceGetComputeRunningProcesses_v3(self.handle, ctypes.byref(n), rows) != 0:
            return {}
        return {r.pid: r.bytes for r in rows[: n.value]}


def watch(card, peaks, stop):
    while not stop.is_set():
        for pid, used in card.by_process().items():
            if used < 1 << 60:
                peaks[pid] = max(peaks.get(pid, 0), used)
        time.sleep(0.01)


def command(args, case, out):
    base = ["--model", f"{args.models}/{case['model']}", "--device", "cuda", "--precision", case["precision"], "--max-length", str(case["length"])]
    if case["limit"]:
        base += ["--memory-limit", f"{case['limit']}GiB"]
    if case["fill"]:
        base += ["--fill"]
    if case["task"] == "score":
        return [args.brim, "score", args.texts, "-o", f"{out}.csv", "--summary-json", f"{out}.json", *base]
    return [args.brim, "train", "--train", args.train, "--output", out, "--max-steps", "2", "--logging-steps", "1", "--save-strategy", "no",
            "--batch-tokens", str(case["batch"]), "--learning-rate", "1e-5", *base]


def planned(case, out):
    if case["task"] == "score":
        return json.load(open(f"{out}.json"))["planned_bytes"]
    for line in open(f"{out}/train_log.jsonl"):
        row = json.loads(line)
        if "memory_planned_bytes" in row:
            return int(row["memory_planned_bytes"])
        if "plan" in row:
            return row["plan"]["peak_bytes"]
    return None


def run(args, card, peaks, index, case):
    out = f"{args.work}/run{index}"
    subprocess.run(["rm", "-rf", out, f"{out}.csv", f"{out}.json"])
    p = subprocess.Popen(command(args, case, out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _, err = p.communicate()
    result = dict(case, index=index, code=p.returncode, held=peaks.get(p.pid, 0), said=err.strip().splitlines()[-1:] if p.returncode else [])
    if p.returncode == 0:
        result["planned"] = planned(case, out)
    subprocess.run(["rm", "-rf", out, f"{out}.csv"])
    return result


def cases(args):
    r = random.Random(args.seed)
    for _ in range(args.runs):
        task = r.choice(["score", "train"])
        yield dict(task=task, model=r.choice(["tiny", "minilm", "distil", "roberta-base", "roberta-large"]), limit=r.choice([2, 4, 6, 8, 12, 24]),
                   length=r.choice([32, 64, 128, 256, 512]), fill=r.random() < 0.25, batch=r.choice([1024, 4096, 16384, 65536]),
                   precision=r.choice(["fp32", "tf32", "bf16", "bf16", "fp16"] + (["fp8"] if task == "score" else [])))


def neighbour(args, card, peaks):
    """Half of what is free is taken by another process, before the start; then again while a run is under way."""
    take = "import torch,sys,time; f=torch.cuda.mem_get_info()[0]; x=torch.empty(f//2,dtype=torch.uint8,device='cuda'); x.zero_(); print('held',flush=True); time.sleep(%d)"
    rows = []
    for when in ("before", "during"):
        case = dict(task="score", model="roberta-base", limit=0, length=128, fill=True, batch=0, precision="bf16", neighbour=when)
        if when == "before":
            other = subprocess.Popen([sys.executable, "-c", take % 60], stdout=subprocess.PIPE, text=True)
            other.stdout.readline()
            rows.append(run(args, card, peaks, 9000, case))
        else:
            case["limit"], case["fill"] = 6, False
            starter = threading.Thread(target=lambda: rows.append(run(args, card, peaks, 9001, case)))
            starter.start()
            time.sleep(0.8)
            other = subprocess.Popen([sys.executable, "-c", take % 60], stdout=subprocess.PIPE, text=True)
            other.stdout.readline()
            starter.join()
        other.kill()
        other.wait()
    return rows


def main():
    a = argparse.ArgumentParser()
    for name in ("brim", "models", "texts", "train"):
        a.add_argument(f"--{name}", required=True)
    a.add_argument("--work", default="/tmp/plan_check")
    a.add_argument("--runs", type=int, default=200)
    a.add_argument("--parallel", type=int, default=4)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--json")
    args = a.parse_args()
    os.makedirs(args.work, exist_ok=True)
    card, peaks, stop = Card(), {}, threading.Event()
    threading.Thread(target=watch, args=(card, peaks, stop), daemon=True).start()
    queue, results, lock = list(enumerate(cases(args))), [], threading.Lock()

    def worker():
        while True:
            with lock:
                if not queue:
                    return
                index, case = queue.pop(0)
            result = run(args, card, peaks, index, case)
            with lock:
                results.append(result)

    threads = [threading.Thread(target=worker) for _ in range(args.parallel)]
    begin = time.time()
    [t.start() for t in threads]
    [t.join() for t in threads]
    beside = neighbour(args, card, peaks)
    stop.set()
    ran = [r for r in results if r["code"] == 0]
    unfit = [r for r in results if r["code"] == 5]
    broken = [r for r in results + beside if r["code"] not in (0, 5)]
    over_limit = [r for r in ran if r["held"] > r["limit"] * GIB]
    over_plan = [r for r in ran if r["planned"] and r["held"] > r["planned"]]
    loose = [r for r in ran if r["planned"] and r["planned"] - r["held"] > max(0.02 * r["planned"], 32 * MIB)]
    print(f"{len(results)} runs in {time.time() - begin:.0f} s: {len(ran)} ran, {len(unfit)} were told they do not fit, {len(broken)} broke, "
          f"{len(over_limit)} over their limit, {len(over_plan)} over their plan, {len(loose)} hold over 2 % and 32 MiB less than planned; "
          f"{sum(1 for r in ran if r['held'] == 0)} not seen by NVML")
    seen = [r for r in ran if r["held"] and r["planned"]]
    if seen:
        gaps = sorted((r["held"] - r["planned"]) / MIB for r in seen)
        print(f"held less planned, MiB: least {gaps[0]:.1f}, median {gaps[len(gaps) // 2]:.1f}, most {gaps[-1]:.1f}")
    for name, rows in (("broke", broken), ("over limit", over_limit), ("over plan", over_plan), ("loose", loose), ("beside a neighbour", beside)):
        for r in rows[:12]:
            print(f"{name}: {({k: v for k, v in r.items() if k not in ('said',)})} {r['said']}")
    if args.json:
        json.dump(results + beside, open(args.json, "w"))
    sys.exit(1 if broken or over_limit or over_plan else 0)


if __name__ == "__main__":
    main()
