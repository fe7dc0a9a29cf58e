#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the same training jobs with Brim and with PyTorch (transformers; a plain loop with dynamic padding, or its Trainer) and
prints one table: accuracy, macro recall or entity F1 on the validation set, and seconds, by data set and seed. With several
seeds it also prints the mean difference of the pairs, its standard error and Student's t.

    python bench/train_peers.py --brim ./brim --data DIR --datasets tweets finance vietnamese wnut17 distill --seeds 3 --device cuda
    python bench/train_peers.py --brim ./brim --data DIR --datasets finance tweets5k wnut17 --peer trainer --seeds 5 --epochs 2 --device cuda
    python bench/train_peers.py --brim ./brim --data DIR --datasets finance --seeds 1 --epochs 1 --device cpu --threads 2

DIR contains text/, ner/ and weights/minilm-l6-fp16. Both use the same rows, batch size, learning rate, schedule, warm-up,
clipping, weight decay and epochs, and report the model of the last epoch; shuffling and dropout differ. `seconds` is training
time without loading and evaluation; `wall` is Brim's whole process, or PyTorch's whole job with tokenization and evaluation.
`processor` is CPU time of PyTorch's training loop or of Brim's whole process; it is less affected by other processes, but
compare it only with --threads 1, because idle PyTorch threads spin. `distill` (Brim only) compares macro recall and scoring
speed of a 3-layer student with those of its 6-layer teacher. Requires torch and transformers unless --only brim is given.
"""
import argparse
import csv
import json
import math
import os
import pathlib
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

JOBS = {  # epochs, batch, learning rate
    "tweets": dict(train=["text/tweets_train.csv"], val="text/tweets_val.csv", epochs=2, batch=64, lr=8e-5),
    "tweets5k": dict(train=["text/tweets_train.csv"], val="text/tweets_val.csv", epochs=2, batch=32, lr=8e-5, rows=5000),
    "finance": dict(train=["text/finance_train.csv"], val="text/finance_val.csv", epochs=4, batch=32, lr=8e-5),
    "vietnamese": dict(train=["text/vietnamese_train.csv"], val="text/vietnamese_val.csv", epochs=3, batch=32, lr=1e-4),
    "wnut17": dict(train=["ner/wnut17_train.conll"], val="ner/wnut17_val.conll", epochs=6, batch=32, lr=2e-4),
}
MAX_LENGTH, WARMUP, DECAY, CLIP = 128, 0.1, 0.01, 1.0


# ---- metrics, shared by both -------------------------------------------------------------------------------
def macro_recall(expected, predicted):
    recalls = []
    for c in sorted(set(expected)):
        rows = [p for e, p in zip(expected, predicted) if e == c]
        recalls.append(sum(p == c for p in rows) / len(rows))
    return sum(recalls) / len(recalls)


def entities(tags):
    found, start, kind = set(), None, None
    for i, tag in enumerate(list(tags) + ["O"]):
        prefix, _, name = tag.partition("-")
        if start is not None and (prefix != "I" or name != kind):
            found.add((start, i, kind))
            start = None
        if prefix == "B" or (prefix == "I" and start is None):
            start, kind = i, name
    return found


def entity_f1(expected, predicted):
    hit = want = got = 0
    for e, p in zip(expected, predicted):
        a, b = entities(e), entities(p)
        hit, want, got = hit + len(a & b), want + len(a), got + len(b)
    return 2 * hit / max(1, want + got)


# ---- data ---------------------------------------------------------------------------------------------------------
def read_rows(paths):
    rows = []
    for path in paths:
        with open(path, encoding="utf-8", newline="") as file:
            rows += [(r["text"], r["label"]) for r in csv.DictReader(file)]
    return rows


def read_conll(paths):
    sentences, words, tags = [], [], []
    for path in paths:
        for line in open(path, encoding="utf-8").read().split("\n") + [""]:
            parts = line.split("\t") if "\t" in line else line.split(" ")
            if not line.strip():
                if words:
                    sentences.append((words, tags))
                words, tags = [], []
            else:
                words.append(parts[0])
                tags.append(parts[-1].strip())
    return sentences


# ---- PyTorch ------------------------------------------------------------------------------------------------------
class TorchJob:
    """Model, rows and collation of one run; trained by a plain loop or by transformers' Trainer."""

    def __init__(self, args, name, job, seed):
        import torch
        import transformers as tf

        tf.logging.set_verbosity_error()
        torch.manual_seed(seed)
        random.seed(seed)
        torch.set_num_threads(args.threads)
        self.args, self.job, self.seed, self.token = args, job, seed, name == "wnut17"
        self.device = torch.device(args.device)
        weights = args.data / "weights" / "minilm-l6-fp16"
        self.tokenizer = tf.PreTrainedTokenizerFast(tokenizer_file=str(weights / "tokenizer.json"), unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]")
        self.tokenizer.backend_tokenizer.no_padding()
        self.tokenizer.backend_tokenizer.no_truncation()
        read = read_conll if self.token else read_rows
        train, val = read([args.data / p for p in job["train"]]), read([args.data / job["val"]])
        if self.token:
            self.names = ["O"] + sorted({t for _, tags in train for t in tags} - {"O"})
        else:
            self.names = sorted({label for _, label in train})
        if job["rows"]:
            train = train[: job["rows"]]
        self.train_set, self.val_set = self.encode(train), self.encode(val)
        config = tf.AutoConfig.from_pretrained(weights, num_labels=len(self.names))
        kind = tf.AutoModelForTokenClassification if self.token else tf.AutoModelForSequenceClassification
        self.model = kind.from_pretrained(weights, config=config).float().to(self.device)
        self.steps = math.ceil(len(self.train_set) / job["batch"]) * job["epochs"]

    def encode(self, rows):
        index = {n: i for i, n in enumerate(self.names)}
        if not self.token:
            ids = self.tokenizer([t for t, _ in rows], truncation=True, max_length=MAX_LENGTH)["input_ids"]
            return list(zip(ids, [index[label] for _, label in rows]))
        out = []
        batch = self.tokenizer([w for w, _ in rows], is_split_into_words=True, truncation=True, max_length=MAX_LENGTH)
        for i, (_, tags) in enumerate(rows):
            last, labels = None, []
            for word in batch.word_ids(i):
                labels.append(-100 if word is None or word == last else index[tags[word]])
                last = word
            out.append((batch["input_ids"][i], labels))
        return out

    def collate(self, rows):
        import torch

        longest = max(len(ids) for ids, _ in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        mask = torch.zeros(len(rows), longest, dtype=torch.long)
        labels = torch.full((len(rows), longest), -100) if self.token else torch.zeros(len(rows), dtype=torch.long)
        for i, (seq, label) in enumerate(rows):
            ids[i, : len(seq)] = torch.tensor(seq)
            mask[i, : len(seq)] = 1
            if self.token:
                labels[i, : len(seq)] = torch.tensor(label)
            else:
                labels[i] = label
        return dict(input_ids=ids, attention_mask=mask, labels=labels)

    def batch(self, rows):
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in self.collate(rows).items()}

    def train_in_loop(self):
        import torch
        import transformers as tf

        plain = [p for n, p in self.model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
        decayed = [p for n, p in self.model.named_parameters() if not (n.endswith("bias") or "LayerNorm" in n)]
        groups = [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=self.job["lr"], fused=self.device.type == "cuda")
        scheduler = tf.get_linear_schedule_with_warmup(optimizer, math.ceil(WARMUP * self.steps), self.steps)
        self.model.train()
        for _ in range(self.job["epochs"]):
            order = list(range(len(self.train_set)))
            random.shuffle(order)
            for at in range(0, len(order), self.job["batch"]):
                batch = self.batch([self.train_set[i] for i in order[at : at + self.job["batch"]]])
                labels = batch.pop("labels")
                with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.args.precision == "bf16"):
                    logits = self.model(**batch).logits
                loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=-100)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)

    def train_with_trainer(self, output):
        import transformers as tf

        settings = tf.TrainingArguments(
            output_dir=str(output), per_device_train_batch_size=self.job["batch"], num_train_epochs=self.job["epochs"], learning_rate=self.job["lr"],
            lr_scheduler_type="linear", warmup_steps=math.ceil(WARMUP * self.steps), weight_decay=DECAY, max_grad_norm=CLIP, seed=self.seed,
            bf16=self.args.precision == "bf16", use_cpu=self.device.type == "cpu", save_strategy="no", eval_strategy="no", logging_strategy="no",
            report_to=[], disable_tqdm=True, remove_unused_columns=False)
        tf.Trainer(model=self.model, args=settings, train_dataset=self.train_set, data_collator=self.collate).train()

    def evaluate(self):
        import torch

        self.model.eval()
        expected, predicted = [], []
        with torch.no_grad():
            for at in range(0, len(self.val_set), 64):
                batch = self.batch(self.val_set[at : at + 64])
                labels = batch.pop("labels")
                best = self.model(**batch).logits.argmax(-1).cpu().tolist()
                for row, want in zip(best, labels.cpu().tolist()):
                    if self.token:
                        expected.append([self.names[w] for w in want if w != -100])
                        predicted.append([self.names[p] for p, w in zip(row, want) if w != -100])
                    else:
                        expected.append(want)
                        predicted.append(row)
        if self.token:
            return dict(entity_f1=entity_f1(expected, predicted))
        return dict(accuracy=sum(e == p for e, p in zip(expected, predicted)) / len(expected), macro_recall=macro_recall(expected, predicted))


