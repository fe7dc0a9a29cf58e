# SPDX-License-Identifier: Apache-2.0
"""Scoring Parquet files with the command and in shards: every row exactly once, even if processes are killed."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import pickle
import random
import signal
import subprocess
import sys
import threading
import time

import brim
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
bulk = pytest.importorskip("brim.bulk")

ROWS, GROUP = 400, 50


def texts_of(n):
    return [None if i % 97 == 5 else f"{'great' if i % 3 else 'awful'} thing number {i}" for i in range(n)]


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "in").mkdir()
    for name, first in (("a", 0), ("b", ROWS)):
        ids = list(range(first, first + ROWS))
        table = pa.table({"id": ids, "text": [texts_of(2 * ROWS)[i] for i in ids], "other": ids})
        pq.write_table(table, tmp_path / "in" / f"{name}.parquet", row_group_size=GROUP)
    return str(tmp_path / "in" / "*.parquet")


def planned(inputs, tmp_path, **settings):
    return bulk.plan(inputs, str(tmp_path / "out"), **{"model": "vader", "keep": ["id"], "rows_per_shard": 100, **settings})


def all_rows(job):
    return pa.concat_tables([pq.read_table(pathlib.Path(job.place) / s.part) for s in job.shards])


def test_every_row_once_in_order(inputs, tmp_path, vader):
    job = planned(inputs, tmp_path, all_scores=True)
    assert len(job.shards) == 8 and [s.rows for s in job.shards] == [100] * 8 and len(job.missing()) == 8
    with pytest.raises(brim.BadData, match="0-7"):
        bulk.finish(job)
    assert bulk.run(job) == [] and job.missing() == []
    manifest = bulk.finish(job)
    assert manifest["rows"] == 2 * ROWS and (tmp_path / "out" / "_SUCCESS").exists()
    rows = all_rows(job)
    assert rows["id"].to_pylist() == list(range(2 * ROWS))
    wanted = vader.predict(texts_of(2 * ROWS), on_error="null")
    assert rows["label"].to_pylist() == wanted.labels and rows["label"].null_count == len(wanted.errors) > 0
    assert rows.column_names == ["id", "label", "score", "all_scores"]
    assert pq.ParquetFile(tmp_path / "out" / job.shards[0].part).num_row_groups == 2
    assert os.listdir(tmp_path / "out" / "_brim") == ["job.json"]


def test_output_folder_reads_as_one_table(inputs, tmp_path):
    job = planned(inputs, tmp_path)
    bulk.run(job)
    bulk.finish(job)
    assert json.loads((tmp_path / "out" / "_manifest.json").read_text())["rows"] == 2 * ROWS
    assert pq.read_table(tmp_path / "out")["id"].to_pylist() == list(range(2 * ROWS))
    pd = pytest.importorskip("pandas")
    assert len(pd.read_parquet(tmp_path / "out")) == 2 * ROWS


def test_finish_replaces_the_manifest_of_an_earlier_version(inputs, tmp_path):
    job = planned(inputs, tmp_path)
    bulk.run(job)
    old = tmp_path / "out" / "manifest.json"
    for text in ('{"job": "another program"}', "no json", "[]"):
        old.write_text(text)
        bulk.finish(job)
        assert old.read_text() == text
    old.write_text(json.dumps({"job": job.id}))
    assert bulk.finish(job)["rows"] == 2 * ROWS and not old.exists()
    from brim._storage import Store

    old.write_text('{"rows": 7}')
    (tmp_path / "out" / "_manifest.json").unlink()
    assert bulk._read_manifest(Store(str(tmp_path / "out"))) == {"rows": 7}


NAMES = ["a.parquet", "b.parquet", "x.txt", ".hidden.parquet", "_metadata.parquet", "deep/c.parquet", "deep/er/d.parquet",
         "_delta_log/e.parquet", ".cache/f.parquet", "deep/_temporary/g.parquet", "_day=1/h.parquet"]
PATTERNS = {
    "in/*.parquet": ["a.parquet", "b.parquet"],
    "in/?.parquet": ["a.parquet", "b.parquet"],
    "in/[b-z].parquet": ["b.parquet"],
    "in/*/*.parquet": ["_day=1/h.parquet", "deep/c.parquet"],
    "in/**/*.parquet": ["_day=1/h.parquet", "a.parquet", "b.parquet", "deep/c.parquet", "deep/er/d.parquet"],
    "in/deep/**": ["deep/c.parquet", "deep/er/d.parquet"],
    "in/_delta_log/*.parquet": ["_delta_log/e.parquet"],
    "in/_*/*.parquet": ["_day=1/h.parquet", "_delta_log/e.parquet"],
    "in/_metadata.parquet": ["_metadata.parquet"],
    "*/a.parquet": ["a.parquet"],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_stay_within_a_folder_and_skip_hidden_names(pattern, tmp_path, monkeypatch):
    from brim._storage import expand

    for name in NAMES:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("")
    wanted = [str(tmp_path / "in" / name) for name in PATTERNS[pattern]]
    assert expand(f"{tmp_path}/{pattern}") == wanted
    monkeypatch.chdir(tmp_path)
    assert expand(pattern) == expand(f"./{pattern}") == wanted


class Listing:
    """Lists names like S3: all with a prefix, in pages."""

    def __init__(self, keys):
        self.keys = keys

    def get_paginator(self, _):
        return self

    def paginate(self, Bucket, Prefix):
        found = [{"Key": key} for key in sorted(self.keys) if key.startswith(Prefix)]
        return [{"Contents": found[:3]}, {"Contents": found[3:]}, {}]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_of_objects_follow_the_same_rules(pattern, monkeypatch):
    import contextlib

    from brim import _storage

    listing = Listing([f"in/{name}" for name in NAMES] + ["in/", "in/deep/", "inner/a.txt"])
    monkeypatch.setattr(_storage, "_s3", lambda: listing)
    monkeypatch.setattr(_storage, "_reading", lambda _: contextlib.nullcontext())
    assert _storage.expand(f"s3://bkt/{pattern}") == [f"s3://bkt/in/{name}" for name in PATTERNS[pattern]]


def test_planning_twice_returns_the_same_job(inputs, tmp_path):
    job = planned(inputs, tmp_path)
    assert planned(inputs, tmp_path) == job == bulk.load(str(tmp_path / "out"))
    assert pickle.loads(pickle.dumps(job.shards[3])) == job.shards[3]
    bulk.run_shard(job.shards[3])
    assert len(planned(inputs, tmp_path).missing()) == 7
    before = (tmp_path / "out" / job.shards[3].part).stat().st_mtime_ns
    bulk.run_shard(job.shards[3])  # a retry changes nothing
    assert (tmp_path / "out" / job.shards[3].part).stat().st_mtime_ns == before
    with pytest.raises(brim.UsageError, match="another job"):
        planned(inputs, tmp_path, model="")


def test_rejects_invalid_arguments(inputs, tmp_path):
    for settings, match in (({"text": "body"}, "body"), ({"keep": ["score"]}, "score"), ({"rows_per_shard": 0}, "rows")):
        with pytest.raises(brim.UsageError, match=match):
            planned(inputs, tmp_path, **settings)
    with pytest.raises(brim.UsageError, match="no such file"):
        planned(str(tmp_path / "none" / "*.parquet"), tmp_path)
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(brim.BadData, match="bad.parquet"):
        planned(str(tmp_path / "bad.parquet"), tmp_path)
    with pytest.raises(brim.UsageError, match="no job"):
        bulk.load(str(tmp_path / "nothing"))
    with pytest.raises(brim.UsageError, match="no-such-model"):
        planned(inputs, tmp_path, model="no-such-model")
    (tmp_path / "file").write_text("")
    for output, kind in (("file", brim.CannotWrite), ("file/below", brim.CannotWrite)):
        with pytest.raises(kind) as caught:
            bulk.plan(inputs, str(tmp_path / output), model="vader")
        assert caught.value.remedy
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(brim.BadData, match="folder.parquet"):
        planned(str(tmp_path / "folder.parquet"), tmp_path)
    assert not (tmp_path / "out").exists()  # no partial output


def test_rows_without_text(tmp_path):
    pq.write_table(pa.table({"id": [0, 1], "text": [1, 2]}), tmp_path / "numbers.parquet")
    with pytest.raises(brim.UsageError, match="its type is int64") as caught:
        planned(str(tmp_path / "numbers.parquet"), tmp_path)
    assert caught.value.remedy and not (tmp_path / "out").exists()
    pq.write_table(pa.table({"id": [0, 1], "text": ["good", None]}), tmp_path / "nulls.parquet")
    job = planned(str(tmp_path / "nulls.parquet"), tmp_path / "b", on_error="raise")
    ((_, error),) = bulk.run(job, tries=1)
    assert isinstance(error, brim.BadData) and error.row == 1
    assert os.listdir(tmp_path / "b" / "out") == ["_brim"] and os.listdir(tmp_path / "b" / "out" / "_brim") == ["job.json"]
    pq.write_table(pa.table({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    job = planned(str(tmp_path / "empty.parquet"), tmp_path / "c")
    assert job.shards == () and bulk.run(job) == [] and bulk.finish(job)["rows"] == 0


def test_a_full_disk(inputs, tmp_path):
    job = planned(inputs, tmp_path)
    code = """
