#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares logits and gradients with those of transformers in fp64, for seeded models with the widths, heads and settings of published
DeBERTa models, two layers and a small vocabulary; texts of 1 to 512 tokens. Prints the largest relative differences in fp32 (at most 1e-5).

  check_shapes.py MODEL_TEST [--work DIR] [SHAPE…]

MODEL_TEST is src/model/model_test of a build. Requires torch and transformers, and up to 8 GiB of memory.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

import torch
import transformers as tf
from make_model_goldens import SEQ, VOCAB, logits

V3 = dict(vocab_size=VOCAB, num_hidden_layers=2, relative_attention=True, position_buckets=256, max_relative_positions=-1, max_position_embeddings=512, norm_rel_ebd="layer_norm", share_att_key=True,
          pos_att_type="p2c|c2p", position_biased_input=False, type_vocab_size=0, layer_norm_eps=1e-7, **SEQ)
SHAPES = {
    "xsmall": dict(hidden_size=384, num_attention_heads=6, intermediate_size=1536),
    "base": dict(hidden_size=768, num_attention_heads=12, intermediate_size=3072),
    "large": dict(hidden_size=1024, num_attention_heads=16, intermediate_size=4096),
    "xlarge": dict(hidden_size=1536, num_attention_heads=24, intermediate_size=6144, conv_kernel_size=3, conv_act="gelu"),
    "odd": dict(hidden_size=315, num_attention_heads=7, intermediate_size=777),
}
LENGTHS = [1, 2, 7, 31, 64, 65, 128, 129, 200, 257, 511, 512]


def write(folder, settings):
    torch.manual_seed(3)
    model = tf.DebertaV2ForSequenceClassification(tf.DebertaV2Config(**V3, **settings)).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():  # attention that differs from uniform
            p.normal_(0, 1.5 / settings["hidden_size"] ** 0.5) if p.dim() > 1 else p.add_(0.1 * torch.randn_like(p))
    model.save_pretrained(folder)
    ids = [torch.randint(3, VOCAB, (n,)).tolist() for n in LENGTHS]
    with torch.no_grad():
        values = logits(model.double(), ids)
    rows = [[[float("%.9g" % v) for v in r] for r in value.reshape(-1, value.shape[-1]).tolist()] for value in values]
    (folder / "golden.json").write_text(json.dumps({"ids": ids, "output": "logits", "rows": rows}) + "\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model_test")
    p.add_argument("shapes", nargs="*", default=list(SHAPES))
    p.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/tmp/brim-shapes"))
    a = p.parse_args()
    worst = 0
    for shape in a.shapes:
        root = a.work / shape
        (root / shape).mkdir(parents=True, exist_ok=True)
        env = dict(os.environ, BRIM_GOLDEN_MODELS=str(root))
        if not (root / shape / "gradients.json").exists():
            write(root / shape, SHAPES[shape])
            subprocess.run([sys.executable, pathlib.Path(__file__).parent / "make_gradient_goldens.py"], env=env, check=True, stdout=subprocess.DEVNULL)
        report = root / "report.json"
        done = subprocess.run([a.model_test, "--gtest_filter=*Parity.PackedLogits*:TrainingPass.LossAndGradientsMatchPyTorch", f"--gtest_output=json:{report}"], env=env, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(done.stdout, file=sys.stderr)
        worst = max(worst, done.returncode)
        found = {k: v for suite in json.loads(report.read_text())["testsuites"] for t in suite["testsuite"] for k, v in t.items() if k.startswith("relative_difference")}
        print(f"{shape}: logits {found.get('relative_difference')}, gradients {found.get('relative_difference_' + shape)}", flush=True)
    sys.exit(worst)


if __name__ == "__main__":
    main()
