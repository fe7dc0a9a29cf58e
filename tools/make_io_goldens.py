#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/io: small weight files written by safetensors and torch.

Requires torch and safetensors; run from the repository root. Every file is a few kilobytes. Values are fixed; the bytes of
the legacy file differ between runs, because torch names its storages by address.
"""
import collections
import pathlib

import torch
from safetensors.torch import save_file

OUT = pathlib.Path("tests/data/io")


def values(*shape, dtype=torch.float32):
    count = 1
    for d in shape:
        count *= d
    return (torch.arange(count, dtype=torch.float32) * 0.25 - 1).reshape(shape).to(dtype)


def reference_safetensors():
    save_file(
        {
            "encoder.weight": values(3, 4),
            "encoder.bias": values(4, dtype=torch.float16),
            "a.half": values(2, 2, dtype=torch.bfloat16),
            "ids": torch.arange(5),
            "small.ids": torch.arange(3, dtype=torch.int32),
            "wide": values(2, dtype=torch.float64),
            "q": torch.arange(-3, 4, dtype=torch.int8),
            "u": torch.arange(3, dtype=torch.uint8),
            "scalar": torch.tensor(2.5),
            "empty": torch.zeros(0, 4),
        },
        OUT / "reference.safetensors",
        metadata={"format": "pt", "made \"by\"": "tools/make_io_goldens.py"},
    )


def state_dict():
    base = values(4, 6)
    shared = values(3, 2)
    state = collections.OrderedDict()
    state["f32"] = values(2, 3)
    state["f16"] = values(5, dtype=torch.float16)
    state["bf16"] = values(2, 2, dtype=torch.bfloat16)
    state["f64"] = values(2, dtype=torch.float64)
    state["i64"] = torch.arange(4)
    state["i32"] = torch.arange(4, dtype=torch.int32)
    state["i8"] = torch.arange(-2, 2, dtype=torch.int8)
    state["u8"] = torch.arange(4, dtype=torch.uint8)
    state["bool"] = torch.tensor([True, False])
    state["scalar"] = torch.tensor(2.5)
    state["empty"] = torch.zeros(0, 3)
    state["parameter"] = torch.nn.Parameter(values(2, 2))
    state["transposed"] = base.t()  # not contiguous
    state["slice"] = base[1:3, 2:5]  # not contiguous, with an offset
    state["rows"] = base[2:]  # contiguous, with an offset
    state["shared.a"] = shared
    state["shared.b"] = shared  # the same storage
    return state


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    reference_safetensors()
    torch.save(state_dict(), OUT / "state_dict.bin")
    torch.save(state_dict(), OUT / "state_dict_protocol4.bin", pickle_protocol=4)
    torch.save(state_dict(), OUT / "state_dict_legacy.bin", _use_new_zipfile_serialization=False)
    # A module's own state_dict carries a _metadata attribute.
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    torch.save(module.state_dict(), OUT / "module.bin")
    torch.save({"epoch": 3, "state_dict": module.state_dict()}, OUT / "training_checkpoint.bin")
    torch.save(module, OUT / "pickled_module.bin")
    torch.save({"t": torch.zeros(2).to_sparse()}, OUT / "sparse.bin")


if __name__ == "__main__":
    main()
