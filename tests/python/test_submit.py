# SPDX-License-Identifier: Apache-2.0
"""Single texts from threads and event loops: futures, asyncio, cancellation, closing."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, wait

import brim
import pytest
from conftest import SOURCE, tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return brim.Classifier(tiny_model("bert_pair", tmp_path_factory.mktemp("submit") / "m"), precision="fp32")


def close_to(got, wanted):
    return got["label"] == wanted["label"] and got["score"] == pytest.approx(wanted["score"], abs=1e-5)


def test_submit(tiny):
    texts = [f"ada word{i % 40} london" for i in range(300)]
    futures = [tiny.submit(text) for text in texts]
    assert isinstance(futures[0], Future) and not wait(futures, 60).not_done
    assert all(close_to(f.result(), wanted) for f, wanted in zip(futures, tiny(texts), strict=True))
    ranked = tiny.submit("ada", top_k=None, function_to_apply="none").result(10)
    wanted = tiny("ada", top_k=None, function_to_apply="none")
    assert [e["label"] for e in ranked] == [e["label"] for e in wanted]
    assert [e["score"] for e in ranked] == pytest.approx([e["score"] for e in wanted], abs=1e-5)
    pair = tiny.submit("ada lives", text_pair="in london").result(10)
    assert close_to(pair, tiny({"text": "ada lives", "text_pair": "in london"}))
    long = "ada lives " * 200
    assert close_to(tiny.submit(long, max_length=8).result(10), tiny(long, max_length=8)[0])


def test_submit_from_threads(tiny):
    wanted = tiny("ada lives in london")[0]
    results = []

    def work():
        for _ in range(20):
            results.append(tiny.submit("ada lives in london").result(30))
            results.append(tiny("ada lives in london")[0])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 320 and all(close_to(one, wanted) for one in results)


def test_ascore(tiny):
    texts = [f"ada word{i % 40} london" for i in range(200)]

    async def all_of(texts):
        return await asyncio.gather(*(tiny.ascore(text) for text in texts))

    wanted = tiny(texts)
    for _ in range(2):  # another event loop each time
        assert all(close_to(got, one) for got, one in zip(asyncio.run(all_of(texts)), wanted, strict=True))

    async def others():
        ranked = await tiny.ascore("ada", top_k=2)
        pair = await tiny.ascore("ada lives", text_pair="in london")
        task = asyncio.create_task(tiny.ascore("ada"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(brim.BadData, match="surrogate"):
            await tiny.ascore("half \ud83d")
        with pytest.raises(brim.BadData, match="tokens"):
            await tiny.ascore("ada " * 900, truncation=False)
        return ranked, pair

    ranked, pair = asyncio.run(others())
    assert len(ranked) == 2 and close_to(pair, tiny({"text": "ada lives", "text_pair": "in london"}))


def test_rules_can_be_submitted():
    vader = brim.Classifier("vader")
    assert vader.submit("great").result(10) == vader("great")[0]

    async def one():
        return await vader.ascore("great", top_k=None)

    assert asyncio.run(one()) == vader("great", top_k=None)


def test_closing_cancels_or_completes(tmp_path):
    clf = brim.Classifier(tiny_model("bert_sequence", tmp_path / "m"), precision="fp32", threads=1)
    futures = [clf.submit(f"ada word{i % 40}") for i in range(2000)]
    clf.close()
    assert not wait(futures, 60).not_done
    assert all(f.exception() is None or isinstance(f.exception(), brim.Cancelled) for f in futures)
    with pytest.raises(brim.Cancelled):
        clf.submit("ada")


def test_a_future_keeps_its_model(tmp_path):
    future = brim.Classifier(tiny_model("bert_sequence", tmp_path / "m"), precision="fp32").submit("ada")
    gc.collect()
    assert future.result(30)["label"]


def test_nothing_remains_open(tmp_path):
    model = tiny_model("bert_sequence", tmp_path / "m")

    def use():
        clf = brim.Classifier(model, precision="fp32", threads=1)
        clf.submit("ada").result(30)

        async def one():
            return await clf.ascore("ada")

        asyncio.run(one())

    use()
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        use()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files + 1


def test_the_interpreter_exits_with_waiting_texts(tweets):
    code = "import sys, brim\nclf = brim.Classifier()\nfutures = [clf.submit(t) for t in sys.argv[1:] * 50]\nprint(futures[0].result()['label'])"
    done = subprocess.run([sys.executable, "-c", code, *tweets], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "positive", done


def resident():
    """Resident memory in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_memory_does_not_grow(tmp_path):
    """BRIM_GROWTH=1: 1,000 opens and closes and 100,000 calls; else a tenth and a fiftieth."""
    full = os.environ.get("BRIM_GROWTH") == "1"
    opens, calls = (1000, 100_000) if full else (100, 2000)
    model = tiny_model("bert_sequence", tmp_path / "m")

    def use(opens, calls):
        for _ in range(opens):
            with brim.Classifier(model, precision="fp32", threads=1) as clf:
                clf("ada")
        with brim.Classifier(model, precision="fp32", threads=1) as clf:
            for i in range(calls):
                clf("ada lives in london" if i % 2 else "paris", top_k=None if i % 3 else 1)

    use(opens // 4, calls // 4)
    before = resident()
    use(opens, calls)
    grown = resident() - before
    print(f"{opens:,} opens and closes, {calls:,} calls: {grown:+.1f} MiB of {before:.0f} MiB resident")
    assert grown < 16


def test_fastapi_example():
    pytest.importorskip("fastapi")
    testclient = pytest.importorskip("fastapi.testclient")
    names: dict[str, object] = {"__name__": "app"}
    exec(compile((SOURCE / "examples" / "fastapi" / "app.py").read_text(encoding="utf-8"), "app.py", "exec"), names)
    with testclient.TestClient(names["app"]) as client:
        answer = client.post("/score", json={"text": "I love this"})
        assert answer.status_code == 200 and answer.json()["label"] == "positive"
        assert client.post("/score", json={"text": "half \ud83d".encode("utf-16", "surrogatepass").decode("utf-16", "replace")}).status_code == 200
        assert client.post("/score", json={"txt": "a"}).status_code == 422
