#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes seeded classifiers of real shapes for benchmarks: make_model.py TOKENIZER_DIR OUT [roberta-base|roberta-large|distil|minilm|tiny|roberta-base-4k|modernbert-base]."""
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
    "modernbert-base": None,
    "roberta-base-4k": dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072, max_position_embeddings=4098),
}
tokenizer_dir, out = map(pathlib.Path, sys.argv[1:3])
shape = SHAPES[sys.argv[3] if len(sys.argv) > 3 else "roberta-base"]
labels = ["negative", "neutral", "positive"]
common = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2, id2label=dict(enumerate(labels)), label2id={l: i for i, l in enumerate(labels)})
torch.manual_seed(0)
if shape is None:  # its defaults; the tokenizer given is RoBERTa's, whose ids are fewer than its vocabulary
    model = tf.ModernBertForSequenceClassification(tf.ModernBertConfig(**common, cls_token_id=0, sep_token_id=2))
    head = model.classifier
else:
    config = tf.RobertaConfig(vocab_size=50265, type_vocab_size=1, layer_norm_eps=1e-5, **common, **{"max_position_embeddings": 514, **shape})
    model = tf.RobertaForSequenceClassification(config)
    head = model.classifier.out_proj
with torch.no_grad():  # spread the classes: a default head says the same for every text
    head.weight.normal_(0, 0.5)
model.save_pretrained(out)
for name in ["tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json"]:
    if (tokenizer_dir / name).exists():
        shutil.copy(tokenizer_dir / name, out / name)
