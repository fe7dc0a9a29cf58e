#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `brim score --entities` with the gliner package (torch or ONNX Runtime); prints one JSON line per measurement.

  gliner_peer.py --brim PROGRAM --model DIR --texts FILE [--device cpu|cuda] [--vocab DIR] [--shape base] [--rows 400]
                 [--peer-rows N] [--threads 2] [--batches 8,32] [--precisions fp32,auto] [--rounds 2] [--peers onnx,torch]

Without DIR, a seeded span model with one LSTM layer and DeBERTa-v3's shape (--shape base or small) is written there first, with the
tokenizer of --vocab, and exported to ONNX by gliner if onnx is a peer. Its scores are shifted so that few spans are entities. Peers
receive a list of texts after a warm-up, on a GPU in fp16, sorted by length; Brim's time is that of the whole process, from file to
file, and loaded_rows_per_second its rate once the model is loaded, from file to file too. Requires torch and gliner; onnx and onnxruntime for that peer.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile
import time

LABELS = ["person", "company", "location", "product", "date"]
SHAPES = {"base": (768, 12, 12, 3072), "small": (768, 6, 12, 3072), "tiny": (128, 2, 2, 512)}
DEBERTA = dict(model_type="deberta-v2", relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True,
               pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0, layer_norm_eps=1e-7, max_relative_positions=-1,
               max_position_embeddings=512)  # fmt: skip
SHIFT = 0.108  # lowers all logits by SHIFT² × 512 = 6


def write_model(path, vocab, shape, export):
    import gliner
    import torch
    import transformers

    hidden, layers, heads, inner = SHAPES[shape]
    tokenizer = transformers.AutoTokenizer.from_pretrained(vocab)
    encoder = dict(DEBERTA, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner)
    tokenizer.save_pretrained(path / "vocab")
    markers = gliner.config.GLiNERConfig().ent_token, gliner.config.GLiNERConfig().sep_token
    encoder["vocab_size"] = max(128100, len(tokenizer) + len(markers))
    torch.manual_seed(1)
    config = gliner.config.GLiNERConfig(model_name=str(path / "vocab"), encoder_config=encoder, span_mode="markerV0", hidden_size=512, max_width=12, num_rnn_layers=1)
    model = gliner.GLiNER.from_config(config, backbone_from_pretrained=False)
    with torch.no_grad():
        parameters = dict(model.model.named_parameters())
        parameters["prompt_rep_layer.3.bias"].add_(SHIFT)
        parameters["span_rep_layer.span_rep_layer.out_project.3.bias"].sub_(SHIFT)
    model.eval()
    model.save_pretrained(path, safe_serialization=True)
    if export:
        model.export_to_onnx(path)


def emit(**row):
    print(json.dumps(row), flush=True)


def best(rounds, call):
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        found = call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds), found


def spans_of(rows):
    return [{(e["start"], e["end"], e.get("label") or e.get("entity_group")) for e in row} for row in rows]


def load_peer(args, peer):
    import gliner
    import torch

    if peer == "onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = args.threads
        return gliner.GLiNER.from_pretrained(str(args.model), local_files_only=True, load_onnx_model=True, onnx_model_file="model.onnx", session_options=options)
    extra = dict(map_location="cuda", dtype=torch.float16) if args.device == "cuda" else {}
    return gliner.GLiNER.from_pretrained(str(args.model), local_files_only=True, **extra)


def measure_peers(args, texts):
    import torch

    torch.set_num_threads(args.threads)
    first = None
    order = sorted(range(len(texts)), key=lambda i: len(texts[i])) if args.device == "cuda" else range(len(texts))
    given = [texts[i] for i in order]
    for peer in args.peers.split(","):
        model = load_peer(args, peer)
        for batch in map(int, args.batches.split(",")):
            with torch.inference_mode():
                for warm in (given[:batch], given[-batch:]):
                    model.inference(warm, LABELS, threshold=0.5, batch_size=batch)
                seconds, found = best(args.rounds, lambda: model.inference(given, LABELS, threshold=0.5, batch_size=batch))
            emit(peer=f"gliner {peer}", device=args.device, batch=batch, rows=len(texts), seconds=round(seconds, 3), rows_per_second=round(len(texts) / seconds, 1))
            first = first or [spans for _, spans in sorted(zip(order, spans_of(found)), key=lambda pair: pair[0])]
    return first


def measure_brim(args, texts, reference):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "rows.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        out, summary = pathlib.Path(folder) / "out.jsonl", pathlib.Path(folder) / "summary.json"
        for precision in args.precisions.split(","):
            command = [args.brim, "score", source, "--model", args.model, "--entities", ",".join(LABELS), "--device", args.device, "-o", out, "--summary-json", summary]
            if args.device == "cpu":
                command += ["--threads", str(args.threads)]
            if precision != "auto":
                command += ["--precision", precision]
            def score():
                out.unlink(missing_ok=True)
                subprocess.run(command, check=True, capture_output=True)

            seconds, _ = best(args.rounds, score)
            rows = [json.loads(line)["entities"] for line in out.read_text().splitlines()]
            same = sum(a == b for a, b in zip(spans_of(rows), reference)) if reference else None
            emit(peer="brim", device=args.device, precision=precision, rows=len(texts), seconds=round(seconds, 3), rows_per_second=round(len(texts) / seconds, 1),
                 loaded_rows_per_second=json.loads(summary.read_text())["rows_per_second"], entities=sum(map(len, rows)), equal_rows=same)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brim", required=True)
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--vocab")
    parser.add_argument("--shape", choices=SHAPES, default="base")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--peer-rows", type=int, help="peers get the first of --rows")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", default="8,32")
    parser.add_argument("--precisions", default="fp32,auto")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peers", default="onnx")
    args = parser.parse_args()
    if not (args.model / "gliner_config.json").exists():
        args.model.mkdir(parents=True)
        write_model(args.model, args.vocab, args.shape, "onnx" in args.peers.split(","))
    with open(args.texts) as lines:
        texts = [line.rstrip("\n") for _, line in zip(range(args.rows), lines)]
    reference = measure_peers(args, texts[: args.peer_rows]) if args.peers else None
    measure_brim(args, texts, reference)


if __name__ == "__main__":
    main()
