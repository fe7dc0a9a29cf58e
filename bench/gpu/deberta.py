#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures DeBERTa-v3-base's shape and zero-shot classification against transformers on the GPU of this machine; prints one table.

  deberta.py --brim PROGRAM --data DIR [--work DIR] [--logs DIR] [--sections score,train,long,zeroshot,plan,cpu] [--model deberta-v3-base]

DIR contains tweets_60k.txt, tweets_train.csv, tokenizer/ (RoBERTa's files) and optionally disentangled_flash/ (the package).
score: 60,000 tweets from file to labels. train: 65,536 tokens per step, and 16,384 in 8 GiB. long: texts of 512 tokens. zeroshot: 20
labels for each of 60,000 tweets, models of DeBERTa's and RoBERTa's shape with random weights. plan: planned against used memory.
cpu: two cores against ONNX Runtime. Baselines are those of peers.py and bench/cpu_peers.py, run in turn with Brim.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
table = []


def row(name, text):
    table.append(f"{name:66} {text}")
    print(table[-1], flush=True)


class Bench:
    def __init__(self, args):
        self.args = args
        self.work, self.logs, self.data = (pathlib.Path(p) for p in (args.work, args.logs or args.work + "/logs", args.data))
        self.logs.mkdir(parents=True, exist_ok=True)
        self.texts = self.data / "tweets_60k.txt"
        self.env = dict(os.environ, PYTHONPATH=f"{self.data}:{os.environ.get('PYTHONPATH', '')}", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="true")

    def call(self, name, command, limit=240):
        """Runs a command; returns its standard output, or None after a row with the error."""
        with open(self.logs / f"{name}.log", "w") as log:
            try:
                done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=log, text=True, env=self.env, timeout=limit)
            except subprocess.TimeoutExpired:
                row(name, f"FAILED: over {limit} s")
                return None
        if done.returncode:
            lines = (self.logs / f"{name}.log").read_text(errors="replace").strip().splitlines() or [""]
            row(name, f"FAILED: exit {done.returncode}: {lines[-1][:200]}")
            return None
        return done.stdout

    def model(self, name):
        out = self.work / name
        if not (out / "model.safetensors").exists():
            self.call(f"make {name}", [sys.executable, HERE / "make_model.py", self.data / "tokenizer", out, name])
        return out

    def peer(self, name, model, *modes):
        """Runs peers.py; returns its results."""
        out = self.call(f"peer {name}", [sys.executable, HERE / "peers.py", model, self.texts, *modes])
        results = [json.loads(line) for line in (out or "").splitlines() if line.startswith("{")]
        for r in results:
            row(f"baseline: {r['peer']}", ", ".join(f"{k} {v:,}" for k, v in r.items() if k != "peer"))
        return results

    def score(self, name, model, file, *flags, runs=2):
        """Scores a file; returns the summary of the fastest run."""
        best = None
        for i in range(runs):
            summary = self.logs / f"{name}_{i}.json"
            if self.call(f"{name}_{i}", [self.args.brim, "score", file, "-o", self.work / "o.csv", "--device", self.args.device, "--model", model, "--summary-json", summary, "-q", *flags]) is None:
                return None
            s = json.loads(summary.read_text())
            best = s if best is None or s["rows_per_second"] > best["rows_per_second"] else best
        row(f"brim score {name}", f"rows_per_second {best['rows_per_second']:,.0f}, tokens_per_second {best['tokens_per_second']:,.0f}, mfu {best.get('mfu')}, device_busy {best.get('device_busy')}, "
            f"planned {best['planned_bytes'] / 2**20:,.0f} MiB")
        return best

    def train(self, name, model, tokens, *flags):
        """Trains some steps; returns the median tokens per second of the log after the first entry."""
        out = self.work / "trained"
        shutil.rmtree(out, ignore_errors=True)
        if self.call(name, [self.args.brim, "train", "--model", model, "--train", self.data / "tweets_train.csv", "--output", out, "--batch-tokens", tokens, "--max-steps", self.args.steps, "--logging-steps", 5,
                            "--learning-rate", "2e-5", "--save-strategy", "no", "--device", self.args.device, "-q", *flags]) is None:
            return None
        log = [json.loads(line) for line in (out / "train_log.jsonl").read_text().splitlines()]
        speeds = [r["tokens_per_second"] for r in log if "tokens_per_second" in r]
        speed = statistics.median(speeds[1:] or speeds)
        memory = max(r.get("memory_used_bytes", 0) for r in log)
        row(f"brim train {name}", f"tokens_per_second {speed:,.0f} (median of {len(speeds) - 1} intervals, {min(speeds[1:] or speeds):,.0f} to {max(speeds):,.0f}), {memory / 2**30:.2f} GiB")
        return speed


def ratio(name, own, peer, target):
    if own and peer:
        row(f"RATIO {name}", f"{own / peer:.2f} (target {target})")


def fastest(results, key):
    return max((r[key] for r in results if key in r), default=None)


def measure_score(b):
    model = b.model(b.args.model)
    flags = ["--precision", "bf16"]
    own = b.score("60,000 tweets", model, b.texts, *flags, runs=3)
    if b.args.device == "cuda":
        b.call("tune", [b.args.brim, "models", "tune", "--model", model, "--precision", "bf16", "--seconds", "1"])
        own = b.score("60,000 tweets, tuned", model, b.texts, *flags, runs=3) or own
    peers = b.peer("score", model, "forward:eager:65536", "forward:compiled:65536")
    ratio("scoring, transformers compiled", own and own["rows_per_second"], fastest(peers, "rows_per_second"), "16, 85,000 rows/s")


