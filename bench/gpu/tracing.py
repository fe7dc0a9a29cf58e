#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPU time of a program by kernel, from CUPTI tracing (kernel_times.cc).

    bench/gpu/tracing.py [--last SECONDS] COMMAND ...

Runs COMMAND and prints, for the last SECONDS of its kernels (default: all), each kernel's share, calls, mean and total time, and
the share of that span with at least one kernel running. Tracing adds small gaps between kernels.
"""
import argparse
import collections
import os
import pathlib
import re
import subprocess
import tempfile


def build(work):
    """Builds the library that is injected into the traced program, in the folder `work`."""
    cuda = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    include = next(p for p in (cuda / "include", cuda / "extras/CUPTI/include") if (p / "cupti.h").exists())
    lib = next(p for p in (cuda / "lib64", cuda / "lib", cuda / "extras/CUPTI/lib64") if list(p.glob("libcupti.so*")))
    source, to = pathlib.Path(__file__).resolve().parent / "kernel_times.cc", pathlib.Path(work) / "times.so"
    subprocess.run(["g++", "-O1", "-std=c++20", "-shared", "-fPIC", f"-I{include}", f"-I{cuda}/include", str(source), "-o", str(to), f"-L{lib}", "-lcupti", f"-Wl,-rpath,{lib}"], check=True)
    return to


def read(path):
    """Yields (begin, end, name) of every kernel, in nanoseconds."""
    for line in open(path):
        begin, end, name = line.rstrip("\n").split(" ", 2)
        yield int(begin), int(end), name


def short(name):
    """Strips arguments, namespaces and common prefixes from a kernel name."""
    name = re.sub(r"\([\w:]+\)(?=\d)|\(anonymous namespace\)::|^void ", "", name)
    return re.sub(r"\b(brim::ops|cutlass)::", "", name.split("(")[0])[:100]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--last", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="brim_trace_") as work:
        times = pathlib.Path(work) / "times.txt"
        subprocess.run(args.command, check=True, env={**os.environ, "CUDA_INJECTION64_PATH": str(build(work)), "KERNEL_TIMES": str(times)})
        kernels = sorted(read(times))
    if not kernels:
        raise SystemExit("no kernel was traced")
    last = max(end for _, end, _ in kernels)
    kernels = [k for k in kernels if k[0] >= last - args.last * 1e9]
    by_name = collections.defaultdict(list)
    busy = reached = 0
    for begin, end, name in kernels:
        by_name[short(name)].append(end - begin)
        busy += max(0, end - max(begin, reached))
        reached = max(reached, end)
    span = last - kernels[0][0]
    print(f"{len(kernels)} kernels in {span / 1e6:.1f} ms, busy {100 * busy / span:.1f} % of the time")
    print(f"{'share':>7} {'calls':>7} {'mean us':>9} {'total ms':>9}  kernel")
    for name, spent in sorted(by_name.items(), key=lambda item: -sum(item[1])):
        print(f"{100 * sum(spent) / span:6.2f}% {len(spent):7} {sum(spent) / len(spent) / 1e3:9.1f} {sum(spent) / 1e6:9.2f}  {name}")


if __name__ == "__main__":
    main()
