#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills drivers and workers of a brim.bulk job with SIGKILL at random moments. Then every row must be in the output once, with
the label of an undisturbed run.

  PYTHONPATH=DIR python_kills.py [--rows 1000000] [--kills 50] [--place disk|s3] [--texts FILE]

Two drivers with two workers each run on the same shards; workers of a killed driver continue. If the job completes before all
kills, some parts are removed and scored again. s3 uses moto's server (pip install 'moto[server]' boto3) in a separate process,
which is not killed. Exits with 77 if that or pyarrow is missing.
"""
from __future__ import annotations

import argparse
import contextlib
import csv
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

GROUP = 5000
WORKER = """
import random, sys, brim.bulk
job = brim.bulk.load(sys.argv[1])
shards = job.missing()
random.shuffle(shards)
for shard in shards:
    brim.bulk.run_shard(shard, threads=1)
"""
DRIVER = """
import os, subprocess, sys, brim.bulk
job = brim.bulk.load(sys.argv[1])
while job.missing():
    workers = [subprocess.Popen([sys.executable, "-c", sys.argv[2], job.place]) for _ in range(2)]
    for worker in workers:
        worker.wait()
brim.bulk.finish(job)
"""


def texts_of(file: str, rows: int) -> list[str]:
    if file.endswith(".csv"):
        with open(file, newline="", encoding="utf-8") as opened:
            lines = [row["text"] for row in csv.DictReader(opened)]
    else:
        lines = pathlib.Path(file).read_text(encoding="utf-8", errors="replace").split("\n")
    return [f"{lines[i % len(lines)]} {i}" for i in range(rows)]


def processes(marker: str) -> list[tuple[int, str]]:
    """Running drivers and workers of this job."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if marker.encode() in command and b"-c" in command:
            found.append((int(entry.name), "driver" if b"subprocess" in command[command.index(b"-c") + 1] else "worker"))
    return found


def kill(pid: int) -> bool:
    """Returns False if the process had already ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def kill_all(marker: str) -> None:
    """Repeats until none is left, because a driver may start a worker meanwhile."""
    for _ in range(100):
        found = processes(marker)
        if not found:
            break
        for pid, _ in found:
            kill(pid)
        time.sleep(0.1)


class Disk:
    def __init__(self, work: str) -> None:
        self.inputs, self.place = f"{work}/in/*.parquet", f"{work}/out"

    def start(self) -> None:
        pass

    stop = start

    def parts(self, job, to: str) -> list[str]:
        return [f"{self.place}/{shard.part}" for shard in job.shards]

    def remove(self, name: str) -> None:
        os.unlink(f"{self.place}/{name}")


class Bucket:
    def __init__(self, work: str) -> None:
        self.work, self.name = work, f"kills-{os.getpid()}"
        self.inputs, self.place = f"s3://{self.name}/in/*.parquet", f"s3://{self.name}/out"

    def start(self) -> None:
        import boto3

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.server = subprocess.Popen([str(pathlib.Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.environ.update(AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}", AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_DEFAULT_REGION="us-east-1")
        self.s3 = boto3.client("s3")
        for attempt in range(100):
            try:
                self.s3.create_bucket(Bucket=self.name)
                break
            except Exception:
                if attempt == 99:
                    raise
                time.sleep(0.2)
        for path in sorted(pathlib.Path(self.work, "in").iterdir()):
            self.s3.upload_file(str(path), self.name, f"in/{path.name}")

    def stop(self) -> None:
        self.server.terminate()
        self.server.wait()

    def parts(self, job, to: str) -> list[str]:
        for shard in job.shards:
            self.s3.download_file(self.name, f"out/{shard.part}", f"{to}/{shard.part}")
        return [f"{to}/{shard.part}" for shard in job.shards]

    def remove(self, name: str) -> None:
        self.s3.delete_object(Bucket=self.name, Key=f"out/{name}")


def main() -> int:
    flags = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    flags.add_argument("--rows", type=int, default=1_000_000)
    flags.add_argument("--kills", type=int, default=50)
    flags.add_argument("--place", choices=("disk", "s3"), default="disk")
    flags.add_argument("--texts", default=str(pathlib.Path(__file__).resolve().parents[1] / "examples" / "tweets.csv"))
    flags.add_argument("--seed", type=int, default=7)
    options = flags.parse_args()
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if options.place == "s3":
            import boto3  # noqa: F401
            import moto.server  # noqa: F401
    except ImportError as error:
        print(f"python_kills: Skipped, {error}")
        return 77
    import brim
    import brim.bulk

    random.seed(options.seed)
    began = time.perf_counter()
    work = tempfile.mkdtemp(prefix="brim-kills-")
    place = Disk(work) if options.place == "disk" else Bucket(work)
    try:
        os.makedirs(f"{work}/in")
        texts = texts_of(options.texts, options.rows)
        step = -(-options.rows // 8 // GROUP) * GROUP
        for at in range(0, options.rows, step):
            ids = range(at, min(at + step, options.rows))
            pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "text": texts[at:at + len(ids)]}), f"{work}/in/{at:09}.parquet", row_group_size=GROUP)
        place.start()
        job = brim.bulk.plan(place.inputs, place.place, model="vader", keep=["id"], rows_per_shard=GROUP)
        killed, removed, drivers = {"driver": 0, "worker": 0}, 0, []
        quiet = {"stderr": subprocess.DEVNULL}
        while sum(killed.values()) < options.kills:
            drivers = [d for d in drivers if d.poll() is None]
            while len(drivers) < 2:
                drivers.append(subprocess.Popen([sys.executable, "-c", DRIVER, place.place, WORKER], **quiet))
            time.sleep(random.uniform(0.1, 2.0))
            alive = processes(place.place)
            # Half of the kills are drivers, although there are fewer of them.
            kind = random.choice(("driver", "worker"))
            chosen = [pid for pid, what in alive if what == kind]
            if chosen and kill(random.choice(chosen)):
                killed[kind] += 1
            if not job.missing():
                for shard in random.sample(job.shards, len(job.shards) // 4):
                    place.remove(shard.part)
                    removed += 1
        for driver in drivers:
            driver.wait()
        while any(what == "worker" for _, what in processes(place.place)):
            time.sleep(0.2)
        assert brim.bulk.run(job) == [], "a shard failed"
        rows = brim.bulk.finish(job)["rows"]
        table = pa.concat_tables([pq.read_table(name) for name in place.parts(job, work)])
        assert rows == options.rows and table["id"].to_pylist() == list(range(options.rows)), "a row is missing or duplicated"
        wanted = brim.Classifier("vader").predict(texts)
        assert table["label"].to_pylist() == wanted.labels, "a label differs from an undisturbed run"
        left = [name for name in os.listdir(f"{work}/out/_brim")] if options.place == "disk" else ["job.json"]
        assert left == ["job.json"], f"left behind: {left}"
        print(f"python_kills: {options.place}, {options.rows:,} rows in {len(job.shards)} shards, {killed['driver']} drivers and {killed['worker']} workers killed, "
              f"{removed} parts removed and scored again: every row once, labels as of one run; {time.perf_counter() - began:.0f} s")
    finally:
        with contextlib.ExitStack() as last:  # run all callbacks in reverse order, even if one fails
            last.callback(shutil.rmtree, work, ignore_errors=True)
            if hasattr(place, "server"):
                last.callback(place.stop)
            last.callback(kill_all, place.place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
