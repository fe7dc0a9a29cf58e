#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/forecast/nbeats.json: a PyTorch implementation of N-BEATS in fp64, from the paper: windows, forecasts and all
gradients of the first step, and the first 20 losses with AdamW and clipping, for generic, trend and seasonality stacks, shared
weights, series shorter than the lookback, no scaler, several quantiles. Weights and windows use the same counter-based random
numbers as Brim. Requires torch."""
import json
import math
import pathlib

import torch

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "forecast" / "nbeats.json"
STEPS, BATCH, LR, CLIP = 20, 6, 1e-3, 1.0
M64 = (1 << 64) - 1


def mixed(x):
    x &= M64
    x ^= x >> 32
    x = x * 0xBF58476D1CE4E5B9 & M64
    x ^= x >> 29
    x = x * 0x94D049BB133111EB & M64
    return x ^ x >> 32


def draw(seed, index, rows, cols, inputs):
    of_param = mixed(mixed(seed ^ 0xE7037ED1A0B428DB) + index)
    bound = 1 / math.sqrt(inputs)
    values = [(2 * ((mixed(of_param ^ 0x9E3779B97F4A7C15 * (i + 1) & M64) >> 11) * 2.0**-53) - 1) * bound for i in range(rows * cols)]
    return torch.tensor(values).float().double().reshape(rows, cols)


def pick(case, ends, step, row):
    of_row = mixed(mixed(case["seed"] + 0x9E3779B97F4A7C15 * (step + 1)) ^ 0xD1B54A32D192ED03 * (row + 1) & M64)
    able = [s for s, end in enumerate(ends) if end >= 2]
    series = able[of_row * len(able) >> 64]
    lowest = max(1, ends[series] - case["history"])
    return series, lowest + (mixed(of_row + 0xA0761D6478BD642F) * (ends[series] - lowest) >> 64)


def window(case, x, cut):
    L, H = case["lookback"], case["horizon"]
    points = [x[cut - 1 - j] if cut - 1 - j >= 0 else float("nan") for j in range(L)]
    there = [p for p in points if not math.isnan(p)]
    level, scale = there[0], 1.0
    if case["scaler"] == "last":
        scale = sum(abs(p - level) for p in there) / len(there) + 1e-3 * abs(level) + 1e-8
    r = [0.0 if math.isnan(p) else (p - level) / scale if case["scaler"] == "last" else p for p in points]
    mask = [0.0 if math.isnan(p) else 1.0 for p in points]
    y = [x[cut + h] if cut + h < len(x) else float("nan") for h in range(H)]
    apart, m = [], case["season"]
    for j in range(L - m):
        a, b = points[j], points[j + m]
        if case["scaler"] == "none":
            a, b = (0.0 if math.isnan(v) else v for v in (a, b))
        if not math.isnan(a - b):
            apart.append(abs(a - b))
    return r, mask, y, level, scale, sum(apart) / len(apart) if apart else 0.0


def basis(case, kind):
    """Returns the basis functions of time: for the backcast, then for each forecast."""
    L, H, Q = case["lookback"], case["horizon"], len(case["quantiles"]) or 1

    def rows(points, sign):
        t = torch.arange(points, dtype=torch.float64)
        if kind == "trend":
            return torch.stack([(t / points) ** i for i in range(3)])
        k = torch.tensor([0.0] + [float(i) for i in range(1, math.ceil(H / 2))], dtype=torch.float64)
        angle = sign * 2 * math.pi * k[:, None] * t[None] / H
        return torch.cat([torch.cos(angle), torch.sin(angle)])

    parts = [rows(L, -1)] + [rows(H, 1)] * Q
    out = torch.zeros(sum(len(p) for p in parts), L + Q * H, dtype=torch.float64)
    row = col = 0
    for p in parts:
        out[row : row + len(p), col : col + p.shape[1]] = p.float().double()  # Brim stores the basis in fp32
        row, col = row + len(p), col + p.shape[1]
    return out


class Model:
    def __init__(self, case):
        self.case, self.params, self.blocks = case, {}, []
        L, H, Q = case["lookback"], case["horizon"], len(case["quantiles"]) or 1
        index = block = 0
        for stack in case["stacks"]:
            W = stack["width"]
            for b in range(stack["blocks"]):
                if b == 0 or not stack["shared"]:
                    layers = []
                    matrix = None if stack["type"] == "generic" else basis(case, stack["type"])
                    for i in range(case["layers"] + 1):
                        last = i == case["layers"]
                        rows = W if not last else L + Q * H if matrix is None else len(matrix)
                        inputs = L if i == 0 else W
                        name = f"blocks.{block}." + ("basis_parameters" if last else f"layers.{i}")
                        w, c = draw(case["seed"], index, rows, inputs, inputs), draw(case["seed"], index + 1, rows, 1, inputs)[:, 0]
                        index += 2
                        for suffix, value in (("weight", w), ("bias", c)):
                            self.params[f"{name}.{suffix}"] = value.clone().requires_grad_()
                        layers.append((name, not last and (i > 0 or case["first_relu"])))
                self.blocks.append((layers, matrix))
                block += 1

    def forward(self, r, mask):
        L, f = self.case["lookback"], 0
        for layers, matrix in self.blocks:
            h = r
            for name, relu in layers:
                h = h @ self.params[name + ".weight"].T + self.params[name + ".bias"]
                h = torch.relu(h) if relu else h
            o = h if matrix is None else h @ matrix
            r, f = (r - o[:, :L]) * mask, f + o[:, L:]
        return f

    def loss(self, f, y, level, scale, season):
        case, H = self.case, self.case["horizon"]
        Q = len(case["quantiles"]) or 1
        y = y.repeat(1, Q)
        there = ~torch.isnan(y)
        y = torch.where(there, y, torch.ones_like(y))
        hat = level[:, None] + scale[:, None] * f
        e = f - (y - level[:, None]) / scale[:, None]
        kind = case["loss"]
        if kind == "smape":
            cell = 200 * (hat - y).abs() / (hat.detach().abs() + y.abs())
        elif kind == "mase":
            cell = (hat - y).abs() / season[:, None]
        elif kind == "mae":
            cell = e.abs()
        elif kind == "mse":
            cell = e * e
        else:
            q = torch.tensor(case["quantiles"], dtype=torch.float64).float().double().repeat_interleave(H)[None]
            cell = torch.maximum(-q * e, (1 - q) * e)
        return torch.where(there, cell, torch.zeros_like(cell)).mean(), hat


def stack(kind, blocks, width, shared=False):
    return {"type": kind, "blocks": blocks, "width": width, "shared": shared}


def cases():
    base = {"horizon": 4, "layers": 4, "first_relu": True, "history": 30, "season": 2, "quantiles": [], "scaler": "last"}
    yield base | {"name": "generic", "lookback": 10, "loss": "smape", "seed": 11, "stacks": [stack("generic", 3, 8)]}
    yield base | {"name": "interpretable, shared", "lookback": 16, "loss": "mse", "seed": 12, "horizon": 6,
                  "stacks": [stack("trend", 3, 8, True), stack("seasonality", 3, 16, True)]}
    yield base | {"name": "short series, no scaler", "lookback": 21, "loss": "mase", "seed": 13, "layers": 2, "first_relu": False, "scaler": "none",
                  "stacks": [stack("trend", 1, 8), stack("seasonality", 1, 8), stack("generic", 2, 8, True)]}
    yield base | {"name": "quantiles", "lookback": 9, "loss": "quantile", "seed": 14, "layers": 3, "quantiles": [0.1, 0.5, 0.9],
                  "stacks": [stack("generic", 1, 16), stack("trend", 2, 8), stack("seasonality", 1, 8)]}


def rounded(tensor):
    return [float("%.8g" % v) for v in tensor.flatten().tolist()]


def main():
    lengths, values = [14, 40, 3, 60], []
    for s, n in enumerate(lengths):
        x = [20 + 3 * s + 5 * math.sin(0.7 * t + s) + ((mixed(s * 1000 + t) >> 40) / 2.0**24 - 0.5) for t in range(n)]
        values.append([float("nan") if (t * 7 + s) % 17 == 5 else v for t, v in enumerate(torch.tensor(x).float().double().tolist())])
    flat = [v for x in values for v in x]
    out = {"steps": STEPS, "windows": BATCH, "learning_rate": LR, "max_grad_norm": CLIP, "lengths": lengths,
           "values": [None if math.isnan(v) else float("%.9g" % v) for v in flat], "cases": []}
    for case in cases():
        model = Model(case)
        optimizer = torch.optim.AdamW(list(model.params.values()), lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
        record = dict(case, losses=[])
        for step in range(STEPS):
            picks = [pick(case, lengths, step, row) for row in range(BATCH)]
            r, mask, y, level, scale, season = (torch.tensor(v, dtype=torch.float64) for v in zip(*(window(case, values[s], cut) for s, cut in picks)))
            loss, hat = model.loss(model.forward(r, mask), y, level, scale, season)
            optimizer.zero_grad()
            loss.backward()
            record["losses"].append(float("%.9g" % loss.item()))
            if step == 0:
                record["picks"], record["forecasts"] = picks, rounded(hat)
                record["gradients"] = {name: rounded(p.grad) for name, p in model.params.items()}
            torch.nn.utils.clip_grad_norm_(list(model.params.values()), CLIP)
            optimizer.step()
        print(case["name"], record["losses"][0], record["losses"][-1], sum(p.numel() for p in model.params.values()))
        out["cases"].append(record)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
