#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/tokenizers/NAME/{tokenizer.json,golden.jsonl}: small tokenizers that together use every part of
tokenizer.json supported by Brim, and the encodings of a list of difficult texts by Hugging Face's tokenizers (ids, tokens,
offsets); and decoders.jsonl, results of its decoders.

Tests of normalizers use a byte-level model; in tests of splitting, every piece is one unknown token whose offsets show the
split. Requires the tokenizers module; check_tokenizer_parity.py --parts runs the same tokenizers on thousands of random
texts.
"""
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests/data/tokenizers"

CORPUS = """the quick brown fox jumps over the lazy dog and they're not even like that, don't you think?
I think I may be finally in with the in crowd #hashtag @user so happy today :) lol it's 2024, 100% sure!!
what a great day for the new movie, we'll see how it goes... the the and and of to in is you that it he was for on are
việt nam xin chào các bạn hôm nay trời đẹp quá naïve café résumé über señor façade déjà vu 中文 日本語 한국어 😂😂 ❤️
un unaffable able affable ing ed er est ness play playing played player players token tokenizer tokenization ize
""".split("\n")

TEXTS = [
    "", " ", "   ", "\n", "\t\r\n", "a", "hello world", "Hello, World!", "don't we'll I'M they'RE 's", " leading", "trailing  ",
    "a  b   c", "tabs\tand\nnewlines\r\n", "unaffable playing TOKENIZATION", "naïve café Ünïcödé", "e\u0301 a\u0323\u0302 \u0344\u0323",
    "\u1100\u1161\u11a8 각 한국어", "中文字符 mixed漢字text", "豈更 㐀𠀀", "ひらがな カタカナ ｶﾞ が", "مرحبا بالعالم", "हिन्दी नमस्ते",
    "😂😂 👍🏽 👨‍👩‍👧‍👦 🇻🇳 ❤️", "\x00\x01a\x08b\x7f", "a\u00a0b\u2003c\u3000d\u2028e", "\u200bzero\u200dwidth\ufeff", "\ufffd\ue000\U0010ffff",
    "<mask>", "a <mask> b", "a<mask>b  <mask>  c", "[MASK][CLS] x [SEP]", "say hello nowhello hello", "Hello HELLO hello",
    "x[SEP", "!!!???...", "a.b,c;d", "--x--", "3.14 1,000 ½ ²³ ٣ Ⅷ", "#tag @user http://t.co/x?y=1&z=2", "ΑΣ Σοφός ς", "İstanbul ISTANBUL ıI ſ",
    "ﬁ ﬂ ① ㎏ ™ ﷺ ª", "straße ẞ Ǆ ǅ", "x" * 99, "y" * 101, "é" * 101, "ab" * 40, "the the  the", "a\u0301\u0301b\u0328\u0301", "\u0301leading mark",
    "it's  O'Neil's ''quoted'' 'd'", "1a2b3c", "foo_bar-baz", "​ ​", "  \u0301 ", "a\u2581b \u2581", "\u0f71\u0f72\u0f74 \u302e\u0301", "A\u030aÅÅ",
]  # fmt: skip


def added(content, **flags):
    token = dict(id=0, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    token.update(flags)
    return token


def tokenizer(model, normalizer=None, pre=None, post=None, tokens=()):
    tokens = [dict(t) for t in tokens]
    vocab = model["vocab"] if isinstance(model["vocab"], dict) else {}
    following = len(vocab)
    for t in tokens:
        t["id"] = vocab.get(t["content"], following)
        following += t["content"] not in vocab
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre,
        "post_processor": post,
        "decoder": None,
        "model": model,
    }  # fmt: skip


def wordpiece(words, **options):
    vocab = {w: i for i, w in enumerate(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))}
    return {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab, **options}


def bpe(vocab, merges, **options):
    base = dict(dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False, byte_fallback=False, ignore_merges=False)
    return {"type": "BPE", **base, **options, "vocab": vocab, "merges": merges}


def trained_wordpiece():
    words = []
    for c in sorted(set("".join(CORPUS)) - {" "}):
        words += [c, "##" + c, c.lower(), "##" + c.lower()]
    words += "the quick think hello world play token un able aff ##ffable ##able ##ing ##ed ##er ##s ##ization ##ize cafe naive".split()
    words += "tokenizationandmore ##averylongcontinuation 中 文 漢 각 😂 !! ... ##'s st hell ##o ᄒ ##ᅡ ##ᆫ".split()
    return words


def trained_bpe(vocab_size, **pre):
    """Returns byte-level merges learnt from CORPUS."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, min_frequency=1)  # fmt: skip
    t.train_from_iterator(CORPUS, trainer)
    model = json.loads(t.to_str())["model"]
    return model["vocab"], [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]


