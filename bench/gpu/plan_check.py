#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares planned with measured memory in short runs with random models, tasks, lengths, precisions and limits.

  plan_check.py --brim PROGRAM --models DIR --texts FILE --train CSV [--runs 200] [--parallel 4] [--seed 1] [--json OUT]
                [--families bert,mpnet,…] [--device cpu] [--scoring NAMES] [--kinds lora,freeze,adapters [--adapted NAMES]]

DIR contains tiny, minilm, distil, roberta-base and roberta-large from bench/gpu/make_model.py; CSV has columns text and label.
Training runs are plain, with validation, with a teacher, of taggers, or multi-label. Memory is NVML's figure for the process,
polled every 10 ms. Fails (exit 1) if a run fails with an error other than "does not fit", uses more memory than its limit or
plan, or if a kind never ran. Then repeats a run with another process allocating half of the free memory before or
during it; this fails also if the other process was too late.

With --families, --runs is per family (models FAMILY-tiny and FAMILY-minilm from make_model.py); includes pairs, without the other
process. With --device cpu, memory is the maximum resident set size.

With --scoring, runs only score, with the models NAMES of DIR on a CPU: random precisions (mostly int8), limits, threads, numbers
of texts, shares of repeated texts, and sizes of --cache.

With --kinds, runs are of these kinds only, with the models NAMES of DIR (default: tiny,minilm,distil,roberta-base) and without
the other process: lora (ranks, targets, dropout, with and without validation), freeze (embeddings, layers, all but the head), and
adapters, a server with 1 to 16 adapters on one base that scores texts of random adapters. The plan of a server is that of the
models that are loaded.
"""
import argparse
import csv
import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

GIB, MIB = 1 << 30, 1 << 20


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]


class Gpu:
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


def watch(gpu, peaks, stop):
    while not stop.is_set():
        for pid, used in gpu.by_process().items():
            if used < 1 << 60:
                peaks[pid] = max(peaks.get(pid, 0), used)
        time.sleep(0.01)


KINDS = ["plain", "validation", "teacher", "tags", "multi-label"]
FAMILY_KINDS = ["plain", "validation", "tags", "multi-label", "pairs"]
ADAPTER_KINDS = ["lora", "freeze", "adapters"]
ADAPTER_RANKS = [2, 8, 32]


def command(args, case, out):
    base = ["--model", f"{args.models}/{case['model']}", "--device", args.device, "--precision", case["precision"], "--max-length", str(case["length"])]
    if case["limit"]:
        base += ["--memory-limit", f"{case['limit']}GiB"]
    if case["fill"]:
        base += ["--fill"]
    if "cache" in case:
        base += ["--cache", case["cache"], "--threads", str(case["threads"])]
    if case["task"] == "score":
        pairs = case.get("kind") == "pairs" and args.families
        rows = [f"{args.work}/pairs.csv", "--pair-column", "other"] if pairs else [case.get("texts", args.texts)]
        return [args.brim, "score", *rows, "-o", f"{out}.csv", "--summary-json", f"{out}.json", *base]
    if case["task"] == "serve":
        adapters = [f"--adapter=a{i}={args.work}/adapters/{case['model']}-{r}" for i, r in enumerate(case["ranks"])]
        return [args.brim, "serve", "--port", str(case["port"]), *adapters, *base]
    work, validation = args.work, ["--eval-strategy", "steps", "--eval-steps", "1"]
    own = case.get("flags", [])
    kinds = {
        "lora": ["--train", args.train, *own],
        "freeze": ["--train", args.train, *own],
        "plain": ["--train", args.train],
        "validation": ["--train", args.train, "--val", f"{work}/val.csv", *validation],
        "teacher": ["--train", args.train, "--val", f"{work}/val.csv", *validation, "--teacher", f"{args.models}/{case.get('teacher')}"],
        "pairs": ["--train", f"{work}/pairs.csv", "--pair-column", "other"],
        "tags": ["--train", f"{work}/tags.conll", "--val", f"{work}/tags_val.conll", *validation, "--ignore-mismatched-head"],
        "multi-label": ["--train", f"{work}/multi.csv", "--val", f"{work}/multi_val.csv", *validation, "--multi-label", "--ignore-mismatched-head"],
    }
    kind = kinds[case["kind"]] + (["--val", f"{work}/val.csv", *validation] if case.get("evaluates") else [])
    return [args.brim, "train", *kind, "--output", out, "--max-steps", "2", "--logging-steps", "1", "--save-strategy", "no",
            "--batch-tokens", str(case["batch"]), "--learning-rate", "1e-5", *base]


def write_data(args):
    """Derives validation, tagging, multi-label and pair data from the training rows."""
    rows = list(csv.DictReader(open(args.train, newline="", encoding="utf-8")))[:6000]
    texts, labels = [" ".join(r["text"].split()) or "empty" for r in rows], [r["label"] for r in rows]
    known, r = sorted(set(labels)), random.Random(args.seed)

    def table(name, pairs):
        with open(f"{args.work}/{name}", "w", newline="", encoding="utf-8") as f:
            writer = csv.writer(f)
            writer.writerow(["text", "label"])
            writer.writerows(pairs)

    several = ["|".join(k for k in known if r.random() < 0.4) for _ in texts]
    part = len(texts) // 6
    with open(f"{args.work}/pairs.csv", "w", newline="", encoding="utf-8") as f:
        csv.writer(f).writerows([["text", "other", "label"], *zip(texts[part:], texts, labels[part:])])
    table("val.csv", zip(texts[:part], labels[:part]))
    table("multi.csv", zip(texts[part:], several[part:]))
    table("multi_val.csv", zip(texts[:part], several[:part]))
    for name, some in (("tags.conll", texts[part:]), ("tags_val.conll", texts[:part])):
        with open(f"{args.work}/{name}", "w", encoding="utf-8") as f:
            for text in some:
                f.writelines(f"{word} {r.choice(['O', 'O', 'O', 'B-PER', 'B-LOC'])}\n" for word in text.split(" "))
                f.write("\n")


def planned(case, out):
    if case["task"] == "serve":
        return case.pop("planned_by_server", None)
    if case["task"] == "score":
        return json.load(open(f"{out}.json"))["planned_bytes"]
    for line in open(f"{out}/train_log.jsonl"):
        row = json.loads(line)
        if "memory_planned_bytes" in row:
            return int(row["memory_planned_bytes"])
        if "plan" in row:
            return row["plan"]["peak_bytes"]
    return None


def write_adapters(args):
    """Trains an adapter of each rank for each model."""

    def write(name, rank):
        out = f"{args.work}/adapters/{name}-{rank}"
        case = dict(task="train", kind="lora", flags=["--lora-r", str(rank)], model=name, precision="fp32", length=32, limit=0, fill=False, batch=512)
        subprocess.run(["rm", "-rf", out])
        made = subprocess.run([*command(args, case, out), "--max-steps", "1"], capture_output=True, text=True)
        assert made.returncode == 0, made.stderr

    os.makedirs(f"{args.work}/adapters", exist_ok=True)
    threads = [threading.Thread(target=write, args=(name, rank)) for name in args.adapted for rank in ADAPTER_RANKS]
    [t.start() for t in threads]
    [t.join() for t in threads]


def use_server(args, process, case):
    """Scores texts of random adapters, reads the plan from the metrics and stops the server."""
    url, r = f"http://127.0.0.1:{case['port']}", random.Random(case["port"])
    lines = [line for line in open(args.texts, encoding="utf-8").read().splitlines()[:4000] if line.strip()]

    def score(texts, model):
        body = json.dumps({"inputs": texts, "model": model, "truncate": True}).encode()
        try:
            urllib.request.urlopen(urllib.request.Request(f"{url}/predict", body, {"Content-Type": "application/json"}), timeout=120).read()
        except OSError as error:
            case["failed"] = f"{error} {error.read()[:200] if hasattr(error, 'read') else ''}"

    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).read()
                break
            except OSError:
                if process.poll() is not None:
                    return
                time.sleep(0.1)
        senders = [threading.Thread(target=lambda i=i: score([[" ".join(r.sample(lines, 20)) if i % 5 == 0 else t] for t in r.sample(lines, 32)], f"a{i}"))
                   for i in range(len(case["ranks"]))]
        [t.start() for t in senders]
        [t.join() for t in senders]
        for text in r.sample(lines, 20):
            score(text, f"a{r.randrange(len(case['ranks']))}")
        metrics = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
        case["planned_by_server"] = int(sum(float(v) for v in re.findall(r"^brim_memory_planned_bytes\{.*\} (\S+)$", metrics, re.M)))
    except OSError as error:
        case["failed"] = str(error)
    process.send_signal(signal.SIGTERM)


def run(args, gpu, peaks, index, case, under_way=None):
    """Executes one run; calls under_way(process) after starting it."""
    out = f"{args.work}/run{index}"
    subprocess.run(["rm", "-rf", out, f"{out}.csv", f"{out}.json"])
    p = subprocess.Popen(command(args, case, out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if case["task"] == "serve":
        under_way = lambda process: use_server(args, process, case)  # noqa: E731
    watcher = threading.Thread(target=under_way, args=(p,), daemon=True) if under_way else None
    if watcher:
        watcher.start()
    err = p.stderr.read()
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if watcher:
        watcher.join()
    result = dict(case, index=index, code=p.returncode, held=usage.ru_maxrss * 1024 if args.device == "cpu" else peaks.get(p.pid, 0), error=err.strip().splitlines()[-1:] if p.returncode else [])
    if p.returncode == 0:
        result["planned"] = planned(case, out)
    subprocess.run(["rm", "-rf", out, f"{out}.csv"])
    return result


def family_cases(args):
    r = random.Random(args.seed)
    cpu = args.device == "cpu"
    for family in args.families:
        for _ in range(args.runs):
            task = r.choice(["score", "train"])
            yield dict(task=task, family=family, model=f"{family}-{r.choice(['tiny', 'tiny', 'minilm'])}", limit=r.choice([2, 3, 4, 6]), kind=r.choice(FAMILY_KINDS),
                       length=r.choice([16, 32, 64, 128, 256, 500]), fill=r.random() < 0.25 and not cpu, batch=r.choice([512, 1024, 4096]),
                       precision=r.choice(["fp32"] if cpu and task == "train" else ["fp32", "bf16", "int8"] if cpu else ["fp32", "tf32", "bf16", "fp16"] + ["fp8"]))


def scoring_cases(args):
    r = random.Random(args.seed)
    lines = [line for line in open(args.texts, encoding="utf-8").read().splitlines() if line.strip()]
    for index in range(args.runs):
        rows, repeated = r.choice([50, 500, 2000]), r.choice([0, 0.3])
        chosen = r.sample(lines, min(len(lines), rows))
        chosen += r.choices(chosen, k=int(repeated * rows))
        texts = f"{args.work}/texts{index}.txt"
        with open(texts, "w", encoding="utf-8") as f:
            f.writelines(f"{line}\n" for line in chosen)
        yield dict(task="score", kind="rows", model=r.choice(args.scoring), limit=r.choice([0, 0.15, 0.25, 0.5, 1]), fill=False, texts=texts, repeated=repeated,
                   rows=rows, length=r.choice([32, 64, 128, 256, 512]), precision=r.choice(["int8", "int8", "bf16", "fp32"]), cache=r.choice(["0", "1MiB", "16MiB", "64MiB"]),
                   threads=r.choice([1, 2]))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def adapter_cases(args):
    r = random.Random(args.seed)
    for index in range(args.runs):
        kind, precisions = args.kinds[index % len(args.kinds)], ["fp32"] if args.device == "cpu" else ["fp32", "tf32", "bf16", "bf16", "fp16"]
        case = dict(task="train", kind=kind, model=r.choice(args.adapted), limit=r.choice([1, 2, 4, 6, 8, 12]), length=r.choice([32, 64, 128, 256, 512]),
                    fill=r.random() < 0.25, batch=r.choice([1024, 4096, 16384]), precision=r.choice(precisions), evaluates=r.random() < 0.5)
        if kind == "lora":
            case["flags"] = ["--lora-r", str(r.choice([1, 4, 8, 16, 64])), "--lora-dropout", r.choice(["0", "0.1"]), "--lora-targets", r.choice(["all", "attention", "query,value"])]
        elif kind == "freeze":
            case["flags"] = ["--freeze", r.choice(["embeddings", "layers:1", "layers:2", "all-but-head"])]
        else:
            case.update(task="serve", fill=False, ranks=[r.choice(ADAPTER_RANKS) for _ in range(r.choice([1, 2, 4, 16]))], port=free_port())
        yield case


def cases(args):
    if args.kinds:
        yield from adapter_cases(args)
        return
    if args.scoring:
        yield from scoring_cases(args)
        return
    if args.families:
        yield from family_cases(args)
        return
    r = random.Random(args.seed)
    for _ in range(args.runs):
        task = r.choice(["score", "train"])
        yield dict(task=task, model=r.choice(["tiny", "minilm", "distil", "roberta-base", "roberta-large"]), limit=r.choice([2, 4, 6, 8, 12, 24]),
                   kind=r.choice(KINDS), teacher=r.choice(["tiny", "minilm", "distil"]), length=r.choice([32, 64, 128, 256, 512]), fill=r.random() < 0.25, batch=r.choice([1024, 4096, 16384, 65536]),
                   precision=r.choice(["fp32", "tf32", "bf16", "bf16", "fp16"] + ["fp8"]))


OTHER = r"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, free, total, address, device = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_int()
def must(code, what):
    if code: sys.exit(f"{what}: CUDA error {code}")
must(cuda.cuInit(0), "cuInit")
must(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
print("ready", flush=True)
for line in sys.stdin:
    must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
    must(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(free.value // 2)), "cuMemAlloc")
    must(cuda.cuMemsetD8_v2(address, ctypes.c_ubyte(1), ctypes.c_size_t(free.value // 2)), "cuMemset")
    must(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
    print(free.value // 2, flush=True)
"""


