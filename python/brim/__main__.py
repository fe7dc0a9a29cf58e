# SPDX-License-Identifier: Apache-2.0
"""The `brim` command installed by pip: runs the program; Parquet files, which it cannot read, are scored here."""

from __future__ import annotations

import argparse
import os
import sys

from . import _program


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["score"] and any(a.lower().endswith(".parquet") for a in arguments):
        return _score(arguments[1:])
    os.execv(_program.path(), ["brim", *arguments])


def _score(arguments: list[str]) -> int:
    from .errors import Error
    from .parquet import score_file

    flags = argparse.ArgumentParser("brim score", description="label a Parquet file; its columns are kept")
    flags.add_argument("input")
    flags.add_argument("-o", "--output", required=True)
    flags.add_argument("-m", "--model", default="")
    flags.add_argument("--text-column", default=None)
    for name in ("device", "precision", "memory-limit"):
        flags.add_argument(f"--{name}", default="auto")
    flags.add_argument("--threads", type=int, default=None)
    flags.add_argument("--max-length", type=int, default=None)
    flags.add_argument("--long-text", default="truncate")
    flags.add_argument("--on-error", default="stop", choices=("stop", "null"))
    flags.add_argument("--all-scores", action="store_true")
    flags.add_argument("-q", "--quiet", action="store_true")
    options = flags.parse_args(arguments)
    try:
        rows, seconds = score_file(
            options.input, options.output, column=options.text_column, all_scores=options.all_scores,
            on_error="raise" if options.on_error == "stop" else "null", progress=not options.quiet and sys.stderr.isatty(),
            model=options.model, device=options.device, precision=options.precision, memory_limit=options.memory_limit,
            threads=options.threads, max_length=options.max_length, long_text=options.long_text)
    except Error as error:
        print(f"brim: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("brim: interrupted; nothing was written", file=sys.stderr)
        return 130
    if not options.quiet:
        print(f"{rows:,} rows in {seconds:.2f} s: {rows / max(seconds, 1e-9):,.0f} rows/s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
