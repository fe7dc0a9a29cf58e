#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# train_examples.sh BRIM: runs examples/train_vietnamese and examples/train_both with a few training steps.
set -euo pipefail
export BRIM=$(readlink -f "$1")
root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
export BRIM_HOME=$(readlink -f "$root")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "train_examples.sh: $*" >&2; cat "$work/log" "$work/printed" >&2; exit 1; }
run_example() { # NAME: writes $work/printed and $work/log
  "$root/examples/$1/run" default "$work/$1" --device cpu --max-steps 3 >"$work/printed" 2>"$work/log" || fail "$1: exit code $?"
}

run_example train_vietnamese
grep -q 'of 7.45 GiB' "$work/printed" || fail "the plan does not show the limit"
grep -q 'optimizer    adamw_8bit' "$work/printed" || fail "the optimizer of the YAML is not used"
grep -q 'dataloader_num_workers is ignored' "$work/log" || fail "an ignored key was not logged"
[ "$(grep -Ec ',(positive|negative|neutral),[01][.0-9]*$' "$work/printed")" -eq 9 ] || fail "labels are missing"
[ -s "$work/train_vietnamese/report.html" ] || fail "no report"

run_example train_both
grep -q "keeping the model's classifier; adding a new tagger for O, B-LOC" "$work/log" || fail "the new head is not logged"
grep -q '^rtx3050-6gb ' "$work/printed" || fail "no table of GPUs"
[ "$(grep -Ec ',(positive|negative|neutral),[01][.0-9e-]*,"?\[' "$work/printed")" -eq 18 ] || fail "labels and entities are missing"
[ -s "$work/train_both/ner/model.safetensors" ] || fail "no tagger"
grep -q '^note: of .*evaluation' "$work/printed" || fail "no note from doctor"
echo "train_examples: passed"
