#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# abi.sh BUILD [--update]: compares the ABI of libbrim.so with tests/data/abi/SONAME.abi, which describes the functions, virtual
# functions and layouts of include/brim. An incompatible change needs another soname, that is, another minor version.
# --update writes the file: for a new soname, and for changes of one that was never released. Requires abigail-tools and g++.
set -euo pipefail
build=$(readlink -f "$1") source=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
fail() { echo "abi.sh: $*" >&2; exit 1; }
for tool in abidw abidiff g++; do
  command -v $tool >/dev/null || { echo "abi.sh: Skipped: $tool is not installed (apt-get install abigail-tools)"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

declared=$(grep -hoE '^(class|struct|enum class) (BRIM_API )?[A-Za-z]+' "$source"/include/brim/*.h | sed 's/.* //'
  sed 's://.*::; /^#/d' "$source"/include/brim/*.h | tr '\n' ' ' | grep -oE 'BRIM_API [^(;{]*\(' | sed 's/($//; s/.* //; s/^[*&]*//')
for name in $declared; do
  grep -qE "^ *(FUNCTION|TYPE)\($name\);" "$source/tests/abi.cc" || fail "tests/abi.cc does not name brim::$name"
done

# Types of the standard library have an ABI of their own. Virtual functions are part of the debug information only with
# -femit-class-debug-always, because the classes are defined elsewhere.
printf '[suppress_type]\n  name_regexp = ^std::|^__\n  drop = yes\n' >"$work/standard"
describe() { # INCLUDE OUTPUT [LIBRARIES…]
  (cd "$source/tests" && g++ -std=c++20 -g -femit-class-debug-always -fPIC -shared -I"$1" abi.cc "${@:3}" -o "$work/abi.so") || return 1
  abidw --no-architecture --no-show-locs --no-comp-dir-path --no-corpus-path --no-elf-needed --no-parameter-names --type-id-style hash \
    --suppressions "$work/standard" --out-file "$2" "$work/abi.so"
}
describe "$source/include" "$work/new.abi" -L"$build" -lbrim -Wl,--no-undefined -Wl,--unresolved-symbols=ignore-in-shared-libs ||
  fail "libbrim.so lacks functions of include/brim"

soname=$(readelf -d "$build/libbrim.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
known=$source/tests/data/abi/$soname.abi
if [ "${2:-}" = --update ]; then
  mkdir -p "$(dirname "$known")"
  cp "$work/new.abi" "$known"
  echo "abi: wrote $known"
  exit
fi
[ -f "$known" ] || fail "$soname is new: run tests/abi.sh BUILD --update"
abidiff --no-added-syms "$known" "$work/new.abi" >"$work/difference" || {
  cat "$work/difference"
  fail "the ABI of $soname has changed: raise the minor version in CMakeLists.txt, or, if $soname was never released, run tests/abi.sh BUILD --update"
}
# The comparison notices a change of a layout and of a table of virtual functions.
mkdir "$work/changed"
for edit in 's/int64_t cache_bytes = 0;/int64_t cache_bytes = 0, more = 0;/' 's/virtual ModelKind kind() const = 0;/virtual int more() const = 0; &/' \
  's/std::string name, driver;/std::string name, driver, more;/'; do
  rm -rf "$work/changed/brim"
  cp -r "$source/include/brim" "$work/changed"
  sed -i "$edit" "$work"/changed/brim/*.h
  describe "$work/changed" "$work/changed.abi"
  ! abidiff --no-added-syms "$known" "$work/changed.abi" >/dev/null || fail "no difference after $edit"
done
echo "abi: $soname is unchanged"
