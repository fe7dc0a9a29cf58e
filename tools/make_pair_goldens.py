#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/tokenizers/pairs.jsonl: Hugging Face encodings of text pairs (ids, token types), with and without
longest_first truncation from either side, for tokenizers under tests/data/tokenizers. Requires transformers."""
import json
import random

import transformers
from make_tokenizer_goldens import FOLDER, TEXTS

NAMES = ["added_tokens", "bert_cased", "byte_bpe", "byte_bpe_strings", "spm_bpe_bytes", "spm_unigram_first", "fastbpe_phobert"]
LENGTHS = [0, 6, 7, 9, 16, 33]  # 0: no limit


def pairs(name):
    rng = random.Random(name)
    # Long and short texts, so that either side may be the longer one.
    texts = [t for t in TEXTS if "\x00" not in t and len(t) < 90] + ["hello world the quick brown fox " * 3, "a b c d e f g h"]
    return [(rng.choice(texts), rng.choice(texts), LENGTHS[i % len(LENGTHS)], rng.random() < 0.3) for i in range(48)]


def main():
    transformers.logging.set_verbosity_error()
    rows = []
    for name in NAMES:
        if (FOLDER / name / "tokenizer.json").exists():
            backend = transformers.PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / name / "tokenizer.json"))
        else:
            backend = transformers.AutoTokenizer.from_pretrained(FOLDER / name)
        for first, second, longest, left in pairs(name):
            if name.startswith("fastbpe"):
                longest = 0  # has no fast version, and slow tokenizers break ties differently
            backend.truncation_side = "left" if left else "right"
            cut = {"truncation": "longest_first", "max_length": longest} if longest else {"truncation": False}
            # As a list, because a plain empty second text counts as missing.
            e = backend([first], [second], return_token_type_ids=True, **cut)
            rows.append({"tokenizer": name, "first": first, "second": second, "longest": longest, "left": left,
                         "ids": e["input_ids"][0], "types": e["token_type_ids"][0]})  # fmt: skip
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    (FOLDER / "pairs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
