#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/activations.json: activations of transformers and their derivatives (autograd) in fp64, by config name.

Requires torch and transformers.
"""
import json
import pathlib

import torch
from transformers.activations import ACT2FN

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "activations.json"
NAMES = ["gelu", "gelu_python", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "quick_gelu", "relu", "silu", "swish", "tanh"]


def main():
    points = [i / 4 for i in range(-32, 33) if i] + [-0.7518, -1.2785, 1e-4, -1e-4, 30.0, -30.0]
    golden = {"x": points}
    for name in NAMES:
        x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
        y = ACT2FN[name](x)
        y.sum().backward()
        golden[name] = {"y": y.tolist(), "slope": x.grad.tolist()}
    OUT.write_text(json.dumps(golden, indent=None).replace('], "', '],\n "').replace('}, "', '},\n"') + "\n")


main()