def torch_run(args, name, job, seed, output):
    import torch

    began = time.perf_counter()
    run = TorchJob(args, name, job, seed)

    def sync():
        if run.device.type == "cuda":
            torch.cuda.synchronize()

    sync()
    started, processor = time.perf_counter(), time.process_time()
    if args.peer == "trainer":
        run.train_with_trainer(output)
    else:
        run.train_in_loop()
    sync()
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    result = run.evaluate()
    return dict(seconds=seconds, wall=time.perf_counter() - began, processor=processor, **result)


# ---- Brim ---------------------------------------------------------------------------------------------------------
def brim_train(args, work, job, seed, output, extra=()):
    files = []
    for path in job["train"]:
        source = args.data / path
        if job["rows"] and source.suffix == ".csv":
            short = work / f"first_{job['rows']}_{source.name}"
            if not short.exists():
                with open(short, "w", encoding="utf-8", newline="") as file:
                    writer = csv.writer(file)
                    writer.writerow(["text", "label"])
                    writer.writerows(read_rows([source])[: job["rows"]])
            source = short
        files += ["--train", str(source)]
    command = [str(args.brim), "train", *files, "--val", str(args.data / job["val"]), "--output", str(output), "--device", args.device, "--seed", str(seed),
               "--num-train-epochs", str(job["epochs"]), "--batch-size", str(job["batch"]), "--learning-rate", str(job["lr"]), "--warmup-ratio", str(WARMUP),
               "--weight-decay", str(DECAY), "--max-grad-norm", str(CLIP), "--max-length", str(MAX_LENGTH), "--lr-scheduler-type", "linear", "--save-strategy", "no",
               "--load-best-model-at-end", "false", "--logging-steps", "50", "--precision", args.precision, "-q", *extra]
    if "--model" not in extra:
        command += ["--model", str(args.data / "weights" / "minilm-l6-fp16")]
    if args.device == "cpu":
        command += ["--threads", str(args.threads)]
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, BRIM_CACHE=str(work / "cache")))
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexit {done.returncode}:\n{done.stderr}")
    history = json.loads((output / "trainer_state.json").read_text())["log_history"]
    last = [row for row in history if "eval_loss" in row][-1]
    result = dict(seconds=[row for row in history if "train_seconds" in row][-1]["train_seconds"], wall=wall,
                  processor=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    for name in ("accuracy", "macro_recall", "entity_f1"):
        if f"eval_{name}" in last:
            result[name] = last[f"eval_{name}"]
    return result


def score_speed(args, work, model, text):
    """Texts per second, best of three: by device time (small models on large GPUs wait for the tokenizer), and by the time
    from file to file after loading."""
    busy = whole = 0
    for _ in range(3):
        summary = work / "summary.json"
        command = [str(args.brim), "score", str(text), "--model", str(model), "--device", args.device, "--output", os.devnull, "--output-format", "csv",
                   "--format", "txt", "--summary-json", str(summary), "-q"]
        if args.device == "cpu":
            command += ["--threads", str(args.threads)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\nexit {done.returncode}:\n{done.stderr}")
        s = json.loads(summary.read_text())
        busy = max(busy, s["rows"] / (s["seconds"] * max(1e-9, s["device_busy"])))
        whole = max(whole, s["rows_per_second"])
    return busy, whole


def distill(args, work, seed):
    job = dict(JOBS["tweets"], epochs=args.epochs or 3, rows=args.rows)
    teacher, student = work / f"teacher{seed}", work / f"student{seed}"
    big = brim_train(args, work, job, seed, teacher)
    small = brim_train(args, work, dict(job, epochs=2 * job["epochs"]), seed, student,
                       ["--model", str(teacher), "--teacher", str(teacher), "--student-layers", "3", "--temperature", "2", "--hard-weight", "0.3"])
    lines = (args.data / "text" / "tweets_60k.txt").read_text(encoding="utf-8").split("\n")[:60000]
    lines = (lines * math.ceil(args.score_rows / len(lines)))[: args.score_rows]
    text = work / "tweets.txt"
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return big, small, score_speed(args, work, teacher, text), score_speed(args, work, student, text)


def paired(differences):
    """Standard error and t of a mean difference, to be compared with Student's distribution for n - 1 degrees of freedom."""
    if len(differences) < 2:
        return ""
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    t = statistics.mean(differences) / error if error > 0 else math.nan
    return f" ± {100 * error:.2f}, t = {t:.2f} with {len(differences) - 1} degrees of freedom"


# ---- the table ----------------------------------------------------------------------------------------------------
def show(value, digits=4):
    return "–" if value is None else f"{value:.{digits}f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brim", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--datasets", nargs="+", default=["finance"], choices=[*JOBS, "distill"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", choices=["fp32", "bf16"], help="matrix product precision of both (default: bf16 on a GPU, fp32 on the CPU)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--epochs", type=int, default=0, help="0: the default of each data set")
    parser.add_argument("--rows", type=int, default=0, help="use only the first rows of each training file")
    parser.add_argument("--score-rows", type=int, default=0, help="texts to score for the speed of distill; 0: 480,000 on cuda, 5,000 on the CPU")
    parser.add_argument("--peer", default="loop", choices=["loop", "trainer"], help="train PyTorch's models in a plain loop or with transformers' Trainer")
    parser.add_argument("--only", choices=["brim", "torch"], help="run only one of the two")
    parser.add_argument("--json", type=pathlib.Path, help="also write the results to this file")
    args = parser.parse_args()
    args.brim = args.brim.resolve()
    args.precision = args.precision or ("bf16" if args.device == "cuda" else "fp32")
    args.score_rows = args.score_rows or (480000 if args.device == "cuda" else 5000)
    work = pathlib.Path(tempfile.mkdtemp(prefix="brim_peers_"))
    results = []
    print("| data set | seed | who | accuracy | macro-recall | entity F1 | seconds | wall | processor |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)

    def row(name, seed, who, r):
        results.append(dict(dataset=name, seed=seed, who=who, **r))
        print(f"| {name} | {seed} | {who} | {show(r.get('accuracy'))} | {show(r.get('macro_recall'))} | {show(r.get('entity_f1'))} | {show(r['seconds'], 2)} | {show(r['wall'], 2)} | {show(r['processor'], 2)} |", flush=True)

    summary = []
    try:
        for name in args.datasets:
            if name == "distill":
                big, small, fast, faster = distill(args, work, 1)
                row(name, 1, "teacher, 6 layers", big)
                row(name, 1, "student, 3 layers", small)
                kept, speed = small["macro_recall"] / big["macro_recall"], faster[0] / fast[0]
                summary.append(f"distill: the student retains {100 * kept:.1f} % of the teacher's macro recall at {speed:.2f}x the speed: {faster[0]:.0f} against {fast[0]:.0f} texts per second "
                               f"of device time, {faster[1]:.0f} against {fast[1]:.0f} from file to file")
                results.append(dict(dataset=name, who="summary", kept=kept, speed=speed, speed_file_to_file=faster[1] / fast[1]))
                continue
            job = {"rows": 0, **JOBS[name]}
            if args.epochs:
                job["epochs"] = args.epochs
            if args.rows:
                job["rows"] = args.rows
            sides = {"brim": [], "torch": []}
            for seed in range(1, args.seeds + 1):
                for who in ("brim", "torch"):
                    if args.only and args.only != who:
                        continue
                    output = work / f"{name}{seed}"
                    r = brim_train(args, work, job, seed, output) if who == "brim" else torch_run(args, name, job, seed, output)
                    shutil.rmtree(output, ignore_errors=True)
                    sides[who].append(r)
                    row(name, seed, who, r)
            metric = "entity_f1" if name == "wnut17" else "accuracy"
            if sides["brim"] and sides["torch"]:
                mean = {w: statistics.mean(r[metric] for r in rs) for w, rs in sides.items()}
                fast = statistics.median(r["seconds"] for r in sides["torch"]) / statistics.median(r["seconds"] for r in sides["brim"])
                pairs = paired([b[metric] - t[metric] for b, t in zip(sides["brim"], sides["torch"])])
                summary.append(f"{name}: {metric} {100 * mean['brim']:.2f} against {100 * mean['torch']:.2f} ({100 * (mean['brim'] - mean['torch']):+.2f} points{pairs}), training {fast:.2f}x as fast")
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + "\n")
    print()
    for line in summary:
        print(line)


main()
