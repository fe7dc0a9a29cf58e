#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GEMM choices that `brim tune` kept on a card, as the table the program ships.

  known_gemms.py CACHE/gemm/*.json >src/ops/known_gemms.inc

Rows are of one card and one version of cuBLASLt; a choice that gained less than 1 % over the library's own is left out.
"""
import json
import re
import sys

rows = {}
for name in sys.argv[1:]:
    kept = json.load(open(name))
    card, version = re.fullmatch(r"(.*) driver \d+ cublaslt (\d+)", kept["library"]).groups()
    for c in kept["choices"]:
        if c["us"] > 0 and c["us"] < 0.99 * c["default_us"]:
            rows[card, version, c["key"]] = c
print("// SPDX-License-Identifier: Apache-2.0\n// Written by bench/gpu/known_gemms.py from what `brim tune` kept; us: measured, by the library's own choice.")
for (card, version, key), c in sorted(rows.items()):
    half = len(c["algorithm"]) // 2
    print(f'{{"{card}", {version}, "{key}",  // {c["us"]:.0f}, {c["default_us"]:.0f} us')
    print(f' "{c["algorithm"][:half]}"\n "{c["algorithm"][half:]}"}},')