import resource, signal, sys, brim.bulk
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
try:
    brim.bulk.run_shard(brim.bulk.load(sys.argv[1]).shards[0])
except brim.CannotWrite as error:
    print("refused", bool(error.remedy))
"""
    done = subprocess.run([sys.executable, "-c", code, job.place], capture_output=True, text=True)
    assert done.stdout == "refused True\n", done
    assert os.listdir(tmp_path / "out") == ["_brim"] and os.listdir(tmp_path / "out" / "_brim") == ["job.json"]


def test_changed_inputs_models_and_parts_are_errors(inputs, tmp_path, encoder_dir):
    job = planned(inputs, tmp_path)
    other = pq.read_table(tmp_path / "in" / "b.parquet").slice(0, 150)
    pq.write_table(other, tmp_path / "in" / "b.parquet", row_group_size=GROUP)
    bulk.run_shard(job.shards[0])
    with pytest.raises(brim.BadData, match="changed"):
        bulk.run_shard(job.shards[7])
    strange = tmp_path / "out" / job.shards[1].part
    pq.write_table(other, strange)
    with pytest.raises(brim.BadData, match="another job"):
        bulk.run_shard(job.shards[1])
    strange.write_text("half")
    with pytest.raises(brim.BadData, match="another job"):
        bulk.run_shard(job.shards[1])
    failed = bulk.run(job, tries=2)
    assert [shard.id for shard, _ in failed] == [4, 5, 6, 7]


def spoil(path, group, column):
    """Overwrites a column's pages, but not the footer, which determines the file's signature."""
    metadata = pq.ParquetFile(path).metadata.row_group(group).column(column)
    begin = metadata.dictionary_page_offset or metadata.data_page_offset
    with open(path, "r+b") as file:
        file.seek(begin)
        file.write(b"\xff" * metadata.total_compressed_size)


def test_unreadable_row_group(tmp_path):
    rows = 20_000  # the signature covers only the footer
    pq.write_table(pa.table({"id": range(rows), "text": texts_of(rows)}), tmp_path / "x.parquet", row_group_size=rows // 4)
    job = planned(str(tmp_path / "x.parquet"), tmp_path, rows_per_shard=rows // 4)
    spoil(tmp_path / "x.parquet", 0, 1)
    ((shard, error),) = bulk.run(job)
    assert shard.id == 0 and isinstance(error, brim.BadData) and "x.parquet: row groups 0 to 0" in error.problem and error.remedy
    assert job.missing() == [shard]  # the others were scored


def test_damaged_part_is_detected(inputs, tmp_path):
    job = planned(inputs, tmp_path)
    bulk.run(job)
    part = tmp_path / "out" / job.shards[2].part
    table = pq.read_table(part)
    pq.write_table(table.set_column(2, "score", pa.array([0.5] * 100, pa.float32())), part)
    with pytest.raises(brim.BadData, match="damaged"):
        bulk.finish(job)


def test_damage_anywhere_in_a_part_is_detected(inputs, tmp_path):
    job = planned(inputs, tmp_path, keep=["id", "text"], rows_per_shard=ROWS)
    bulk.run(job)
    part = tmp_path / "out" / job.shards[1].part
    good = part.read_bytes()
    note = good.rindex(b'{"format"')
    for at in (*range(0, len(good), len(good) // 100), *range(note, good.index(b"}", note))):
        part.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
        with pytest.raises(brim.BadData, match="damaged|another job"):
            bulk.finish(job)
    part.write_bytes(good)
    for group, column in ((0, 0), (3, 1), (7, 2)):
        spoil(part, group, column)
        with pytest.raises(brim.BadData, match="damaged"):
            bulk.finish(job)
        part.write_bytes(good)
    assert bulk.finish(job)["rows"] == 2 * ROWS


def test_part_of_an_earlier_version(inputs, tmp_path):
    """Its note contains only a checksum of the scores."""
    job = planned(inputs, tmp_path)
    bulk.run(job)
    for shard in job.shards:
        table = pq.read_table(tmp_path / "out" / shard.part)
        note = json.loads(table.schema.metadata[b"brim"])
        assert note.pop("file_crc") and note["format"] == 2
        note["format"] = 1
        pq.write_table(table.replace_schema_metadata({b"brim": json.dumps(note).encode()}), tmp_path / "out" / shard.part)
    assert bulk.finish(job)["rows"] == 2 * ROWS
    part = tmp_path / "out" / job.shards[5].part
    spoil(part, 0, 2)
    with pytest.raises(brim.BadData, match="damaged"):
        bulk.finish(job)


WORKER = """
import random, sys, brim.bulk
job = brim.bulk.load(sys.argv[1])
shards = list(job.shards)
random.Random(int(sys.argv[2])).shuffle(shards)
print("ready", flush=True)
for shard in shards:
    brim.bulk.run_shard(shard)
