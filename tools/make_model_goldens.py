#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/models/*: tiny seeded models of every family and head, with logits computed by transformers.

Requires torch and transformers. Each directory contains config.json, model.safetensors and golden.json: packed token ids,
sequence lengths, and logits (or hidden states) computed in fp64, one sequence at a time. fp8_rms, if present, is the
root mean square error of the same logits when only the operands of the encoder's products are rounded to e4m3
(docs/numerics.md): a lower bound for the error of an fp8 kernel.
"""
import copy
import json
import math
import pathlib
import sys

import torch
import transformers as tf

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "models"
LENGTHS = [1, 2, 7, 16, 33, 40]
VOCAB = 96
COMMON = dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=80, max_position_embeddings=44)
SEQ = {"id2label": {0: "negative", 1: "neutral", 2: "positive"}, "label2id": {"negative": 0, "neutral": 1, "positive": 2}}
LONG = dict(max_position_embeddings=132)
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TOK = {"id2label": dict(enumerate(TAGS)), "label2id": {t: i for i, t in enumerate(TAGS)}}
ROBERTA = dict(COMMON, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5)
MPNET = dict(COMMON, pad_token_id=1, bos_token_id=0, eos_token_id=2)
MODERN = dict(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=4, num_attention_heads=2, intermediate_size=48, max_position_embeddings=132, local_attention=16, pad_token_id=0, bos_token_id=2, cls_token_id=2, eos_token_id=3, sep_token_id=3)
DEBERTA = dict(COMMON, relative_attention=True, position_buckets=16, max_relative_positions=-1, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type="p2c|c2p", position_biased_input=False, type_vocab_size=0)
# ModernBERT's architecture as other models configure it: the same rotary base in local layers, mean pooling, their special tokens.
MMBERT = dict(MODERN, local_rope_theta=160000.0, classifier_pooling="mean", pad_token_id=0, bos_token_id=2, cls_token_id=1, eos_token_id=1, sep_token_id=1)
ETTIN = dict(MODERN, num_hidden_layers=5, local_rope_theta=160000.0, classifier_pooling="mean", intermediate_size=96)
BIASES = dict(attention_bias=True, mlp_bias=True, norm_bias=True, classifier_bias=True)
DISTIL = dict(vocab_size=VOCAB, dim=48, n_layers=2, n_heads=3, hidden_dim=80, max_position_embeddings=44)

MODELS = {
    "bert_sequence": (tf.BertForSequenceClassification, tf.BertConfig(**COMMON, **SEQ)),
    "bert_token": (tf.BertForTokenClassification, tf.BertConfig(**COMMON, **TOK)),
    "bert_encoder": (tf.BertModel, tf.BertConfig(**COMMON)),
    "bert_multilabel": (tf.BertForSequenceClassification, tf.BertConfig(**COMMON, **SEQ, problem_type="multi_label_classification")),
    "bert_pair": (tf.BertForSequenceClassification, tf.BertConfig(**COMMON, **SEQ)),
    "bert_rerank": (tf.BertForSequenceClassification, tf.BertConfig(**COMMON, num_labels=1)),
    "distilbert_sequence": (tf.DistilBertForSequenceClassification, tf.DistilBertConfig(**DISTIL, **SEQ)),
    "distilbert_token": (tf.DistilBertForTokenClassification, tf.DistilBertConfig(**DISTIL, **TOK)),
    "roberta_sequence": (tf.RobertaForSequenceClassification, tf.RobertaConfig(**ROBERTA, **SEQ)),
    "roberta_token": (tf.RobertaForTokenClassification, tf.RobertaConfig(**ROBERTA, **TOK)),
    "xlmroberta_sequence": (tf.XLMRobertaForSequenceClassification, tf.XLMRobertaConfig(**ROBERTA, **SEQ)),
    # Embeddings narrower than the model, and equally wide.
    "electra_sequence": (tf.ElectraForSequenceClassification, tf.ElectraConfig(**COMMON, **SEQ, embedding_size=32)),
    "electra_token": (tf.ElectraForTokenClassification, tf.ElectraConfig(**COMMON, **TOK, embedding_size=48)),
    # Parameters of one layer shared by three layers, by one; of two layers shared by five.
    "albert_sequence": (tf.AlbertForSequenceClassification, tf.AlbertConfig(**dict(COMMON, num_hidden_layers=3), **SEQ, embedding_size=32)),
    "albert_token": (tf.AlbertForTokenClassification, tf.AlbertConfig(**dict(COMMON, num_hidden_layers=1), **TOK, embedding_size=48)),
    "albert_groups": (tf.AlbertForSequenceClassification, tf.AlbertConfig(**dict(COMMON, num_hidden_layers=5), **SEQ, embedding_size=32, num_hidden_groups=2)),
    # Relative position biases: texts of 128 tokens reach the last bucket.
    "mpnet_sequence": (tf.MPNetForSequenceClassification, tf.MPNetConfig(**MPNET, **SEQ)),
    "mpnet_head32": (tf.MPNetForSequenceClassification, tf.MPNetConfig(**dict(MPNET, **LONG, hidden_size=64, num_attention_heads=2, intermediate_size=96), **SEQ)),
    "mpnet_head64": (tf.MPNetForTokenClassification, tf.MPNetConfig(**dict(MPNET, **LONG, hidden_size=128, num_attention_heads=2, intermediate_size=72), **TOK)),
    "camembert_token": (tf.CamembertForTokenClassification, tf.CamembertConfig(**ROBERTA, **TOK)),
    # Head sizes of real models, longer texts, other activations; feed-forward and hidden sizes not supported by fp8 products.
    "bert_head32": (tf.BertForSequenceClassification, tf.BertConfig(**dict(COMMON, **LONG, hidden_size=64, num_attention_heads=2, intermediate_size=96, hidden_act="gelu_new"), **SEQ)),
    "roberta_head64": (tf.RobertaForTokenClassification, tf.RobertaConfig(**dict(ROBERTA, **LONG, hidden_size=128, num_attention_heads=2, intermediate_size=72, hidden_act="silu"), **TOK)),
    "distilbert_odd": (tf.DistilBertForSequenceClassification, tf.DistilBertConfig(**dict(DISTIL, **LONG, dim=40, n_heads=2, hidden_dim=72, activation="quick_gelu"), **SEQ)),
    # Windows narrower than the texts; heads of 32 and 64; first token and mean; without biases and with all of them.
    "modernbert_sequence": (tf.ModernBertForSequenceClassification, tf.ModernBertConfig(**MODERN, **SEQ)),
    "modernbert_mean": (tf.ModernBertForSequenceClassification, tf.ModernBertConfig(**dict(MODERN, hidden_size=128, num_hidden_layers=3, hidden_activation="silu"), **SEQ, **BIASES, classifier_pooling="mean")),
    "mmbert_sequence": (tf.ModernBertForSequenceClassification, tf.ModernBertConfig(**MMBERT, **SEQ)),
    "ettin_token": (tf.ModernBertForTokenClassification, tf.ModernBertConfig(**ETTIN, **TOK)),
    # v3: logarithmic buckets; v2: one row per distance, fewer than the texts are long, own projections, one term, convolution.
    "deberta_sequence": (tf.DebertaV2ForSequenceClassification, tf.DebertaV2Config(**DEBERTA, **SEQ)),
    "deberta_token": (tf.DebertaV2ForTokenClassification, tf.DebertaV2Config(**dict(DEBERTA, hidden_size=40, num_attention_heads=2), **TOK)),
    "deberta_keys": (tf.DebertaV2ForSequenceClassification, tf.DebertaV2Config(**dict(DEBERTA, position_buckets=-1, max_relative_positions=20, share_att_key=False, pos_att_type=["p2c"], norm_rel_ebd="none", position_biased_input=True, type_vocab_size=2), **SEQ)),
    "deberta_queries": (tf.DebertaV2ForTokenClassification, tf.DebertaV2Config(**dict(DEBERTA, share_att_key=False, pos_att_type="c2p", conv_kernel_size=5), **TOK)),
    "deberta_convolution": (tf.DebertaV2ForSequenceClassification, tf.DebertaV2Config(**dict(DEBERTA, num_hidden_layers=3, share_att_key=False, conv_kernel_size=3, conv_act="gelu"), **SEQ)),
    "deberta_head32": (tf.DebertaV2ForSequenceClassification, tf.DebertaV2Config(**dict(DEBERTA, **LONG, hidden_size=64, num_attention_heads=2, intermediate_size=96, position_buckets=32), **SEQ)),
    "deberta_head64": (tf.DebertaV2ForTokenClassification, tf.DebertaV2Config(**dict(DEBERTA, **LONG, hidden_size=128, num_attention_heads=2, intermediate_size=72, position_buckets=64, conv_kernel_size=3), **TOK)),
    "deberta_encoder": (tf.DebertaV2Model, tf.DebertaV2Config(**DEBERTA)),
    "deberta_pair": (tf.DebertaV2ForSequenceClassification, tf.DebertaV2Config(**DEBERTA, **SEQ)),
    "deberta_long": (tf.DebertaV2ForSequenceClassification, tf.DebertaV2Config(**dict(DEBERTA, hidden_size=32, num_attention_heads=2, intermediate_size=48, position_buckets=256, max_position_embeddings=512), **SEQ)),
    "modernbert_token": (tf.ModernBertForTokenClassification, tf.ModernBertConfig(**dict(MODERN, num_hidden_layers=3), **TOK)),
}
PAIRS = {"bert_pair", "bert_rerank", "deberta_pair"}
TYPE_SHIFT = 24  # ids of pairs contain their token type in the upper bits (base/token.h)
SMALL = {"bert_head32", "roberta_head64", "distilbert_odd", "mpnet_head32", "mpnet_head64", "modernbert_sequence", "modernbert_mean", "modernbert_token", "mmbert_sequence", "ettin_token", "deberta_head32", "deberta_head64", "deberta_long"}  # stored in fp16 and run with the rounded values


def e4m3(x, bound):
    scale = 448 / bound
    return (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) / scale


def fp8_layers(model):
    """Patches the encoder's products to round their operands; returns a function that removes the patch."""
    hooks = []
    base = getattr(model, model.base_model_prefix, model)

    def bias(module):
        return 0 if module.bias is None else module.bias

    def norm_bound(n):
        return (n.weight.abs() * math.sqrt(n.weight.numel() - 1) + abs(bias(n))).max().item()

    def product_bound(m, n, first_row=0):
        constant = bias(m) + (0 if n.bias is None else m.weight @ n.bias)
        return ((m.weight * n.weight).norm(dim=1) * math.sqrt(n.weight.numel()) + abs(constant))[first_row:].max().item()

    def round_operands(matrix, bound, most):
        if matrix.in_features % 16 or matrix.out_features % 16:
            return
        weight = matrix.weight.data
        matrix.weight.data = e4m3(weight, most)
        hooks.append((matrix, weight, matrix.register_forward_pre_hook(lambda m, x, bound=bound: (e4m3(x[0], bound),))))

    def undo():
        for matrix, weight, hook in hooks:
            matrix.weight.data = weight
            hook.remove()

    if model.config.model_type == "modernbert":  # the gate's product is not rounded
        for i, layer in enumerate(base.layers):
            before = base.embeddings.norm if i == 0 else layer.attn_norm
            qkv, out, up = layer.attn.Wqkv, layer.attn.Wo, layer.mlp.Wi
            values = product_bound(qkv, before, 2 * model.config.hidden_size)
            for matrix, bound in [(qkv, norm_bound(before)), (out, values), (up, norm_bound(layer.mlp_norm))]:
                round_operands(matrix, bound, matrix.weight.abs().max().item())
        return undo
    embed = base.embeddings.LayerNorm
    distances = getattr(base.encoder, "LayerNorm", None) if hasattr(base, "encoder") else None  # DeBERTa
    distil = hasattr(base, "transformer")
    for layer in base.transformer.layer if distil else base.encoder.layer:
        if distil:
            a = layer.attention
            q, k, v, out, norm1, up, down, norm2 = a.q_lin, a.k_lin, a.v_lin, a.out_lin, layer.sa_layer_norm, layer.ffn.lin1, layer.ffn.lin2, layer.output_layer_norm
        elif hasattr(layer.attention, "attn"):  # MPNet
            a = layer.attention
            q, k, v, out, norm1, up, down, norm2 = a.attn.q, a.attn.k, a.attn.v, a.attn.o, a.LayerNorm, layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm
        elif hasattr(layer.attention.self, "query_proj"):  # DeBERTa
            a = layer.attention
            q, k, v, out, norm1, up, down, norm2 = a.self.query_proj, a.self.key_proj, a.self.value_proj, a.output.dense, a.output.LayerNorm, layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm
        else:
            a = layer.attention
            q, k, v, out, norm1, up, down, norm2 = a.self.query, a.self.key, a.self.value, a.output.dense, a.output.LayerNorm, layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm
        rows = max(norm_bound(n) for n in (embed, distances) if n is not None)
        for matrix, bound in [(q, rows), (k, rows), (v, rows), (out, product_bound(v, embed)), (up, norm_bound(norm1)), (down, product_bound(up, norm1))]:
            round_operands(matrix, bound, torch.cat([q.weight, k.weight, v.weight]).abs().max().item() if matrix in (q, k, v) else matrix.weight.abs().max().item())
        convolution = getattr(base.encoder, "conv", None) if distances is not None else None
        embed = convolution.LayerNorm if convolution is not None and layer is base.encoder.layer[0] else norm2
    return undo


