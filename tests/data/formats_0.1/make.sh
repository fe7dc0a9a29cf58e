#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make.sh SOURCE FOLDER: writes the files of `server` into FOLDER with the sources of commit ff0af82 in SOURCE. They were
# written with FOLDER=/tmp/formats, which is part of the paths in them.
set -euo pipefail
source=$(readlink -f "$1")
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$source"
parts=(
  serve/{jobs_store,row_scorer,state_dir,queues,queue_journal,queue_state} jobs/{doctor_trace,shards}
  base/{error,log,env,timeline,units,utf8,thread_pool,mapped_file,cache_file}
  io/{atomic_file,compress,descriptor,json_text,quote_text,sha256}
  rows/{csv,file_checks,jsonl,resume,row_parse,row_reader,row_writer,labels,conll}
)
g++ -std=c++20 -w -Isrc -Iinclude -c "$here/make_server.cc" -o "$work/make_server.o"
for part in "${parts[@]}"; do
  g++ -std=c++20 -w -Isrc -Iinclude -c "src/$part.cc" -o "$work/${part//\//_}.o"
done
# The functions that are missing are not called.
g++ "$work"/*.o -o "$work/make_server" -no-pie -lfmt -lz -lzstd -lpthread -Wl,--unresolved-symbols=ignore-all
"$work/make_server" "$2"