def char_merges(words, prefix="", suffix=""):
    """Returns a vocabulary of characters and merges that build `words` from the left, with BPE's word affixes."""
    vocab, merges = {"<unk>": 0}, []
    for word in words:
        parts = [(prefix if i else "") + c + (suffix if i + 1 == len(word) else "") for i, c in enumerate(word)]
        for p in parts:
            vocab.setdefault(p, len(vocab))
        left = parts[0]
        for right in parts[1:]:
            if [left, right] not in merges:
                merges.append([left, right])
            left = left + right[len(prefix) :]
            vocab.setdefault(left, len(vocab))
    return vocab, merges


def spelled_bytes():
    """Every byte is a token, so that the ids show the exact output of a normalizer."""
    return bpe({f"<0x{b:02X}>": b for b in range(256)}, [], byte_fallback=True)


def template(cls="[CLS]", sep="[SEP]", ids=(2, 3), pairs=True):
    """BERT's post-processor, or one without a separator between two texts."""
    special = {n: {"id": n, "ids": [i], "tokens": [n]} for n, i in ((cls, ids[0]), (sep, ids[1]))}
    item = lambda n, t=0: {"SpecialToken": {"id": n, "type_id": t}}  # noqa: E731
    text = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    pair = [item(cls), text, item(sep), second, item(sep, 1)] if pairs else [item(cls), text, second]
    return {"type": "TemplateProcessing", "single": [item(cls), text, item(sep)], "pair": pair, "special_tokens": special}


