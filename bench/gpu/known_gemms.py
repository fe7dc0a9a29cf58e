#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts GEMM choices cached by `brim models tune` to the table that the program ships.

  known_gemms.py CACHE/gemm/*.json >src/ops/known_gemms.inc

Each row is for one GPU model and one cuBLASLt version; choices less than 1 % faster than the library default are omitted.
"""
import json
import re
import sys

rows = {}
for name in sys.argv[1:]:
    cached = json.load(open(name))
    gpu, version = re.fullmatch(r"(.*) driver \d+ cublaslt (\d+)", cached["library"]).groups()
    for c in cached["choices"]:
        if c["us"] > 0 and c["us"] < 0.99 * c["default_us"]:
            rows[gpu, version, c["key"]] = c
print("// SPDX-License-Identifier: Apache-2.0\n// Written by bench/gpu/known_gemms.py from the cache of `brim models tune`; microseconds: measured, with the library's default.")
for (gpu, version, key), c in sorted(rows.items()):
    half = len(c["algorithm"]) // 2
    print(f'{{"{gpu}", {version}, "{key}",  // {c["us"]:.0f}, {c["default_us"]:.0f} us')
    print(f' "{c["algorithm"][:half]}"\n "{c["algorithm"][half:]}"}},')
