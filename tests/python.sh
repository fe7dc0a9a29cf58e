#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# python.sh BUILD PYTHON [SCRIPT…]: installs the module with the layout of a wheel and runs its tests, or SCRIPT, with PYTHON. Exits
# with 77 (skipped) if PYTHON lacks nanobind, numpy or pytest; tools/setup --tests installs them.
set -euo pipefail
build=$1 python=${2:-} source=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
if [ -z "$python" ] || ! "$python" -c 'import nanobind, numpy, pytest' 2>/dev/null; then
  echo "python: Skipped, no interpreter with nanobind, numpy and pytest (run tools/setup --tests; requires PyPI)"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --component python --prefix "$work/brim" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
stand_in=$(readlink -f "$build")/src/monitor/libnvml_stand_in.so
[ ! -f "$stand_in" ] || export BRIM_NVML_STAND_IN=$stand_in
cd "$work"
shift 2
[ $# -gt 0 ] || set -- -m pytest -q -p no:cacheprovider "$source/tests/python"
env -u BRIM_HOME PYTHONPATH="$work" PYTHONDONTWRITEBYTECODE=1 "$python" "$@"