def bert(**on):
    return {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True, **on}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPECIALS = [added(t) for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
ROBERTA_SPECIALS = [added(t) for t in ("<s>", "<pad>", "</s>", "<unk>")] + [added("<mask>", lstrip=True)]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def configs():
    words = trained_wordpiece()
    vocab, merges = trained_bpe(420)
    roberta = {"type": "RobertaProcessing", "sep": ["</s>", vocab["</s>"]], "cls": ["<s>", vocab["<s>"]], "trim_offsets": True, "add_prefix_space": False}
    pieces = wordpiece(["a", "##a"], max_input_chars_per_word=1)
    out = {
        "bert_uncased": tokenizer(wordpiece(words), bert(), {"type": "BertPreTokenizer"}, template(), SPECIALS),
        "bert_cased": tokenizer(
            wordpiece(words), bert(strip_accents=False, lowercase=False), {"type": "BertPreTokenizer"},
            {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}, SPECIALS),
        "bert_accents": tokenizer(wordpiece(words), bert(strip_accents=False), {"type": "BertPreTokenizer"}, None, SPECIALS),
        "bert_plain": tokenizer(
            wordpiece(words, max_input_chars_per_word=20), bert(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False),
            {"type": "BertPreTokenizer"}, None, [added("[MASK]", rstrip=True)]),
        "added_tokens": tokenizer(
            wordpiece(words), bert(), {"type": "BertPreTokenizer"}, template(),
            [*SPECIALS, added("hello", single_word=True, special=False), added("<mask>", lstrip=True, rstrip=True), added("CAFÉ", normalized=True, special=False),
             added("tag", special=False), added("tag @", special=False)]),
        "byte_bpe": tokenizer(bpe(vocab, merges), None, BYTE_LEVEL, roberta, ROBERTA_SPECIALS),
        "byte_bpe_strings": tokenizer(
            bpe(vocab, [" ".join(m) for m in merges]), None, {**BYTE_LEVEL, "add_prefix_space": True},
            {**roberta, "add_prefix_space": True}, ROBERTA_SPECIALS),
        "byte_bpe_untrimmed": tokenizer(bpe(vocab, merges), {"type": "NFC"}, BYTE_LEVEL, {**roberta, "trim_offsets": False}, ROBERTA_SPECIALS),
        # ModernBERT: byte-level, with BERT's special tokens after the vocabulary, and runs of spaces as tokens.
        "byte_bpe_modern": tokenizer(
            bpe(vocab, merges), {"type": "NFC"}, BYTE_LEVEL, template("[CLS]", "[SEP]", (len(vocab) + 4, len(vocab) + 5)),
            [added("|||IP_ADDRESS|||", normalized=True, special=False), added("    ", normalized=True, special=False), added("  ", normalized=True, special=False),
             added("[UNK]"), added("[CLS]"), added("[SEP]"), added("[PAD]"), added("[MASK]", lstrip=True), added("[unused0]", normalized=True, special=False)]),
        "byte_bpe_llama3": tokenizer(
            bpe(vocab, merges, ignore_merges=True), None,
            {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}, {**BYTE_LEVEL, "use_regex": False}]},
            {"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, template("<s>", "</s>", (vocab["<s>"], vocab["</s>"]), pairs=False)]},
            ROBERTA_SPECIALS),
        "byte_normalizer": tokenizer(
            bpe(vocab, merges), {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "ByteLevel"}]},
            {"type": "Split", "pattern": {"String": "\u0120"}, "behavior": "MergedWithNext", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}, ROBERTA_SPECIALS),
        "bpe_suffix": tokenizer(
            bpe(*char_merges(["the", "hello", "world", "play", "playing", "a", "b"], suffix="</w>"), unk_token="<unk>", end_of_word_suffix="</w>"),
            {"type": "Lowercase"}, {"type": "WhitespaceSplit"}, None, [added("<mask>")]),
        "bpe_prefix": tokenizer(
            bpe(*char_merges(["the", "hello", "world", "playing", "ab"], prefix="##"), unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True),
            {"type": "Lowercase"}, {"type": "Whitespace"}, None, []),
        "bpe_no_unk": tokenizer(bpe(*char_merges(["the", "hello", "ab"])), None, {"type": "WhitespaceSplit"}, None, []),
        "bpe_bytes": tokenizer(
            bpe({**{f"<0x{b:02X}>": b for b in range(256)}, "▁": 256, "t": 257, "h": 258, "e": 259, "▁t": 260, "he": 261, "▁the": 262, "<unk>": 263, "é": 264},
                [["▁", "t"], ["h", "e"], ["▁t", "he"]], unk_token="<unk>", fuse_unk=True, byte_fallback=True),
            {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            None, None, [added("<mask>", rstrip=True)]),
    }  # fmt: skip
    normalizers = {
        "nfd": {"type": "NFD"}, "nfkd": {"type": "NFKD"}, "nfc": {"type": "NFC"}, "nfkc": {"type": "NFKC"}, "lowercase": {"type": "Lowercase"},
        "strip": {"type": "Strip", "strip_left": True, "strip_right": True}, "strip_right": {"type": "Strip", "strip_left": False, "strip_right": True},
        "strip_accents": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]},
        "nmt": {"type": "Sequence", "normalizers": [{"type": "Nmt"}, {"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
        "replace": {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"Regex": r"\s+|[0-9]+(?=\D|$)"}, "content": "<>"}, {"type": "Replace", "pattern": {"String": "e"}, "content": ""}]},
        "bert": bert(),
    }  # fmt: skip
    for name, normalizer in normalizers.items():
        out["normalizer_" + name] = tokenizer(spelled_bytes(), normalizer)
    splits = {
        "whitespace": {"type": "Whitespace"}, "whitespace_split": {"type": "WhitespaceSplit"}, "punctuation": {"type": "Punctuation", "behavior": "Isolated"},
        "punctuation_contiguous": {"type": "Punctuation", "behavior": "Contiguous"}, "digits": {"type": "Digits", "individual_digits": False},
        "digits_single": {"type": "Digits", "individual_digits": True}, "bert": {"type": "BertPreTokenizer"},
        "gpt2": {"type": "Split", "pattern": {"Regex": GPT2}, "behavior": "Removed", "invert": True},
        "regex_next": {"type": "Split", "pattern": {"Regex": r"[aeiou]|\p{Lu}\p{Ll}*?|(?<=l)l"}, "behavior": "MergedWithNext", "invert": False},
        "regex_previous": {"type": "Split", "pattern": {"Regex": r"\W|(?:the){1,2}"}, "behavior": "MergedWithPrevious", "invert": False},
        "string_removed": {"type": "Split", "pattern": {"String": "e"}, "behavior": "Removed", "invert": False},
        "sequence": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "MergedWithPrevious"}, {"type": "Digits", "individual_digits": True}]},
    }  # fmt: skip
    for name, pre in splits.items():
        out["split_" + name] = tokenizer(pieces, None, pre)
    return out


