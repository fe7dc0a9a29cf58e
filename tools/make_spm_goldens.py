#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/tokenizers/{spm_*,fastbpe_*}: small SentencePiece and fastBPE tokenizers, and the encodings of a list of
difficult texts by transformers and tokenizers (ids, tokens, offsets; fastBPE has no offsets).

The models are trained on the lines below, with a small character map. Folders with a *.model and no tokenizer.json are
loaded like transformers does, except BPE, which current transformers mistakes for Unigram: there the reference is the
result of its former converter (which is also the content of ViSoBERT's tokenizer.json), and DeBERTa, whose character map
transformers 5 drops: there the reference is the conversion of transformers 4. deberta_v5 is the tokenizer.json that version 5
saves.

    python3 tools/make_spm_goldens.py [FOLDER…]  (requires tokenizers, transformers, sentencepiece)
"""
import collections
import json
import os
import pathlib
import random
import shutil
import struct
import sys
import tempfile

import sentencepiece
import transformers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/data/tokenizers"

CORPUS = """the quick brown fox jumps over the lazy dog, and the dog doesn't even wake up
I think the new phone is great but the battery is not so good, what do you think?
what a great match today! the players played until the end and nobody was tired
shares of the company rose 4.5 % on Monday after it reported higher profit, 1,200 jobs were created
the teacher explains the lesson clearly and answers every question of the students
this is not what I wanted, the package came late and the box was broken
happy happy joy joy :) see you tomorrow at the station @user #weekend
giảng viên dạy rất nhiệt tình và dễ hiểu, bài giảng hay và sinh động
tôi không thích môn học này vì quá nhiều bài tập, thời gian thì ít
hôm nay trời đẹp quá, chúng ta đi chơi nhé, mọi người đều vui vẻ
der schnelle braune Fuchs springt über den faulen Hund, schöne Grüße aus Köln
le café était très bon, mais le garçon était désagréable, à bientôt
el niño comió mañana, ¿qué pasa? ¡vamos a la playa!
привет мир, как дела сегодня, всё хорошо
日本語のテキスト 中文文本 한국어 텍스트
first second third one two three four five six seven eight nine ten
running runner runs ran playing player plays played talking talker talks talked
unhappy unable undo unlike rewrite redo return remake""".split("\n")

# From SentencePiece's nmt_nfkc, and some additions: keys that are prefixes of others, and that shrink, grow and vanish.
RULES = (
    [(chr(c), "") for c in (0x01, 0x02, 0x08, 0x1F, 0x7F)]
    + [(chr(c), " ") for c in (0x09, 0x0A, 0x0C, 0x0D, 0xA0, 0x1680, 0x2003, 0x200B, 0x200E, 0x2028, 0x2581, 0x3000, 0xFEFF)]
    + [(chr(0xFF01 + i), chr(0x21 + i)) for i in range(94)]
    + [("\u2026", "..."), ("\u00bd", "1\u20442"), ("\ufb01", "fi"), ("\u2122", "TM"), ("\u3392", "MHz"), ("\u00a8", " \u0308")]
    + [("a\u0301", "á"), ("e\u0301", "é"), ("o\u0302", "ô"), ("\u0340", "\u0300"), ("\u0341", "\u0301"), ("\u0344", "\u0308\u0301")]
    + [("\u0958", "\u0915\u093c"), ("\u1100\u1161", "\uac00"), ("\u0600", "")]
)  # fmt: skip


def train(rules, **options):
    """Trains a model and returns its protobuf message."""
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text.txt")
        with open(text, "w") as f:
            f.write("\n".join(CORPUS * 3))
        if rules:
            codes = lambda s: " ".join(f"{ord(c):X}" for c in s)
            table = os.path.join(folder, "rules.tsv")
            with open(table, "w") as f:
                f.writelines(f"{codes(a)}\t{codes(b)}\n" for a, b in rules)
            options["normalization_rule_tsv"] = table
        sentencepiece.SentencePieceTrainer.train(
            input=text, model_prefix=os.path.join(folder, "m"), hard_vocab_limit=False, minloglevel=2, num_threads=1,
            **options)
        proto = sentencepiece_model_pb2.ModelProto()
        with open(os.path.join(folder, "m.model"), "rb") as f:
            proto.ParseFromString(f.read())
    proto.trainer_spec.ClearField("input")  # paths of the training machine
    proto.trainer_spec.ClearField("model_prefix")
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    return proto


def ugly_texts(count, seed, specials):
    rng = random.Random(seed)
    words = [w for line in CORPUS for w in line.split()]
    odd = ["\u0301", "\u0340", "\u0341", "\ufe0f", "\u200d", "\u200b", "\u0600", "\u06dd", "\u00a8", "\u00a0", "\u0085", "\u2028", "\u3000",
           "\u2581", "\t", "\n", "\r\n", "\x00", "\x01", "\x1f", "\ufeff", "\ufffd", "\u1100", "\u1161", "\uac00", "\u0958", "\u094d", "\u0915",
           "©", "®", "\ufb01", "\u2026", "½", "\u3392", "Ａ", "ｚ", "a\u0301", "e\u0301\u0301\u0301", "``", "''", "</w>", "@@", "<0x41>"]  # fmt: skip
    ranges = [(0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x340), (0x370, 0x530), (0x900, 0x980), (0x1EA0, 0x1EF9),
              (0x2000, 0x2070), (0x3040, 0x30FF), (0x4E00, 0x4F00), (0xFF00, 0xFFEF), (0x1F300, 0x1F650), (0x1F1E6, 0x1F200)]  # fmt: skip

    def part():
        kind = rng.randrange(10)
        if kind < 5:
            return rng.choice(words)
        if kind < 6:
            return "".join(rng.choice(words)[: rng.randrange(1, 4)] for _ in range(rng.randrange(1, 4)))
        if kind < 8:
            return rng.choice(odd)
        if kind < 9:
            first, last = rng.choice(ranges)
            return chr(rng.randrange(first, last))
        return rng.choice(specials)

    texts = ["", " ", "  ", "\n", "a", "hello world", " two  spaces ", "aaaaaaaaaaaa", "don't", "1,200", "\u2581", " \u2581 \u2581a", "\ufe0f a \ufe0f",
             "x" * 70, "ab" * 40, "\u4e2d" * 30, "\U0001F469\u200d\U0001F52C", "\x01a", "a\x01", "\u0600 a"]  # fmt: skip
    while len(texts) < count:
        gap = rng.choice(["", " ", " ", "mixed"])
        out = ""
        for _ in range(rng.randrange(1, 9)):
            out += part() + (rng.choice(["", " ", " ", "  "]) if gap == "mixed" else gap)
        texts.append(out)
    return texts


def write_golden(folder, texts, encode):
    with open(folder / "golden.jsonl", "w") as f:
        for text in texts:
            ids, tokens, offsets = encode(text)
            row = {"text": text, "ids": ids, "tokens": tokens}
            if offsets is not None:
                row["offsets"] = offsets
            f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")


def skipped(name):
    return len(sys.argv) > 1 and name not in sys.argv[1:]


def fresh(name):
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def fast(tokenizer):
    def encode(text):
        encoding = tokenizer.encode(text)
        return encoding.ids, encoding.tokens, encoding.offsets

    return encode


def model_folder(name, proto, file, config, specials, reference=None):
    if skipped(name):
        return
    folder = fresh(name)
    with open(folder / file, "wb") as f:
        f.write(proto.SerializeToString())
    with open(folder / "tokenizer_config.json", "w") as f:
        json.dump(config, f, indent=1)
    tokenizer = reference or transformers.AutoTokenizer.from_pretrained(folder).backend_tokenizer
    write_golden(folder, ugly_texts(220, name, specials), fast(tokenizer))


def json_folder(name, tokenizer, specials):
    if skipped(name):
        return
    folder = fresh(name)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write_golden(folder, ugly_texts(220, name, specials), fast(tokenizer))


XLMR_SPECIALS = ["<s>", "</s>", "<pad>", "<unk>", "<mask>", "<mask"]


def xlmr_tokenizer(proto, byte_fallback=False):
    """Converts a model like transformers' XLMRobertaConverter, without normalizer and pre-tokenizer."""
    vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocab += [(p.piece, p.score) for p in proto.pieces[3:]] + [("<mask>", 0.0)]
    if proto.trainer_spec.model_type == 1:
        model = models.Unigram(vocab, 3, byte_fallback)
    else:
        ids = {p.piece: i for i, p in enumerate(proto.pieces)}
        cuts = []
        for text, score in dict(vocab).items():
            halves = [(text[:i], text[i:]) for i in range(1, len(text)) if text[:i] in ids and text[i:] in ids]
            cuts += [(score, left, right) for left, right in sorted(halves, key=lambda h: (ids[h[0]], ids[h[1]]))]
        cuts.sort(key=lambda cut: cut[0], reverse=True)
        model = models.BPE({text: i for i, (text, _) in enumerate(vocab)}, [cut[1:] for cut in cuts],
                           unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback)  # fmt: skip
    tokenizer = Tokenizer(model)
    mask = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", mask])
    tokenizer.add_tokens([AddedToken(p.piece, normalized=False, special=p.type == 3) for p in proto.pieces if p.type in (3, 4)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return tokenizer


def tidy(proto):
    charsmap = proto.normalizer_spec.precompiled_charsmap
    parts = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "\u2581")]
    return normalizers.Sequence(([normalizers.Precompiled(charsmap)] if charsmap else []) + parts)