class Other:
    """Another process on the GPU that allocates half of the free memory on request."""

    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline().strip() == "ready", "the other process could not use the GPU"

    def take(self):
        self.process.stdin.write("take\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline() or 0)

    def end(self):
        self.process.kill()
        self.process.wait()


def beside_another(args, gpu, peaks):
    """Another process allocates half of the free memory, once before a run and once during one."""
    long_texts = f"{args.work}/long.txt"  # some seconds of scoring on any GPU
    lines = open(args.texts, "rb").read()
    with open(long_texts, "wb") as f:
        for _ in range(max(1, 1_500_000 // max(1, lines.count(b"\n")))):
            f.write(lines)
    case = dict(task="score", model="roberta-base", limit=0, length=128, fill=True, batch=0, precision="bf16", other="before")
    other = Other()
    held = other.take()
    before = run(args, gpu, peaks, 9000, case)
    before.update(other_held=held, in_time=held > 0 and other.process.poll() is None)
    other.end()
    other = Other()
    case, took = dict(case, limit=6, fill=False, other="during", texts=long_texts), {}

    def meanwhile(p):  # once the run has allocated its memory
        while p.poll() is None and peaks.get(p.pid, 0) < GIB // 2:
            time.sleep(0.01)
        time.sleep(0.3)
        took["held"] = other.take()
        took["in_time"] = took["held"] > 0 and p.poll() is None

    during = run(args, gpu, peaks, 9001, case, meanwhile)
    during.update(other_held=took.get("held", 0), in_time=took.get("in_time", False))
    other.end()
    os.remove(long_texts)
    return [before, during]


def main():
    a = argparse.ArgumentParser()
    for name in ("brim", "models", "texts", "train"):
        a.add_argument(f"--{name}", required=True)
    a.add_argument("--work", default="/tmp/plan_check")
    a.add_argument("--runs", type=int, default=200)
    a.add_argument("--parallel", type=int, default=4)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--json")
    a.add_argument("--families", type=lambda names: names.split(","), default=[])
    a.add_argument("--scoring", type=lambda names: names.split(","), default=[])
    a.add_argument("--kinds", type=lambda names: names.split(","), default=[])
    a.add_argument("--adapted", type=lambda names: names.split(","), default=["tiny", "minilm", "distil", "roberta-base"])
    a.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = a.parse_args()
    if args.scoring:
        args.device = "cpu"
    if unknown := set(args.kinds) - set(ADAPTER_KINDS):
        a.error(f"--kinds {','.join(unknown)}: unknown; use {','.join(ADAPTER_KINDS)}")
    os.makedirs(args.work, exist_ok=True)
    write_data(args)
    if "adapters" in args.kinds:
        write_adapters(args)
    gpu, peaks, stop = None if args.device == "cpu" else Gpu(), {}, threading.Event()
    if gpu:
        threading.Thread(target=watch, args=(gpu, peaks, stop), daemon=True).start()
    queue, results, lock = list(enumerate(cases(args))), [], threading.Lock()

    def worker():
        while True:
            with lock:
                if not queue:
                    return
                index, case = queue.pop(0)
            result = run(args, gpu, peaks, index, case)
            with lock:
                results.append(result)

    threads = [threading.Thread(target=worker) for _ in range(args.parallel)]
    begin = time.time()
    [t.start() for t in threads]
    [t.join() for t in threads]
    beside = [] if args.families or args.scoring or args.kinds else beside_another(args, gpu, peaks)
    stop.set()
    ran = [r for r in results if r["code"] == 0]
    unfit = [r for r in results if r["code"] == 5]
    broken = [r for r in results if r["code"] not in (0, 5) or "failed" in r] + [r for r in beside if r["code"] != 0]
    held = ran + [r for r in beside if r["code"] == 0]
    over_limit = [r for r in held if r["limit"] and r["held"] > r["limit"] * GIB]
    over_plan = [r for r in held if not r["planned"] or r["held"] > r["planned"]]
    late = [r for r in beside if not r["in_time"]]
    unseen = [r for r in held if r["held"] == 0]
    kinds_wanted = args.kinds if args.kinds else [] if args.scoring else FAMILY_KINDS if args.families else KINDS
    kinds = {k: sum(r["kind"] == k for r in ran if r["task"] != "score") for k in kinds_wanted}
    missing = [k for k in kinds_wanted if args.runs >= 50 and not kinds[k]]
    loose = [r for r in ran if r["planned"] and r["planned"] - r["held"] > max(0.02 * r["planned"], 32 * MIB)]
    print(f"{len(results)} runs in {time.time() - begin:.0f} s: {len(ran)} ran, {len(unfit)} do not fit, {len(broken)} failed, "
          f"{len(over_limit)} over their limit, {len(over_plan)} over their plan, {len(loose)} use over 2 % and 32 MiB less than planned; "
          f"{len(unseen)} not seen by NVML; runs: {', '.join(f'{k} {n}' for k, n in kinds.items())}")
    seen = [r for r in ran if r["held"] and r["planned"]]
    if seen:
        gaps = sorted((r["held"] - r["planned"]) / MIB for r in seen)
        print(f"used minus planned, MiB: min {gaps[0]:.1f}, median {gaps[len(gaps) // 2]:.1f}, max {gaps[-1]:.1f}")
    for family in args.families:
        gaps = sorted((r["held"] - r["planned"]) / MIB for r in seen if r["family"] == family)
        if gaps:
            print(f"  {family}: {len(gaps)} runs, min {gaps[0]:.1f}, max {gaps[-1]:.1f}")
    for name, rows in (("failed", broken), ("over limit", over_limit), ("over plan", over_plan), ("not seen", unseen), ("loose", loose),
                       ("other process was late", late), ("with another process", beside)):
        for r in rows[:12]:
            print(f"{name}: {({k: v for k, v in r.items() if k not in ('error',)})} {r['error']}")
    if args.json:
        json.dump(results + beside, open(args.json, "w"))
    for kind in missing:
        print(f"no run of kind {kind}: increase --runs or change --seed")
    sys.exit(1 if broken or over_limit or over_plan or unseen or late or missing else 0)


if __name__ == "__main__":
    main()