"""


def start(job, seed):
    return subprocess.Popen([sys.executable, "-c", WORKER, job.place, str(seed)], stdout=subprocess.PIPE, text=True)


def test_killed_workers_lose_and_duplicate_nothing(tmp_path):
    pq.write_table(pa.table({"id": range(2 * ROWS), "text": texts_of(2 * ROWS)}), tmp_path / "x.parquet", row_group_size=4)
    job = planned(str(tmp_path / "x.parquet"), tmp_path, rows_per_shard=4)
    assert len(job.shards) == 200
    random.seed(7)
    for seed in range(int(os.environ.get("BRIM_KILLS", "4"))):
        workers = [start(job, 2 * seed), start(job, 2 * seed + 1)]  # two workers race for the same parts
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        time.sleep(random.uniform(0, 0.05))
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            worker.stdout.close()
    assert bulk.run(job) == []
    assert bulk.finish(job)["rows"] == 2 * ROWS
    assert all_rows(job)["id"].to_pylist() == list(range(2 * ROWS))
    assert os.listdir(tmp_path / "out" / "_brim") == ["job.json"]


def test_workers_forked_after_scoring_a_shard(inputs, tmp_path):
    """The threads of a forked model are in the parent, so each process must open its own."""
    job = planned(inputs, tmp_path, model="")
    code = """