def metaspace(scheme, split=True):
    return pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme=scheme, split=split)


def deberta_tokenizer(proto, config):
    """Converts a model like DebertaV2Converter of transformers 4."""
    tokenizer = Tokenizer(models.Unigram([(p.piece, p.score) for p in proto.pieces], proto.trainer_spec.unk_id, False))
    tokenizer.add_tokens([AddedToken(p.piece, normalized=False, special=p.type == 3) for p in proto.pieces if p.type in (3, 4)])
    unknown = AddedToken("[UNK]", normalized=True, special=True)
    tokenizer.add_special_tokens(["[PAD]", "[CLS]", "[SEP]", unknown, "[MASK]"])
    lower = [normalizers.Lowercase()] if config.get("do_lower_case") else []
    tokenizer.normalizer = normalizers.Sequence(
        lower + [normalizers.Strip(), normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
                 normalizers.Replace(Regex(" {2,}"), " ")])  # fmt: skip
    split = [pre_tokenizers.Punctuation(behavior="isolated")] if config.get("split_by_punct") else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split + [metaspace("always")])
    tokenizer.decoder = decoders.Metaspace(replacement="\u2581", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return tokenizer


def deberta_folders():
    roles = dict(pad_id=0, pad_piece="[PAD]", bos_id=1, bos_piece="[CLS]", eos_id=2, eos_piece="[SEP]", unk_id=3, unk_piece="[UNK]")
    proto = train(RULES, vocab_size=680, byte_fallback=True, user_defined_symbols=["@user"], **roles)
    specials = ["[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]", "[mask]", "@user", "\u0130"]
    unknown = {"content": "[UNK]", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False, "special": True}
    for name, flags in {"spm_deberta": {}, "spm_deberta_lower": {"do_lower_case": True, "split_by_punct": True}}.items():
        config = {"tokenizer_class": "DebertaV2Tokenizer", "vocab_type": "spm", "unk_token": {"__type": "AddedToken", **unknown}, **flags}
        model_folder(name, proto, "spm.model", config, specials, deberta_tokenizer(proto, config))
    with tempfile.TemporaryDirectory() as temp:
        (pathlib.Path(temp) / "spm.model").write_bytes(proto.SerializeToString())
        (pathlib.Path(temp) / "tokenizer_config.json").write_text('{"tokenizer_class": "DebertaV2Tokenizer"}')
        json_folder("deberta_v5", transformers.AutoTokenizer.from_pretrained(temp).backend_tokenizer, specials)


def tie_folder():
    """Runs of one character, whose best splits differ only in order: the last bits of the scores decide."""
    if skipped("unigram_ties"):
        return
    rng = random.Random(1)
    single = lambda x: struct.unpack("f", struct.pack("f", x))[0]
    vocab = [("<unk>", 0.0), ("\u2581", single(-3.0))]
    vocab += [("-" * n, single(-rng.uniform(9, 12) * (1 + n / 16))) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)]
    folder = fresh("unigram_ties")
    path = str(folder / "tokenizer.json")
    Tokenizer(models.Unigram(vocab, 0, False)).save(path, pretty=False)
    encode = fast(Tokenizer.from_file(path))
    write_golden(folder, ["-" * n for n in (*range(30, 75), 100, 128, 200, 256, 333, 400)], encode)


