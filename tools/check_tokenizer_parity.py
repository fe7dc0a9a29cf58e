#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Brim's tokenizers with Hugging Face's: ids, tokens and offsets of each text. Run manually.

  tools/check_tokenizer_parity.py --dump build/release/src/text/tokenize_dump --data DIR [--texts 20000] [--seed 1]

DIR contains vocabs/NAME/ (tokenizers), golden/tokens_NAME.jsonl (recorded ids and tokens) and text/*.txt. Each tokenizer is
checked on the goldens, on lines of the text files and on random Unicode, and again without its tokenizer.json, with
transformers' conversion of the vocabulary as the reference. DeBERTa's goldens are from transformers 5, so they are checked
with the tokenizer.json it saves; without that file the reference is the conversion of transformers 4 (make_spm_goldens.py).
Requires the tokenizers and transformers modules.
"""
import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile


def dump(tool, folder):
    def run(texts):
        lines = "".join(json.dumps(t) + "\n" for t in texts)
        done = subprocess.run([tool, str(folder)], input=lines.encode(), stdout=subprocess.PIPE, check=False)
        if done.returncode:
            sys.exit(f"{tool} {folder} failed with {done.returncode}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


POOLS = [
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    " \t\n\r\v\f\u00a0\u2003\u3000\u200b\ufeff\u0085\u2028",
    "0123456789²½¾٣५",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~…—“”‘’«»¿¡",
    "éèêüñçåøßœæÅÉÑİıſﬁŁđĐươ",
    "".join(chr(c) for c in range(0x300, 0x340)) + "\u0344\u0345\u1dc4\u20dd\u302a\u302e\u0f71\u0f72\u0f74",
    "中文字符漢字龥㐀豈𠀀𪜀你好世界",
    "가각힣한국어각ㄱ",
    "ひらがなカタカナｶﾅ゛゜がぎ",
    "مرحبابالعالمءآأ",
    "नमस्ते हिन्दी কি",
    "😀😂🤣❤️👍🏽👨‍👩‍👧‍👦🇻🇳🏳️‍🌈",
    "ΑΣΣΑΣς ΣοφόςБГДЁёйЙ",
    "xin chào việt nam Ấ ộ ử ễ ẵ",
    "\x00\x01\x08\x1b\x7f\x80\x9f\ufffd\ufffe\ue000\U000f0000\U0010ffff",
    "①Ⅷ㎏㍿ﷺ™℃ªº²₂",
]


def random_text(rng):
    kind = rng.random()
    out = []
    for _ in range(rng.choice((0, 1, 2, 3, 5, 8, 13, 30, 60))):
        if kind < 0.2:
            c = rng.randrange(0x110000)
            out.append(chr(c) if not 0xD800 <= c < 0xE000 else "?")
        elif kind < 0.3:
            out.append(chr(rng.randrange(0x3000)))
        elif kind < 0.4:
            out.append(chr(rng.randrange(0x80)))
        else:
            out.append(rng.choice(rng.choice(POOLS)))
        if rng.random() < 0.02:
            out.append(rng.choice(["[MASK]", "<mask>", " <mask>", "[CLS]", "</s>", "[SEP", "<s>", "[unused1]", "'s", "'ll", "''re"]))
    return "".join(out)


def edge_texts():
    return [
        "", " ", "  ", "\n", "\t \n", "\u200b", "\u0301", "a" * 99, "a" * 100, "a" * 101, "é" * 100, "é" * 101,
        "x" * 3000, "é" * 2000, " " * 2000, "!" * 500, "don't we'll I'M they'RE", "a  b   c    ", "  leading", "trailing  ",
        "<mask>", " <mask> ", "a <mask>b", "[MASK][MASK]", "x[SEP]y", "\x00", "a\x00b", "\ufeffbom", "e\u0301", "\u1112\u1161\u11ab",
        "#hashtag @user http://t.co/x?y=1&z=2", "1234567890123", "3.14 1,000 ½", "ÀÉÎõü", "İstanbul ISTANBUL ıI", "ſtraße",
    ]  # fmt: skip


def code_point_texts():
    """Every code point once, between letters and after a mark."""
    codes = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    return ["".join(f"a{c}b\u0301{c} " for c in codes[i : i + 64]) for i in range(0, len(codes), 64)]


def compare(name, texts, expect, got, show=5):
    """Compares in chunks, because results are large. expect and got map a list of texts to a list of results."""
    bad = 0
    for start in range(0, len(texts), 1000):
        chunk = texts[start : start + 1000]
        for text, e, g in zip(chunk, expect(chunk), got(chunk), strict=True):
            wrong = [k for k in ("ids", "tokens", "offsets") if k in e and e[k] != g[k]]
            if "fast_ids" in g:
                wrong.append("fast_ids")
            bad += bool(wrong)
            if wrong and bad <= show:
                print(f"  {name}: {wrong} differ on {text!r:.200}")
                for k in wrong:
                    print(f"    expected {e.get(k, e['ids'])!s:.300}\n    got      {g.get(k)!s:.300}")
    print(f"{name}: {len(texts) - bad} of {len(texts)} equal", flush=True)
    return bad


def reference(encode):
    def run(texts):
        found = [encode(t) for t in texts]
        return [{"ids": e.ids, "tokens": e.tokens, "offsets": [list(o) for o in e.offsets]} for e in found]

    return run


def backend(folder, from_json):
    from tokenizers import Tokenizer

    if from_json:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(folder))._tokenizer
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def is_deberta(folder):
    config = folder / "tokenizer_config.json"
    return config.exists() and json.loads(config.read_text()).get("tokenizer_class", "").startswith("DebertaV2")


def converted(folder):
    """The tokenizer of a folder without tokenizer.json."""
    if not is_deberta(folder):
        return backend(folder, False)
    import make_spm_goldens
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString((folder / "spm.model").read_bytes())
    return make_spm_goldens.deberta_tokenizer(proto, json.loads((folder / "tokenizer_config.json").read_text()))


def saved(folder, to):
    """A copy of a folder with the tokenizer.json that transformers writes, if it has none."""
    shutil.copytree(folder, to, copy_function=shutil.copyfile)
    if is_deberta(folder) and not (folder / "tokenizer.json").exists():
        backend(folder, False).save(str(to / "tokenizer.json"))
    return to


def check_parts(args, texts):
    import make_tokenizer_goldens as goldens

    bad = 0
    for name, config in goldens.configs().items():
        if args.only not in name:
            continue
        with tempfile.TemporaryDirectory() as temp:
            folder = pathlib.Path(temp)
            (folder / "tokenizer.json").write_text(json.dumps(config))
            bad += compare(name, texts + goldens.TEXTS, reference(goldens.load(config).encode), dump(args.dump, folder))
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", required=True)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--texts", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--code-points", action="store_true", help="every code point instead of random texts")
    parser.add_argument("--parts", action="store_true", help="the small tokenizers of make_tokenizer_goldens.py instead")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    texts = code_point_texts() if args.code_points else edge_texts() + [random_text(rng) for _ in range(args.texts)]
    if args.parts:
        sys.exit(1 if check_parts(args, texts) else 0)
    if args.data is None:
        parser.error("--data is needed without --parts")
    for file in sorted((args.data / "text").glob("*.txt")):
        texts += rng.sample(file.read_text(encoding="utf-8", errors="replace").splitlines(), min(args.texts, 20000))
    bad = 0
    for folder in sorted((args.data / "vocabs").iterdir()):
        if args.only not in folder.name:
            continue
        golden = args.data / f"golden/tokens_{folder.name}.jsonl"
        if golden.exists():
            rows = [json.loads(line) for line in golden.open(encoding="utf-8")]
            inputs = [r["text"] for r in rows]
            if is_deberta(folder):  # recorded from the ids: an unknown token is "[UNK]" instead of its text
                rows = [{"ids": r["ids"]} for r in rows]
            recorded = dict(zip(inputs, rows))
            with tempfile.TemporaryDirectory() as temp:
                full = saved(folder, pathlib.Path(temp) / folder.name)
                bad += compare(f"{folder.name} golden", inputs, lambda chunk: [recorded[t] for t in chunk], dump(args.dump, full))
                if not (folder / "tokenizer.json").exists() and (full / "tokenizer.json").exists():
                    bad += compare(f"{folder.name} saved tokenizer.json", texts, reference(backend(full, True).encode), dump(args.dump, full))
        if (folder / "tokenizer.json").exists():
            bad += compare(f"{folder.name} tokenizer.json", texts, reference(backend(folder, True).encode), dump(args.dump, folder))
        with tempfile.TemporaryDirectory() as temp:
            bare = pathlib.Path(temp) / folder.name
            shutil.copytree(folder, bare, copy_function=shutil.copyfile)
            (bare / "tokenizer.json").unlink(missing_ok=True)
            bad += compare(f"{folder.name} without tokenizer.json", texts, reference(converted(bare).encode), dump(args.dump, bare))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
