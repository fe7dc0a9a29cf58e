#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Single texts from Python against many at once: python_single_texts.py TEXTS [--texts N] [--runs N]

Prints the rates of predict(), of 64 tasks of asyncio, of futures, and with --server those of examples/fastapi/app.py and `brim serve`
with 64 connections. Needs the installed module; --server needs fastapi and uvicorn."""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import brim
from brim import _program

TASKS = 64


async def tasks(classifier: brim.Classifier, texts: list[str]) -> None:
    rest = iter(texts)

    async def task() -> None:
        for text in rest:
            await classifier.ascore(text)

    await asyncio.gather(*(task() for _ in range(TASKS)))


def futures(classifier: brim.Classifier, texts: list[str]) -> None:
    for future in [classifier.submit(text) for text in texts]:
        future.result()


async def connection(port: int, path: str, key: str, texts: Iterator[str]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for text in texts:
        body = json.dumps({key: text}).encode()
        writer.write(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                     f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert b" 200 " in head.split(b"\r\n")[0], head
        await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
    writer.close()


async def requests(port: int, path: str, key: str, texts: list[str]) -> None:
    rest = iter(texts)
    await asyncio.gather(*(connection(port, path, key, rest) for _ in range(TASKS)))


def rate(call: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    call()
    return count / (time.perf_counter() - began)


def served(command: list[str], port: int, path: str, key: str, texts: list[str], runs: int) -> list[float]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               cwd=pathlib.Path(__file__).resolve().parents[1] / "examples" / "fastapi")
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        asyncio.run(requests(port, path, key, texts[:500]))
        return [rate(lambda: asyncio.run(requests(port, path, key, texts)), len(texts)) for _ in range(runs)]
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def shown(name: str, rates: list[float], baseline: list[float]) -> None:
    ratio = statistics.median(rates) / statistics.median(baseline)
    print(f"{name:<12}{', '.join(f'{one:,.0f}' for one in rates)} texts/s, {ratio:.2f} of the first line", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=pathlib.Path)
    options.add_argument("--texts", type=int, default=4000)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--model", default="")
    options.add_argument("--server", action="store_true")
    given = options.parse_args()
    texts = given.file.read_text(encoding="utf-8").split("\n")[:given.texts]
    with brim.Classifier(given.model) as classifier:
        calls: dict[str, Callable[[], object]] = {
            "predict": lambda: classifier.predict(texts), "asyncio": lambda: asyncio.run(tasks(classifier, texts)),
            "futures": lambda: futures(classifier, texts)}
        rates: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            call()
        for _ in range(given.runs):  # interleaved
            for name, call in calls.items():
                rates[name].append(rate(call, len(texts)))
    for name, found in rates.items():
        shown(name, found, rates["predict"])
    if given.server:
        port, other = free_port(), free_port()
        model = ["--model", given.model] if given.model else []
        serve = served([_program.path(), "serve", "--port", str(port), *model], port, "/predict", "inputs", texts, given.runs)
        uvicorn = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(other), "--log-level", "error"]
        shown("brim serve", serve, serve)
        shown("FastAPI", served(uvicorn, other, "/score", "text", texts, given.runs), serve)


if __name__ == "__main__":
    main()
