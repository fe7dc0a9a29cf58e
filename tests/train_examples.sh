#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# train_examples.sh BRIM: the journeys of examples/train_vietnamese and examples/train_both, a few steps of each.
set -euo pipefail
export BRIM=$(readlink -f "$1")
root=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
export BRIM_HOME=$(readlink -f "$root")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "train_examples.sh: $*" >&2; cat "$work/said" "$work/printed" >&2; exit 1; }
walk() { # NAME: into $work/printed and $work/said
  "$root/examples/$1/run" default "$work/$1" --device cpu --max-steps 3 >"$work/printed" 2>"$work/said" || fail "$1: exit code $?"
}

walk train_vietnamese
grep -q 'of 7.45 GiB' "$work/printed" || fail "the plan does not show the limit"
grep -q 'optimizer    adamw_8bit' "$work/printed" || fail "the YAML's optimizer was not taken"
grep -q 'dataloader_num_workers is ignored' "$work/said" || fail "a key was passed over in silence"
[ "$(grep -Ec ',(positive|negative|neutral),[01][.0-9]*$' "$work/printed")" -eq 9 ] || fail "labels are missing"
[ -s "$work/train_vietnamese/report.html" ] || fail "no report"

walk train_both
grep -q "keeping the model's classifier; adding a new tagger for O, B-LOC" "$work/said" || fail "the new head is not said"
grep -q '^rtx3050-6gb ' "$work/printed" || fail "no table of cards"
[ "$(grep -Ec ',(positive|negative|neutral),[01][.0-9e-]*,"?\[' "$work/printed")" -eq 18 ] || fail "labels and entities are missing"
[ -s "$work/train_both/ner/model.safetensors" ] || fail "no tagger"
grep -q '^note: of .*evaluation' "$work/printed" || fail "the doctor said nothing"
echo "train_examples: two journeys"
