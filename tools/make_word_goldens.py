#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/words.jsonl: random texts with the words that Python's re module finds in them with GLiNER's regular
expression. Texts contain only characters that Python's Unicode version assigns, because their categories hardly change.

    python3 tools/make_word_goldens.py
"""
import collections
import json
import pathlib
import random
import re
import sys
import unicodedata

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/words.jsonl"
WORDS = re.compile(r"\w+(?:[-_]\w+)*|\S")
TEXTS = 400


def main():
    rng = random.Random(7)
    by_category = collections.defaultdict(list)
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co"):
            by_category[unicodedata.category(chr(code))].append(chr(code))
    spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    draws = [
        lambda: rng.choice("abcXYZ019"),
        lambda: rng.choice("abcXYZ019"),
        lambda: rng.choice("-_"),
        lambda: rng.choice(" \t\n.,'$%<>"),
        lambda: rng.choice(spaces),
        lambda: rng.choice(by_category[rng.choice(sorted(by_category))]),  # rare categories as often as letters
    ]
    with OUTPUT.open("w", encoding="utf-8") as out:
        for _ in range(TEXTS):
            text = "".join(rng.choice(draws)() for _ in range(rng.randint(1, 24)))
            row = {"text": text, "words": [[m.start(), m.end()] for m in WORDS.finditer(text)]}
            out.write(json.dumps(row, separators=(",", ":")) + "\n")


main()