def measure_train(b):
    model = b.model(b.args.model)
    own = b.train("65,536 tokens", model, 65536, "--precision", "bf16")
    b.train("16,384 tokens, 8 GiB", model, 16384, "--precision", "bf16", "--memory-limit", "8GiB")
    peers = b.peer("train", model, "hf:16384", "hf:65536")
    ratio("training, transformers eager", own, fastest(peers, "tokens_per_second"), "3.5, 600,000 tokens/s")


def measure_long(b):
    model = b.model(b.args.model)
    lines = b.texts.read_text(encoding="utf-8", errors="replace").split("\n")
    file = b.work / "long.txt"
    file.write_text("".join(" ".join(lines[(i * 97) % len(lines):][:50]) + "\n" for i in range(b.args.long_rows)), encoding="utf-8")
    flags = ["--precision", "bf16", "--max-length", 512]
    own = b.score("texts of 512 tokens", model, file, *flags)
    if b.args.device == "cuda":
        b.call("tune 512", [b.args.brim, "models", "tune", "--model", model, *flags, "--seconds", "1"])
        own = b.score("texts of 512 tokens, tuned", model, file, *flags) or own
    own = own and own["tokens_per_second"]
    ratio("512 tokens, transformers compiled", own, fastest(b.peer("512", model, "forward:compiled:65536:512"), "tokens_per_second"), "3")
    if (b.data / "disentangled_flash").exists():
        ratio("512 tokens, disentangled-flash", own, fastest(b.peer("512 flash", model, "forward:flash:65536:512"), "tokens_per_second"), "1.5")


def measure_zero_shot(b):
    labels = ",".join(f"topic {i}" for i in range(20))
    for shape in b.args.zero_shot_models:
        model = b.model(shape)
        own = b.score(f"zero-shot, 20 labels, {shape}", model, b.texts, "--labels", labels, "--precision", "bf16", runs=1)
        peers = b.peer(f"zero-shot {shape}", model, "zeroshot:20:300")
        ratio(f"zero-shot, {shape}, transformers' pipeline", own and own["rows_per_second"], fastest(peers, "rows_per_second"), "20")


def measure_plan(b):
    for name in ("deberta-tiny", "deberta-minilm"):
        b.model(name)
    some = b.work / "t12k.txt"
    some.write_text("\n".join(b.texts.read_text(encoding="utf-8", errors="replace").split("\n")[:12000]) + "\n", encoding="utf-8")
    out = b.logs / "plan_check.txt"
    with open(out, "w") as f:
        code = subprocess.run([sys.executable, HERE / "plan_check.py", "--brim", b.args.brim, "--models", b.work, "--texts", some, "--train", b.data / "tweets_train.csv", "--families", "deberta", "--runs", "50",
                               "--device", b.args.device, "--work", b.work / "plan", "--json", b.logs / "plan_check.json"], stdout=f, stderr=subprocess.STDOUT, env=b.env).returncode
    for line in out.read_text().splitlines():
        row(f"plan check, exit {code}", line[:300])


def measure_cpu(b):
    model = b.model(b.args.cpu_model)
    out = b.call("cpu", ["taskset", "-c", "0,1", sys.executable, HERE.parent / "cpu_peers.py", "--brim", b.args.brim, "--model", model, "--texts", b.texts, "--threads", 2, "--parts", "tweets",
                         "--precisions", "fp32,int8", "--rows", b.args.cpu_rows], limit=400)
    found = {}
    for line in (out or "").splitlines():
        if line.startswith("{"):
            r = json.loads(line)
            found[r["who"], r.get("precision")] = r.get("after_loading", r.get("rows_per_second"))
            row(f"two cores, {b.args.cpu_model}: {r.pop('who')}", ", ".join(f"{k} {v}" for k, v in r.items()))
    for precision, target in (("fp32", "1.5"), ("int8", "3")):
        ratio(f"two cores, {precision}, ONNX Runtime", found.get(("brim score", precision)), found.get(("python loop, onnxruntime", precision)), target)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--brim", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--work", default="/tmp/brim-deberta")
    p.add_argument("--logs")
    p.add_argument("--sections", type=lambda t: t.split(","), default=["score", "train", "long", "zeroshot", "plan"])
    p.add_argument("--model", default="deberta-v3-base")
    p.add_argument("--zero-shot-models", type=lambda t: t.split(","), default=["deberta-v3-base-nli", "roberta-base-nli"])
    p.add_argument("--cpu-model", default="deberta-v3-base")
    p.add_argument("--cpu-rows", type=int, default=600)
    p.add_argument("--long-rows", type=int, default=12000)
    p.add_argument("--steps", type=int, default=30)
    p.add_argument("--device", default="cuda")
    b = Bench(p.parse_args())
    sections = {"score": measure_score, "train": measure_train, "long": measure_long, "zeroshot": measure_zero_shot, "plan": measure_plan, "cpu": measure_cpu}
    for name in b.args.sections:
        begin = time.time()
        sections[name](b)
        row(f"section {name}", f"{time.time() - begin:.0f} s")
    print("\n== table\n" + "\n".join(table))


if __name__ == "__main__":
    main()
