# SPDX-License-Identifier: Apache-2.0
"""Classifier: calls like transformers.pipeline, results as columns, the same scores as the program."""

from __future__ import annotations

import csv
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import brim
import numpy as np
import pytest
from brim import _brim, _program
from brim._texts import texts_of
from conftest import tiny_model


def test_one_text_gives_a_list_of_one_dict(clf):
    (answer,) = clf("I love this")
    assert answer["label"] == "positive" and isinstance(answer["score"], float) and answer["score"] > 0.5


def test_many_texts_give_one_dict_each(clf):
    answers = clf(["I love this", "what a waste of money"])
    assert [a["label"] for a in answers] == ["positive", "negative"]


def test_top_k(clf):
    best = clf("I love this", top_k=None)
    assert [a["label"] for a in best][0] == "positive" and len(best) == 3
    assert [a["score"] for a in best] == sorted((a["score"] for a in best), reverse=True)
    assert clf(["I love this"], top_k=2) == [best[:2]]
    assert clf("I love this", top_k=1) == best[:1]


def test_dict_input_and_generators(clf, tweets):
    assert [clf({"text": "I love this"})] == clf("I love this")
    stream = clf(t for t in tweets[:5])
    assert list(stream) == clf(tweets[:5])


def test_accepts_arguments_of_transformers_and_rejects_unknown_ones(clf):
    assert clf(["a"], batch_size=8, num_workers=2, padding="max_length") == clf(["a"])
    with pytest.raises(brim.ArgumentError, match="colour") as caught:
        clf("a", colour="red")
    assert isinstance(caught.value, TypeError)


def softmax(logits):
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


@pytest.mark.parametrize("model, own", [("bert_sequence", softmax), ("bert_multilabel", sigmoid)])
def test_function_to_apply(model, own, tmp_path):
    clf = brim.Classifier(tiny_model(model, tmp_path / model), precision="fp32", long_text="truncate")
    texts = ["ada lives in london", "paris", "word1 word2 " * 400, "word3 ."] * 800  # several blocks, with overlong texts
    logits = clf.predict(texts, function_to_apply="none")
    assert logits.scores.min() < 0 and logits.truncated.tolist() == [False, False, True, False] * 800
    for function, wanted in ((None, own), ("softmax", softmax), ("sigmoid", sigmoid), ("NONE", lambda x: x)):
        got = clf.predict(texts, function_to_apply=function)
        assert np.allclose(got.scores, wanted(logits.scores), atol=1e-5), function
        assert got.labels == logits.labels and np.allclose(got.score, got.scores.max(axis=1))
        one = clf(texts[0], top_k=None, function_to_apply=function)
        assert [e["score"] for e in one] == pytest.approx(sorted(got.scores[0].tolist(), reverse=True), abs=1e-5)
        assert list(clf(iter(texts[:2]), function_to_apply=function))[1]["score"] == pytest.approx(got.score[1], abs=1e-5)
        (part,) = clf.stream(texts[:2], function_to_apply=function)
        assert np.allclose(part.scores, got.scores[:2], atol=1e-5)
    broken = clf.predict(["ada", None], on_error="null", function_to_apply="sigmoid")
    assert broken.labels[1] is None and np.isnan(broken.scores[1]).all() and len(broken.errors) == 1
    assert clf.predict([], function_to_apply="none").scores.shape == (0, logits.scores.shape[1])


def test_function_to_apply_of_pairs_and_single_values(tmp_path):
    clf = brim.Classifier(tiny_model("bert_pair", tmp_path / "pair"), precision="fp32")
    pair = {"text": "ada lives", "text_pair": "in london"}
    (logits,) = clf.predict(["ada lives"], pairs=["in london"], function_to_apply="none").scores
    own = clf.predict(["ada lives"], pairs=["in london"]).scores[0]
    other = clf([pair], top_k=None, function_to_apply="sigmoid")[0]
    assert sorted(sigmoid(logits).tolist(), reverse=True) == pytest.approx([e["score"] for e in other], abs=1e-5)
    assert np.allclose(own, softmax(logits[None])[0] if len(logits) > 1 else sigmoid(logits), atol=1e-5)


def test_rejects_unknown_functions(clf, vader):
    for wrong in ("softplus", "", "default", 3):
        with pytest.raises(brim.UsageError, match="function_to_apply") as caught:
            clf("a", function_to_apply=wrong)
        assert "sigmoid" in caught.value.remedy
        with pytest.raises(brim.UsageError, match="function_to_apply"):
            clf.predict(["a"], function_to_apply=wrong)
    with pytest.raises(brim.UsageError, match="no logits") as caught:
        vader.predict(["a"], function_to_apply="none")
    assert caught.value.remedy


