#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Emulates the products of a BERT embedding model in int8 and other formats, to find out which of them lose quality.

Prints the lowest and mean cosine with the fp32 vectors, and the share of texts that keep their nearest neighbour.
MODEL is a directory with config.json, model.safetensors and tokenizer.json. Requires numpy and tokenizers. Attention,
norms and GELU stay in fp32. Speed is not measured.
"""

import argparse
import json
import pathlib
import struct

import numpy as np
from tokenizers import Tokenizer

KINDS = {"qkv": None, "out": "attention.output.dense", "up": "intermediate.dense", "down": "output.dense"}


def read_weights(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    types = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
    weights = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
        weights[name.removeprefix("bert.")] = values.astype(np.float32)
    return weights


def erf(x):
    """Within 1.5e-7 (Abramowitz and Stegun 7.1.26)."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    sum = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return np.sign(x) * (1 - sum * np.exp(-x * x))


def to_bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def rounded_rows(x, levels=127):
    """Each row rounded with one scale, from its largest magnitude."""
    scale = np.abs(x).max(-1, keepdims=True) / levels
    scale[scale == 0] = 1
    return np.round(x / scale) * scale


def centred_rows(x):
    """Like rounded_rows, but around the centre of a row's range, which always contains 0."""
    high, low = np.maximum(x.max(-1, keepdims=True), 0), np.minimum(x.min(-1, keepdims=True), 0)
    centre = (high + low) / 2
    return centre + rounded_range(x - centre, (high - low) / 2)


def rounded_range(x, half):
    scale = np.where(half > 0, half / 127, 1)
    return np.round(x / scale) * scale


def clipped_rows(w):
    """Like rounded_rows, but with the scale of the least squared error."""
    largest = np.abs(w).max(1, keepdims=True)
    best, least = None, None
    for share in np.linspace(0.5, 1, 26):
        scale = largest * share / 127
        rounded = np.clip(np.round(w / scale), -127, 127) * scale
        error = ((rounded - w) ** 2).sum(1, keepdims=True)
        best = rounded if best is None else np.where(error < least, rounded, best)
        least = error if least is None else np.minimum(error, least)
    return best


def without_outliers(count):
    """int8, except for the input columns with the largest magnitudes of the batch, which stay in fp32."""

    def product(x, w):
        columns = np.argsort(-np.abs(x).max(0))[:count]
        x8, w8 = x.copy(), w.copy()
        x8[:, columns] = w8[:, columns] = 0
        return rounded_rows(x8) @ rounded_rows(w8).T + x[:, columns] @ w[:, columns].T

    return product


FORMATS = {
    "fp32": lambda x, w: x @ w.T,
    "bf16": lambda x, w: to_bf16(x) @ to_bf16(w).T,
    "int8": lambda x, w: rounded_rows(x) @ rounded_rows(w).T,
    "centred": lambda x, w: centred_rows(x) @ rounded_rows(w).T,
    "weights": lambda x, w: x @ rounded_rows(w).T,
    "activations": lambda x, w: rounded_rows(x) @ w.T,
    "centred-activations": lambda x, w: centred_rows(x) @ w.T,
    "clipped-weights": lambda x, w: x @ clipped_rows(w).T,
    "12-bit-activations": lambda x, w: rounded_rows(x, 2047) @ rounded_rows(w).T,
    "2-outliers": without_outliers(2),
    "16-outliers": without_outliers(16),
}


class Model:
    def __init__(self, directory):
        self.weights = read_weights(directory / "model.safetensors")
        self.config = json.loads((directory / "config.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def matrix(self, layer, kind):
        prefix = f"encoder.layer.{layer}."
        names = [f"attention.self.{part}" for part in ("query", "key", "value")] if kind == "qkv" else [KINDS[kind]]
        parts = [[self.weights[f"{prefix}{name}.{what}"] for name in names] for what in ("weight", "bias")]
        return [np.concatenate(part) for part in parts]

    def norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["layer_norm_eps"])
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attend(self, qkv, starts):
        heads, hidden = self.config["num_attention_heads"], self.config["hidden_size"]
        context = np.empty((len(qkv), hidden), np.float32)
        for begin, end in zip(starts, starts[1:]):
            q, k, v = qkv[begin:end].reshape(end - begin, 3, heads, -1).transpose(1, 2, 0, 3)
            scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            context[begin:end] = (scores @ v).transpose(1, 0, 2).reshape(end - begin, hidden)
        return context

    def embed(self, texts, format_of, largest=None):
        """`format_of(layer, kind)`: the format of a product. `largest`: gets max / rms of each token, by product."""
        ids = [encoding.ids[:128] for encoding in self.tokenizer.encode_batch(texts)]
        starts = np.cumsum([0] + [len(each) for each in ids])

        def linear(x, layer, kind):
            if largest is not None:
                largest[layer, kind] = np.abs(x).max(1) / np.sqrt((x * x).mean(1))
            w, b = self.matrix(layer, kind)
            return FORMATS[format_of(layer, kind)](x, w) + b

        tables = [self.weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
        positions = np.concatenate([np.arange(len(each)) for each in ids])
        x = self.norm(tables[0][np.concatenate(ids)] + tables[1][positions] + tables[2][0], "embeddings.LayerNorm")
        for layer in range(self.config["num_hidden_layers"]):
            name = f"encoder.layer.{layer}"
            context = self.attend(linear(x, layer, "qkv"), starts)
            x = self.norm(x + linear(context, layer, "out"), f"{name}.attention.output.LayerNorm")
            up = linear(x, layer, "up")
            up = up * 0.5 * (1 + erf(up / np.float32(np.sqrt(2))))
            x = self.norm(x + linear(up, layer, "down"), f"{name}.output.LayerNorm")
        vectors = np.stack([x[begin:end].mean(0) for begin, end in zip(starts, starts[1:])])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def neighbours(vectors):
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -2)
    return cosines.argmax(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--texts", type=pathlib.Path, required=True, help="file with one text per line")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--formats", default=",".join(FORMATS), help="of all products")
    parser.add_argument("--mixed", action="store_true", help="also bf16 with centred int8 in the last product of later layers")
    parser.add_argument("--single", default="", help="formats to try for each kind of product alone")
    options = parser.parse_args()
    lines = options.texts.read_text().splitlines()
    texts = list(dict.fromkeys(line for line in lines if line))[: options.rows]
    model, largest = Model(options.model), {}
    exact = model.embed(texts, lambda layer, kind: "fp32", largest)
    nearest = neighbours(exact)

    def report(title, format_of):
        vectors = model.embed(texts, format_of)
        cosines = (exact * vectors).sum(1)
        kept = (neighbours(vectors) == nearest).mean()
        print(f"{title:32} {cosines.min():.4f} {cosines.mean():.4f} {kept:7.1%}", flush=True)

    print(f"{'format':32} lowest mean   neighbour kept ({len(texts)} texts)")
    for name in filter(None, options.formats.split(",")):
        report(name, lambda layer, kind: name)
    if options.mixed:
        layers = model.config["num_hidden_layers"]
        report("mixed", lambda layer, kind: "centred" if kind == "down" and 2 * layer >= layers else "bf16")
    for name in filter(None, options.single.split(",")):
        for only in KINDS:
            report(f"{name}, {only} only", lambda layer, kind: name if kind == only else "fp32")
    for kind in KINDS:
        ratios = np.concatenate([values for (_, of), values in largest.items() if of == kind])
        median, high = np.percentile(ratios, [50, 99])
        print(f"max / rms of a token before {kind}: median {median:.1f}, p99 {high:.1f}")


if __name__ == "__main__":
    main()
