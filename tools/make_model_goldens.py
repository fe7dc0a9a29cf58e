#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/models/*: tiny seeded models of every family and head, with the logits transformers computes.

Needs torch and transformers. Each directory holds config.json, model.safetensors and golden.json: packed token ids,
sequence lengths, and logits (or hidden states) from the fp32 model run one sequence at a time.
"""
import json
import pathlib
import sys

import torch
import transformers as tf

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "models"
LENGTHS = [1, 2, 7, 16, 33, 40]
VOCAB = 96
COMMON = dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=80, max_position_embeddings=44)
SEQ = {"id2label": {0: "negative", 1: "neutral", 2: "positive"}, "label2id": {"negative": 0, "neutral": 1, "positive": 2}}
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TOK = {"id2label": dict(enumerate(TAGS)), "label2id": {t: i for i, t in enumerate(TAGS)}}
ROBERTA = dict(COMMON, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5)
DISTIL = dict(vocab_size=VOCAB, dim=48, n_layers=2, n_heads=3, hidden_dim=80, max_position_embeddings=44)

MODELS = {
    "bert_sequence": (tf.BertForSequenceClassification, tf.BertConfig(**COMMON, **SEQ)),
    "bert_token": (tf.BertForTokenClassification, tf.BertConfig(**COMMON, **TOK)),
    "bert_encoder": (tf.BertModel, tf.BertConfig(**COMMON)),
    "bert_multilabel": (tf.BertForSequenceClassification, tf.BertConfig(**COMMON, **SEQ, problem_type="multi_label_classification")),
    "distilbert_sequence": (tf.DistilBertForSequenceClassification, tf.DistilBertConfig(**DISTIL, **SEQ)),
    "distilbert_token": (tf.DistilBertForTokenClassification, tf.DistilBertConfig(**DISTIL, **TOK)),
    "roberta_sequence": (tf.RobertaForSequenceClassification, tf.RobertaConfig(**ROBERTA, **SEQ)),
    "roberta_token": (tf.RobertaForTokenClassification, tf.RobertaConfig(**ROBERTA, **TOK)),
    "xlmroberta_sequence": (tf.XLMRobertaForSequenceClassification, tf.XLMRobertaConfig(**ROBERTA, **SEQ)),
}


def main():
    only = set(sys.argv[1:])
    for name, (cls, config) in MODELS.items():
        if only and name not in only:
            continue
        torch.manual_seed(sum(map(ord, name)))
        model = cls(config).eval()
        with torch.no_grad():  # larger than the default initialisation, so that every path matters
            for key, p in model.named_parameters():
                if p.dim() > 1:
                    p.normal_(0, 0.2)
                elif "norm" in key.lower() and key.endswith("weight"):
                    p.normal_(1, 0.2)
                else:
                    p.normal_(0, 0.2)
        folder = OUT / name
        model.save_pretrained(folder)
        ids = [torch.randint(3, VOCAB, (n,)).tolist() for n in LENGTHS]
        rows = []
        with torch.no_grad():
            for seq in ids:
                out = model(input_ids=torch.tensor([seq]), attention_mask=torch.ones(1, len(seq), dtype=torch.long))
                value = out.logits if hasattr(out, "logits") else out.last_hidden_state
                rows.append([[float("%.8g" % v) for v in r] for r in value[0].reshape(-1, value.shape[-1]).tolist()])
        golden = {"ids": ids, "output": "logits" if hasattr(out, "logits") else "hidden", "rows": rows}
        (folder / "golden.json").write_text(json.dumps(golden) + "\n")
        print(name, [len(r) for r in rows])


main()