def learn_fastbpe(merges):
    """Learns bpe.codes and vocab.txt with the basic algorithm."""
    counts = collections.Counter(w for line in CORPUS for w in line.split())
    parts = {w: tuple(w[:-1]) + (w[-1] + "</w>",) for w in counts}
    codes = []
    for _ in range(merges):
        pairs = collections.Counter()
        for word, symbols in parts.items():
            for pair in zip(symbols, symbols[1:]):
                pairs[pair] += counts[word]
        if not pairs:
            break
        left, right = max(pairs, key=lambda pair: (pairs[pair], pair))
        codes.append((left, right, pairs[left, right]))
        for word, symbols in parts.items():
            merged, i = [], 0
            while i < len(symbols):
                joined = symbols[i : i + 2] == (left, right)
                merged.append(left + right if joined else symbols[i])
                i += 1 + joined
            parts[word] = tuple(merged)
    vocab = collections.Counter()
    for word, symbols in parts.items():
        for i, symbol in enumerate(symbols):
            vocab[symbol[:-4] if i + 1 == len(symbols) else symbol + "@@"] += counts[word]
    for c in sorted({c for line in CORPUS for c in line if not c.isspace()}):
        vocab[c] += 1
        vocab[c + "@@"] += 1
    return codes, vocab.most_common()[:-8]  # leaves some characters unknown


