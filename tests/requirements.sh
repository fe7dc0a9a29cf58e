#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# requirements.sh: configures without some of the packages that the build needs, as on a machine that lacks them, and checks
# that the error names the packages and the command that installs them.
set -euo pipefail
source=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "requirements.sh: $*" >&2; exit 1; }
configure() { # SETTINGS…: must fail; stores the messages as one line
  rm -rf "$work/build"
  ! env -u CXX cmake -G Ninja -S "$source" -B "$work/build" -DBRIM_TESTS=OFF "$@" >"$work/log" 2>&1 || fail "configured although packages are missing: $*"
  tr '\n' ' ' <"$work/log" | tr -s ' ' >"$work/messages"
}
names() { grep -F -- "$1" "$work/messages" >/dev/null || { cat "$work/log"; fail "the error does not contain: $1"; }; }

configure -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON -DCMAKE_DISABLE_FIND_PACKAGE_CURL=ON
names "apt-get install libfmt-dev libcurl4-openssl-dev Without root rights, install a prebuilt wheel"
configure -DBRIM_ZSTD_INCLUDE=
names "libzstd-dev"
configure -DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF -DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF -DCMAKE_MAKE_PROGRAM="$(command -v ninja)"
names "there is no C++ compiler"
names "$(sed -n 's/^packages=(\(.*\))$/apt-get install \1/p' "$source/tools/setup")"
echo "requirements: passed"
