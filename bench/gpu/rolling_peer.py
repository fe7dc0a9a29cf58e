#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Baseline of `brim forecast roll`: typical rolling training in PyTorch. Trains a new N-BEATS at each cutoff (autocast to fp16 with
a gradient scaler, series on the device, folds in sequence) and forecasts the next points. Prints seconds per fold.
  rolling_peer.py --data DIR [--folds 6] [--steps 100] [--blocks 3] [--width 64] [--windows 256] [--lookback 20] [--horizon 5] [--device cuda]"""
import argparse
import csv
import glob
import time

import torch

flags = argparse.ArgumentParser()
flags.add_argument("--data", required=True)
flags.add_argument("--column", default="Close")
flags.add_argument("--device", default="cuda")
for name, value in dict(folds=6, steps=100, blocks=3, width=64, windows=256, lookback=20, horizon=5).items():
    flags.add_argument("--" + name, type=int, default=value)
a = flags.parse_args()
cuda, L, H = a.device == "cuda", a.lookback, a.horizon
series = [torch.tensor([float(r[a.column]) for r in csv.DictReader(open(f))], device=a.device) for f in sorted(glob.glob(a.data + "/*.csv"))]
length = min(len(s) for s in series)
values = torch.stack([s[-length:] for s in series])


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[m for i in range(4) for m in (torch.nn.Linear(L if i == 0 else a.width, a.width), torch.nn.ReLU())])
        self.basis = torch.nn.Linear(a.width, L + H)

    def forward(self, x):
        return self.basis(self.layers(x)).split((L, H), -1)


class Nbeats(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(a.blocks))

    def forward(self, x):
        level = x[:, -1:]
        scale = (x - level).abs().mean(-1, keepdim=True) + 1e-3 * level.abs() + 1e-8
        r, f = (x - level) / scale, 0
        for block in self.blocks:
            back, ahead = block(r)
            r, f = r - back.float(), f + ahead.float()
        return level + scale * f, scale


def fold(cutoff):
    model = Nbeats().to(a.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(enabled=cuda)
    offsets = torch.arange(-L, H, device=a.device)
    for _ in range(a.steps):
        row = torch.randint(0, len(series), (a.windows,), device=a.device)
        cut = torch.randint(L, cutoff - H, (a.windows,), device=a.device)
        window = values[row[:, None], cut[:, None] + offsets]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(a.device, dtype=torch.float16 if cuda else torch.bfloat16):
            forecast, scale = model(window[:, :L])
            loss = ((forecast - window[:, L:]).abs() / scale).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    with torch.no_grad():
        return model(values[:, cutoff - L : cutoff])[0].cpu(), loss.item()


fold(length - H - a.folds)  # warm-up: loads kernels
begin = time.perf_counter()
for k in range(a.folds):
    forecast, loss = fold(length - H - a.folds + k)
seconds = (time.perf_counter() - begin) / a.folds
print(f"PyTorch {torch.__version__}: {seconds:.4f} s per fold of {a.steps} steps, {a.blocks}x4x{a.width}, {a.windows} windows, last loss {loss:.3f}")