def inputs(seq):
    tokens = torch.tensor([seq])
    given = {"input_ids": tokens & (1 << TYPE_SHIFT) - 1, "attention_mask": torch.ones_like(tokens)}
    if (tokens >> TYPE_SHIFT).any():
        given["token_type_ids"] = tokens >> TYPE_SHIFT
    return given


def pair(first, second):
    """Returns [CLS] first [SEP] second [SEP] with random words that are not special tokens."""
    words = lambda n: torch.randint(5, VOCAB, (n,)).tolist()  # noqa: E731
    return [2, *words(first), 3] + [i | 1 << TYPE_SHIFT for i in (*words(second), 3)]


def use_published_keys(path):
    """Writes the keys that the published configurations have instead of those of transformers 5."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config.pop("layer_types")
    config.update(global_attn_every_n_layers=3, global_rope_theta=rope["full_attention"]["rope_theta"], local_rope_theta=rope["sliding_attention"]["rope_theta"], position_embedding_type="sans_pos")
    path.write_text(json.dumps(config, indent=2) + "\n")


def logits(model, ids):
    with torch.no_grad():
        out = [model(**inputs(seq)) for seq in ids]
    return [(o.logits if hasattr(o, "logits") else o.last_hidden_state)[0] for o in out]


def main():
    only = set(sys.argv[1:])
    for name, (cls, config) in MODELS.items():
        if only and name not in only:
            continue
        torch.manual_seed(sum(map(ord, name)))
        model = cls(config).eval()
        with torch.no_grad():  # larger than the default initialisation, so that every path matters
            for key, p in model.named_parameters():
                if p.dim() > 1:  # smaller for residual sums through all layers, which would amplify rounding
                    p.normal_(0, 0.12 if config.model_type == "modernbert" else 0.2)
                elif "norm" in key.lower() and key.endswith("weight"):
                    p.normal_(1, 0.2)
                else:
                    p.normal_(0, 0.2)
        folder = OUT / name
        if name in SMALL:
            copy.deepcopy(model).half().save_pretrained(folder)
            for p in model.parameters():  # not model.half().float(), which would also round rotary frequencies
                p.data = p.data.half().float()
        else:
            model.save_pretrained(folder)
        if name.startswith(("mmbert", "ettin")):
            use_published_keys(folder / "config.json")
        ids = [torch.randint(3, VOCAB, (n,)).tolist() for n in LENGTHS + ([65, 128] if name in SMALL else []) + ([512] if name == "deberta_long" else [])]
        if name in PAIRS:
            ids = [pair(*lengths) for lengths in [(1, 1), (4, 9), (20, 3), (0, 5), (5, 0), (19, 22)]]
        values = [v.float() for v in logits(copy.deepcopy(model).double(), ids)]
        rows = [[[float("%.8g" % v) for v in r] for r in value.reshape(-1, value.shape[-1]).tolist()] for value in values]
        golden = {"ids": ids, "output": "hidden" if cls in (tf.BertModel, tf.DebertaV2Model) else "logits", "rows": rows}
        if name in SMALL:
            undo = fp8_layers(model)
            golden["fp8_rms"] = torch.cat([(a - b).flatten() for a, b in zip(logits(model, ids), values)]).square().mean().sqrt().item()
            undo()
        (folder / "golden.json").write_text(json.dumps(golden) + "\n")
        print(name, [len(r) for r in rows], golden.get("fp8_rms"), max(abs(v) for r in rows for row in r for v in row))


if __name__ == "__main__":
    main()
