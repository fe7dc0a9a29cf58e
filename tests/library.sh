#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# library.sh BUILD: installs the build, compiles the examples against the installation without the checkout, and compares
# their labels with the program's. Also checks pkg-config, the soname, and that only public symbols are exported.
set -euo pipefail
build=$(readlink -f "$1") source=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "library.sh: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$work/installed" >"$work/install.log" || { cat "$work/install.log"; fail "install failed"; }
cp -r "$source/examples/library" "$work/example"
cmake -G Ninja -S "$work/example" -B "$work/example/build" -DCMAKE_PREFIX_PATH="$work/installed" -DCMAKE_BUILD_TYPE=Release >"$work/cmake.log" 2>&1 &&
  cmake --build "$work/example/build" >>"$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; fail "the examples do not build"; }

library=$(echo "$work"/installed/lib*/libbrim.so* "$work"/installed/lib*/*/libbrim.so* | tr ' ' '\n' | grep -m1 'so\.[0-9]*\.[0-9]*$') || fail "no libbrim.so"
foreign=$(nm -DC --defined-only "$library" | awk '$2 ~ /[A-TV-Z]/' | grep -vE '^[0-9a-f]+ [A-Z] (brim::(Device|Precision|MemoryLimit|LeaveFree|Scorer|PooledModel|Completion|TrainListener|Error|version|find_model|find_prompts|model_kind|share_encoder|set_log|pull_model|run_training|open_together|open_beside|plan_together|plan_model|compare_models|read_gpus|run_shard|finish_shards|train_forecaster|predict_series|roll_forecaster|evaluate_forecasts|ForecastListener)|(typeinfo|vtable|typeinfo name|VTT) for brim::(Scorer|PooledModel|Completion|TrainListener|ForecastListener|Error)|std::|(typeinfo|vtable|typeinfo name) for std::)' || true)
[ -z "$foreign" ] || fail "exports more than include/brim declares: $(head -5 <<<"$foreign")"

lib=$(dirname "$library")
soname=$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p') version=$(sed -n 's/^Version: \([0-9]*\.[0-9]*\).*/\1/p' "$lib/pkgconfig/brim.pc")
[ "$soname" = "libbrim.so.$version" ] || fail "the soname is $soname, the version $version"
if command -v pkg-config >/dev/null; then
  prefix=$(PKG_CONFIG_PATH=$lib/pkgconfig pkg-config --variable=prefix brim)
  [ -f "$prefix/include/brim/pool.h" ] || fail "brim.pc: no headers in $prefix/include"
  # shellcheck disable=SC2046 # several flags
  g++ -std=c++20 "$work/example/gpus.cc" $(PKG_CONFIG_PATH=$lib/pkgconfig pkg-config --cflags --libs brim) -o "$work/gpus" ||
    fail "brim.pc: an example does not compile"
  LD_LIBRARY_PATH=$lib "$work/gpus" | grep -E "^(no GPU|GPU 0: )" >/dev/null || fail "brim.pc: the example does not run"
fi

# Functions of former releases warn, and name their replacement.
printf '#include <brim/scorer.h>\nauto f = &brim::Scorer::open_together;\nauto h = &brim::Scorer::open_beside;\nauto p = &brim::Scorer::plan_together;\n' >"$work/deprecated.cc"
g++ -std=c++20 -fsyntax-only -I"$work/installed/include" "$work/deprecated.cc" 2>"$work/warnings" || { cat "$work/warnings"; fail "deprecated functions do not compile"; }
[ "$(grep -c 'deprecated: use brim/pool.h' "$work/warnings")" -eq 3 ] || fail "deprecated functions: $(cat "$work/warnings")"

printf 'I love this\nwhat a waste of money\n\nok\n' >"$work/texts.txt"
printf 'bad \xff byte\n' >>"$work/texts.txt"
(cd "$work" && env -i PATH="$PATH" HOME="$work" "$work/example/build/label_lines" <texts.txt >labels.txt 2>err.txt) || { cat "$work/err.txt"; fail "the example fails"; }
[ "$(wc -l <"$work/labels.txt")" -eq 5 ] || fail "5 texts, $(wc -l <"$work/labels.txt") results"
grep -q '^Brim [0-9.]* on ' "$work/err.txt" || fail "no version: $(cat "$work/err.txt")"
tail -1 "$work/labels.txt" | grep -q '^error: .*UTF-8' || fail "invalid UTF-8: $(tail -1 "$work/labels.txt")"
head -4 "$work/texts.txt" >"$work/good.txt"
"$work/installed/bin/brim" score "$work/good.txt" -q --output-format tsv -o "$work/program.tsv"
diff <(head -4 "$work/labels.txt" | cut -d' ' -f1) <(tail -n +2 "$work/program.tsv" | cut -f2) || fail "labels differ from the program's"
"$work/example/build/label_lines" vader <"$work/good.txt" 2>/dev/null | sed -n 1p | grep "^positive" >/dev/null || fail "VADER"
"$work/example/build/two_models" 'I love this' vader vader | grep -c '^positive' | grep -qx 2 || fail "two_models"
printf 'text,label\nfine,good\nawful,bad\n' >"$work/train.csv"
! "$work/example/build/train" /no/such/model "$work/train.csv" "$work/out" 2>"$work/err.txt" || fail "train accepts a missing model"
grep -q '/no/such/model' "$work/err.txt" || fail "unexpected message: $(cat "$work/err.txt")"
"$work/example/build/plan" default rtx3070 | grep -q '^[1-9][0-9]* bytes on ' || fail "plan"
printf 'text,label\nI love this,positive\nI hate this,negative\n' >"$work/labels.csv"
"$work/example/build/compare" "$work/labels.csv" vader default >"$work/compared.txt" || fail "compare"
grep -q '^vader: accuracy [01]' "$work/compared.txt" && grep -q '^recommended: ' "$work/compared.txt" || fail "compare: $(cat "$work/compared.txt")"
{ echo unique_id,ds,y; for day in $(seq 10 28); do echo "a,2024-01-$day,$day"; done; } >"$work/series.csv"
"$work/example/build/forecast" "$work/series.csv" naive 3 >"$work/forecasts.txt" || fail "forecast"
[ "$(cat "$work/forecasts.txt")" = "$(printf 'a 2024-01-29 28\na 2024-01-30 28\na 2024-01-31 28')" ] || fail "forecast: $(cat "$work/forecasts.txt")"
! "$work/example/build/forecast" "$work/series.csv" oracle 3 2>"$work/err.txt" || fail "forecast accepts an unknown model"
grep -q 'oracle' "$work/err.txt" || fail "unexpected message: $(cat "$work/err.txt")"
"$work/example/build/gpus" >"$work/gpus.txt" && grep -qE '^(no GPU|GPU 0: )' "$work/gpus.txt" || fail "gpus: $(cat "$work/gpus.txt")"
(cd "$work" && "$work/installed/bin/brim" score good.txt --model vader -q --shard 1/2 -o parts) || fail "brim score --shard"
"$work/example/build/shards" "$work/parts" 2 >"$work/shards.txt" && grep -qx '4 rows' "$work/shards.txt" && [ -f "$work/parts/_SUCCESS" ] || fail "shards: $(cat "$work/shards.txt")"
! "$work/example/build/shards" "$work" 2 2>"$work/err.txt" || fail "shards accepts a directory without a job"
[ "$(HOME=$work "$work/example/build/pull" "$work/installed/share/brim/models/default")" = "$work/installed/share/brim/models/default" ] || fail "pull of a directory"
! HOME=$work HF_HUB_OFFLINE=1 "$work/example/build/pull" no-one/no-model 2>"$work/err.txt" || fail "pull finds an unknown model"
grep -q 'HF_HUB_OFFLINE is set' "$work/err.txt" || fail "unexpected message: $(cat "$work/err.txt")"
! "$work/example/build/label_lines" /no/such/model </dev/null 2>"$work/err.txt" || fail "a missing model is accepted"
grep -q '/no/such/model' "$work/err.txt" || fail "unexpected message: $(cat "$work/err.txt")"
echo "library: passed"