def encode(backend, text):
    e = backend.encode(text)
    return {"text": text, "ids": e.ids, "tokens": e.tokens, "offsets": [list(o) for o in e.offsets]}


def load(config):
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(json.dumps(config))
    backend.no_padding()
    backend.no_truncation()
    return backend


def decoders():
    """Decoders applied to lists of tokens that cover all of their rules."""
    mark = "\u2581"
    tokens = [
        [], ["hello", "##ing", "world"], ["##a", "##b", "b", "##", "x##y"], ["do", "not", ".", "he", "'s", "is", "n't", "!", "?", ",", "'", "##'ve", "'re"],
        [" do not . ' s", " ' ", " n't 'm"], ["Ġhello", "Ġworld", "!", "ĠðŁĺ", "Ĥ", "é", "中"], ["ðŁĺ"], ["Ã©", "Ã", "Ã©", "<s>", "Ġ"],
        [mark + "Hello", mark + "wor" + mark, "ld", mark], [mark, mark + mark, "a"], ["a</w>", "b", "c</w>d</w>", "</w>"],
        ["<0xF0>", "<0x9F>", "<0x98>", "<0x82>", "x", "<0xE4>", "<0xb8>", "y"], ["<0x41>", "<0xZZ>", "<0x4>", "<0x041>"], ["  a  ", " ", "b", ""],
    ]  # fmt: skip
    replace = {"type": "Replace", "pattern": {"String": mark}, "content": " "}
    kinds = [
        {"type": "WordPiece", "prefix": "##", "cleanup": True}, {"type": "WordPiece", "prefix": "##", "cleanup": False},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Metaspace", "replacement": mark, "prepend_scheme": "always", "split": True}, {"type": "Metaspace", "replacement": mark, "prepend_scheme": "never", "split": True},
        {"type": "BPEDecoder", "suffix": "</w>"}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 2, "stop": 0}, replace,
        {"type": "Replace", "pattern": {"Regex": "[aeiou]+"}, "content": "_"},
        {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    ]  # fmt: skip
    words = wordpiece(["a"])
    for kind in kinds:
        decoder = load(dict(tokenizer(words), decoder=kind)).decoder
        yield {"decoder": kind, "cases": [{"tokens": list(t), "text": decoder.decode(list(t))} for t in tokens]}
    # Complete tokenizers, with and without special tokens.
    for name, kind in (("bert_uncased", kinds[0]), ("byte_bpe", kinds[2]), ("added_tokens", kinds[0]), ("bert_cased", None)):
        config = dict(json.loads((FOLDER / name / "tokenizer.json").read_text(encoding="utf-8")), decoder=kind)
        backend, cases = load(config), []
        for text in ("Hello, world! don't 😂 naïve", "a <mask> b [MASK] c hello", "the the  the", ""):
            ids = backend.encode(text).ids + [1 << 20]
            cases += [{"ids": ids, "skip_special": skip, "text": backend.decode(ids, skip_special_tokens=skip)} for skip in (True, False)]
        yield {"tokenizer": name, "decoder": kind, "cases": cases}


def main():
    for name, config in configs().items():
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        backend = load(config)
        (folder / "tokenizer.json").write_text(json.dumps(config, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
        rows = [json.dumps(encode(backend, t), ensure_ascii=False, separators=(",", ":")) for t in TEXTS]
        (folder / "golden.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    rows = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in decoders()]
    (FOLDER / "decoders.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
