#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bare_install.sh DIST [PYTHON3.10]: installs every wheel, .deb and sdist of DIST in a minimal root without a compiler, and
# scores texts: wheels without a network, on Debian 12, and those of the stable ABI on Debian 13. Debian lacks Python 3.10, so
# the root uses that of this machine. The sdist must name the missing packages. The roots are stored in build/roots. Exits
# with 77 (skipped) without root rights or debootstrap.
set -euo pipefail
dist=$(readlink -f "$1") python310=${2:-} source=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
source "$source/tools/bare_root.sh"
require_bare_root bare_install.sh || exit 77
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
fail() { echo "bare_install.sh: $*" >&2; exit 1; }
bare='for tool in cc g++ clang cmake nvcc; do ! command -v $tool || { echo "the root has $tool" >&2; exit 1; }; done
[ -z "$(ldconfig -p | grep libcurl)" ] || { echo "the root has libcurl" >&2; exit 1; }'
for i in $(seq 10); do echo "I love this, number $i"; done >"$work/texts.txt"
openssl req -x509 -newkey rsa:2048 -nodes -keyout "$work/key.pem" -out "$work/cert.pem" -days 2 -subj /CN=127.0.0.1 \
  -addext subjectAltName=IP:127.0.0.1 2>/dev/null
cat "$work/key.pem" "$work/cert.pem" >"$work/hub.pem"

root_of() { # SUITE: prints the directory of its root; creates it once
  local dir=$source/build/roots/$1
  if [ ! -e "$dir/.complete" ]; then
    mkdir -p "$source/build/roots"
    make_bare_root "$1" "$dir" python3,python3-venv >&2 && touch "$dir/.complete" || return 1
  fi
  echo "$dir"
}
packages_for() { # VERSION FOLDER PACKAGES…: downloads wheels for this Python version
  local python=$1 folder=$2 platform platforms=()
  shift 2
  for platform in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do platforms+=(--platform "${platform}_$(uname -m)"); done
  python3 -m pip download --quiet --disable-pip-version-check --only-binary=:all: --implementation cp --python-version "$python" "${platforms[@]}" --dest "$folder" "$@"
}
check_wheel() { # WHEEL SUITE PYTHON-VERSION [PYTHON]
  local root changes=$work/$3 python=${4:-python3} shared=''
  root=$(root_of "$2") || fail "no root of $2"
  [ -z "${4:-}" ] || shared=$("$4" -c 'import sys; print(sys.base_prefix)')
  mkdir -p "$changes/upper/dist"
  packages_for "$3" "$changes/upper/dist" numpy
  cp "$1" "$work/texts.txt" "$work/hub.pem" "$source/tests/installed.py" "$source/tests/loopback_hub.py" "$changes/upper/dist"
  inside_copy "$root" "$changes" "set -euo pipefail
    export HOME=/root PATH=/opt/brim/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
    $bare
    began=\$(date +%s%N)
    $python -m venv /opt/brim
    pip install --quiet --no-index --find-links /dist brim
    installed=\$(date +%s%N)
    brim score /dist/texts.txt -q -o /tmp/labels.csv
    scored=\$(date +%s%N)
    [ \"\$(grep -c positive /tmp/labels.csv)\" -eq 10 ]
    python /dist/installed.py /dist/hub.pem
    echo \"installed in \$(((installed - began) / 1000000)) ms, ten labels \$(((scored - installed) / 1000000)) ms later\"" "$shared" \
    >"$work/out" 2>&1 || { cat "$work/out"; fail "$(basename "$1") on $2"; }
  echo "$(basename "$1"), $(($(stat -c %s "$1") >> 20)) MiB, on $2: $(tail -1 "$work/out")"
}
check_deb() { # PACKAGE
  local root changes=$work/deb
  root=$(root_of bookworm) || fail "no root of bookworm"
  mkdir -p "$changes/upper"/{dist,etc/apt/apt.conf.d}
  give_network "$changes/upper"
  cp "$1" "$work/texts.txt" "$changes/upper/dist"
  inside_copy "$root" "$changes" "set -euo pipefail
    export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
    $bare
    apt-get update -q && apt-get install -q -y --no-install-recommends /dist/*.deb
    brim score /dist/texts.txt -q -o /tmp/labels.csv
    [ \"\$(grep -c positive /tmp/labels.csv)\" -eq 10 ]
    brim help serve >/dev/null
    apt-get remove -q -y brim && [ ! -e /usr/bin/brim ]" >"$work/out" 2>&1 || { cat "$work/out"; fail "$(basename "$1") on bookworm"; }
  echo "$(basename "$1"), $(($(stat -c %s "$1") >> 20)) MiB, on bookworm: installed, ten labels, removed"
}
check_sdist() { # ARCHIVE: without a compiler the build fails and names the packages
  local root changes=$work/sdist
  root=$(root_of bookworm) || fail "no root of bookworm"
  mkdir -p "$changes/upper/dist"
  packages_for 3.11 "$changes/upper/dist" numpy scikit-build-core nanobind cmake ninja
  cp "$1" "$changes/upper/dist"
  inside_copy "$root" "$changes" "export HOME=/root PATH=/opt/brim/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
    python3 -m venv /opt/brim && pip install --no-index --find-links /dist /dist/*.tar.gz" >"$work/out" 2>&1 &&
    fail "$(basename "$1") was built without a compiler"
  grep 'apt-get install g++ cmake' "$work/out" >/dev/null || { tail -40 "$work/out"; fail "$(basename "$1"): the error does not name the packages"; }
  echo "$(basename "$1"), $(($(stat -c %s "$1") >> 20)) MiB, on bookworm: names the missing packages"
}

checked=0
for file in "$dist"/*; do
  case $file in
    *-cp310-cp310-*.whl)
      [ -n "$python310" ] || { echo "bare_install.sh: Skipped: $(basename "$file"), no interpreter"; continue; }
      check_wheel "$file" bookworm 3.10 "$python310"
      ;;
    *-cp311-cp311-*.whl) check_wheel "$file" bookworm 3.11 ;;
    *-cp312-abi3-*.whl) check_wheel "$file" trixie 3.13 ;;
    *.whl) fail "$(basename "$file"): unexpected tag" ;;
    *.deb) check_deb "$file" ;;
    *.tar.gz) check_sdist "$file" ;;
    *) continue ;;
  esac
  checked=$((checked + 1))
done
[ $checked -gt 0 ] || fail "$dist has no packages"
echo "bare_install: $checked packages passed"
