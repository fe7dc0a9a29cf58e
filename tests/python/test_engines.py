# SPDX-License-Identifier: Apache-2.0
"""Jobs of brim.bulk on Ray and Spark, workers killed meanwhile; and the row by row adapters."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import threading

import brim
import pytest
from test_bulk import all_rows, bulk, inputs, pa, planned, pq, texts_of  # noqa: F401

ROWS = 800
FOLDER = str(pathlib.Path(brim.__file__).parents[1])


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False,
             runtime_env={"env_vars": {"PYTHONPATH": FOLDER}}, object_store_memory=100 << 20)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def spark():
    sql = pytest.importorskip("pyspark.sql")
    os.environ["PYTHONPATH"] = FOLDER
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = sql.SparkSession.builder.master("local[2,8]").config("spark.ui.enabled", "false").config(
        "spark.driver.host", "127.0.0.1").getOrCreate()
    yield session
    session.stop()


def kill_workers(marker, times, stopped):
    """Now and then a process whose command line has `marker`, among those that this one started."""
    def children(parent):
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if f"\nPPid:\t{parent}\n" in (entry / "status").read_text():
                        yield int(entry.name)
                        yield from children(int(entry.name))
                except OSError:
                    pass
    while times > 0 and not stopped.wait(0.1):
        for pid in children(os.getpid()):
            try:
                if marker in pathlib.Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
                    times -= 1
                    break
            except OSError:
                pass


def while_killing(marker, work):
    stopped = threading.Event()
    killer = threading.Thread(target=kill_workers, args=(marker, 3, stopped))
    killer.start()
    try:
        return work()
    finally:
        stopped.set()
        killer.join()


def test_ray(ray, inputs, tmp_path):  # noqa: F811
    import brim.ray

    job = planned(inputs, tmp_path, rows_per_shard=50)
    # Each of the three kills may cost the same shard a try.
    assert while_killing("ray::_Worker", lambda: brim.ray.score(job, tries=4, progress=True)) == []
    assert bulk.finish(job)["rows"] == ROWS and all_rows(job)["id"].to_pylist() == list(range(ROWS))
    assert brim.ray.score(job) == []
    with pytest.raises(brim.UsageError, match="2 cores and 0 cards"):
        brim.ray.score(planned(inputs, tmp_path / "b"), num_gpus=1)


def test_ray_returns_what_failed(ray, inputs, tmp_path):  # noqa: F811
    import brim.ray

    job = planned(inputs, tmp_path)
    other = pq.read_table(tmp_path / "in" / "b.parquet").slice(0, 10)
    pq.write_table(other, tmp_path / "in" / "b.parquet")
    failed = brim.ray.score(job, tries=2)
    assert sorted(s.id for s, _ in failed) == [4, 5, 6, 7] and all(isinstance(e, brim.BadData) for _, e in failed)


def test_ray_runs_jobs_of_the_program(ray, tmp_path):
    import brim.ray
    from test_bulk import command

    (tmp_path / "a.txt").write_text("".join(f"great thing {i}\n" for i in range(100)))
    assert command("score", tmp_path / "a.txt", "-o", tmp_path / "out", "-m", "vader", "--shard", "0/3", "-q").returncode == 0
    job = bulk.load(str(tmp_path / "out"))
    assert brim.ray.score(job) == [] and bulk.finish(job)["rows"] == 100


def test_ray_rows(ray):
    import brim.ray

    data = ray.data.from_arrow(pa.table({"id": range(200), "text": texts_of(200)}))
    scored = data.map_batches(brim.ray.Scorer, batch_format="pyarrow", fn_constructor_args=("vader",), concurrency=1)
    rows = {row["id"]: row["label"] for row in scored.take_all()}
    assert rows[0] == "negative" and rows[1] == "positive" and rows[5] is None and len(rows) == 200


def test_spark(spark, inputs, tmp_path):  # noqa: F811
    import brim.spark

    job = planned(inputs, tmp_path, rows_per_shard=50)
    assert while_killing("pyspark.daemon", lambda: brim.spark.score(job, spark)) == []
    assert bulk.finish(job)["rows"] == ROWS and all_rows(job)["id"].to_pylist() == list(range(ROWS))
    assert brim.spark.score(job, spark) == []


def test_spark_returns_what_failed(spark, inputs, tmp_path):  # noqa: F811
    import brim.spark

    job = planned(inputs, tmp_path)
    pq.write_table(pq.read_table(tmp_path / "in" / "a.parquet").slice(0, 10), tmp_path / "in" / "a.parquet")
    failed = brim.spark.score(job, spark, tries=2)
    assert [s.id for s, _ in failed] == [0, 1, 2, 3] and "changed" in failed[0][1].problem


def test_executors_without_the_module(spark, inputs, tmp_path, monkeypatch):  # noqa: F811
    import brim.spark

    job = planned(inputs, tmp_path)
    def missing(*_):
        raise ModuleNotFoundError("No module named 'brim'")
    monkeypatch.setattr(brim.spark, "_run", missing)
    with pytest.raises(brim.UsageError, match="executor"):
        brim.spark.score(job, spark)


def test_spark_rows(spark, tmp_path):
    import brim.spark

    pq.write_table(pa.table({"id": range(200), "text": texts_of(200)}), tmp_path / "x.parquet")
    df = spark.read.parquet(str(tmp_path / "x.parquet"))
    scored = df.mapInArrow(brim.spark.scorer("vader"), brim.spark.schema(df))
    rows = {row["id"]: row["label"] for row in scored.collect()}
    assert rows[0] == "negative" and rows[1] == "positive" and rows[5] is None and len(rows) == 200


def test_ray_workers_without_the_module():
    """As Ray reports it; a worker on this machine would find the module where its driver does."""
    import brim.ray

    class Ray:
        class exceptions:
            RayError = RuntimeError

        def get(ready):
            raise RuntimeError(ready)

    with pytest.raises(brim.UsageError, match="no module brim") as caught:
        brim.ray._outcome(Ray, "The actor failed to import: ModuleNotFoundError: No module named 'brim'")
    assert "every node" in caught.value.remedy
    assert "disk" in brim.ray._outcome(Ray, "out of disk").problem


class FakeRay:
    """Actors as Ray has them, in this process: a deadly shard ends its actor, and a dead actor takes no more."""

    class exceptions:
        class RayError(Exception):
            pass

    def __init__(self, deadly):
        self.deadly, self.results, self.given = deadly, {}, []

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": 2}

    def remote(self, made):
        fake = self

        class Actor:
            def __init__(self, threads):
                self.worker, self.dead, self.run = made(threads), False, self

            def remote(self, shard):
                fake.given.append(shard.id)
                tries = 50 if fake.retries < 0 else 1 + fake.retries  # 50 stands for ever
                if not self.dead and shard.id == fake.deadly:
                    self.dead = True
                    fake.given += [shard.id] * (tries - 1)
                fake.results[len(fake.results)] = "the actor died" if self.dead else self.worker.run(shard)
                return len(fake.results) - 1

        class Options:
            @staticmethod
            def options(max_restarts, max_task_retries, **_):
                fake.retries = max_task_retries
                return type("Made", (), {"remote": staticmethod(Actor)})

        return Options

    def wait(self, refs, num_returns):
        return refs[:1], refs[1:]

    def get(self, ref):
        if isinstance(self.results[ref], str):
            raise self.exceptions.RayError(self.results[ref])
        return self.results[ref]

    def kill(self, actor):
        actor.dead = True


def test_a_shard_that_kills_its_worker(inputs, tmp_path, monkeypatch):  # noqa: F811
    import brim.ray

    job, fake = planned(inputs, tmp_path), FakeRay(deadly=2)
    monkeypatch.setitem(sys.modules, "ray", fake)
    ((shard, error),) = brim.ray.score(job)
    assert shard.id == 2 and "the actor died" in error.problem and fake.given.count(2) == 3
    assert job.missing() == [shard]  # the others have had workers


def test_without_the_engine_it_says_so(monkeypatch):
    import brim.ray

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(brim.UsageError, match="pip install ray"):
        brim.ray.score(None)
