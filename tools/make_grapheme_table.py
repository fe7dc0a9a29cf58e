#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/text/unicode/grapheme_table.inc: the classes of code points that determine grapheme cluster boundaries.

The Precompiled normalizer of Hugging Face's tokenizers works on grapheme clusters, using the Unicode version it was built
with. The classes are therefore derived from that normalizer instead of a Unicode data file: with a charsmap that rewrites
"a", the text "a" + X loses X if and only if X joins the cluster of "a" (the normalizer rewrites a whole cluster if its
beginning has a rewriting), and likewise for the other rules.

    python3 tools/make_grapheme_table.py > src/text/unicode/grapheme_table.inc      (requires tokenizers, sentencepiece)
"""
import os
import sys
import tempfile

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2


def charsmap(rules):
    """Returns a precompiled charsmap for [(from, to)], built by SentencePiece's trainer."""
    with tempfile.TemporaryDirectory() as folder:
        rule_file, text_file = os.path.join(folder, "rules.tsv"), os.path.join(folder, "text.txt")
        codes = lambda s: " ".join(f"{ord(c):X}" for c in s)
        with open(rule_file, "w") as f:
            f.writelines(f"{codes(a)}\t{codes(b)}\n" for a, b in rules)
        with open(text_file, "w") as f:
            f.write("some text to train on\n" * 20)
        prefix = os.path.join(folder, "m")
        sentencepiece.SentencePieceTrainer.train(
            input=text_file, model_prefix=prefix, vocab_size=40, hard_vocab_limit=False, model_type="char",
            normalization_rule_tsv=rule_file, minloglevel=2)
        proto = sentencepiece_model_pb2.ModelProto()
        with open(prefix + ".model", "rb") as f:
            proto.ParseFromString(f.read())
        return proto.normalizer_spec.precompiled_charsmap


ACCENT = "\u0301"
NUKTA_QA, KA, VIRAMA = "\u0958", "\u0915", "\u094d"


def classify(normalize, x):
    # A final accent survives only if its cluster is too long to be rewritten as a whole or starts with something that has
    # no rewriting, that is, if the preceding code points joined.
    joined = lambda text: normalize(text + ACCENT).endswith(ACCENT)
    if normalize("a" + x) == "b" and normalize(x) != "":
        if joined(KA + x + NUKTA_QA):
            return "linker"
        if joined(KA + x + VIRAMA + NUKTA_QA):
            return "extend"
        return "joiner" if joined("\u00a9" + x + "\u200d\u00a9") else "mark"
    if not joined(x + "\u20d0"):
        return "control"
    if joined(x + "a"):
        return "prepend"
    if normalize("\u00a9\u200d" + x)[1:2] == "\u200d":
        return "pict"
    if joined(x + VIRAMA + NUKTA_QA):
        return "consonant"
    hangul = (joined(x + "\u1100"), joined(x + "\u1161"), joined(x + "\u11a8"))
    if 0xAC00 <= ord(x) <= 0xD7A3:  # syllables follow from arithmetic
        assert hangul == (False, (ord(x) - 0xAC00) % 28 == 0, True)
        return None
    return {(False, False, False): None, (True, True, False): "lead", (False, True, True): "vowel",
            (False, False, True): "trail"}[hangul]


def main():
    rules = [("a", "b"), ("\u00a9", "q"), ("\u20d0", "r"), (NUKTA_QA, "z"), ("\u1100", "l"), ("\u1161", "v"),
             ("\u11a8", "t")]
    normalize = tokenizers.normalizers.Precompiled(charsmap(rules)).normalize_str
    ranges = []
    for code in range(0x110000):
        kind = None if 0xD800 <= code < 0xE000 else classify(normalize, chr(code))
        if kind is None:
            continue
        if ranges and ranges[-1][2] == kind and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code, kind])
    print("// Made by tools/make_grapheme_table.py; do not edit. {first, last, class}")
    line = ""
    for first, last, kind in ranges:
        item = f"{{0x{first:X}, 0x{last:X}, k{kind.capitalize()}}}, "
        if len(line) + len(item) > 120:
            print(line.rstrip())
            line = ""
        line += item
    print(line.rstrip())
    print(f"{len(ranges)} ranges", file=sys.stderr)


if __name__ == "__main__":
    main()
