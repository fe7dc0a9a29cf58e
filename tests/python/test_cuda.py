# SPDX-License-Identifier: Apache-2.0
"""Brim and PyTorch in one process on a GPU: plans and limits hold in either order of loading. Each case is a separate process,
because contexts exist until exit. Skipped without a GPU, PyTorch or CUDA in the module; fails instead with BRIM_REQUIRE_GPU=1."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys

import pytest
from conftest import SOURCE

COMMON = """
import contextlib, csv, ctypes, json, os, sys, threading, time

GIB = 1 << 30
report = {}
with open(sys.argv[1], newline="", encoding="utf-8") as file:
    tweets = [row["text"] for row in csv.DictReader(file)]
texts = [f"{text} {i}" for i in range(4000 // len(tweets)) for text in tweets]


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]


nvml = ctypes.CDLL("libnvidia-ml.so.1")
assert nvml.nvmlInit_v2() == 0
card = ctypes.c_void_p()
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card)) == 0


def held():
    # Memory of this process according to the driver; 0 without a context.
    count, rows = ctypes.c_uint(256), (Process * 256)()
    assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(count), rows) == 0
    return sum(row.bytes for row in rows[:count.value] if row.pid == os.getpid())


class Peak:
    # Peak memory of this process during the block.
    def __enter__(self):
        self.bytes, self.stop = held(), threading.Event()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()
        return self

    def look(self):
        while not self.stop.wait(0.005):
            self.bytes = max(self.bytes, held())

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        self.bytes = max(self.bytes, held())


def torch_takes(gib):
    import torch

    block = torch.empty(int(gib * GIB), dtype=torch.uint8, device="cuda")
    block.fill_(7)
    torch.cuda.synchronize()
    return block


def intact(block):
    return all(int(part.min()) == int(part.max()) == 7 for part in block.split(GIB))


def on_cpu():
    with brim.Classifier(device="cpu", precision="fp32") as clf:
        return clf.predict(texts[:400]).labels
"""

CASES = {
    "limits_with_torch_first": """
block = torch_takes(20)
import brim
before = held()
wanted = on_cpu()
report["rows"] = []
for gib in range(1, 9):
    with Peak() as peak, brim.Classifier(device="cuda", precision="fp32", memory_limit=f"{gib}GiB") as clf:
        labels = clf.predict(texts).labels
        plan = clf.plan
    report["rows"].append([peak.bytes - before, plan.peak_bytes, plan.limit_bytes, gib * GIB, labels[:400] == wanted])
report["left"] = held() - before
report["intact"] = intact(block)
""",
    "limits_with_brim_first": """
import brim
with brim.Classifier(device="cuda", precision="fp32", memory_limit="2GiB") as clf:
    with Peak() as peak:
        alone = clf.predict(texts).scores.tobytes()
    first, plan = peak.bytes, clf.plan
    block = torch_takes(20)
    before = held()
    with Peak() as peak:
        again = clf.predict(texts).scores.tobytes()
    report["same"] = alone == again
    grown = first + peak.bytes - before
    report["rows"] = [[grown, plan.peak_bytes, plan.limit_bytes, 2 * GIB, clf.predict(texts[:400]).labels == on_cpu()]]
    with brim.Classifier(device="cuda", memory_limit="1GiB") as other, Peak() as peak:  # a second one, after torch
        other.predict(texts)
        report["rows"].append([peak.bytes - before, other.plan.peak_bytes, other.plan.limit_bytes, GIB, True])
report["intact"] = intact(block)
""",
    "both_compute_at_once": """
import torch
import brim
a = torch.randn(4096, 4096, device="cuda")
wanted = (a @ a).clone()
clf = brim.Classifier(device="cuda", memory_limit="2GiB")
alone = clf.predict(texts).scores.tobytes()
stop, wrong, products = threading.Event(), [], [0]
def multiply():
    while not stop.is_set():
        if not torch.equal(a @ a, wanted):
            wrong.append(1)
        products[0] += 1
