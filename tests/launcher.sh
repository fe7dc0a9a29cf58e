#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# launcher.sh: what ./brim decides and says, in a made-up checkout with stand-ins for the machine: device files, driver,
# nvcc, nvidia-smi, packages, CMake. Nothing is built.
set -euo pipefail
source=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/machine here=$work/checkout
failures=0
mkdir "$work/tools" # the machine's own nvcc and nvidia-smi stay out of sight
for name in awk bash cat chmod cut dirname env find flock grep head id ln ls mkdir mktemp mv paste readlink rm sed sh sort tail touch tr; do
  ln -s "$(command -v "$name")" "$work/tools/$name"
done

new_machine() {
  rm -rf "$root" "$here"
  mkdir -p "$root"/{dev,bin,usr/lib/wsl/lib,usr/local/cuda/bin,opt/cuda/bin,var/lib/dpkg,proc/driver/nvidia/gpus} "$here"/{src,cmake,tools}
  touch -d '2 hours ago' "$root/var/lib/dpkg/status" "$here"/{CMakeLists.txt,CMakePresets.json} "$here"/{src,cmake}
  local place
  for place in /dev/nvidiactl /dev/dxg /usr/lib/wsl/lib /proc/driver /usr/local/cuda /opt/cuda /var/lib/dpkg; do
    grep -q "$place" "$source/brim" || { echo "launcher.sh: ./brim does not look at $place any more"; exit 1; }
  done
  sed -E "s,(^|[ \":])(/dev/|/usr/lib/wsl|/proc/driver|/usr/local/cuda|/opt/cuda|/var/lib/dpkg),\1$root\2,g" "$source/brim" >"$here/brim"
  chmod +x "$here/brim"
  tool "$here/tools/setup" 'echo setup >>"$WORK/calls"; [ ! -e "$WORK/no-packages" ]'
  tool "$root/bin/cmake" 'echo "cmake $*" >>"$WORK/calls"
    case "$1 $2" in --build*) mkdir -p "$2/src/cli"; printf "#!/bin/sh\necho ran \$*\n" >"$2/src/cli/brim"; chmod +x "$2/src/cli/brim" ;; esac'
  rm -f "$work/no-packages"
}
tool() { printf '#!/bin/bash\nWORK=%s\n%s\n' "$work" "$2" >"$1" && chmod +x "$1" && touch -d '2 hours ago' "$1"; }
nvcc_at() { # path release "codes"
  mkdir -p "$(dirname "$1")"
  tool "$1" "case \$1 in
    --version) echo 'Cuda compilation tools, release $2, V$2.88' ;;
    --list-gpu-code) printf 'sm_%s\n' $3 ;;
    --list-gpu-arch) printf 'compute_%s\n' $3 ;;
    esac"
}
smi_says() { tool "$root/bin/nvidia-smi" "printf '%s\n' $*"; }
run() {
  rm -f "$work/calls" "$work/err"
  touch "$work/calls"
  code=0
  out=$(PATH=$root/bin:$work/tools env -u CUDA_HOME "$here/brim" "$@" 2>"$work/err") || code=$?
}
expect() { # what, condition…
  local what=$1
  shift
  "$@" || { echo "FAILED: $what"; sed 's/^/  calls: /' "$work/calls"; sed 's/^/  stderr: /' "$work/err"; failures=$((failures + 1)); }
}
called() { grep -q -- "$1" "$work/calls"; }
said() { grep -q -- "$1" "$work/err"; }
nothing_built() { [ ! -s "$work/calls" ]; }

new_machine
run score x
expect "no card: the CPU" called "--preset release"
expect "no card: says so" said "building for the CPU"
expect "no card: one line" [ "$(wc -l <"$work/err")" = 1 ]
expect "runs the program with its arguments" [ "$out" = "ran score x" ]
run
expect "the second call builds nothing" nothing_built
expect "the second call says nothing" [ ! -s "$work/err" ]

