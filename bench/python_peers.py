#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the Python module with the program, and shards on Ray and Spark with common alternatives there; prints one table.

  PYTHONPATH=DIR python_peers.py --texts FILE [--rows 60000] [--peer-rows 20000] [--cores 2] [--parts LIST] [--json OUT]

DIR is the output of `cmake --install BUILD --component python --prefix DIR/brim`; or install the wheel. Parts:
score    `brim score` on the first rows of FILE, file to CSV, whole process: the baseline of all ratios
predict  brim.Classifier() and predict(list), without the import
ray      brim.ray.score, 16 shards, one actor per core          spark    brim.spark.score, local[cores]
raydata  Ray Data map_batches with transformers.pipeline, fp32, one actor per core, batches of 32
raydata1 the same with the pipeline's default of one text at a time, as in Ray's examples
sparkort Spark mapInArrow with ONNX Runtime int8 (fused, dynamic), texts of a batch sorted by length
Every row must be output exactly once; labels are compared with those of `brim score`. Reports wall time and the CPU time of all
processes of a part. Requires ray, pyspark with Java 17, torch, transformers, onnxruntime, onnx; reports parts with missing packages.
"""
from __future__ import annotations

import argparse
import csv
import glob
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

SHARDS = 16
results: dict[str, dict] = {}


class Clock:
    """Measures wall time and the CPU time of this process and its descendants (polled five times a second)."""

    def __enter__(self):
        self.seen, self.stop = {}, threading.Event()
        self.first = self.look()
        self.began = time.perf_counter()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def look(self):
        tick, parents, times = os.sysconf("SC_CLK_TCK"), {}, {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(entry.name)] = int(fields[1])
                times[int(entry.name)] = (int(fields[11]) + int(fields[12])) / tick

        def ours(pid):
            while pid and pid != os.getpid():
                pid = parents.get(pid, 0)
            return pid != 0

        now = {pid: seconds for pid, seconds in times.items() if ours(pid)}
        for pid, seconds in now.items():
            self.seen[pid] = max(self.seen.get(pid, 0), seconds)
        return now

    def watch(self):
        while not self.stop.wait(0.2):
            self.look()

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self.began
        self.stop.set()
        self.thread.join()
        self.look()
        self.processor = sum(seconds - self.first.get(pid, 0) for pid, seconds in self.seen.items())


def emit(part, rows, clock, labels, **more):
    own = results.get("score", {}).get("labels", [])[:len(labels)]
    agree = sum(a == b for a, b in zip(own, labels)) / len(labels) if own else None
    results[part] = {"rows": rows, "seconds": clock.seconds, "processor_seconds": clock.processor,
                     "rows_per_second": rows / clock.seconds, "labels_as_score": agree, "labels": labels, **more}
    shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in results[part].items() if k != "labels"}
    print(part, json.dumps(shown), flush=True)
    assert len(labels) == rows, f"{part}: {rows} rows in, {len(labels)} out"
    assert agree is None or agree > 0.95, f"{part}: {agree} of the labels agree with brim score"


def score(a, work):
    from brim import _program

    out = f"{work}/score.csv"
    with Clock() as clock:
        subprocess.run([_program.path(), "score", f"{work}/texts.txt", "-o", out, "-q", "--format", "txt", "--device", "cpu",
                        "--threads", str(a.cores)], check=True)
    with open(out, newline="", encoding="utf-8") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    emit("score", a.rows, clock, labels)


def predict(a, work):
    """Runs in a separate process, so that no libraries of other parts are loaded."""
    code = ("import brim, json, sys, time\ntexts = open(sys.argv[1], encoding='utf-8').read().split('\\n')[:-1]\n"
            "brim.Classifier('vader').predict(texts[:10])\nt = time.perf_counter()\n"
            "clf = brim.Classifier(device='cpu', threads=int(sys.argv[2]))\nopened = time.perf_counter() - t\n"
            "labels = clf.predict(texts).labels\n"
            "print(json.dumps({'seconds': time.perf_counter() - t, 'opened': opened, 'labels': labels}))\n")
    with Clock() as clock:
        done = subprocess.run([sys.executable, "-c", code, f"{work}/texts.txt", str(a.cores)], check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    clock.seconds = result["seconds"]
    emit("predict", a.rows, clock, result["labels"], opened=result["opened"])


def labels_of(folder, column="label"):
    """Returns the labels ordered by id; each id must occur once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.concat_tables([pq.read_table(f, columns=["id", column]).cast(pa.schema([("id", pa.int64()), (column, pa.string())]))
                              for f in sorted(glob.glob(f"{folder}/*.parquet"))])
    ids = table["id"].to_pylist()
    assert sorted(ids) == list(range(len(ids))), "a row is missing or duplicated"
    labels = [None] * len(ids)
    for i, label in zip(ids, table[column].to_pylist()):
        labels[i] = label
    return labels