import multiprocessing, sys, brim.bulk
job = brim.bulk.load(sys.argv[1])
brim.bulk.run_shard(job.shards[0])
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(len(pool.map(brim.bulk.run_shard, job.missing())))
brim.bulk.finish(job)
"""
    done = subprocess.run([sys.executable, "-c", code, job.place], capture_output=True, text=True)
    assert done.stdout == "7\n", done.stderr


def test_s3(tmp_path, monkeypatch):
    moto = pytest.importorskip("moto")
    boto3 = pytest.importorskip("boto3")
    for key, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{key}", value)
    with moto.mock_aws():
        from brim import _storage

        _storage._clients.clear()
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket="bkt")
        pq.write_table(pa.table({"id": range(100), "text": texts_of(100)}), tmp_path / "x.parquet", row_group_size=25)
        s3.upload_file(str(tmp_path / "x.parquet"), "bkt", "in/x.parquet")
        for name in ("in/_delta_log/x.parquet", "in/deep/x.parquet", "in/_x.parquet"):
            s3.upload_file(str(tmp_path / "x.parquet"), "bkt", name)
        job = bulk.plan("s3://bkt/in/*.parquet", "s3://bkt/out", model="vader", keep=["id"], rows_per_shard=50)
        assert len(job.shards) == 2 and len(job.missing()) == 2
        s3.put_object(Bucket="bkt", Key="out/part-old/part-00000.parquet", Body=b"of a deeper folder")
        assert _storage.Store.of("s3://bkt/out").names("part-") == set() and len(job.missing()) == 2
        assert not _storage.Store.of("s3://bkt/out").put("_brim/job.json", b"mine")  # the first one stays
        assert bulk.run(job) == [] and bulk.finish(job)["rows"] == 100 and bulk.load("s3://bkt/out") == job
        s3.put_object(Bucket="bkt", Key="out/manifest.json", Body=json.dumps({"job": job.id}).encode())
        assert bulk.finish(job)["rows"] == 100 and _storage.Store.of("s3://bkt/out").names("manifest") == set()
        s3.download_file("bkt", "out/part-00001.parquet", str(tmp_path / "part.parquet"))
        assert pq.read_table(tmp_path / "part.parquet")["id"].to_pylist() == list(range(50, 100))
        with pytest.raises(brim.UsageError, match="no such object"):
            bulk.plan("s3://bkt/none*", "s3://bkt/out2")
        with pytest.raises(brim.CannotWrite):
            bulk.plan("s3://bkt/in/x.parquet", "s3://no-such-bucket/out", model="vader")
        s3.put_object(Bucket="bkt", Key="strange/part-00000.parquet", Body=b"half")
        job = bulk.plan("s3://bkt/in/*.parquet", "s3://bkt/strange", model="vader", rows_per_shard=50)
        with pytest.raises(brim.BadData, match="another job"):
            bulk.run_shard(job.shards[0])
        _storage._clients.clear()


class Refusing(http.server.BaseHTTPRequestHandler):
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(403)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")

    do_GET = do_PUT = do_HEAD = do_POST = answer

    def log_message(self, *_):
        pass


def test_bucket_without_permission(inputs, tmp_path, monkeypatch):
    pytest.importorskip("boto3")
    from brim import _storage

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for key, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("DEFAULT_REGION", "us-east-1"), ("MAX_ATTEMPTS", "1"),
                       ("ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")):
        monkeypatch.setenv(f"AWS_{key}", value)
    _storage._clients.clear()
    for source in ("s3://bkt/in/*.parquet", "s3://bkt/in/x.parquet"):
        with pytest.raises(brim.BadData, match="s3://bkt/in") as caught:
            bulk.plan(source, str(tmp_path / "out"), model="vader")
        assert "s3:GetObject" in caught.value.remedy
    with pytest.raises(brim.CannotWrite, match="s3://bkt/out") as caught:
        bulk.plan(inputs, "s3://bkt/out", model="vader")
    assert "s3:PutObject" in caught.value.remedy
    with pytest.raises(brim.BadData, match="AccessDenied|Forbidden"):
        bulk.load("s3://bkt/out")
    server.shutdown()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # no server there
    _storage._clients.clear()
    with pytest.raises(brim.BadData) as caught:
        bulk.load("s3://bkt/out")
    assert "AWS_ENDPOINT_URL" in caught.value.remedy
    _storage._clients.clear()


def test_runs_jobs_planned_by_the_program(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("id,text\n" + "".join(f'{i},"great\nthing {i}"\n' for i in range(50)))
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    out = tmp_path / "out"
    done = command("score", *files, "-o", out, "--model", "vader", "--all-scores", "--shard", "1/4", "-q")
    assert done.returncode == 0, done.stderr
    job = bulk.load(str(out))
    assert [s.id for s in job.missing()] == [0, 2, 3] and job.shards[1].part == "part-00001.csv"
    with pytest.raises(brim.BadData, match="0,2-3"):
        bulk.finish(job)
    assert bulk.run(job) == [] and bulk.run_shard(job.shards[0]) == "part-00000.csv"
    assert bulk.finish(job)["rows"] == 100 and (out / "_SUCCESS").exists()
    command("score", *files, "-o", tmp_path / "whole.csv", "--model", "vader", "--all-scores", "-q")
    parts = [(out / s.part).read_text().split("\n", 1) for s in job.shards]
    assert parts[0][0] + "\n" + "".join(rows for _, rows in parts) == (tmp_path / "whole.csv").read_text()
    (tmp_path / "a.csv").write_text("id,text\n")
    with pytest.raises(brim.UsageError, match="changed"):
        bulk.run_shard(job.shards[0])


def test_program_checks_jobs_of_parquet_files(inputs, tmp_path):
    job = planned(inputs, tmp_path)
    bulk.run_shard(job.shards[2])
    assert command("score", "-o", tmp_path / "out", "--shard", "missing").stdout == "0-1,3-7\n"
    refused = command("score", "-o", tmp_path / "out", "--shard", "check")
    assert refused.returncode == 2 and "brim.bulk.finish" in refused.stderr


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "brim", *map(str, arguments)], capture_output=True, text=True)


def test_command_reads_parquet(tmp_path, vader):
    table = pa.table({"id": range(120), "text": pa.array(texts_of(120)).dictionary_encode(), "n": [None] * 120})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=50)
    refused = command("score", tmp_path / "x.parquet", "-o", tmp_path / "y.parquet", "--model", "vader")
    assert refused.returncode == 3 and "row 5" in refused.stderr and os.listdir(tmp_path) == ["x.parquet"]
    done = command("score", tmp_path / "x.parquet", "-o", tmp_path / "y.parquet", "-m", "vader", "--on-error", "null")
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(tmp_path / "y.parquet")
    assert rows.column_names == ["id", "text", "n", "label", "score"]
    assert rows["label"].to_pylist() == vader.predict(texts_of(120), on_error="null").labels
    pq.write_table(table.slice(0, 0), tmp_path / "empty.parquet")
    assert command("score", tmp_path / "empty.parquet", "-o", tmp_path / "e.parquet", "-m", "vader").returncode == 0
    assert pq.read_table(tmp_path / "e.parquet").num_rows == 0
    assert command("score", tmp_path / "no.parquet", "-o", tmp_path / "y.parquet").returncode == 2
    assert command("score", tmp_path / "x.parquet", "-o", tmp_path / "x.parquet").returncode == 2
    (tmp_path / "bad.parquet").write_text("no parquet")
    assert command("score", tmp_path / "bad.parquet", "-o", tmp_path / "y2.parquet").returncode == 3
    assert sorted(os.listdir(tmp_path)) == ["bad.parquet", "e.parquet", "empty.parquet", "x.parquet", "y.parquet"]


def test_command_names_the_invalid_file(tmp_path):
    pq.write_table(pa.table({"id": range(120), "text": ["great"] * 120}), tmp_path / "x.parquet")
    refused = command("score", tmp_path / "x.parquet", "-o", tmp_path / "none" / "y.parquet", "-m", "vader")
    assert refused.returncode == 7 and "none/y.parquet" in refused.stderr, refused.stderr
    spoil(tmp_path / "x.parquet", 0, 1)
    refused = command("score", tmp_path / "x.parquet", "-o", tmp_path / "y.parquet", "-m", "vader")
    assert refused.returncode == 3 and "x.parquet" in refused.stderr, refused.stderr
    assert os.listdir(tmp_path) == ["x.parquet"]


def test_two_runs_with_one_target(tmp_path, monkeypatch):
    """Each writes its own temporary file; the last one replaces the target, completely."""
    from brim import parquet

    source, target = tmp_path / "x.parquet", tmp_path / "y.parquet"
    pq.write_table(pa.table({"text": ["great"] * 100}), source, row_group_size=50)
    monkeypatch.setattr(parquet, "_ROWS", 50)
    tables, within = parquet._tables, []

    def interrupted(*given):
        for number, table in enumerate(tables(*given)):
            yield table
            if number == 0 and not within:
                within.append(True)
                assert parquet.score_file(str(source), str(target), model="vader")[0] == 100
                assert pq.read_table(target).num_rows == 100

    monkeypatch.setattr(parquet, "_tables", interrupted)
    assert parquet.score_file(str(source), str(target), model="vader", all_scores=True)[0] == 100
    assert pq.read_table(target).column_names == ["text", "label", "score", "all_scores"]
    assert sorted(os.listdir(tmp_path)) == ["x.parquet", "y.parquet"]
    (tmp_path / "plain").write_text("")
    assert target.stat().st_mode == (tmp_path / "plain").stat().st_mode  # permissions of regular files


def test_other_commands_run_the_program():
    done = command("--version")
    assert done.returncode == 0 and brim.__version__ in done.stdout
    assert command("score", "/no/such.csv").returncode == 2