touch "$root/var/lib/dpkg/status"
run
expect "a package was installed: builds again" called "--preset release"
run
expect "and only once" nothing_built
touch "$root/var/lib/dpkg/status" "$work/no-packages"
run
expect "a package went away: what was built runs" [ "$code $out" = "0 ran" ]
touch "$here/src"
run
expect "sources changed and packages are missing: ends" [ "$code" = 1 ]
rm "$work/no-packages"
run
expect "the missing package came: builds" called "--build"

new_machine
touch "$root/dev/nvidiactl"
run
expect "a card without nvcc: the CPU" called "--preset release"
expect "a card without nvcc: says what is missing" said "no CUDA compiler (nvcc).*tools/setup --cuda"
run
expect "a card without nvcc: says so once" [ ! -s "$work/err" ]
nvcc_at "$here/build/toolkit/nvidia/cu13/bin/nvcc" 13.0 "75 80 86 89 90"
smi_says "'8.6, NVIDIA GeForce RTX 3070'"
run
expect "nvcc came: builds for the card" called "--preset cuda.*-DCMAKE_CUDA_COMPILER=$here/build/toolkit/nvidia/cu13/bin/nvcc -DBRIM_CUDA_ARCHS=86-real$"
expect "nvcc came: says for which" said "building for NVIDIA GeForce RTX 3070 (sm_86)"
run
expect "built for the card: done" nothing_built

new_machine
touch "$root/dev/dxg"
run
expect "WSL2 with another maker's card: the CPU, no word of a card" said "^brim: building for the CPU"
touch "$root/usr/lib/wsl/lib/libcuda.so.1"
nvcc_at "$root/usr/local/cuda/bin/nvcc" 12.8 "75 80 86 89 90 100 120"
tool "$root/usr/lib/wsl/lib/nvidia-smi" "printf '%s\n' '8.9, NVIDIA GeForce RTX 4060 Laptop GPU'"
run
expect "WSL2 with an NVIDIA card" called "-DBRIM_CUDA_ARCHS=89-real$"

new_machine
touch "$root/dev/nvidiactl"
nvcc_at "$root/usr/local/cuda/bin/nvcc" 12.4 "75 80 86 89 90"
smi_says "'12.0, NVIDIA GeForce RTX 5090' '7.5, Tesla T4' '6.1, NVIDIA GeForce GTX 1080'"
run
expect "several cards, one newer than nvcc, one too old" called "-DBRIM_CUDA_ARCHS=75-real;90-virtual$"
smi_says "'8.0, NVIDIA A100'"
mkdir -p "$root/proc/driver/nvidia/gpus/0000:01:00.0"
printf 'Model: \t\t NVIDIA A100\nIRQ: 1\n' >"$root/proc/driver/nvidia/gpus/0000:01:00.0/information"
run
expect "another card: builds again" called "-DBRIM_CUDA_ARCHS=80-real$"
smi_says "broken"
printf 'Model: \t\t NVIDIA H100\n' >"$root/proc/driver/nvidia/gpus/0000:01:00.0/information"
run
expect "nvidia-smi does not say: code for all" called "-DBRIM_CUDA_ARCHS=90-real;80-virtual;75-virtual$"

new_machine
touch "$root/dev/nvidiactl"
nvcc_at "$root/usr/local/cuda/bin/nvcc" 11.8 "75 80"
run
expect "an old nvcc: the CPU" called "--preset release"
expect "an old nvcc: says so" said "CUDA 11.8, Brim needs 12"
new_machine
touch "$root/dev/nvidiactl"
nvcc_at "$root/usr/local/cuda/bin/nvcc" 13.0 "75 80"
smi_says "'6.1, NVIDIA GeForce GTX 1080'"
run
expect "an old card: the CPU" called "--preset release"
expect "an old card: says so" said "GTX 1080: compute capability 6.1, .*7.5"

