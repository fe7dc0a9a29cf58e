#!/usr/bin/env bash
# hardening.sh BUILD: checks with readelf that the program, the library and the Python module were compiled and linked with hardening.
set -euo pipefail
build=$(readlink -f "$1")
failed=0
fail() { echo "hardening.sh: $*" >&2; failed=1; }
has() { grep -E "$1" >/dev/null; } # reads all input, unlike grep -q, which would fail the pipeline (SIGPIPE)

for file in "$build/src/cli/brim" "$build"/libbrim.so.*.*.* "$build"/python/_brim*.so; do
  [ -e "$file" ] || continue # the Python module is optional
  readelf -lW "$file" | has 'GNU_RELRO' || fail "$file: no RELRO segment"
  readelf -dW "$file" | has 'BIND_NOW|FLAGS_1.*NOW' || fail "$file: lazy binding"
  readelf -hW "$file" | has 'Type: *DYN' || fail "$file: not position-independent"
  ! readelf -lW "$file" | has 'GNU_STACK.* RWE' || fail "$file: executable stack"
done
symbols=$(readelf --dyn-syms -W "$build/src/cli/brim")
has '__stack_chk_fail' <<<"$symbols" || fail "no stack protector"
has '__[a-z]+_chk(@|$)' <<<"$symbols" || fail "no _FORTIFY_SOURCE"
has '__glibcxx_assert_fail|_ZSt21__glibcxx_assert_fail' <<<"$symbols" || fail "no library assertions"
# Linked files have the note only if the system's start files have it, so check the objects.
case $(uname -m) in
  x86_64) wanted='IBT, SHSTK' ;;
  aarch64) wanted='BTI, PAC' ;;
  *) wanted=. ;;
esac
readelf -nW "$build/src/base/libbrim_base.a" 2>/dev/null | has "$wanted" || fail "objects without branch protection ($wanted)"
exit $failed
