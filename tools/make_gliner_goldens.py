#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/gliner: tiny seeded GLiNER models of each supported variant, and the entities that the gliner package
finds with them. Requires torch, transformers, tokenizers and gliner 0.2.29.

    python3 tools/make_gliner_goldens.py [NAME…]
"""
import json
import pathlib
import random
import shutil
import sys
import tempfile
import zlib

import gliner
import tokenizers
import torch
import transformers
from safetensors.torch import save_file

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/data/gliner"
WORDS = """Ada Lovelace lives in London and works for Acme Corp on the shares of Example Bank rose after results today
Paris Berlin Tokyo bank river company person city ticker market price euro million new york times café naïve weiß
said that will be with from this have are was were not more than last year quarter analyst expects growth""".split()
ODD = ["", " ", "a", "London", "x-ray state_of-the-art", "AT&T's 3.5% (Q2)", "<<ENT>> person <<SEP>> Ada [SEP]", "weiß café naïve Ω",
       "हिन्दी भाषा", "東京 に 行く", "e\u0301le\u0300ve \u200b zero", "tab\tand\nline\x1cfile sep", "½ ² Ⅷ ٣", "--a-- _b_ -_-", "😀 ok 👩‍🚀"]  # fmt: skip
SHAPE = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=192)
DEBERTA = dict(SHAPE, model_type="deberta-v2", relative_attention=True, position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True,
               pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0, layer_norm_eps=1e-7, max_relative_positions=-1)  # fmt: skip
BERT = dict(SHAPE, model_type="bert", hidden_size=16)
COMMON = dict(max_width=4, hidden_size=16, max_len=24, dropout=0.0)
MODELS = {
    "span_rnn": ("unigram", dict(COMMON, span_mode="markerV0", encoder_config=DEBERTA, num_rnn_layers=1)),
    "span": ("wordpiece", dict(COMMON, span_mode="markerV0", encoder_config=BERT, num_rnn_layers=0, embed_ent_token=False, subtoken_pooling="mean", ent_token="[ENT]", sep_token="[SPLIT]")),
    "token_rnn": ("wordpiece", dict(COMMON, span_mode="token_level", encoder_config=BERT, num_rnn_layers=2, subtoken_pooling="last")),
    "token": ("unigram", dict(COMMON, span_mode="token_level", encoder_config=DEBERTA, num_rnn_layers=0, subtoken_pooling="max")),
    "bi_span": ("unigram", dict(COMMON, span_mode="markerV0", encoder_config=DEBERTA, labels_encoder_config=dict(BERT, hidden_size=12), num_rnn_layers=0)),
    "bi_token": ("wordpiece", dict(COMMON, span_mode="token_level", encoder_config=BERT, labels_encoder_config=BERT, num_rnn_layers=1, subtoken_pooling="mean")),
}  # fmt: skip
SCALES = {"span_rnn": 1.6, "span": 1.2, "token_rnn": 1.8, "token": 1.6, "bi_span": 1.6, "bi_token": 1.8}  # so that some scores exceed the threshold
LABELS = [["person"], ["city", "company", "ticker symbol"], ["a", "bank", "person", "new york times", "café"]]


def texts():
    rng = random.Random(3)
    return ODD + [" ".join(rng.choice(WORDS) for _ in range(n)) for n in (2, 3, 5, 8, 13, 21, 24, 25, 30)]


def tokenizer(kind):
    corpus = [" ".join(WORDS), " ".join(WORDS).lower()] * 3
    if kind == "unigram":
        special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
        made = tokenizers.Tokenizer(tokenizers.models.Unigram())
        made.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.NFC(), tokenizers.normalizers.Replace(tokenizers.Regex(r"\s{2,}|[\n\r\t]"), " ")])
        made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        trainer = tokenizers.trainers.UnigramTrainer(vocab_size=180, special_tokens=special, unk_token="[UNK]", show_progress=False)
    else:
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
        made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        made.decoder = tokenizers.decoders.WordPiece()
        trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=180, special_tokens=special, show_progress=False)
    made.train_from_iterator(corpus, trainer)
    ids = [(t, made.token_to_id(t)) for t in ("[CLS]", "[SEP]")]
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)


def make(name, base):
    kind, settings = MODELS[name]
    tokens = tokenizer(kind)
    source = base / f"{name}-encoder"
    tokens.save_pretrained(source)
    settings = json.loads(json.dumps(settings))
    settings["encoder_config"]["vocab_size"] = len(tokens)
    if "labels_encoder_config" in settings:
        settings["labels_encoder"] = str(base / f"{name}-labels")
        labels_tokens = tokenizer("wordpiece")
        labels_tokens.save_pretrained(settings["labels_encoder"])
        settings["labels_encoder_config"]["vocab_size"] = len(labels_tokens)
    model = gliner.GLiNER.from_config(gliner.config.GLiNERConfig(model_name=str(source), **settings), backbone_from_pretrained=False)
    with torch.no_grad():
        for key, value in model.model.named_parameters():
            seeded = torch.Generator().manual_seed(zlib.crc32(f"{name} {key}".encode()))
            if "LayerNorm" in key:
                value.normal_(1.0 if key.endswith("weight") else 0.0, 0.1, generator=seeded)
            else:
                value.normal_(0, 0.5 if "bert_layer" in key or "labels_encoder" in key or "lstm" in key else 1.0 / value.shape[-1] ** 0.5 * (SCALES[name] if value.dim() > 1 else 1), generator=seeded)
            value.copy_(value.half().float())
    model.eval()
    return model


def entities(model, rows, labels, threshold, nested):
    found = model.inference(rows, labels, flat_ner=not nested, threshold=threshold, batch_size=5)
    return [[[e["start"], e["end"], e["label"], round(e["score"], 6)] for e in row] for row in found]


def save(model, out):
    shutil.rmtree(out, ignore_errors=True)
    model.save_pretrained(out)
    (out / "pytorch_model.bin").unlink()
    save_file({key: value.half().contiguous() for key, value in model.model.state_dict().items()}, out / "model.safetensors")
    config = json.loads((out / "gliner_config.json").read_text())
    config["model_name"] = "example/encoder"
    if config["labels_encoder"]:
        config["labels_encoder"] = "example/labels-encoder"
    (out / "gliner_config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")


def write(name, base):
    model, out = make(name, base), DATA / name
    save(model, out)
    rows, cases = texts(), []
    for labels in LABELS:
        for threshold, nested in ((0.5, False), (0.25, True), (0.25, False)):
            cases.append({"labels": labels, "threshold": threshold, "nested": nested, "entities": entities(model, rows, labels, threshold, nested)})
    (out / "golden.json").write_text(json.dumps({"texts": rows, "cases": cases}, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(name, sum(len(row) for case in cases for row in case["entities"]), "entities")


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or MODELS:
            write(name, pathlib.Path(folder))


if __name__ == "__main__":
    main()
