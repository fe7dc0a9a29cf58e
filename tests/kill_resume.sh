#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kill_resume.sh BRIM [REPEATS]: trains a tiny model once without interruption, then REPEATS times with two `kill -9` at random
# steps, and compares the final weights bit for bit. Checkpoints are frequent, so that some kills interrupt one. Also tests
# exit codes: SIGTERM writes a checkpoint and exits with 130, a full disk with 7, a non-finite loss with 8, and the run resumes
# from the last good checkpoint.
set -euo pipefail
brim=$(readlink -f "$1")
repeats=${2:-3}
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
child=
trap '[ -n "$child" ] && kill -9 "$child" 2>/dev/null; rm -rf "$work"' EXIT
export BRIM_CACHE=$work/cache
RANDOM=${SEED:-1}

mkdir "$work/model"
cp "$here"/data/models/bert_sequence/{config.json,model.safetensors} "$work/model"
{ printf '[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n'; for i in $(seq 5 95); do echo "w$i"; done; } > "$work/model/vocab.txt"
rows() {
  echo text,label
  local labels=(negative neutral positive) i w
  for ((i = 0; i < $1; i++)); do
    for ((w = 0; w < 3 + RANDOM % 12; w++)); do printf 'w%d ' $((5 + i % 3 * 30 + RANDOM % 31)); done
    echo ",${labels[i % 3]}"
  done
}
rows 160 > "$work/train.csv"
rows 24 > "$work/val.csv"

args=(--model "$work/model" --train "$work/train.csv" --val "$work/val.csv" --device cpu --threads 1 --memory-limit 1GiB --num-train-epochs 3 --batch-size 4
      --learning-rate 1e-3 --dropout 0.1 --warmup-ratio 0.1 --logging-steps 1 --save-strategy steps --save-steps 3 -q)
steps=120
train() { "$brim" train "${args[@]}" "$@"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
logged() { if [ -f "$1/train_log.jsonl" ]; then grep -c learning_rate "$1/train_log.jsonl" || true; else echo 0; fi; }
# Starts a run and sends signal $1 once step $2 is logged (or the run has ended).
kill_at() {
  local signal=$1 step=$2 out=$3
  shift 3
  "$brim" train "${args[@]}" --output "$out" "$@" 2> "$work/err" &  # not the function, whose shell would be killed instead
  child=$!
  while [ "$(logged "$out")" -lt "$step" ] && kill -0 "$child" 2>/dev/null; do sleep 0.002; done
  kill "-$signal" "$child" 2>/dev/null || true
  status=0
  wait "$child" 2>/dev/null || status=$?
  child=
}

train --output "$work/whole"
want=$(sha256sum < "$work/whole/model.safetensors")
for ((n = 1; n <= repeats; n++)); do
  out=$work/killed
  rm -rf "$out"
  first=$((1 + RANDOM % (steps - 2)))
  second=$((first + 1 + RANDOM % (steps - first)))
  kill_at 9 "$first" "$out"
  [ "$status" = 137 ] || fail "the run was not killed at step $first, exit code $status"
  kill_at 9 "$second" "$out" --resume-from-checkpoint
  train --output "$out" --resume-from-checkpoint
  [ "$(sha256sum < "$out/model.safetensors")" = "$want" ] || fail "weights differ after kills at steps $first and $second"
  [ "$(logged "$out")" = "$(logged "$work/whole")" ] || fail "log differs after kills at steps $first and $second"
  echo "run $n: killed at steps $first and $second, same weights"
done

out=$work/term
kill_at TERM 20 "$out"
[ "$status" = 130 ] || fail "SIGTERM: exit code $status instead of 130: $(cat "$work/err")"
train --output "$out" --resume-from-checkpoint last
[ "$(sha256sum < "$out/model.safetensors")" = "$want" ] || fail "weights differ after SIGTERM"
echo "SIGTERM: exit 130, same weights"

out=$work/full
kill_at TERM 20 "$out"
before=$(ls "$out" | grep '^checkpoint-' | sort | tail -1)
status=0
(ulimit -f 100; train --output "$out" --resume-from-checkpoint) 2> "$work/err" || status=$?
[ "$status" = 7 ] || fail "full disk: exit code $status instead of 7: $(cat "$work/err")"
[ -f "$out/$before/optimizer.bin" ] || fail "the last good checkpoint is gone"
train --output "$out" --resume-from-checkpoint
[ "$(sha256sum < "$out/model.safetensors")" = "$want" ] || fail "weights differ after a full disk"
echo "full disk: exit 7, last checkpoint intact, same weights"

status=0
train --output "$work/nan" --learning-rate 1e30 2> "$work/err" || status=$?
[ "$status" = 8 ] || fail "non-finite loss: exit code $status instead of 8: $(cat "$work/err")"
ls "$work"/nan/diverged-step-*.json > /dev/null || fail "the batch was not saved"
echo "non-finite loss: exit 8, batch saved"
