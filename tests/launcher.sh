#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests ./brim and tools/setup in a fake checkout with mocked device files, driver, nvcc, nvidia-smi, packages and CMake.
# Builds nothing.
set -euo pipefail
source=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/machine here=$work/checkout
failures=0
mkdir "$work/tools" # hides the real nvcc and nvidia-smi
for name in awk bash cat chmod cp cut dirname env find flock grep head id ln ls mkdir mktemp mv nproc paste readlink rm sed sh sleep sort stat tail touch tr; do
  ln -s "$(command -v "$name")" "$work/tools/$name"
done

new_machine() {
  rm -rf "$root" "$here"
  mkdir -p "$root"/{dev,bin,usr/lib/wsl/lib,usr/local/cuda/bin,opt/cuda/bin,var/lib/dpkg,proc/driver/nvidia/gpus} "$here"/{src,cmake,tools}
  touch -d '2 hours ago' "$root/var/lib/dpkg/status" "$here"/{CMakeLists.txt,CMakePresets.json} "$here"/{src,cmake}
  local path
  for path in /dev/nvidiactl /dev/dxg /usr/lib/wsl/lib /proc/driver /usr/local/cuda /opt/cuda /var/lib/dpkg; do
    grep -q "$path" "$source/brim" || { echo "launcher.sh: ./brim no longer uses $path"; exit 1; }
  done
  sed -E "s,(^|[ \":<])(/dev/|/usr/lib/wsl|/proc/driver|/usr/local/cuda|/opt/cuda|/var/lib/dpkg),\1$root\2,g" "$source/brim" >"$here/brim"
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
mock_smi() { tool "$root/bin/nvidia-smi" "printf '%s\n' $*"; }
run() {
  rm -f "$work/calls" "$work/err"
  touch "$work/calls"
  code=0
  out=$(PATH=$root/bin:$work/tools env -u CUDA_HOME "$here/brim" "$@" 2>"$work/err") || code=$?
}
expect() { # description, condition…
  local description=$1
  shift
  "$@" || { echo "FAILED: $description"; sed 's/^/  calls: /' "$work/calls"; sed 's/^/  stderr: /' "$work/err"; failures=$((failures + 1)); }
}
called() { grep -q -- "$1" "$work/calls"; }
logged() { grep -q -- "$1" "$work/err"; }
no_calls() { [ ! -s "$work/calls" ]; }

new_machine
run serve x
expect "no GPU: builds for the CPU" called "--preset release"
expect "no GPU: logs the target" logged "building for the CPU"
expect "no GPU: logs one line" [ "$(wc -l <"$work/err")" = 1 ]
expect "runs the program with its arguments" [ "$out" = "ran serve x" ]
run
expect "the second call builds nothing" no_calls
expect "the second call logs nothing" [ ! -s "$work/err" ]

touch "$root/var/lib/dpkg/status"
run
expect "a package was installed: rebuilds" called "--preset release"
run
expect "a package was installed: rebuilds once" no_calls
touch "$root/var/lib/dpkg/status" "$work/no-packages"
run
expect "a package was removed: runs the existing build" [ "$code $out" = "0 ran" ]
touch "$here/src"
run
expect "sources changed and packages are missing: fails" [ "$code" = 1 ]
rm "$work/no-packages"
run
expect "the missing package was installed: builds" called "--build"

new_machine
run score x --model a
expect "score: builds the part that scores" called "--preset release .*-DBRIM_SCORING_ONLY=ON -DBRIM_SERVE=OFF"
run embed x
expect "another command of this part: builds nothing" no_calls
run train
expect "train: builds the commands without the server" called "-DBRIM_SCORING_ONLY=OFF -DBRIM_SERVE=OFF"
expect "train: logs the build" logged "building the other commands except the server for the CPU (takes about"
run score x
expect "score after train: builds nothing" no_calls
touch "$here/src"
run score x
expect "keeps the commands" called "-DBRIM_SCORING_ONLY=OFF -DBRIM_SERVE=OFF"
run serve
expect "serve: builds the server" called "-DBRIM_SCORING_ONLY=OFF -DBRIM_SERVE=ON"
touch "$here/src"
run score x
expect "keeps the server" called "-DBRIM_SCORING_ONLY=OFF -DBRIM_SERVE=ON"
expect "cmake --preset after score: resets to all commands" grep -q '"name": "base".*"BRIM_SERVE": "ON", "BRIM_SCORING_ONLY": "OFF"' "$source/CMakePresets.json"
new_machine
tool "$root/bin/flock" "printf '%s\n' 'release  ' 'part commands' >'$here/build/release/.built' # another call built meanwhile
  mkdir -p '$here/build/release/src/cli'; printf '#!/bin/sh\n' >'$here/build/release/src/cli/brim'; chmod +x '$here/build/release/src/cli/brim'"
run score x
expect "score beside a build of more commands: builds nothing" no_calls
scoring=$(sed -n 's/^ *{"\([a-z]*\)", .*/\1/p' "$source/src/cli/verbs_scoring.cc")
expect "knows the commands that score" [ "$(wc -w <<<"$scoring")" -ge 5 ]
for command in $(sed -n 's/^ *{"\([a-z]*\)", .*/\1/p' "$source/src/cli/verbs.cc"); do
  new_machine
  run $command
  case " $(echo $scoring) " in
    *" $command "*) expect "brim $command: builds only the part that scores" called "-DBRIM_SCORING_ONLY=ON" ;;
    *) expect "brim $command: builds more than the part that scores" called "-DBRIM_SCORING_ONLY=OFF" ;;
  esac