def start_ray(a):
    import ray

    if not ray.is_initialized():  # one more than cores, for Ray Data's reading and writing
        ray.init(num_cpus=a.cores + 1, include_dashboard=False, log_to_driver=False, object_store_memory=500 << 20,
                 runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "HF_HUB_OFFLINE": "1"}})
    return ray


def start_spark(a):
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.master(f"local[{a.cores}]").config("spark.ui.enabled", "false").config(
        "spark.driver.host", "127.0.0.1").config("spark.log.level", "ERROR").getOrCreate()
    session.range(0, 8, 1, a.cores).count()  # warm up the JVM
    return session


def planned(work, out):
    import brim.bulk

    return brim.bulk.plan(f"{work}/in/*.parquet", out, keep=["id"], rows_per_shard=1, device="cpu")


def by_shards(part, a, work, run):
    import brim.bulk

    job = planned(work, f"{work}/{part}")
    with Clock() as clock:
        failed = run(job)
        brim.bulk.finish(job)
    assert not failed, failed
    emit(part, a.rows, clock, labels_of(f"{work}/{part}"), shards=len(job.shards))


def ray_shards(a, work):
    import brim.ray

    start_ray(a)
    by_shards("ray", a, work, lambda job: brim.ray.score(job, workers=a.cores))


def spark_shards(a, work):
    import brim.spark

    session = start_spark(a)
    by_shards("spark", a, work, lambda job: brim.spark.score(job, session))
    session.stop()


class Pipeline:
    """A typical Ray Data user function."""

    def __init__(self, model, batch):
        import torch
        import transformers

        torch.set_num_threads(1)
        self.batch, self.pipe = batch, transformers.pipeline("text-classification", model=model, device="cpu")

    def __call__(self, rows):
        found = self.pipe([str(text) for text in rows["text"]], batch_size=self.batch, truncation=True)
        return {"id": rows["id"], "label": [one["label"] for one in found]}


def ray_data(part, batch, a, work):
    ray = start_ray(a)
    import transformers  # noqa: F401  (fail early if it is missing)

    with Clock() as clock:
        # Small files are read as one block, which would keep only one actor busy.
        ray.data.read_parquet(f"{work}/peer").repartition(8 * a.cores).map_batches(
            Pipeline, fn_constructor_args=(f"{work}/fp32", batch), batch_size=1024, num_cpus=1, concurrency=a.cores).write_parquet(f"{work}/{part}")
    emit(part, a.peer_rows, clock, labels_of(f"{work}/{part}"))


def onnx_rows(model, file, batches):
    import onnxruntime as ort
    import pyarrow as pa
    import tokenizers
    from cpu_peers import best_classes

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    fast = tokenizers.Tokenizer.from_file(f"{model}/tokenizer.json")
    fast.no_padding()
    fast.enable_truncation(512)
    names = json.load(open(f"{model}/config.json"))["id2label"]
    for batch in batches:
        table = batch.to_pydict()
        encoded = [e.ids for e in fast.encode_batch(table["text"])]
        labels = [names[str(best)] for best in best_classes(session, encoded)]
        yield pa.RecordBatch.from_pydict({"id": pa.array(table["id"], pa.int64()), "label": labels})


def spark_onnx(a, work):
    import functools

    import onnxruntime  # noqa: F401
    import torch
    import transformers
    from cpu_peers import Wrapped, export_onnx, fused, quantise

    hf = transformers.AutoModelForSequenceClassification.from_pretrained(f"{work}/fp32", dtype=torch.float32).eval()
    export_onnx(Wrapped(hf), f"{work}/cls.onnx", True)
    quantise(fused(f"{work}/cls.onnx", f"{work}/fused.onnx", hf.config), f"{work}/cls8.onnx")
    session = start_spark(a)
    session.sparkContext.addPyFile(str(pathlib.Path(__file__).with_name("cpu_peers.py")))
    work_of = functools.partial(onnx_rows, f"{work}/fp32", f"{work}/cls8.onnx")
    with Clock() as clock:
        rows = session.read.parquet(f"{work}/peer").repartition(SHARDS)
        rows.mapInArrow(work_of, "id long, label string").write.mode("overwrite").parquet(f"{work}/sparkort")
    emit("sparkort", a.peer_rows, clock, labels_of(f"{work}/sparkort"))
    session.stop()


