# SPDX-License-Identifier: Apache-2.0
"""Jobs of brim.bulk on Ray, Spark and Dask with killed workers, and the row by row adapters."""

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
    """Kills descendants of this process whose command line contains `marker`."""
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
    # All three kills may hit the same shard.
    assert while_killing("ray::_Worker", lambda: brim.ray.score(job, tries=4, progress=True)) == []
    assert bulk.finish(job)["rows"] == ROWS and all_rows(job)["id"].to_pylist() == list(range(ROWS))
    assert brim.ray.score(job) == []
    with pytest.raises(brim.UsageError, match="2 cores and 0 GPUs"):
        brim.ray.score(planned(inputs, tmp_path / "b"), num_gpus=1)


def test_ray_returns_failed_shards(ray, inputs, tmp_path):  # noqa: F811
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


def test_spark_returns_failed_shards(spark, inputs, tmp_path):  # noqa: F811
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
    """Simulates Ray's error, because workers on this machine find the module."""
    import brim.ray

    class Ray:
        class exceptions:
            RayError = RuntimeError

        def get(ready):
            raise RuntimeError(ready)

    with pytest.raises(brim.UsageError, match="module brim is missing") as caught:
        brim.ray._outcome(Ray, "The actor failed to import: ModuleNotFoundError: No module named 'brim'")
    assert "every node" in caught.value.remedy
    assert "disk" in brim.ray._outcome(Ray, "out of disk").problem


class FakeRay:
    """Mock of Ray's actors. A deadly shard kills its actor; only `free` actors start."""

    class exceptions:
        class RayError(Exception):
            pass

    def __init__(self, deadly=None, free=2, cores=2, broken=False):
        self.deadly, self.free, self.cores, self.broken = deadly, free, cores, broken
        self.results, self.given, self.actors = {}, [], []

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return {"CPU": self.cores}

    def available_resources(self):
        return {"CPU": float(self.free)} if self.free else {}

    def answer(self, result):
        self.results[len(self.results)] = result
        return len(self.results) - 1

    def remote(self, made):
        fake = self

        class Actor:
            def __init__(self, threads):
                self.worker, self.dead, self.started = made(threads), False, fake.free > 0
                fake.free -= self.started
                fake.actors.append(self)
                self.ready = type("Ready", (), {"remote": lambda _: fake.answer(self.begin())})()
                self.run = type("Run", (), {"remote": lambda _, shard: fake.answer(self.outcome(shard))})()

            def begin(self):
                if fake.broken:
                    self.dead = True
                    return "the actor cannot start"
                return None if self.started else ...  # ...: no result yet

            def outcome(self, shard):
                assert self.started and not self.dead
                fake.given.append(shard.id)
                if shard.id == fake.deadly:
                    self.dead = True
                    return "the actor died"
                return self.worker.run(shard)

        class Options:
            @staticmethod
            def options(max_restarts, max_task_retries, **_):
                assert max_restarts == max_task_retries == 0
                return type("Made", (), {"remote": staticmethod(Actor)})

        return Options

    def wait(self, refs, num_returns, timeout):
        ready = [ref for ref in refs if self.results[ref] is not ...][:1]
        assert ready or timeout is not None, "would wait for ever"
        return ready, [ref for ref in refs if ref not in ready]

    def get(self, ref):
        if isinstance(self.results[ref], str):
            raise self.exceptions.RayError(self.results[ref])
        return self.results[ref]

    def kill(self, actor):
        self.free += actor.started
        actor.dead, actor.started = True, False


def test_a_shard_that_kills_its_worker(inputs, tmp_path, monkeypatch):  # noqa: F811
    import brim.ray

    job, fake = planned(inputs, tmp_path), FakeRay(deadly=2)
    monkeypatch.setitem(sys.modules, "ray", fake)
    ((shard, error),) = brim.ray.score(job)
    assert shard.id == 2 and "the actor died" in error.problem and fake.given.count(2) == 3
    assert job.missing() == [shard]  # the others were scored
    assert all(actor.dead for actor in fake.actors)


def test_workers_that_wait_for_a_core_get_no_shards(inputs, tmp_path, monkeypatch):  # noqa: F811
    import brim.ray

    fake = FakeRay(free=1, cores=4)
    monkeypatch.setitem(sys.modules, "ray", fake)
    assert brim.ray.score(planned(inputs, tmp_path)) == [] and len(fake.actors) == 4
    assert all(actor.dead for actor in fake.actors)


def test_times_out_without_a_free_core(inputs, tmp_path, monkeypatch):  # noqa: F811
    import brim.ray

    fake = FakeRay(free=0, cores=4)
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(brim.TimedOut, match="within 2 s: .*0 of 4 cores") as caught:
        brim.ray.score(planned(inputs, tmp_path), start_timeout=2)
    assert "num_cpus" in caught.value.remedy and all(actor.dead for actor in fake.actors)


def test_workers_that_cannot_start_fail_their_shards(inputs, tmp_path, monkeypatch):  # noqa: F811
    import brim.ray

    fake = FakeRay(broken=True)
    monkeypatch.setitem(sys.modules, "ray", fake)
    job = planned(inputs, tmp_path)
    failed = brim.ray.score(job)
    assert [shard.id for shard, _ in failed] == [shard.id for shard in job.shards] and len(fake.actors) < 20
    assert "cannot start" in failed[0][1].problem


def test_ray_with_a_core_held_by_another_actor(ray, inputs, tmp_path):  # noqa: F811
    import brim.ray

    @ray.remote(num_cpus=1)
    class Holder:
        def ready(self):
            return True

    first = Holder.remote()
    ray.get(first.ready.remote())
    job = planned(inputs, tmp_path)
    assert brim.ray.score(job) == [] and bulk.finish(job)["rows"] == ROWS
    second = Holder.remote()
    ray.get(second.ready.remote())
    with pytest.raises(brim.TimedOut, match="of 2 cores"):
        brim.ray.score(planned(inputs, tmp_path / "b"), start_timeout=3)
    for holder in (first, second):
        ray.kill(holder)


def test_missing_ray_is_reported(monkeypatch):
    import brim.ray

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(brim.UsageError, match="pip install ray"):
        brim.ray.score(bulk.Job("x", "", "", {}, ()))


def test_dask(inputs, tmp_path):  # noqa: F811
    distributed = pytest.importorskip("distributed")
    job = planned(inputs, tmp_path, rows_per_shard=50)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, env={"PYTHONPATH": FOLDER}) as cluster:
        with distributed.Client(cluster) as client:
            parts = while_killing("distributed", lambda: client.gather(client.map(bulk.run_shard, job.missing(), retries=5)))
    assert sorted(parts) == [shard.part for shard in job.shards]
    assert bulk.finish(job)["rows"] == ROWS and all_rows(job)["id"].to_pylist() == list(range(ROWS))