done
for arguments in "help" "score --help" "doctor -- brim serve" "plan --serve x" ""; do
  new_machine
  run $arguments
  expect "brim $arguments: builds the server" called "-DBRIM_SERVE=ON"
done
for arguments in "forecast predict --horizon 24" "score my-head.csv" "score observed.csv --env-file x"; do
  new_machine
  BRIM_LISTEN=:1 run $arguments
  expect "brim $arguments: does not build the server" called "-DBRIM_SERVE=OFF"
done

new_machine
steps() { tool "$root/bin/cmake" "case \$1 in --build) mkdir -p \$2/src/cli; printf '#!/bin/sh\n' >\$2/src/cli/brim; chmod +x \$2/src/cli/brim
    for step in $1; do echo \"[\$step/30] Building\"; sleep 0.5; done ;; esac"; }
steps "1 4 17"
run score x
expect "logs progress every 10 %" [ "$(sed -n 's/.*compiled //p' "$work/err" | tr '\n' ' ')" = "13 % 56 % " ]
run serve
expect "the server after another command: logs the build" logged "^brim: building the other commands for the CPU (takes about"
expect "the server after another command: logs progress" logged "compiled 56 %"
touch "$here/src"
run serve
expect "sources changed: logs the build" logged "^brim: rebuilding for the CPU"
steps ""
touch "$here/src"
run serve
expect "nothing to compile: logs nothing" [ ! -s "$work/err" ]

new_machine
touch "$root/dev/nvidiactl"
run
expect "GPU without nvcc: builds for the CPU" called "--preset release"
expect "GPU without nvcc: logs the missing compiler" logged "no CUDA compiler (nvcc).*tools/setup --cuda"
run
expect "GPU without nvcc: logs it once" [ ! -s "$work/err" ]
nvcc_at "$here/build/toolkit/nvidia/cu13/bin/nvcc" 13.0 "75 80 86 89 90"
mock_smi "'8.6, NVIDIA GeForce RTX 3070'"
run
expect "nvcc was installed: builds for the GPU" called "--preset cuda.*-DCMAKE_CUDA_COMPILER=$here/build/toolkit/nvidia/cu13/bin/nvcc -DBRIM_CUDA_ARCHS=86-real$"
expect "nvcc was installed: logs the GPU" logged "building for NVIDIA GeForce RTX 3070 (sm_86)"
run
expect "built for the GPU: the next call builds nothing" no_calls

nvcc_at "$here/build/toolkit/nvidia/cu13/bin/nvcc" 13.0.2 "75 80 86 89 90"
run
expect "nvcc was upgraded in place: builds again" called "-DBRIM_CUDA_ARCHS=86-real$"
run
expect "nvcc was upgraded in place: builds once" no_calls