def fastbpe_folder(name, config, specials):
    if skipped(name):
        return
    folder = fresh(name)
    codes, vocab = learn_fastbpe(300)
    with open(folder / "bpe.codes", "w") as f:
        f.writelines(f"{left} {right} {count}\n" for left, right, count in codes)
    with open(folder / "vocab.txt", "w") as f:
        f.writelines(f"{token} {count}\n" for token, count in vocab)
    for id_, token in list(config.get("added_tokens_decoder", {}).items()):
        del config["added_tokens_decoder"][id_]
        config["added_tokens_decoder"][str(len(vocab) + int(id_))] = token
    with open(folder / "tokenizer_config.json", "w") as f:
        json.dump(config, f, indent=1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def encode(text):
        ids = tokenizer(text)["input_ids"]
        return ids, tokenizer.convert_ids_to_tokens(ids), None

    write_golden(folder, ugly_texts(220, name, specials), encode)


def main():
    transformers.logging.set_verbosity_error()
    mask = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "normalized": False, "rstrip": False, "single_word": False}
    xlmr = {"tokenizer_class": "XLMRobertaTokenizer", "mask_token": mask}

    unigram = train(RULES, vocab_size=420, user_defined_symbols=["@user", "foo bar"], control_symbols=["<ctl>"])
    model_folder("spm_xlmr", unigram, "sentencepiece.bpe.model", xlmr, XLMR_SPECIALS + ["@user", "foo bar", "<ctl>"])
    plain = train([], vocab_size=300, normalization_rule_name="identity")
    model_folder("spm_xlmr_identity", plain, "sentencepiece.bpe.model", {"tokenizer_class": "XLMRobertaTokenizer"}, XLMR_SPECIALS)

    albert = train(RULES, vocab_size=400, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"])
    specials = ["[CLS]", "[SEP]", "[MASK]", "<pad>", "<unk>", "É", "Ä\u0301", "İ"]
    model_folder("spm_albert", albert, "spiece.model", {"tokenizer_class": "AlbertTokenizer"}, specials)
    config = {"tokenizer_class": "AlbertTokenizer", "do_lower_case": False, "keep_accents": True}
    model_folder("spm_albert_cased", albert, "spiece.model", config, specials)

    bpe = train(RULES, vocab_size=420, model_type="bpe")
    reference = xlmr_tokenizer(bpe)
    reference.normalizer = tidy(bpe)
    reference.pre_tokenizer = metaspace("always")
    model_folder("spm_bpe", bpe, "sentencepiece.bpe.model", xlmr, XLMR_SPECIALS, reference)

    byte_pieces = train(RULES, vocab_size=620, byte_fallback=True, character_coverage=0.98)
    tokenizer = xlmr_tokenizer(byte_pieces, byte_fallback=True)
    tokenizer.normalizer = tidy(byte_pieces)
    tokenizer.pre_tokenizer = metaspace("always")
    json_folder("spm_unigram_bytes", tokenizer, XLMR_SPECIALS)
    tokenizer = xlmr_tokenizer(unigram)
    tokenizer.normalizer = normalizers.Sequence([tidy(unigram), normalizers.Strip(left=True, right=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace("first")])
    json_folder("spm_unigram_first", tokenizer, XLMR_SPECIALS + ["@user", "foo bar"])
    byte_bpe = train([], vocab_size=620, model_type="bpe", byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity")
    tokenizer = xlmr_tokenizer(byte_bpe, byte_fallback=True)
    tokenizer.pre_tokenizer = metaspace("first", split=False)
    json_folder("spm_bpe_bytes", tokenizer, XLMR_SPECIALS)

    deberta_folders()
    tie_folder()

    fastbpe_folder("fastbpe_phobert", {"tokenizer_class": "PhobertTokenizer"}, XLMR_SPECIALS)
    flags = {"rstrip": False, "normalized": False, "single_word": False, "special": True}
    added = {"4": {"content": "<mask>", "lstrip": True, **flags},
             "5": {"content": "foo bar", "lstrip": False, **flags, "rstrip": True, "special": False},
             "6": {"content": ":)", "lstrip": False, **flags, "single_word": True, "special": False}}  # fmt: skip
    config = {"tokenizer_class": "BertweetTokenizer", "mask_token": mask, "added_tokens_decoder": added}
    fastbpe_folder("fastbpe_bertweet", config, XLMR_SPECIALS + ["foo bar", ":)", "x:)"])


if __name__ == "__main__":
    main()
