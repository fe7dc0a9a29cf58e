#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Baseline of nbeats_bench: a training step of N-BEATS lanes in PyTorch. Lanes are batched products; bf16 autocast, windows sampled
on the device, clipping per lane, Adam; the whole step is compiled and captured as a CUDA graph. On a CPU it runs eagerly, measured
in CPU time if single-threaded. Prints milliseconds per lane and step.
  nbeats_peer.py [--lanes 16] [--blocks 30] [--width 512] [--windows 1024] [--lookback 65] [--horizon 13] [--steps 20] [--device cuda]
                 [--precision bf16|fp32]"""
import argparse
import time

import torch

flags = argparse.ArgumentParser()
for name, value in dict(lanes=16, blocks=30, width=512, windows=1024, lookback=65, horizon=13, steps=20).items():
    flags.add_argument("--" + name, type=int, default=value)
flags.add_argument("--device", default="cuda")
flags.add_argument("--precision", default="bf16")
flags.add_argument("--eager", action="store_true")
a = flags.parse_args()
cuda = a.device == "cuda"
G, B, W, L, H = a.lanes, a.windows, a.width, a.lookback, a.horizon
torch.manual_seed(1)


def matrix(rows, cols):
    return [((torch.rand(shape, device=a.device) * 2 - 1) / cols**0.5).requires_grad_() for shape in ((G, cols, rows), (G, 1, rows))]


blocks = [[matrix(W, L if i == 0 else W) for i in range(4)] + [matrix(L + H, W)] for _ in range(a.blocks)]
params = [p for block in blocks for layer in block for p in layer]
optimizer = torch.optim.Adam(params, lr=1e-3, fused=cuda, capturable=cuda)
series = torch.randn(359, 1000, device=a.device).cumsum(1) + 50


def windows():
    row = torch.randint(0, 359, (G, B), device=a.device)
    cut = torch.randint(1000 - 10 * H, 1000 - H, (G, B), device=a.device)
    points = series[row[..., None], cut[..., None] + torch.arange(-L, H, device=a.device)]
    level = points[..., L - 1 : L]
    scale = (points[..., :L] - level).abs().mean(-1, keepdim=True) + 1e-3 * level.abs() + 1e-8
    return ((points - level) / scale).split((L, H), -1)


def step():
    x, y = windows()
    r, f = x.flip(-1), 0
    with torch.autocast(a.device, dtype=torch.bfloat16, enabled=a.precision == "bf16"):
        for block in blocks:
            h = r
            for w, c in block[:4]:
                h = torch.relu(torch.baddbmm(c, h, w))
            o = torch.baddbmm(block[4][1], h, block[4][0])
            r, f = r - o[..., :L].float(), f + o[..., L:].float()
    loss = (f - y).abs().mean((1, 2)).sum()
    loss.backward()
    norm = torch.stack([p.grad.flatten(1).square().sum(1) for p in params]).sum(0).sqrt()
    factor = (1 / (norm + 1e-6)).clamp(max=1)
    for p in params:
        p.grad.mul_(factor[:, None, None])
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss


run = step if a.eager or not cuda else torch.compile(step)
if not cuda:
    run()
sync = torch.cuda.synchronize if cuda else lambda: None
if cuda:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(5):
            run()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    run = graph.replay
clock = time.thread_time if not cuda and torch.get_num_threads() == 1 else time.perf_counter
times = []
for _ in range(5):
    sync()
    begin = clock()
    for _ in range(a.steps):
        run()
    sync()
    times.append((clock() - begin) / a.steps * 1e3)
times.sort()
held = torch.cuda.max_memory_allocated() / 1e9 if cuda else 0
print(f"PyTorch {torch.__version__}, {a.precision}, {G} lanes: {times[2]:.3f} ms per step ({times[0]:.3f} to {times[-1]:.3f}), {times[2] / G:.4f} ms per lane and step, peak {held:.2f} GB")