def plain_model(source, target):
    """Converts the default model from int8 to fp32 for the baselines."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    os.makedirs(target)
    stored = load_file(f"{source}/model.safetensors")
    out = {}
    for name, value in stored.items():
        if not name.endswith("_scale"):
            scale = stored.get(f"{name}_scale")
            value = value.astype(np.float32)
            out[name] = value if scale is None else value * scale.astype(np.float32).reshape(-1, *[1] * (value.ndim - 1))
    save_file(out, f"{target}/model.safetensors", metadata={"format": "pt"})
    config = json.load(open(f"{source}/config.json"))
    config.pop("quantization_config", None)
    json.dump(config, open(f"{target}/config.json", "w"))
    pathlib.Path(f"{target}/tokenizer.json").write_bytes(pathlib.Path(f"{source}/tokenizer.json").read_bytes())
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, "pad_token": "[PAD]"}, open(f"{target}/tokenizer_config.json", "w"))


def prepare(a, work):
    import pyarrow as pa
    import pyarrow.parquet as pq
    from brim import _brim

    lines = [line for line in open(a.texts, encoding="utf-8", errors="replace").read().split("\n") if line.strip()]
    texts = (lines * (-(-a.rows // len(lines))))[:a.rows]
    pathlib.Path(f"{work}/texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    for folder, count in (("in", a.rows), ("peer", min(a.peer_rows, a.rows))):
        os.makedirs(f"{work}/{folder}")
        step = -(-count // SHARDS)
        for n, at in enumerate(range(0, count, step)):
            ids = range(at, min(at + step, count))
            pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "text": texts[at:at + len(ids)]}), f"{work}/{folder}/{n:02}.parquet")
    plain_model(_brim.find_model(""), f"{work}/fp32")


PARTS = {"score": score, "predict": predict, "ray": ray_shards, "spark": spark_shards, "sparkort": spark_onnx,
         "raydata": lambda a, work: ray_data("raydata", 32, a, work), "raydata1": lambda a, work: ray_data("raydata1", 1, a, work)}
BARS = {"predict": ("brim score", 0.97), "ray": ("brim score", 0.95), "spark": ("brim score", 0.95), "raydata": ("Ray Data", 20), "raydata1": ("Ray Data", 20),
        "sparkort": ("Spark + ONNX", 3)}


def main():
    p = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    p.add_argument("--texts", required=True)
    p.add_argument("--rows", type=int, default=60_000)
    p.add_argument("--peer-rows", type=int, default=20_000)
    p.add_argument("--cores", type=int, default=2)
    p.add_argument("--parts", default=",".join(PARTS))
    p.add_argument("--json")
    a = p.parse_args()
    parts = a.parts.split(",")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        p.error(f"unknown part '{unknown[0]}' (available: {', '.join(PARTS)})")
    a.peer_rows = min(a.peer_rows, a.rows)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:a.cores])
    os.environ.pop("OMP_NUM_THREADS", None)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as work:
        prepare(a, work)
        try:
            for part in parts:
                try:
                    PARTS[part](a, work)
                except ImportError as error:
                    print(f"{part}: not measured, {error}", flush=True)
        finally:  # keep the results of earlier parts if one fails
            if a.json:
                with open(a.json, "w") as file:
                    json.dump({part: {k: v for k, v in r.items() if k != "labels"} for part, r in results.items()}, file, indent=1)
    score_alone, missed = results.get("score"), []
    print(f"\n{'part':10}{'rows':>8}{'seconds':>10}{'rows/s':>9}   ratio of wall time, of CPU time (target)")
    for part, r in results.items():
        bar, ours, other = BARS.get(part), r, score_alone
        if bar and bar[0] != "brim score":  # shards against the baseline on the same platform
            ours, other = results.get("ray" if part.startswith("ray") else "spark", score_alone), r
        shown = ""
        if bar and ours and other:
            ratio = ours["rows_per_second"] / other["rows_per_second"]
            processor = other["processor_seconds"] / other["rows"] / (ours["processor_seconds"] / ours["rows"])
            shown = f"   {ratio:.3f}, {processor:.3f} ({bar[1]})"
            if ratio < bar[1]:
                missed.append(f"{part} against {bar[0]}: wall time {ratio:.3f}, CPU time {processor:.3f}, target {bar[1]}")
        elif bar:
            shown = "   baseline not measured"
        print(f"{part:10}{r['rows']:8}{r['seconds']:10.2f}{r['rows_per_second']:9.0f}{shown}")
    for line in missed:
        print(f"target missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
