#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make_forecast.sh BRIM FOLDER: writes the files of `forecast` into FOLDER with a brim program of commit ff0af82: series, a
# model with its forecasts, and the folders of a training and of a rolling run that were killed.
set -euo pipefail
brim=$(readlink -f "$1")
mkdir -p "$2"
cd "$2"
awk 'BEGIN { print "unique_id,ds,y"; s = 7; for (i = 0; i < 3; i++) for (t = 1; t <= 60; t++) { s = (s * 1103515245 + 12345) % 2147483648
  printf "%c,%d,%.2f\n", 97 + i, t, 50 + 10 * i + 5 * ((t + i) % 7) + s % 100 / 50 } }' > series.csv
common=(--data series.csv --horizon 4 --freq index --season 7 --losses mae --lookbacks 2 --n-blocks 1 --mlp-units 16,16 --batch-size 16
        --learning-rate 1e-3 --random-seed 3 --save-steps 10 --device cpu --threads 1 --precision fp32 -q)
kill_at() { # FILE, then the command: kills it once FILE exists
  local file=$1
  shift
  "$brim" "$@" &
  while [ ! -e "$file" ]; do sleep 0.001; done
  kill -9 $!
  wait $! || true
}
"$brim" forecast train "${common[@]}" --max-steps 300 -o model
"$brim" forecast predict --data series.csv --model model --freq index --device cpu -q > forecasts.csv
for ((i = 0; i < 20; i++)); do
  rm -rf killed
  kill_at killed/state/wave.bin forecast train "${common[@]}" --max-steps 300 -o killed
  [ -e killed/config.json ] || break
done
"$brim" forecast roll "${common[@]}" --max-steps 100 --folds 3 -o roll
cp roll/forecasts.csv rolled.csv
rm -rf roll
for ((i = 0; i < 20; i++)); do
  rm -rf roll
  kill_at roll/state/wave.bin forecast roll "${common[@]}" --max-steps 100 --folds 3 -o roll
  [ -e roll/forecasts.csv ] || break
done
find . -type f | sort