def test_interrupt_ends_a_call_for_logits(clf, tweets):
    texts = texts_of(tweets * (40_000 // len(tweets)))
    seen = []

    def progress(rows):
        seen.append(rows)
        if len(seen) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        clf._open().score(texts, progress, options=_brim.call_options(function="none"))
    assert seen[-1] < len(texts) and clf("I love this")[0]["label"] == "positive"


def test_predict_gives_columns(clf, tweets):
    result = clf.predict(tweets)
    assert len(result) == len(tweets) and result.scores.shape == (len(tweets), 3)
    assert result.label_ids.dtype == np.int32 and result.scores.dtype == np.float32 and result.truncated.dtype == bool
    assert np.allclose(result.scores.sum(axis=1), 1, atol=1e-5)
    assert (result.scores.argmax(axis=1) == result.label_ids).all()
    assert (result.scores.max(axis=1) == result.score).all()
    assert result.labels == [clf.labels[i] for i in result.label_ids]
    assert result.stats["texts"] == len(tweets) and not result.errors


def test_arrays_outlive_their_result(clf, tweets):
    scores = clf.predict(tweets).scores
    kept = scores.copy()
    gc.collect()
    clf.predict(["something else"] * 50)
    assert (scores == kept).all()


def test_same_numbers_as_the_program(clf, tweets, tmp_path):
    (tmp_path / "in.csv").write_text("")
    with open(tmp_path / "in.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *([t] for t in tweets)])
    subprocess.run([_program.path(), "score", tmp_path / "in.csv", "-o", tmp_path / "out.csv", "-q", "--all-scores"],
                   check=True)
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    result = clf.predict(tweets)
    assert [row["label"] for row in rows] == result.labels
    assert np.allclose([float(row["score"]) for row in rows], result.score, atol=2e-4)  # int8 scores depend slightly on the batch


def test_same_bytes_again(clf, tweets):
    assert clf.predict(tweets * 40).scores.tobytes() == clf.predict(tweets * 40).scores.tobytes()


def test_vader(vader):
    assert vader("great stuff")[0]["label"] == "positive"
    assert vader.predict(["great", "awful"]).labels == ["positive", "negative"]


def test_empty(clf):
    assert clf([]) == [] and len(clf.predict([])) == 0 and clf.predict([]).scores.shape == (0, 3)
    assert clf.predict([""]).label_ids.shape == (1,)


def test_stream_is_in_order(vader, tweets):
    texts = tweets * (20_000 // len(tweets))
    parts = list(vader.stream(iter(texts)))
    assert len(parts) > 1 and sum(len(p) for p in parts) == len(texts)
    assert [label for p in parts for label in p.labels] == vader.predict(texts).labels


@pytest.mark.parametrize("bad, message", [
    (None, "None"), (float("nan"), "NaN"), (b"bytes", "bytes"), (7, "int"), ("lone \ud800", "surrogate"), ([], "list"),
])
def test_bad_texts(clf, bad, message):
    texts = ["good", bad, "bad"]
    with pytest.raises(brim.BadData, match=message) as caught:
        clf.predict(texts)
    assert caught.value.row == 1 and "on_error" in caught.value.remedy and caught.value.code == "bad_data"
    with pytest.raises(brim.BadData):
        clf(texts)
    result = clf.predict(texts, on_error="null")
    assert result.labels[1] is None and result.labels[0] is not None and np.isnan(result.score[1])
    assert np.isnan(result.scores[1]).all() and [row for row, _ in result.errors] == [1]


@pytest.mark.parametrize("source", ["one text", b"bytes", None, 5, np.zeros((2, 2)), {"a": ["x"], "b": ["y"]}])
def test_no_texts_at_all(clf, source):
    with pytest.raises((brim.UsageError, brim.BadData)) as caught:
        clf.predict(source)
    assert caught.value.remedy


def test_long_texts_follow_the_setting():
    long = "word " * 2000
    with brim.Classifier(long_text="truncate") as clf:
        assert clf.predict([long, "short"]).truncated.tolist() == [True, False]
    with brim.Classifier(long_text="error") as clf:
        with pytest.raises(brim.BadData, match='row 1: .*long_text="truncate"'):
            clf.predict(["short", long])
        result = clf.predict(["short", long], on_error="null")
        assert result.label_ids[1] == -1 and np.isnan(result.score[1]) and result.label_ids[0] >= 0
    with pytest.raises(brim.UsageError, match="long_text"):
        brim.Classifier(long_text="sometimes")


def test_missing_model(tmp_path):
    with pytest.raises(brim.UsageError, match="no-such-model"):
        brim.Classifier("no-such-model")
    with pytest.raises(brim.BadModel):
        brim.Classifier(tmp_path)
    with pytest.raises(brim.UsageError, match="device"):
        brim.Classifier(device="toaster")
    with pytest.raises(brim.DoesNotFit):
        brim.Classifier(memory_limit="1MiB")
    for wrong in ("lots", "100TiB"):
        with pytest.raises(brim.UsageError, match="leave_free"):
            brim.Classifier(leave_free=wrong)
    with brim.Classifier(leave_free="1GiB") as clf:
        assert clf.predict(["good"]).labels


def test_library_messages_use_logging(caplog):
    with brim.Classifier(max_length=100_000):
        assert "max_length=100000" in caplog.text and caplog.records[0].name == "brim"


def test_errors_are_python_errors_and_pickle():
    assert issubclass(brim.UsageError, ValueError) and issubclass(brim.DoesNotFit, MemoryError)
    for kind in (brim.BadData, brim.CannotWrite, brim.TimedOut, brim.DoesNotFit):
        again = pickle.loads(pickle.dumps(kind("a problem", "a remedy")))
        assert type(again) is kind and again.remedy == "a remedy" and str(again) == "a problem; a remedy"


def test_closed(tweets):
    clf = brim.Classifier()
    clf.close()
    clf.close()
    with pytest.raises(brim.Cancelled, match="closed"):
        clf(tweets[0])


def test_pickle_opens_again(clf):
    again = pickle.loads(pickle.dumps(brim.Classifier(long_text="window-mean", threads=1)))
    assert again("I love this")[0]["label"] == "positive" and again._options["long_text"] == "window-mean"


def test_threads_share_one_model(clf, tweets):
    wanted = clf.predict(tweets * 20).labels
    got = {}

    def work(i):
        got[i] = [clf.predict(tweets * 20).labels for _ in range(3)] + [clf(tweets[0])[0]["label"]]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(got[i] == [wanted] * 3 + [wanted[0]] for i in range(4))


def test_other_threads_run_during_a_call(clf, tweets):
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            done.wait(0.005)

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.perf_counter()
    clf.predict(tweets * (3000 // len(tweets)))
    ended = time.perf_counter()
    done.set()
    thread.join()
    assert sum(began < t < ended for t in ticks) >= 3


def test_interrupt_ends_a_long_call(clf, tweets):
    texts = texts_of(tweets * (400_000 // len(tweets)))
    seen = []

    def progress(rows):
        seen.append(rows)
        if len(seen) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        clf._open().score(texts, progress)
    assert 0 < seen[-1] < len(texts) / 2
    assert clf("I love this")[0]["label"] == "positive"  # the model still works


def test_interrupted_call_frees_everything(tweets):
    code = """
import os, signal, sys, threading, brim
clf = brim.Classifier(precision="fp32")
texts = [t * 3 for t in sys.argv[1:]] * 2000
for _ in range(2):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        clf.predict(texts)
        print("finished")
    except KeyboardInterrupt:
        print("interrupted")
del texts  # a batch may still be computing from it
print(clf("I love this")[0]["label"])
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    clf.predict([t * 3 for t in sys.argv[1:]] * 2000)
except KeyboardInterrupt:
    pid = os.fork()  # that thread does not exist in the child
    if pid == 0:
        sys.exit(0)
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    # Unbuffered: the child would print the lines again that its parent has not flushed.
    done = subprocess.run([sys.executable, "-u", "-W", "ignore", "-c", code, *tweets], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["interrupted", "interrupted", "positive", "child", "0"]), done


def test_exception_in_progress_ends_the_call(clf, tweets):
    def progress(rows):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        clf._open().score(texts_of(tweets * (400_000 // len(tweets))), progress)


def test_progress_bar(clf, tweets, capsys):
    pytest.importorskip("tqdm")
    clf.predict(tweets * 20, progress=True)
    assert "texts" in capsys.readouterr().err


def test_fork_is_detected(clf):
    clf("warm")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            clf("hello")
        except brim.UsageError as error:
            status = 0 if "fork" in str(error) and error.remedy else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_settings_of_the_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with brim.Classifier() as clf:
        assert "1 thread" in clf.device
    with brim.Classifier(threads=2) as clf:
        assert "2 threads" in clf.device


def test_pairs_are_scored_together(vader, tmp_path):
    clf = brim.Classifier(tiny_model("bert_pair", tmp_path / "pair"), precision="fp32")
    pair = {"text": "ada lives", "text_pair": "in london"}
    one, other = clf(pair), clf([pair, {"text": "ada lives", "text_pair": "paris"}], top_k=None)[1]
    scores = clf.predict(["ada lives", "ada lives"], pairs=["in london", "paris"])
    assert scores.score[0] == pytest.approx(one["score"], abs=1e-6)
    assert sorted(scores.scores[1].tolist(), reverse=True) == pytest.approx([e["score"] for e in other], abs=1e-6)
    assert clf("ada lives")[0] != one and set(one) == {"label", "score"}
    with pytest.raises(brim.UsageError, match="second texts"):
        clf.predict(["a"], pairs=["b", "c"])
    with pytest.raises(brim.BadData):
        clf.predict(["a"], pairs=[None])
    mixed = clf([pair, {"text": "a"}, "a"])
    assert mixed[1] == mixed[2] and mixed[0]["score"] == pytest.approx(one["score"], abs=1e-6)
    with pytest.raises(brim.UsageError, match="does not support pairs"):
        vader(pair)
