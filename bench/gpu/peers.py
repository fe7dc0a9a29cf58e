#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch baselines with the same model and texts, for the table of bench/gpu/run:
peers.py MODEL_DIR TEXTS [pipeline] [sorted] [packed] [train] [hf:TOKENS[:checkpoint]] [modern:LENGTH] [forward:KIND:TOKENS[:LENGTH]]
[zeroshot:LABELS:TEXTS].

pipeline: transformers' pipeline, fp16, batch 1024. sorted: custom loop, sorted by length, token budget, SDPA, fp16, from text.
packed: varlen attention and torch.compile, bf16, pretokenized. train: packed varlen, compile, AdamW, bf16.
hf:TOKENS: the transformers model, SDPA if it has this, autocast bf16, fused AdamW, batches of similar length padded to the
longest, TOKENS per batch; with :checkpoint, gradient checkpointing, the counterpart of recomputation.
modern:LENGTH: ModernBERT with windowed varlen flash attention, torch.compile, bf16, pretokenized, 65,536 tokens per batch: the
texts as they are (0), or LENGTH tokens each.
forward:KIND:TOKENS: the transformers model, bf16, pretokenized, sorted by length, TOKENS per padded batch; of LENGTH tokens each if
given. KIND: eager, compiled (torch.compile with dynamic shapes) or flash (DeBERTa with the package disentangled-flash).
zeroshot:LABELS:TEXTS: transformers' zero-shot-classification pipeline, bf16, the best of three batch sizes, first TEXTS texts.
Prints one JSON line per baseline.
"""
import json
import sys
import time

import tokenizers
import torch
import torch.nn.functional as F
import transformers as tf

model_dir, texts_file, *which = sys.argv[1:]
texts = [line.rstrip("\n") for line in open(texts_file, encoding="utf-8", errors="replace")]
# The class that DeBERTa's config selects would replace the pre-tokenizer of the file.
deberta = tf.AutoConfig.from_pretrained(model_dir).model_type == "deberta-v2"
tokenizer = (tf.PreTrainedTokenizerFast(tokenizer_file=model_dir + "/tokenizer.json", pad_token="<pad>", cls_token="<s>", sep_token="</s>", unk_token="<unk>")
             if deberta else tf.AutoTokenizer.from_pretrained(model_dir))
dev = "cuda" if torch.cuda.is_available() else "cpu"


def emit(name, n, seconds, **more):
    print(json.dumps({"peer": name, "rows": n, "seconds": round(seconds, 3), "rows_per_second": round(n / seconds, 1), **more}), flush=True)


def train_step(opt, model, logits, labels):
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(logits().float(), labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)


if "pipeline" in which:
    model = tf.AutoModelForSequenceClassification.from_pretrained(model_dir, dtype=torch.float16).to(dev).eval()
    pipe = tf.pipeline("text-classification", model=model, tokenizer=tokenizer, device=0, batch_size=1024, truncation=True)
    some = texts[:6000]
    pipe(some[:1024])
    t = time.time()
    pipe(some)
    emit("pipeline fp16 batch 1024", len(some), time.time() - t)

if "sorted" in which:
    model = tf.AutoModelForSequenceClassification.from_pretrained(model_dir, dtype=torch.float16, attn_implementation="sdpa").to(dev).eval()

    def run(rows):
        enc = tokenizer(rows, truncation=True, max_length=512, add_special_tokens=True, return_attention_mask=False)["input_ids"]
        order = sorted(range(len(enc)), key=lambda i: -len(enc[i]))
        out = [None] * len(enc)
        at = 0
        with torch.inference_mode():
            while at < len(order):
                n = max(1, 65536 // len(enc[order[at]]))
                part = order[at:at + n]
                at += n
                width = len(enc[part[0]])
                ids = torch.full((len(part), width), tokenizer.pad_token_id, dtype=torch.long)
                for r, i in enumerate(part):
                    ids[r, :len(enc[i])] = torch.tensor(enc[i])
                ids = ids.pin_memory().to(dev, non_blocking=True)
                best = model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id)).logits.argmax(-1).tolist()
                for r, i in enumerate(part):
                    out[i] = best[r]
        return out

    run(texts[:20000])
    t = time.time()
    run(texts)
    emit("sorted by length, SDPA, fp16, from text", len(texts), time.time() - t)

if "packed" in which or "train" in which:
    from torch.nn.attention.varlen import varlen_attn

    enc = tokenizer(texts, truncation=True, max_length=128, return_attention_mask=False)["input_ids"]

    def batch(first):
        ids, pos, cu = [], [], [0]
        i = first
        while len(ids) + len(enc[i % len(enc)]) <= 65536:
            e = enc[i % len(enc)]
            ids += e
            pos += range(2, 2 + len(e))
            cu.append(len(ids))
            i += 1
        pad = 65536 - len(ids)
        if pad:
            ids += [1] * pad
            pos += [1] * pad
            cu.append(65536)
        return (torch.tensor(ids, device=dev), torch.tensor(pos, device=dev), torch.tensor(cu, dtype=torch.int32, device=dev), i, i - first)

    class Packed(torch.nn.Module):
        """RobertaForSequenceClassification on a flat row of tokens."""

        def __init__(self, hf):
            super().__init__()
            self.hf = hf
            c = hf.config
            self.heads, self.size = c.num_attention_heads, c.hidden_size // c.num_attention_heads

        def forward(self, ids, pos, cu, longest):
            e = self.hf.roberta.embeddings
            x = e.LayerNorm(e.word_embeddings(ids) + e.position_embeddings(pos) + e.token_type_embeddings.weight[0])
            x = F.dropout(x, 0.1, self.training)
            for layer in self.hf.roberta.encoder.layer:
                a = layer.attention
                q, k, v = (m(x).view(-1, self.heads, self.size) for m in (a.self.query, a.self.key, a.self.value))
                y = varlen_attn(q, k, v, cu, cu, longest, longest).reshape(x.shape)
                x = a.output.LayerNorm(F.dropout(a.output.dense(y), 0.1, self.training) + x)
                h = F.gelu(layer.intermediate.dense(x))
                x = layer.output.LayerNorm(F.dropout(layer.output.dense(h), 0.1, self.training) + x)
            first = x[cu[:-1].long()]
            head = self.hf.classifier
            return head.out_proj(F.dropout(torch.tanh(head.dense(F.dropout(first, 0.1, self.training))), 0.1, self.training))

    torch._dynamo.config.cache_size_limit = 64
    hf = tf.AutoModelForSequenceClassification.from_pretrained(model_dir, dtype=torch.bfloat16 if "packed" in which else torch.float32)
    if "packed" in which:
        model = torch.compile(Packed(hf.to(dev).eval()), dynamic=True)
        batches, at = [], 0
        for _ in range(8):
            ids, pos, cu, at, n = batch(at)
            batches.append((ids, pos, cu, n))
        with torch.inference_mode():
            for b in batches[:3]:
                model(*b[:3], 128)
            torch.cuda.synchronize()
            t = time.time()
            rows = 0
            for r in range(40):
                b = batches[r % len(batches)]
                model(*b[:3], 128)
                rows += b[3]
            torch.cuda.synchronize()
        emit("packed varlen + torch.compile, bf16, pretokenized", rows, time.time() - t)
    if "train" in which:
        hf = tf.AutoModelForSequenceClassification.from_pretrained(model_dir, dtype=torch.float32).to(dev).train()
        model = torch.compile(Packed(hf), dynamic=True)
        opt = torch.optim.AdamW(hf.parameters(), lr=1e-5, fused=True)
        at, rows = 0, 0
        for step in range(18):
            ids, pos, cu, at, n = batch(at)
            labels = torch.randint(0, 3, (cu.numel() - 1,), device=dev)
            if step == 6:
                torch.cuda.synchronize()
                t, rows = time.time(), 0
            train_step(opt, hf, lambda: model(ids, pos, cu, 128), labels)
            rows += n
        torch.cuda.synchronize()
        emit("train: packed varlen + torch.compile, bf16, 65,536 tokens", rows, time.time() - t, peak_gb=round(torch.cuda.max_memory_allocated() / 1e9, 2))

for part in which:
    if not part.startswith("hf:"):
        continue
    tokens = int(part.split(":")[1])
    checkpoint = part.endswith(":checkpoint")
    model = tf.AutoModelForSequenceClassification.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager" if deberta else "sdpa").to(dev).train()
    if checkpoint:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    opt = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    enc = sorted(tokenizer(texts, truncation=True, max_length=128, return_attention_mask=False)["input_ids"], key=len)
    torch.cuda.reset_peak_memory_stats()
    rows = trained = 0
    for step in range(18):
        first = (step * 7919) % (len(enc) // 2)
        count = 1
        while first + count < len(enc) and (count + 1) * len(enc[first + count]) <= tokens:
            count += 1
        part_rows = enc[first:first + count]
        width = len(part_rows[-1])
        ids = torch.full((count, width), tokenizer.pad_token_id, dtype=torch.long)
        for r, e in enumerate(part_rows):
            ids[r, :len(e)] = torch.tensor(e)
        ids = ids.to(dev)
        labels = torch.randint(0, 3, (count,), device=dev)
        if step == 6:
            torch.cuda.synchronize()
            t, rows, trained = time.time(), 0, 0
        trained += sum(map(len, part_rows))
        train_step(opt, model, lambda: model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id)).logits, labels)
        rows += count
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    emit(f"train: transformers, {'eager' if deberta else 'SDPA'}, bf16, {tokens} tokens per batch{', checkpointing' if checkpoint else ''}", rows, time.time() - t, tokens_per_second=round(trained / (time.time() - t)), peak_gb=round(torch.cuda.max_memory_allocated() / 1e9, 2),
        reserved_gb=round(torch.cuda.max_memory_reserved() / 1e9, 2), held_gb=round((total - free) / 1e9, 2))
    del model, opt
    torch.cuda.empty_cache()



def padded_batches(tokens, length):
    """Batches (ids, mask, rows, tokens) of at most TOKENS padded tokens, sorted by length; with `length`, texts of this many tokens."""
    encoder = tokenizers.Tokenizer.from_file(model_dir + "/tokenizer.json")
    encoder.no_padding()
    encoder.enable_truncation(128)
    ids = [e.ids for e in encoder.encode_batch_fast(texts)]
    if length:
        flat = [t for row in ids for t in row[1:-1]]
        ids = [ids[0][:1] + flat[at:at + length - 2] + ids[0][-1:] for at in range(0, len(flat) - length, length)][:12 * max(1, tokens // length)]
    ids.sort(key=len)
    batches, at = [], 0
    while at < len(ids):
        count = 1
        while at + count < len(ids) and (count + 1) * len(ids[at + count]) <= tokens:
            count += 1
        part = ids[at:at + count]
        at += count
        table = torch.full((count, len(part[-1])), tokenizer.pad_token_id, dtype=torch.long)
        for row, each in zip(table, part):
            row[:len(each)] = torch.tensor(each)
        batches.append((table.to(dev), (table != tokenizer.pad_token_id).long().to(dev), count, sum(map(len, part))))
    return batches


def synchronize():
    if dev == "cuda":
        torch.cuda.synchronize()


def forward_peer(kind, tokens, length=0):
    """Scores pretokenized texts with the transformers model."""
    torch._dynamo.config.cache_size_limit = 64
    hf = tf.AutoModelForSequenceClassification.from_pretrained(model_dir, dtype=torch.bfloat16).to(dev).eval()
    batches = padded_batches(tokens, length)
    if kind == "flash":
        from disentangled_flash import enable_deberta_inference

        enable_deberta_inference(hf.deberta, backend="triton", sequence_lengths=sorted({b[0].shape[1] for b in batches}), assume_unpadded=bool(length))
    model = torch.compile(hf, dynamic=True) if kind == "compiled" else hf
    some = batches[::max(1, len(batches) // 60)]
    with torch.inference_mode():
        for ids, mask, _, _ in some[:2] + some[-2:] + some:
            model(input_ids=ids, attention_mask=mask)
        synchronize()
        if dev == "cuda":
            torch.cuda.reset_peak_memory_stats()
        t = time.time()
        for ids, mask, _, _ in some:
            model(input_ids=ids, attention_mask=mask)
        synchronize()
    seconds = time.time() - t
    memory = {"peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2)} if dev == "cuda" else {}
    emit(f"transformers, {kind}, bf16, pretokenized, {tokens} padded tokens per batch{f', {length} tokens per text' if length else ''}", sum(b[2] for b in some), seconds,
         tokens_per_second=round(sum(b[3] for b in some) / seconds), **memory)


def zero_shot_peer(labels, count):
    model = tf.AutoModelForSequenceClassification.from_pretrained(model_dir, dtype=torch.bfloat16).to(dev).eval()
    names = [f"topic {i}" for i in range(labels)]
    best = None
    for size in (64, 256, 1024):
        pipe = tf.pipeline("zero-shot-classification", model=model, tokenizer=tokenizer, device=0 if dev == "cuda" else -1, batch_size=size)
        pipe(texts[:size // labels + 1], candidate_labels=names)
        synchronize()
        t = time.time()
        pipe(texts[:count], candidate_labels=names)
        seconds = time.time() - t
        best = min(best or (seconds, size), (seconds, size))
    emit(f"zero-shot pipeline, bf16, {labels} labels, batch size {best[1]}", count, best[0])


for part in which:
    name, *values = part.split(":")
    if name == "forward":
        forward_peer(values[0], *map(int, values[1:]))
    elif name == "zeroshot":
        zero_shot_peer(*map(int, values))

lengths = [int(w.split(":")[1]) for w in which if w.startswith("modern:")]
if lengths:
    from torch.nn.attention.varlen import varlen_attn

    def turn(x):
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    class PackedModern(torch.nn.Module):
        """ModernBertForSequenceClassification on a flat row of tokens."""

        def __init__(self, hf):
            super().__init__()
            self.hf = hf
            self.heads = hf.config.num_attention_heads

        def forward(self, ids, pos, cu, longest):
            m = self.hf.model
            x = m.embeddings.norm(m.embeddings.tok_embeddings(ids))
            turns = {kind: [t[0, :, None].to(x.dtype) for t in m.rotary_emb(x, pos[None], kind)] for kind in ("full_attention", "sliding_attention")}
            half = self.hf.config.local_attention // 2
            for layer in m.layers:
                q, k, v = layer.attn.Wqkv(layer.attn_norm(x)).view(x.shape[0], 3, self.heads, -1).unbind(1)
                cos, sin = turns[layer.attention_type]
                q, k = q * cos + turn(q) * sin, k * cos + turn(k) * sin
                window = (half, half) if layer.attention_type == "sliding_attention" else (-1, -1)
                x = x + layer.attn.Wo(varlen_attn(q, k, v, cu, cu, longest, longest, window_size=window).reshape(x.shape))
                up, gate = layer.mlp.Wi(layer.mlp_norm(x)).chunk(2, -1)
                x = x + layer.mlp.Wo(F.gelu(up) * gate)
            return self.hf.classifier(self.hf.head(m.final_norm(x)[cu[:-1].long()]))

    hf = tf.AutoModelForSequenceClassification.from_pretrained(model_dir, dtype=torch.bfloat16).to(dev).eval()
    model = torch.compile(PackedModern(hf), dynamic=True)
    enc = tokenizer(texts, truncation=True, max_length=512, return_attention_mask=False)["input_ids"]
    for length in lengths:
        flat = [t for e in enc for t in e]
        some = [flat[i * length:(i + 1) * length] for i in range(128)] if length else enc
        batches, at = [], 0
        while at < len(some) and len(batches) < 8:
            ids, pos, cu = [], [], [0]
            while at < len(some) and len(ids) + len(some[at]) <= 65536:
                ids += some[at]
                pos += range(len(some[at]))
                cu.append(len(ids))
                at += 1
            batches.append((torch.tensor(ids, device=dev), torch.tensor(pos, device=dev), torch.tensor(cu, dtype=torch.int32, device=dev)))
        longest = length or max(map(len, some))
        with torch.inference_mode():
            for b in batches[:3]:
                model(*b, longest)
            torch.cuda.synchronize()
            t = time.time()
            rows = tokens = 0
            for r in range(24):
                b = batches[r % len(batches)]
                model(*b, longest)
                rows += len(b[2]) - 1
                tokens += len(b[0])
            torch.cuda.synchronize()
        emit(f"ModernBERT, {length or 'texts as they are'}, packed varlen + torch.compile, bf16, pretokenized", rows, time.time() - t, tokens_per_second=round(tokens / (time.time() - t)))
