#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Brim's tokenizers with Hugging Face's encode_batch_fast (encode_batch in old versions): one thread, ids only, one pass
over a file with cold caches.

  bench/tokenizer_peers.py --bench build/bench/src/text/tokenizer_bench --texts tweets.txt DIR… [--rounds 5]

Alternates runs and compares medians of CPU time, so that other load affects both equally; token counts must be equal. Requires
the tokenizers module; each DIR must contain a tokenizer.json.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

PEER = """
import sys, time
from tokenizers import Tokenizer
texts = open(sys.argv[1], encoding="utf-8", errors="replace").read().split("\\n")[:-1]
tokenizer = Tokenizer.from_file(sys.argv[2] + "/tokenizer.json")
tokenizer.no_padding()
tokenizer.no_truncation()
start = time.process_time()
found = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)(texts)
print(time.process_time() - start, sum(len(e.ids) for e in found))
"""


def peer(texts, folder):
    env = {**os.environ, "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    out = subprocess.run([sys.executable, "-c", PEER, texts, folder], env=env, check=True, capture_output=True, text=True)
    seconds, tokens = out.stdout.split()
    return float(seconds), int(tokens)


def brim(bench, texts, folder):
    command = [bench, texts, folder, "--benchmark_filter=^ids_once/", "--benchmark_format=json", "--benchmark_min_time=0.01"]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    run = json.loads(out.stdout)["benchmarks"][0]
    return run["cpu_time"] / 1e3, int(run["tokens"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("folders", nargs="+")
    args = parser.parse_args()
    size = len(open(args.texts, "rb").read().replace(b"\n", b"")) / 1e6
    for folder in args.folders:
        ours, theirs = [], []
        for _ in range(args.rounds):
            seconds, tokens = brim(args.bench, args.texts, folder)
            ours.append(seconds)
            seconds, peer_tokens = peer(args.texts, folder)
            theirs.append(seconds)
            if tokens != peer_tokens:
                sys.exit(f"{folder}: {tokens} tokens, Hugging Face {peer_tokens}")
        a, b = statistics.median(ours), statistics.median(theirs)
        spread = f"{size / max(ours):.1f}-{size / min(ours):.1f}"
        print(f"{os.path.basename(os.path.normpath(folder))}: {size / a:.1f} MB/s ({spread}), Hugging Face {size / b:.2f} MB/s, ratio {b / a:.1f}", flush=True)


if __name__ == "__main__":
    main()