thread = threading.Thread(target=multiply)
thread.start()
together = []
while products[0] < 20 and len(together) < 1000:
    together.append(clf.predict(texts).scores.tobytes() == alone)
stop.set()
thread.join()
report.update(together=together, wrong=len(wrong), products=products[0])
""",
    "training": """
block = torch_takes(20)
import brim, tempfile
before = held()
rows = {"text": texts, "label": ["positive" if "love" in t or "great" in t else "negative" for t in texts]}
with tempfile.TemporaryDirectory() as out, Peak() as peak:
    run = brim.train("default", rows, output_dir=out, device="cuda", memory_limit="4GiB", max_steps=40, max_length=64,
                     progress=False, ignore_mismatched_head=True)
f = run.figures
report["rows"] = [[peak.bytes - before, f["planned_bytes"], f["limit_bytes"], 4 * GIB, f["held_bytes"] <= f["planned_bytes"]]]
report["steps"] = f["steps"]
report["intact"] = intact(block)
""",
    "shares_of_what_is_free": """
import torch, brim
report["rows"] = []
for gib in (0, 60):
    block = torch_takes(gib) if gib else None
    free, total = torch.cuda.mem_get_info()
    before = held()
    for limit in ("auto", "10%"):
        with Peak() as peak, brim.Classifier(device="cuda", memory_limit=limit) as clf:
            clf.predict(texts)
            plan = clf.plan
        report["rows"].append([peak.bytes - before, plan.peak_bytes, plan.limit_bytes,
                               free if limit == "auto" else total // 10 + 1, True])
    del block
    torch.cuda.empty_cache()
""",
    "almost_nothing_free": """
import torch, brim
free, _ = torch.cuda.mem_get_info()
block = torch_takes((free - 200 * (1 << 20)) / GIB)
for limit in ("auto", "6GiB"):
    try:
        with brim.Classifier("default", device="cuda", memory_limit=limit, precision="fp32") as clf:
            report[limit] = clf.predict(texts[:400]).labels == on_cpu()
    except brim.DoesNotFit as error:
        report[limit] = bool(error.remedy or error.problem)
del block
torch.cuda.empty_cache()
with brim.Classifier(device="cuda", memory_limit="2GiB") as clf:  # the process can continue
    report["after"] = len(clf.predict(texts).labels) == len(texts)
""",
}


@functools.cache
def why_not():
    try:
        import torch
    except ImportError:
        return "no PyTorch"
    if not torch.cuda.is_available():
        return "no GPU"
    import brim

    try:
        brim.Classifier(device="cuda").close()
    except brim.Error as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("case", CASES)
def test_with_pytorch_in_one_process(case, cache):
    if why := why_not():
        assert not os.environ.get("BRIM_REQUIRE_GPU"), why
        pytest.skip(why)
    code = COMMON + CASES[case] + "\nprint(json.dumps(report))\n"
    done = subprocess.run([sys.executable, "-c", code, SOURCE / "examples" / "tweets.csv"], capture_output=True, text=True,
                          env={**os.environ, "BRIM_CACHE": str(cache)})
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    print(case, json.dumps(report))
    for grown, planned, limit, asked, right in report.get("rows", []):
        assert 0 < grown <= planned <= limit <= asked and right, report
    if case == "limits_with_torch_first":
        assert report["left"] < 1 << 30 and report["intact"], report
    elif case == "limits_with_brim_first":
        assert report["same"] and report["intact"], report
    elif case == "both_compute_at_once":
        assert all(report["together"]) and report["wrong"] == 0 and report["products"] >= 20, report
    elif case == "training":
        assert report["steps"] == 40 and report["intact"], report
    elif case == "almost_nothing_free":
        assert report["auto"] and report["6GiB"] and report["after"], report
    # PyTorch's memory must not be cached as the size of the driver's context, which later plans include.
    kept = [json.loads(path.read_text()) for path in cache.rglob("*.json")]
    assert all(one.get("context_bytes", 0) < 4 << 30 for one in kept), kept