new_machine
touch "$root/dev/dxg"
run
expect "WSL2 with a GPU of another vendor: builds for the CPU without a warning" logged "^brim: building for the CPU"
touch "$root/usr/lib/wsl/lib/libcuda.so.1"
nvcc_at "$root/usr/local/cuda/bin/nvcc" 12.8 "75 80 86 89 90 100 120"
tool "$root/usr/lib/wsl/lib/nvidia-smi" "printf '%s\n' '8.9, NVIDIA GeForce RTX 4060 Laptop GPU'"
run
expect "WSL2 with an NVIDIA GPU" called "-DBRIM_CUDA_ARCHS=89-real$"
nvcc_at "$root/usr/local/cuda/bin/nvcc" 13.0 "75 80 86 89 90"
tool "$root/usr/lib/wsl/lib/nvidia-smi" "printf '%s\n' 'CUDA Version: 12.4' '8.9, NVIDIA GeForce RTX 4060 Laptop GPU'"
run
expect "WSL2, nvcc newer than the driver: runs the CPU build" logged "nvcc is CUDA 13.0, but the driver supports only CUDA 12.4; building for the CPU"
tool "$root/usr/lib/wsl/lib/nvidia-smi" "printf '%s\n' 'CUDA Version: 13.0' '8.9, NVIDIA GeForce RTX 4060 Laptop GPU'"
echo 580 >"$root/usr/lib/wsl/lib/libcuda.so.1"
run
expect "WSL2, the driver was updated: builds for the GPU" called "--preset cuda"

new_machine
touch "$root/dev/nvidiactl"
nvcc_at "$root/usr/local/cuda/bin/nvcc" 12.4 "75 80 86 89 90"
mock_smi "'12.0, NVIDIA GeForce RTX 5090' '7.5, Tesla T4' '6.1, NVIDIA GeForce GTX 1080'"
run
expect "several GPUs, one newer than nvcc, one too old" called "-DBRIM_CUDA_ARCHS=75-real;90-virtual$"
mock_smi "'8.0, NVIDIA A100'"
mkdir -p "$root/proc/driver/nvidia/gpus/0000:01:00.0"
printf 'Model: \t\t NVIDIA A100\nIRQ: 1\n' >"$root/proc/driver/nvidia/gpus/0000:01:00.0/information"
run
expect "GPU replaced: rebuilds" called "-DBRIM_CUDA_ARCHS=80-real$"
mock_smi "broken"
printf 'Model: \t\t NVIDIA H100\n' >"$root/proc/driver/nvidia/gpus/0000:01:00.0/information"
run
expect "nvidia-smi fails, CUDA 12: builds real code for all architectures" called "-DBRIM_CUDA_ARCHS=90;89-real;86-real;80-real;75-real$"

new_machine
touch "$root/dev/nvidiactl"
nvcc_at "$root/usr/local/cuda/bin/nvcc" 13.0 "75 80 86 89 90"
run
expect "no nvidia-smi: builds for all architectures" called "-DBRIM_CUDA_ARCHS=90-real;80-virtual;75-virtual$"

new_machine
touch "$root/dev/nvidiactl"
nvcc_at "$root/usr/local/cuda/bin/nvcc" 11.8 "75 80"
run
expect "old nvcc: builds for the CPU" called "--preset release"
expect "old nvcc: logs the version" logged "CUDA 11.8, Brim needs 12"
new_machine
touch "$root/dev/nvidiactl"
nvcc_at "$root/usr/local/cuda/bin/nvcc" 13.0 "75 80 86"
mock_smi "'| Driver Version: 550.1   CUDA Version: 12.4 |' '8.6, NVIDIA GeForce RTX 3070'"
run
expect "nvcc newer than the driver: builds for the CPU" called "--preset release"
expect "nvcc newer than the driver: logs both versions" logged "nvcc is CUDA 13.0, but the driver supports only CUDA 12.4.*tools/setup --cuda"
nvcc_at "$here/build/toolkit/nvidia/cu12/bin/nvcc" 12.4 "75 80 86"
run
expect "nvcc of the driver's version: builds for the GPU" called "-DCMAKE_CUDA_COMPILER=$here/build/toolkit/nvidia/cu12/bin/nvcc -DBRIM_CUDA_ARCHS=86-real$"
new_machine
touch "$root/dev/nvidiactl"
nvcc_at "$root/usr/local/cuda/bin/nvcc" 13.0 "75 80 86"
mock_smi "'CUDA Version: 12.4' '8.6, NVIDIA GeForce RTX 3070'"
printf 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14\nGCC version: 12\n' >"$root/proc/driver/nvidia/version"
run
expect "driver 550 and nvcc 13: builds for the CPU" called "--preset release"
mock_smi "'CUDA Version: 13.0' '8.6, NVIDIA GeForce RTX 3070'"
run
expect "the same driver: builds nothing" no_calls
printf 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06\nGCC version: 12\n' >"$root/proc/driver/nvidia/version"
run
expect "the driver was updated: builds for the GPU" called "-DBRIM_CUDA_ARCHS=86-real$"
new_machine
touch "$root/dev/nvidiactl"
nvcc_at "$root/usr/local/cuda/bin/nvcc" 13.0 "75 80"
mock_smi "'6.1, NVIDIA GeForce GTX 1080'"
run
expect "old GPU: builds for the CPU" called "--preset release"
expect "old GPU: logs the compute capability" logged "GTX 1080: compute capability 6.1 .*7.5"

