#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares entities of `brim score --entities` with those of the gliner package for seeded models of each variant, made as those of
tests/data/gliner (tools/make_gliner_goldens.py).

  gliner_parity.py --brim PROGRAM --texts FILE [--rows 2000] [--device cpu] [--threshold 0.5] [--models NAME…]

Prints one JSON line per model: texts, entities, texts with other spans or labels, and the largest difference of scores. A text
whose entities differ is accepted if gliner scored one of its own or Brim's within 1e-4 of the threshold. Fails (exit 1) otherwise,
or above a difference of 1e-4. Requires torch and gliner.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
LABELS = ["person", "company", "city"]
BOUND = 1e-4


def brim_entities(args, model, texts, folder):
    source, out = folder / "rows.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    out.unlink(missing_ok=True)
    command = [args.brim, "score", source, "-o", out, "--model", model, "--entities", ",".join(LABELS), "--threshold", str(args.threshold),
               "--precision", "fp32", "--device", args.device]  # fmt: skip
    subprocess.run(command + (["--threads", "1"] if args.device == "cpu" else []), check=True, capture_output=True)
    rows = [json.loads(line)["entities"] for line in out.read_text().splitlines()]
    return [[(e["start"], e["end"], e.get("label") or e.get("entity_group"), e["score"]) for e in row] for row in rows]


def compare(name, texts, want, got, threshold):
    different, excused, worst, examples = 0, 0, 0.0, []
    for text, a, b in zip(texts, want, got):
        if [e[:3] for e in a] != [e[:3] for e in b]:
            different += 1
            close = any(abs(e[3] - threshold) < BOUND for e in a + b)
            excused += close
            if not close and len(examples) < 3:
                examples.append({"text": text, "gliner": a, "brim": b})
            continue
        worst = max([worst] + [abs(x[3] - y[3]) for x, y in zip(a, b)])
    result = dict(model=name, texts=len(texts), entities=sum(map(len, want)), other_spans=different, at_the_threshold=excused, largest_difference=float(f"{worst:.1e}"))
    print(json.dumps(result), flush=True)
    for example in examples:
        print(json.dumps(example), file=sys.stderr)
    return different == excused and worst <= BOUND and len(got) == len(want)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brim", required=True)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threshold", type=float, default=0.5)
    parser.add_argument("--models", nargs="*")
    args = parser.parse_args()
    import make_gliner_goldens as goldens
    import torch

    torch.set_num_threads(1)
    with open(args.texts) as lines:
        texts = [line.rstrip("\n") for _, line in zip(range(args.rows), lines)]
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models or goldens.MODELS:
            model = goldens.make(name, pathlib.Path(folder))
            with torch.inference_mode():
                found = model.inference(texts, LABELS, flat_ner=True, threshold=args.threshold, batch_size=16)
            goldens.save(model, pathlib.Path(folder) / name)
            want = [[(e["start"], e["end"], e["label"], e["score"]) for e in row] for row in found]
            good = compare(name, texts, want, brim_entities(args, pathlib.Path(folder) / name, texts, pathlib.Path(folder)), args.threshold) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
