#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of scoring with repeated texts, of a file and on a server, with --cache and with --cache 0.

Runs alternate between the two settings and are compared pair by pair. The pairs "off/off" show the spread of the
machine. Every round uses other texts; 30 % of them repeat a random earlier text of their round.
"""

import argparse
import http.client
import json
import pathlib
import random
import statistics
import subprocess
import tempfile
import threading
import time


def rounds_of(texts, rows, share, seed):
    """Yields lists of `rows` texts, of which `share` repeat others of the list."""
    own = round(rows * (1 - share))
    chooser = random.Random(seed)
    for first in range(0, len(texts) - own + 1, own):
        chosen = texts[first : first + own]
        chosen += chooser.choices(chosen, k=rows - own)
        chooser.shuffle(chosen)
        yield chosen


def score_file(options, texts, cache):
    with tempfile.TemporaryDirectory() as folder:
        source, summary = pathlib.Path(folder, "texts.txt"), pathlib.Path(folder, "summary.json")
        source.write_text("\n".join(texts) + "\n")
        command = [options.brim, "score", source, "-o", pathlib.Path(folder, "out.csv"), "--model", options.model]
        command += ["--device", "cpu", "--cache", cache, "--summary-json", summary, "-q"]
        subprocess.run(command, check=True)
        return json.loads(summary.read_text())["rows_per_second"]


class Server:
    def __init__(self, options, cache, port):
        self.port = port
        command = [options.brim, "serve", "--model", options.model, "--device", "cpu", "--cache", cache]
        command += ["--listen", f"127.0.0.1:{port}", "--max-queue-ms", "60000", "-q"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("the server does not start")

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def predict(self, requests):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        for body in requests:
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                raise RuntimeError(answer.decode())

    def score(self, texts, connections=4, batch=16):
        bodies = [json.dumps({"inputs": [[t] for t in texts[i : i + batch]]}) for i in range(0, len(texts), batch)]
        threads = [threading.Thread(target=self.predict, args=(bodies[i::connections],)) for i in range(connections)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(texts) / (time.perf_counter() - begun)


def compare(title, first, second, rounds):
    """`first` and `second` return the speed for a list of texts; the order alternates."""
    ratios, speeds = [], ([], [])
    for i, texts in enumerate(rounds):
        order = [(first, 0), (second, 1)] if i % 2 == 0 else [(second, 1), (first, 0)]
        speed = {place: run(texts) for run, place in order}
        ratios.append(speed[1] / speed[0])
        for place in (0, 1):
            speeds[place].append(speed[place])
    print(
        f"{title:28} {statistics.median(speeds[0]):8.0f} → {statistics.median(speeds[1]):8.0f} texts/s, "
        f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} pairs)",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brim", default="./brim")
    parser.add_argument("--model", default="models/default")
    parser.add_argument("--texts", required=True, help="file of different texts, one per line")
    parser.add_argument("--rows", type=int, default=4000, help="texts per round")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--port", type=int, default=8471)
    options = parser.parse_args()
    texts = list(dict.fromkeys(t for t in pathlib.Path(options.texts).read_text().splitlines() if t.strip()))

    def rounds(share, seed):
        return list(rounds_of(texts, options.rows, share, seed))[: options.pairs]

    def of_file(cache):
        return lambda texts: score_file(options, texts, cache)

    compare("file, off/off", of_file("0"), of_file("0"), rounds(0, 1))
    compare("file, no repeated texts", of_file("0"), of_file("64MiB"), rounds(0, 2))
    compare("file, 30 % repeated", of_file("0"), of_file("64MiB"), rounds(0.3, 3))
    servers = [Server(options, cache, options.port + i) for i, cache in enumerate(["0", "0", "64MiB"])]
    try:
        off, other, cached = (server.score for server in servers)
        compare("server, off/off", off, other, rounds(0, 4))
        texts.reverse()  # texts that the server has not seen
        compare("server, no repeated texts", off, cached, rounds(0, 5))
        texts[:] = texts[options.rows * options.pairs :]
        compare("server, 30 % repeated", off, cached, rounds(0.3, 6))
        print("\n".join(line for line in servers[2].get("/metrics").splitlines() if line.startswith("brim_cache")))
    finally:
        for server in servers:
            server.process.terminate()
            server.process.wait()


if __name__ == "__main__":
    main()