# tools/setup --cuda: the version requested from pip, and the library names that compilers expect.
new_machine
cp "$source/tools/setup" "$here/tools/setup"
tool "$root/bin/dpkg-query" 'echo install ok installed'
tool "$root/bin/python3" 'case "$*" in *--version*) exit 0 ;; esac
  while [ $# -gt 1 ]; do [ "$1" = --target ] && target=$2; shift; done
  echo "pip $1" >>"$WORK/calls"
  mkdir -p "$target/nvidia/cu13/bin" "$target/nvidia/cu13/lib"
  touch "$target/nvidia/cu13/lib/libcublasLt.so.13" "$target/nvidia/cu13/bin/nvcc"
  chmod +x "$target/nvidia/cu13/bin/nvcc"'
set_up() {
  rm -f "$work/calls"
  touch "$work/calls"
  code=0
  PATH=$root/bin:$work/tools "$here/tools/setup" "$@" >/dev/null 2>"$work/err" || code=$?
}
set_up --cuda
expect "no nvidia-smi: installs the first CUDA version on PyPI" called "pip cuda-toolkit.*>=13.0,<13.1$"
expect "creates the linker name" [ "$(readlink "$here/build/toolkit/nvidia/cu13/lib/libcublasLt.so")" = libcublasLt.so.13 ]
expect "creates lib64" [ -e "$here/build/toolkit/nvidia/cu13/lib64/libcublasLt.so.13" ]
set_up --cuda
expect "already installed: downloads nothing" no_calls
expect "already installed: logs the version" logged "CUDA 13 is already in"
rm -r "$here/build/toolkit"
mock_smi "'| NVIDIA-SMI 590.1   Driver Version: 590.1   CUDA Version: 13.2 |'"
set_up --cuda
expect "installs no newer version than the driver supports" called "<13.3$"
rm -r "$here/build/toolkit"
mock_smi "'| NVIDIA-SMI 470.1   Driver Version: 470.1   CUDA Version: 11.4 |'"
set_up --cuda
expect "driver older than 525: fails" [ "$code" = 1 ]
expect "driver older than 525: logs the supported version" logged "driver supports CUDA 11.4, Brim needs 12.0 or newer; update the driver to 525"
mock_smi "'| NVIDIA-SMI 550.1   Driver Version: 550.1   CUDA Version: 12.4 |'"
tool "$root/bin/python3" 'case "$*" in *--version*) exit 0 ;; *urllib*) touch "$4"; exit ;; esac
  while [ $# -gt 1 ]; do [ "$1" = --target ] && target=$2; echo "$1" >>"$WORK/calls"; shift; done
  echo "$1" >>"$WORK/calls"
  mkdir -p "$target"/nvidia/{cublas,cuda_runtime,cuda_nvcc}/{include,lib} "$target/nvidia/cuda_nvcc/nvvm/libdevice"
  touch "$target"/nvidia/cuda_runtime/lib/libcu{dart_static,libos}.a "$target/nvidia/cublas/lib/libcublasLt.so.12"'
tool "$root/bin/sha256sum" 'echo "$(cat "$WORK/sum")  -"'
tool "$root/bin/dpkg-deb" 'bin=$3/usr/lib/nvidia-cuda-toolkit/bin
  mkdir -p "$bin/crt" "$3/usr/bin"
  touch "$bin"/{nvcc,cicc} "$3"/usr/bin/{cudafe++,fatbinary,nvlink,ptxas}
  chmod +x "$bin/nvcc"'
tool "$root/bin/uname" 'echo x86_64'
tool "$root/bin/g++" 'cat "$WORK/gcc"'
echo 12 >"$work/gcc"
echo damaged >"$work/sum"
set_up --cuda
expect "CUDA 12: refuses a damaged package" logged "nvidia-cuda-toolkit_12.*wrong checksum"
expect "CUDA 12: installs nothing then" [ ! -e "$here/build/toolkit" ]
nvcc_at "$here/build/toolkit/nvidia/cu13/bin/nvcc" 13.0 "75 80"
sed -n 's/^ *local sum=//p' "$source/tools/setup" >"$work/sum"
set_up --cuda
home=$here/build/toolkit/nvidia/cu12
expect "driver 550: downloads CUDA 12.4" [ "$code" = 0 ]
expect "driver 550: replaces CUDA 13" [ ! -e "$here/build/toolkit/nvidia/cu13" ]
expect "driver 550: logs the replacement" logged "supports CUDA 12.4 only; replacing CUDA 13"
mock_smi "'| NVIDIA-SMI 580.1   Driver Version: 580.1   CUDA Version: 13.0 |'"
set_up --cuda
expect "newer driver: keeps CUDA 12" no_calls
mock_smi "'| NVIDIA-SMI 550.1   Driver Version: 550.1   CUDA Version: 12.4 |'"
rm -r "$here/build/toolkit"
set_up --cuda
expect "driver 550: logs the version" logged "supports CUDA 12.4; downloading .* CUDA 12.4"
expect "driver 550: libraries of 12.4" called "nvidia-cuda-runtime-cu12==12.4"
expect "CUDA 12: compiler and its profile" [ -x "$home/bin/nvcc" -a -e "$home/nvvm/bin/cicc" -a -e "$home/nvvm/libdevice" -a -e "$home/lib/libcudart_static.a" ]
expect "CUDA 12: uses the default host compiler" [ "$(grep -c compiler-bindir "$home/bin/nvcc.profile")" = 0 ]
expect "CUDA 12: creates the linker name" [ "$(readlink "$home/lib/libcublasLt.so")" = libcublasLt.so.12 ]
rm -r "$here/build/toolkit"
echo 14 >"$work/gcc"
set_up --cuda
expect "g++ 14: names the package" logged "CUDA 12.4 needs g++ 13 or older; run apt-get install g++-13"
tool "$root/bin/g++-13" ''
set_up --cuda
expect "g++ 14: uses g++-13" grep -q "compiler-bindir = .*/g++-13" "$home/bin/nvcc.profile"
set_up --gpu
expect "unknown flag: exit 2" [ "$code" = 2 ]

# tools/setup: lists packages before installing them; the user can decline.
tool "$root/bin/dpkg-query" 'case "$*" in *ninja-build) exit 1 ;; esac; echo install ok installed'
tool "$root/bin/apt-cache" 'echo "Candidate: 1.83"'
tool "$root/bin/apt-get" 'echo "apt-get $*" >>"$WORK/calls"'
tool "$root/bin/sudo" 'echo "sudo $*" >>"$WORK/calls"; "$@"'
tool "$root/bin/id" 'echo 1000'
tool "$root/bin/python3" 'exit 0'
BRIM_NO_INSTALL=1 set_up
expect "BRIM_NO_INSTALL: exit 1" [ "$code" = 1 ]
expect "BRIM_NO_INSTALL: installs nothing" no_calls
expect "BRIM_NO_INSTALL: lists the packages" logged "missing packages: .*ninja-build.*BRIM_NO_INSTALL is set"
set_up </dev/null
expect "without a terminal: installs" called "^sudo env .*apt-get install -y .*ninja-build"
expect "without a terminal: lists the packages and how to prevent it" logged "installing with sudo apt-get: .*ninja-build.*set BRIM_NO_INSTALL=1 to prevent"
if command -v script >/dev/null; then # a terminal
  at_terminal() { # answer
    rm -f "$work/calls"
    touch "$work/calls"
    code=0
    printf '%s\n' "$1" | PATH=$root/bin:$work/tools "$(command -v script)" -qec "$here/tools/setup" "$work/err" >/dev/null || code=$?
  }
  at_terminal n
  expect "terminal: asks for confirmation" logged "install with sudo apt-get: .*ninja-build.*\[Y/n\]"
  expect "terminal, answer no: exit 1" [ "$code" = 1 ]
  expect "terminal, answer no: installs nothing" no_calls
  at_terminal ''
  expect "terminal, Enter: installs" called "^apt-get install -y .*ninja-build"
fi

[ "$failures" = 0 ] && echo "launcher: passed" || exit 1