# tools/setup --cuda: what is asked of pip, and the names that compilers look for.
new_machine
cp "$source/tools/setup" "$here/tools/setup"
tool "$root/bin/dpkg-query" 'echo install ok installed'
tool "$root/bin/python3" 'case "$*" in *--version*) exit 0 ;; esac
  while [ $# -gt 1 ]; do [ "$1" = --target ] && target=$2; shift; done
  echo "pip $1" >>"$WORK/calls"
  mkdir -p "$target/nvidia/cu13/bin" "$target/nvidia/cu13/lib"
  touch "$target/nvidia/cu13/lib/libcublasLt.so.13" "$target/nvidia/cu13/bin/nvcc"'
set_up() {
  rm -f "$work/calls"
  touch "$work/calls"
  code=0
  PATH=$root/bin:$work/tools "$here/tools/setup" "$@" >/dev/null 2>"$work/err" || code=$?
}
set_up --cuda
expect "no nvidia-smi: the first CUDA that PyPI has" called "pip cuda-toolkit.*>=13.0,<13.1$"
expect "the linker's name" [ "$(readlink "$here/build/toolkit/nvidia/cu13/lib/libcublasLt.so")" = libcublasLt.so.13 ]
expect "the compiler's folder" [ -e "$here/build/toolkit/nvidia/cu13/lib64/libcublasLt.so.13" ]
set_up --cuda
expect "it is there: nothing is fetched" nothing_built
rm -r "$here/build/toolkit"
smi_says "'| NVIDIA-SMI 590.1   Driver Version: 590.1   CUDA Version: 13.2 |'"
set_up --cuda
expect "not newer than the driver runs" called "<13.3$"
rm -r "$here/build/toolkit"
smi_says "'| NVIDIA-SMI 550.1   Driver Version: 550.1   CUDA Version: 12.4 |'"
set_up --cuda
expect "an old driver: nothing is fetched" [ "$code" = 1 ]
expect "an old driver: says so" said "driver runs CUDA 12.4, PyPI has a compiler from 13.0 on"
set_up --gpu
expect "an unknown flag" [ "$code" = 2 ]

# tools/setup: packages are listed before they are installed, and may be refused.
tool "$root/bin/dpkg-query" 'case "$*" in *ninja-build) exit 1 ;; esac; echo install ok installed'
tool "$root/bin/apt-cache" 'echo "Candidate: 1.83"'
tool "$root/bin/apt-get" 'echo "apt-get $*" >>"$WORK/calls"'
tool "$root/bin/sudo" 'echo "sudo $*" >>"$WORK/calls"; "$@"'
tool "$root/bin/id" 'echo 1000'
tool "$root/bin/python3" 'exit 0'
BRIM_NO_INSTALL=1 set_up
expect "packages refused: exit 1" [ "$code" = 1 ]
expect "packages refused: nothing is installed" nothing_built
expect "packages refused: lists them" said "missing packages: .*ninja-build.*BRIM_NO_INSTALL is set"
set_up </dev/null
expect "without a terminal: installs" called "^sudo env .*apt-get install -y .*ninja-build"
expect "without a terminal: lists them and the way to refuse" said "installing with sudo apt-get: .*ninja-build.*BRIM_NO_INSTALL=1 refuses"
if command -v script >/dev/null; then # a terminal
  at_terminal() { # answer
    rm -f "$work/calls"
    touch "$work/calls"
    code=0
    printf '%s\n' "$1" | PATH=$root/bin:$work/tools "$(command -v script)" -qec "$here/tools/setup" "$work/err" >/dev/null || code=$?
  }
  at_terminal n
  expect "a terminal: asks" said "install with sudo apt-get: .*ninja-build.*\[Y/n\]"
  expect "a terminal, no: exit 1" [ "$code" = 1 ]
  expect "a terminal, no: nothing is installed" nothing_built
  at_terminal ''
  expect "a terminal, Enter: installs" called "^apt-get install -y .*ninja-build"
fi

[ "$failures" = 0 ] && echo "launcher: all as expected" || exit 1
