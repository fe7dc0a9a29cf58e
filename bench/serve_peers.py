#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `brim serve` with other servers on the same machine and texts, interleaved; prints one JSON line per measurement.

  serve_peers.py --brim PROGRAM --model FP32_DIR --texts FILE [--venv PYTHON] [--rounds 2] [--seconds 6] [--over-seconds 60]
                 [--peers brim,fastapi,fastapi-int8,litserve,infinity,triton] [--parts single,half,over,batch,ping]

fastapi: FastAPI, uvicorn and ONNX Runtime (with transformer fusions) behind a dynamic batcher of at most 64 texts. litserve: the
int8 session with LitServe's batching. infinity: its engine (PyTorch) behind the same route. All implement /predict of
text-embeddings-inference, so that `brim bench serve --url` can drive them. triton: the int8 session behind Triton with dynamic
batching (nvidia-pytriton), driven through its own route, `single` only. FP32_DIR is the output of
`brim models export models/default --precision fp32 -o DIR`. Reports texts/s, latencies and CPU time of the server per text, which
is less affected by other processes.

single: 64 connections, one text per request. half: Poisson arrivals at half the rate of `single`. over: three times that rate for
--over-seconds, Brim with --max-queue-ms 100. batch: 32 texts per request. ping: `wrk -t1 -c64` on /ping, and VADER with 1 and 512
texts per request (Brim only).
PYTHON requires fastapi, uvicorn, onnxruntime, transformers, torch, litserve, nvidia-pytriton (infinity-emb needs a separate
environment: --infinity PYTHON).
"""
import argparse
import asyncio
import csv
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

BATCH = 64


# --- baseline servers, each in a separate process ---


class Session:
    """Computes class probabilities with ONNX Runtime; pads each batch to its longest text."""

    def __init__(self, folder, threads, int8):
        import cpu_peers
        import onnxruntime
        import torch
        import transformers as tf

        self.tokenizer = tf.AutoTokenizer.from_pretrained(folder)
        hf = tf.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
        self.labels = [hf.config.id2label[i] for i in range(hf.config.num_labels)]
        with tempfile.TemporaryDirectory() as work:
            path = f"{work}/model.onnx"
            cpu_peers.export_onnx(cpu_peers.Wrapped(hf), path, True)
            path = cpu_peers.fused(path, f"{work}/fused.onnx", hf.config)
            if int8:
                cpu_peers.quantise(path, f"{work}/int8.onnx")
                path = f"{work}/int8.onnx"
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.names = [i.name for i in self.session.get_inputs()]

    def __call__(self, texts):
        import numpy as np

        batch = self.tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="np")
        logits = self.session.run(None, {n: batch[n].astype(np.int64) for n in self.names})[0]
        e = np.exp(logits - logits.max(-1, keepdims=True))
        scores = e / e.sum(-1, keepdims=True)
        return [[{"score": float(s[i]), "label": self.labels[i]} for i in np.argsort(-s)] for s in scores]


def texts_of(inputs):
    return [inputs] if isinstance(inputs, str) else [one[0] for one in inputs]


def fastapi_app(score):
    """Dynamic batcher: calls `score` with a list of texts on one thread; waiting requests form the next batch."""
    import concurrent.futures

    import fastapi

    app = fastapi.FastAPI()
    pool = concurrent.futures.ThreadPoolExecutor(1)
    queue = asyncio.Queue()

    async def batcher():
        loop = asyncio.get_running_loop()
        while True:
            waiting = [await queue.get()]
            while not queue.empty() and sum(len(t) for t, _ in waiting) < BATCH:
                waiting.append(queue.get_nowait())
            texts = [t for part, _ in waiting for t in part]
            scored = await loop.run_in_executor(pool, score, texts)
            at = 0
            for part, future in waiting:
                if not future.done():
                    future.set_result(scored[at : at + len(part)])
                at += len(part)

    @app.on_event("startup")
    async def begin():
        app.state.batcher = asyncio.create_task(batcher())

    @app.post("/predict")
    async def predict(request: fastapi.Request):
        inputs = (await request.json())["inputs"]
        future = asyncio.get_running_loop().create_future()
        await queue.put((texts_of(inputs), future))
        scored = await future
        return fastapi.responses.JSONResponse(scored[0] if isinstance(inputs, str) else scored)

    return app


try:  # LitServe's workers import the class by name, so it must be at module level
    import litserve

    class LitApi(litserve.LitAPI):
        def setup(self, device):
            self.score = Session(*self.session_of)

        def decode_request(self, request):
            return request["inputs"]

        def predict(self, batch):
            parts = [texts_of(inputs) for inputs in batch]
            scored, at, out = self.score([t for part in parts for t in part]), 0, []
            for inputs, part in zip(batch, parts):
                some = scored[at : at + len(part)]
                out.append(some[0] if isinstance(inputs, str) else some)
                at += len(part)
            return out

        def encode_response(self, output):
            return output
except ImportError:
    pass


def serve_peer(which, folder, port, threads):
    if which.startswith("fastapi"):
        import uvicorn

        uvicorn.run(fastapi_app(Session(folder, threads, which.endswith("int8"))), host="127.0.0.1", port=port, log_level="error", access_log=False)
    elif which == "litserve":
        api = LitApi(max_batch_size=BATCH, batch_timeout=0.002, api_path="/predict")
        api.session_of = (folder, threads, True)
        litserve.LitServer(api, accelerator="cpu", timeout=60).run(host="127.0.0.1", port=port, log_level="error", generate_client_file=False)
    elif which == "infinity":
        import fastapi
        import infinity_emb
        import uvicorn

        engine = infinity_emb.AsyncEmbeddingEngine.from_args(infinity_emb.EngineArgs(model_name_or_path=folder, engine="torch", device="cpu", batch_size=BATCH, bettertransformer=False))
        app = fastapi.FastAPI()

        @app.on_event("startup")
        async def begin():
            await engine.astart()

        @app.post("/predict")
        async def predict(request: fastapi.Request):
            inputs = (await request.json())["inputs"]
            scored, _ = await engine.classify(sentences=texts_of(inputs), raw_scores=False)
            scored = [[{"score": p["score"], "label": p["label"]} for p in sorted(one, key=lambda p: -p["score"])] for one in scored]
            return fastapi.responses.JSONResponse(scored[0] if isinstance(inputs, str) else scored)

        uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)
    elif which == "triton":
        import numpy as np
        from pytriton.decorators import batch
        from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
        from pytriton.triton import Triton, TritonConfig

        score = Session(folder, threads, True)

        @batch
        def infer(text):
            best = [one[0] for one in score([t[0].decode() for t in text])]
            return {"label": np.array([[b["label"].encode()] for b in best]), "score": np.array([[b["score"]] for b in best], np.float32)}

        with Triton(config=TritonConfig(http_address="127.0.0.1", http_port=port, grpc_address="127.0.0.1", grpc_port=free_port(), allow_metrics=False)) as triton:
            out = [Tensor(name="label", dtype=bytes, shape=(1,)), Tensor(name="score", dtype=np.float32, shape=(1,))]
            triton.bind(model_name="brim", infer_func=infer, inputs=[Tensor(name="text", dtype=bytes, shape=(1,))], outputs=out, config=ModelConfig(max_batch_size=BATCH, batcher=DynamicBatcher()))
            triton.serve()


# --- measurement ---


def tree(pid):
    """Returns a process and its descendants."""
    found, todo = [], [pid]
    while todo:
        p = todo.pop()
        found.append(p)
        try:
            for task in os.listdir(f"/proc/{p}/task"):
                todo += map(int, pathlib.Path(f"/proc/{p}/task/{task}/children").read_text().split())
        except OSError:
            pass
    return found


def processor_seconds(pid):
    total = 0
    for p in tree(pid):
        try:
            fields = pathlib.Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        except OSError:
            pass
    return total / os.sysconf("SC_CLK_TCK")


def resident(pid):
    return sum(int(pathlib.Path(f"/proc/{p}/statm").read_text().split()[1]) * 4096 for p in tree(pid))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    def __init__(self, a, which, extra=()):
        self.port = free_port()
        if which.startswith("brim"):
            command = [a.brim, "serve", "--model", a.model, "--listen", f"127.0.0.1:{self.port}", "--connections-per-address", "1024", "-q", *extra]
            command += a.precision
        else:
            python = a.infinity if which == "infinity" else a.venv
            command = [python, __file__, "--serve", which, "--model", a.model, "--port", str(self.port), "--threads", str(a.threads)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE if which.startswith("brim") else None)
        route, body = "/predict", json.dumps({"inputs": "a day"}).encode()
        if which == "triton":
            route, body = TRITON, triton_body("a day")
        import urllib.request

        for _ in range(1200):
            if self.process.poll() is not None:
                raise RuntimeError(f"{which} exited")
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{self.port}{route}", body, {"Content-Type": "application/json"})
                urllib.request.urlopen(request, timeout=30).read()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"{which} does not respond")

    def close(self):
        for p in reversed(tree(self.process.pid)):
            try:
                os.kill(p, signal.SIGTERM)
            except OSError:
                pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            for p in tree(self.process.pid):
                os.kill(p, signal.SIGKILL)


def load(a, server, *flags):
    before = processor_seconds(server.process.pid)
    out = subprocess.run([a.brim, "bench", "serve", "--json", "--model", a.model, "--texts", a.texts, "--url", f"http://127.0.0.1:{server.port}", "--seconds", str(a.seconds), *a.precision, *flags], capture_output=True, text=True)
    cpu = processor_seconds(server.process.pid) - before
    if not out.stdout:
        return {"error": out.stderr.strip()[-300:]}
    result = json.loads(out.stdout)
    row = {name: result[name] for name in ("texts_per_second", "answered", "refused", "failed", "other", "answered_ms", "refused_ms", "note") if result.get(name) is not None}
    row["processor_ms_per_text"] = 1e3 * cpu / max(1, result["answered"] * result["texts_per_request"])
    row["resident_mib"] = resident(server.process.pid) / 2**20
    return row


TRITON = "/v2/models/brim/infer"


def triton_body(text):
    return json.dumps({"inputs": [{"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]}).encode()


def triton_load(a, server, connections):
    """Load test of Triton's route with this many connections, like `brim bench serve`; compares labels with `brim score`."""
    texts = pathlib.Path(a.texts).read_text().removesuffix("\n").split("\n")  # same line splitting as `brim score`
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([a.brim, "score", a.texts, "-o", f"{work}/o.csv", "--model", a.model, "--quiet", *a.precision], check=True, capture_output=True)
        with open(f"{work}/o.csv", newline="") as f:
            labels = [row["label"] for row in csv.DictReader(f)]
    times, wrong, begun = [], 0, time.time()
    end = begun + a.seconds

    async def client(number):
        nonlocal wrong
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while time.time() < end:
            number = (number + connections) % len(texts)
            body, since = triton_body(texts[number]), time.time()
            writer.write(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (TRITON.encode(), len(body), body))
            head = await reader.readuntil(b"\r\n\r\n")
            answer = json.loads(await reader.readexactly(int(re.search(rb"(?i)content-length: *(\d+)", head)[1])))
            times.append(time.time() - since)
            wrong += next(o["data"][0] for o in answer["outputs"] if o["name"] == "label") != labels[number]
        writer.close()

    async def all_of_them():
        await asyncio.gather(*(client(n) for n in range(connections)))

    before = processor_seconds(server.process.pid)
    asyncio.run(all_of_them())
    seconds = time.time() - begun  # until the last response, as in `brim bench serve`
    cpu, ms = processor_seconds(server.process.pid) - before, sorted(1e3 * t for t in times)
    return {"texts_per_second": len(ms) / seconds, "answered": len(ms), "answered_ms": {"p50": ms[len(ms) // 2], "p99": ms[len(ms) * 99 // 100]}, "other": wrong,
            "processor_ms_per_text": 1e3 * cpu / len(ms), "resident_mib": resident(server.process.pid) / 2**20}


def offline(a):
    """Scores the same texts with `brim score`."""
    with tempfile.TemporaryDirectory() as work:
        command = [a.brim, "score", a.texts, "-o", f"{work}/o.csv", "--model", a.model, "--summary-json", f"{work}/s.json", "--quiet", *a.precision]
        subprocess.run(command, check=True, capture_output=True)
        return {"texts_per_second": json.loads(pathlib.Path(f"{work}/s.json").read_text())["rows_per_second"]}


def measure(a, emit):
    reached = {}
    for turn in range(a.rounds):
        for which in a.peers:
            a.precision = ("--precision", "int8") if which.endswith("int8") or which in ("litserve", "triton") else ()
            if which.startswith("brim") and "single" in a.parts:
                emit(who=which, round=turn, part="offline", **offline(a))
            try:
                server = Server(a, which)
            except Exception as e:  # report baselines that fail
                emit(who=which, error=str(e))
                continue
            if which == "triton":
                try:
                    triton_load(a, server, 16)  # warm-up
                    if "single" in a.parts:
                        emit(who=which, round=turn, part="single", **triton_load(a, server, 64))
                except Exception as e:
                    emit(who=which, error=str(e))
                finally:
                    server.close()
                continue
            try:
                load(a, server, "--connections", "16")  # warm-up
                if "single" in a.parts:
                    row = load(a, server, "--connections", "64")
                    reached[which] = row.get("texts_per_second", 0)
                    emit(who=which, round=turn, part="single", **row)
                if "half" in a.parts and reached.get(which):
                    emit(who=which, round=turn, part="half", rate=reached[which] / 2, **load(a, server, "--connections", "64", "--rate", str(reached[which] / 2)))
                if "batch" in a.parts:
                    emit(who=which, round=turn, part="batch", **load(a, server, "--connections", "16", "--batch", "32"))
            finally:
                server.close()
            if "over" in a.parts and reached.get(which):
                server = Server(a, which, ("--max-queue-ms", "100") if which.startswith("brim") else ())
                try:
                    longer = argparse.Namespace(**{**vars(a), "seconds": a.over_seconds})
                    load(a, server, "--connections", "16")
                    before = resident(server.process.pid) / 2**20
                    emit(who=which, round=turn, part="over", rate=3 * reached[which], resident_mib_before=before, **load(longer, server, "--connections", "250", "--rate", str(3 * reached[which])))
                finally:
                    server.close()
    if "ping" in a.parts:
        a.precision = ()
        server = Server(a, "brim", ("--io-threads", "1"))
        try:
            if shutil.which("wrk"):
                before = processor_seconds(server.process.pid)
                output = subprocess.run(["wrk", "-t1", "-c64", f"-d{int(a.seconds)}s", f"http://127.0.0.1:{server.port}/ping"], capture_output=True, text=True).stdout
                n = int(re.search(r"(\d+) requests in", output)[1])
                emit(who="brim", part="ping", requests_per_second=float(re.search(r"Requests/sec: +([\d.]+)", output)[1]), processor_us_per_request=1e6 * (processor_seconds(server.process.pid) - before) / n)
            else:
                emit(who="brim", part="ping", error="wrk is not installed")
        finally:
            server.close()
        vader = argparse.Namespace(**{**vars(a), "model": "vader"})
        server = Server(vader, "brim", ("--io-threads", "1"))
        try:
            emit(who="brim", part="vader", **load(vader, server, "--connections", "64"))
            emit(who="brim", part="vader 512 per request", **load(vader, server, "--connections", "4", "--batch", "512"))
        finally:
            server.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brim")
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts")
    parser.add_argument("--venv", default=sys.executable)
    parser.add_argument("--infinity", default="")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--over-seconds", type=float, default=60)
    parser.add_argument("--peers", default="brim,brim-int8,fastapi,fastapi-int8,litserve,infinity,triton")
    parser.add_argument("--parts", default="single,half,over,batch,ping")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    a = parser.parse_args()
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    if a.serve:
        return serve_peer(a.serve, a.model, a.port, a.threads)
    a.infinity = a.infinity or a.venv
    a.peers, a.parts = a.peers.split(","), a.parts.split(",")
    measure(a, lambda **row: print(json.dumps(row), flush=True))


if __name__ == "__main__":
    main()
