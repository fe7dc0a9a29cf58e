#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# package.sh BUILD: builds the Debian package and checks it: lintian, manual pages, completion, systemd units, licences,
# programs that use the library, and scoring with the unpacked files. Prints Skipped for checks whose tool is missing.
set -euo pipefail
build=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "package.sh: $*" >&2; exit 1; }
with() { command -v "$1" >/dev/null || { echo "package.sh: Skipped: $1 is not installed"; return 1; }; }

with dpkg-shlibdeps || exit 77
(cd "$build" && cpack -B "$work" >"$work/cpack.log" 2>&1) || { cat "$work/cpack.log"; fail "cpack failed"; }
package=$(echo "$work"/brim_*.deb)
dpkg-deb -x "$package" "$work/root"
if with lintian; then
  lintian --allow-root --fail-on error,warning --no-tag-display-limit "$package" >"$work/lintian" 2>&1 || { cat "$work/lintian"; fail "lintian"; }
fi
for name in bin/brim lib/systemd/system/brim-serve@.service lib/systemd/system/brim-serve@.socket share/doc/brim/copyright share/man/man1/brim.1.gz share/man/man1/brim-score.1.gz \
  share/brim/models/default/LICENSE.minilm share/bash-completion/completions/brim share/zsh/vendor-completions/_brim share/fish/vendor_completions.d/brim.fish; do
  [ -f "$work/root/usr/$name" ] || fail "$name is missing"
done
libraries=lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH) version=$(dpkg-deb -f "$package" Version)
for name in "$libraries/libbrim.so.$version" "$libraries/pkgconfig/brim.pc" "$libraries/cmake/brim/brim-config.cmake" \
  "$libraries/cmake/brim/brim-targets.cmake" include/brim/scorer.h; do
  [ -f "$work/root/usr/$name" ] || fail "$name is missing"
done
for header in "$(dirname "${BASH_SOURCE[0]}")"/../include/brim/*.h; do
  cmp "$header" "$work/root/usr/include/brim/$(basename "$header")" || fail "$header differs"
done
dpkg-deb -e "$package" "$work/control"
grep -qx "libbrim ${version%.*} brim (= $version)" "$work/control/shlibs" || fail "shlibs: $(cat "$work/control/shlibs")"
cp -r "$(dirname "${BASH_SOURCE[0]}")/../examples/library" "$work/example"
cmake -S "$work/example" -B "$work/example/build" -DCMAKE_PREFIX_PATH="$work/root/usr" >"$work/cmake.log" 2>&1 &&
  cmake --build "$work/example/build" --target label_lines >>"$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; fail "an example does not build"; }
[ "$(echo 'I love this' | "$work/example/build/label_lines" 2>/dev/null | cut -d' ' -f1)" = positive ] || fail "label_lines"
if with pkg-config; then
  # shellcheck disable=SC2046 # several flags
  g++ -std=c++20 "$work/example/gpus.cc" $(PKG_CONFIG_PATH=$work/root/usr/$libraries/pkgconfig pkg-config --cflags --libs brim) -o "$work/gpus" ||
    fail "an example does not compile with pkg-config"
  LD_LIBRARY_PATH=$work/root/usr/$libraries "$work/gpus" >"$work/gpus.txt" || fail "gpus"
fi
for licence in Apache-2.0 'C.J. Hutto' 'Unicode, Inc.' 'Permission is hereby granted'; do
  grep -qF "$licence" "$work/root/usr/share/doc/brim/copyright" || fail "the copyright file does not contain $licence"
done
for owner in 'Niels Lohmann' 'University of Cincinnati'; do
  zcat "$work/root/usr/share/doc/brim/THIRD_PARTY_NOTICES.md.gz" | grep "^Copyright .*$owner" >/dev/null
done
if with mandoc; then
  for page in "$work"/root/usr/share/man/man1/*.gz; do
    mandoc -T lint -W error <(zcat "$page") >"$work/man" || { cat "$work/man"; fail "$page"; }
  done
  MANPAGER=cat mandoc -T utf8 <(zcat "$work/root/usr/share/man/man1/brim-score.1.gz") | col -b >"$work/page"
  grep -q -- '--shard' "$work/page" || fail "brim-score(1) has no --shard"
fi
bash -n "$work/root/usr/share/bash-completion/completions/brim"
! with zsh || zsh -n "$work/root/usr/share/zsh/vendor-completions/_brim"
! with fish || fish -n "$work/root/usr/share/fish/vendor_completions.d/brim.fish"
if with systemd-analyze; then
  cp "$work/root/usr/lib/systemd/system/brim-serve@.service" "$work/brim-serve@x.service"
  sed -i "s|/usr/bin/brim|$work/root/usr/bin/brim|; /^Documentation/d" "$work/brim-serve@x.service"
  cp "$work/root/usr/lib/systemd/system/brim-serve@.socket" "$work/brim-serve@x.socket"
  systemd-analyze verify --man=no "$work/brim-serve@x.service" "$work/brim-serve@x.socket" >"$work/unit" 2>&1 || { cat "$work/unit"; fail "systemd-analyze verify"; }
  # Exposure of at most 1.8 of 10; systemd before 250 cannot rate units that are not loaded.
  if systemd-analyze --help | grep -- --offline >/dev/null; then
    systemd-analyze security --offline=true --threshold=18 "$work/brim-serve@x.service" >"$work/unit" 2>&1 || { cat "$work/unit"; fail "systemd-analyze security"; }
  fi
fi
for i in $(seq 10); do echo "I love this, number $i"; done >"$work/texts.txt"
began=$(date +%s%N)
env -i HOME="$work" PATH=/usr/bin:/bin "$work/root/usr/bin/brim" score "$work/texts.txt" -q -o "$work/labels.csv"
[ "$(grep -c positive "$work/labels.csv")" -eq 10 ] || fail "labels: $(cat "$work/labels.csv")"
echo "package: $(basename "$package"), $(($(stat -c %s "$package") >> 20)) MiB, scored ten texts in $((($(date +%s%N) - began) / 1000000)) ms"
