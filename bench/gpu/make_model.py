#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes classifiers with seeded random weights and realistic shapes for benchmarks:
make_model.py TOKENIZER_DIR OUT [roberta-base|roberta-large|distil|minilm|tiny|roberta-base-4k|xlmr-base|xlmr-large|
modernbert-base|deberta-v3-base|deberta-v3-large].

Other families: FAMILY-tiny or FAMILY-minilm, e.g. mpnet-minilm. All of them, into OUT/NAME: make_model.py TOKENIZER_DIR OUT families.
With the suffix -nli, the labels are contradiction, neutral and entailment."""
import json
import pathlib
import shutil
import sys

import torch
import transformers as tf

SHAPES = {
    "roberta-base": dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
    "roberta-large": dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
    "distil": dict(hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072),
    "tiny": dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512),
    "minilm": dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
    # The vocabulary of XLM-R is larger than the tokenizer's.
    "xlmr-base": dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, vocab_size=250002),
    "xlmr-large": dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, vocab_size=250002),
    "modernbert-base": {},  # library defaults; the vocabulary is larger than the tokenizer's
    "deberta-v3-base": dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, max_position_embeddings=512),
    "deberta-v3-large": dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, max_position_embeddings=512, vocab_size=128100),
    "roberta-base-4k": dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, max_position_embeddings=4098),
}
# Configuration class prefix and extra keys of each family; all use RoBERTa's tokenizer.
FAMILIES = {
    "bert": ("Bert", dict(type_vocab_size=2)),
    "distilbert": ("DistilBert", {}),
    "roberta": ("Roberta", dict(type_vocab_size=1, layer_norm_eps=1e-5)),
    "electra": ("Electra", dict(type_vocab_size=2, embedding_size=64)),
    "albert": ("Albert", dict(type_vocab_size=2, embedding_size=64)),
    "mpnet": ("MPNet", {}),
    "deberta": ("DebertaV2", dict(relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False)),
    "modernbert": ("ModernBert", dict(cls_token_id=0, sep_token_id=2)),
}
LABELS = ["negative", "neutral", "positive"]


def write(tokenizer_dir, out, name):
    labels = ["contradiction", "neutral", "entailment"] if name.endswith("-nli") else LABELS
    name = name.removesuffix("-nli")
    family, _, size = name.partition("-")
    shape = SHAPES[size] if family in FAMILIES and size in ("tiny", "minilm") else SHAPES[name]
    prefix, own = FAMILIES[family if family in FAMILIES else "roberta"]
    if shape:
        shape = {"vocab_size": 50265, "max_position_embeddings": 514, **shape}
    if family == "distilbert":
        shape = dict(vocab_size=50265, dim=shape["hidden_size"], n_layers=shape["num_hidden_layers"], n_heads=shape["num_attention_heads"], hidden_dim=shape["intermediate_size"], max_position_embeddings=512)
    config = getattr(tf, prefix + "Config")(pad_token_id=1, bos_token_id=0, eos_token_id=2, id2label=dict(enumerate(labels)),
                                            label2id={l: i for i, l in enumerate(labels)}, **own, **shape)
    torch.manual_seed(0)
    model = getattr(tf, prefix + "ForSequenceClassification")(config)
    with torch.no_grad():  # spread the classes: a default head predicts the same for every text
        last = model.classifier.out_proj if hasattr(model.classifier, "out_proj") else model.classifier
        last.weight.normal_(0, 0.5)
    model.save_pretrained(out)
    for file in ["tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json"]:
        if (tokenizer_dir / file).exists():
            shutil.copy(tokenizer_dir / file, out / file)
    if family == "modernbert":  # the model's maximum length instead of RoBERTa's 512
        settings = out / "tokenizer_config.json"
        text = settings.read_text() if settings.exists() else "{}"
        settings.write_text(json.dumps({**json.loads(text), "model_max_length": config.max_position_embeddings}) + "\n")


tokenizer, target = map(pathlib.Path, sys.argv[1:3])
wanted = sys.argv[3] if len(sys.argv) > 3 else "roberta-base"
if wanted == "families":
    for each in (f"{family}-{size}" for family in FAMILIES for size in ("tiny", "minilm")):
        write(tokenizer, target / each, each)
else:
    write(tokenizer, target, wanted)
