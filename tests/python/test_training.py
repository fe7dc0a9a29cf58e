# SPDX-License-Identifier: Apache-2.0
"""brim.train and brim.sklearn: training from tables, interruption and resume, scikit-learn estimators."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time

import brim
import numpy as np
import pytest
from brim import _program
from conftest import tiny_model

ROWS = 240
QUICK = {"device": "cpu", "threads": 1, "learning_rate": 3e-3, "train_batch_size": 16, "ignore_mismatched_head": True}


def rows_of(n, seed=1):
    random.seed(seed)
    labels = [random.choice(["good", "bad"]) for _ in range(n)]
    return [f"{'london' if label == 'good' else 'paris'} word{random.randrange(30)} ada" for label in labels], labels


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    return tiny_model("bert_sequence", tmp_path_factory.mktemp("models") / "start")


@pytest.fixture(scope="session")
def run(start, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "out"
    return brim.train(start, rows_of(ROWS), rows_of(60, 2), output_dir=out, num_train_epochs=3, progress=False, **QUICK)


def test_learns_and_opens(run):
    assert run.metrics["eval_accuracy"] > 0.95 and run.figures["best_step"] is not None
    texts, labels = rows_of(20, 3)
    assert run.classifier(device="cpu").predict(texts).labels == labels
    assert run.figures["steps"] == 45 and not run.figures["interrupted"]


def test_shows_its_history(run):
    assert [row["step"] for row in run.history if "eval_loss" in row] == [15, 30, 45]
    assert "45 steps" in repr(run) and "macro_f1" in repr(run)
    assert run._repr_html_().count("<svg ") == 4 and run.plots()[0].startswith("<svg xmlns=")


def test_same_bits_as_the_program(run, start, tmp_path):
    for name, (texts, labels) in (("a", rows_of(ROWS)), ("b", rows_of(60, 2))):
        lines = [json.dumps({"text": t, "label": l}) for t, l in zip(texts, labels)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    words = [w for k, v in {**QUICK, "num_train_epochs": 3}.items() for w in (f"--{k.replace('_', '-')}", str(v).lower())]
    words = [w for w in words if w != "true"]
    subprocess.run([_program.path(), "train", "-q", "--model", start, "--train", tmp_path / "a.jsonl", "--val", tmp_path / "b.jsonl",
                    "--output", tmp_path / "out", *words], check=True)
    with open(tmp_path / "out" / "model.safetensors", "rb") as file, \
            open(f"{run.output_dir}/model.safetensors", "rb") as ours:
        assert file.read() == ours.read()


@pytest.mark.parametrize("kind", ["pandas", "pyarrow", "polars", "dict"])
def test_tables(kind, start, tmp_path):
    texts, labels = rows_of(32)
    columns = {"body": texts, "class": [int(label == "good") for label in labels]}
    table = columns
    if kind == "pyarrow":
        table = pytest.importorskip(kind).table(columns)
    elif kind != "dict":
        table = pytest.importorskip(kind).DataFrame(columns)
    done = brim.train(start, table, output_dir=tmp_path / "out", text="body", label="class", max_steps=2,
                      progress=False, **QUICK)
    assert done.classifier(device="cpu").labels == ["0", "1"]


def test_teachers(run, start, tmp_path):
    texts, labels = rows_of(32)
    rows = (texts, [None, float("nan"), *labels[2:]])
    done = brim.train(start, rows, output_dir=tmp_path / "out", teacher=[run.output_dir, run.output_dir], max_steps=2,
                      progress=False, **QUICK)
    card = open(f"{done.output_dir}/README.md").read()
    assert "30 rows trained on labels (0.5) and 2 teachers (0.5) · 2 rows without a label trained on 2 teachers only" in card
    with pytest.raises(brim.BadData, match="row 0: label is None"):
        brim.train(start, rows, output_dir=tmp_path / "alone", progress=False, **QUICK)


class NAType:  # like in pandas
    def __eq__(self, other):
        raise TypeError("boolean value of NA is ambiguous")


def test_missing_labels_of_tables(tmp_path):
    from brim.training import _written

    rows = {"text": ["a", "b", "c", "d"], "label": [0.0, NAType(), 1.0, float("nan")]}  # as from a column of Int64 or floats
    lines = open(_written(rows, tmp_path / "rows.jsonl", None, "label", True)).read().splitlines()
    assert [json.loads(line).get("label") for line in lines] == [0, None, 1, None]
    assert '"label": 0}' in lines[0]


def test_rejects_invalid_arguments(start, tmp_path):
    texts, labels = rows_of(8)
    train = lambda rows, **more: brim.train(start, rows, output_dir=tmp_path / "out", progress=False, **{**QUICK, **more})
    with pytest.raises(brim.UsageError, match="8 of text, 7 of label"):
        train((texts, labels[:-1]))
    with pytest.raises(brim.BadData, match="row 2") as caught:
        train((texts[:2] + [None] + texts[3:], labels))
    assert caught.value.row == 2
    with pytest.raises(brim.BadData, match="label is nan"):
        train((texts, [float("nan"), *labels[1:]]))
    with pytest.raises(brim.UsageError, match="no column 'label'"):
        train({"text": texts})
    with pytest.raises(brim.UsageError, match="learning_rte"):
        train((texts, labels), learning_rte=1)
    with pytest.raises(brim.UsageError, match="not a valid value"):
        train((texts, labels), seed={})
    with pytest.raises(brim.UsageError, match="got int"):
        train(3)
    with pytest.raises(brim.UsageError, match="no-such"):
        brim.train("no-such", (texts, labels), output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ctrl_c_writes_a_checkpoint_and_resuming_gives_the_same_bits(start, tmp_path):
    rows = rows_of(400)
    settings = {**QUICK, "num_train_epochs": 30, "save_strategy": "no", "progress": False}
    out = tmp_path / "out"
    def interrupt():
        while not (out / "train_log.jsonl").exists():
            time.sleep(0.01)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        brim.train(start, rows, output_dir=out, **settings)
    assert not (out / "model.safetensors").exists()
    resumed = brim.train(start, rows, output_dir=out, resume_from_checkpoint="last", **settings)
    whole = brim.train(start, rows, output_dir=tmp_path / "whole", **settings)
    assert resumed.figures["steps"] == whole.figures["steps"] == 750
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_ctrl_c_reports_an_existing_checkpoint(start, tmp_path, monkeypatch, caplog):
    def interrupted(*_):
        raise KeyboardInterrupt
    monkeypatch.setattr(brim.training._brim, "train", interrupted)
    (tmp_path / "out" / "checkpoint-30.part").mkdir(parents=True)  # left over from a full disk
    for steps, message in (([], "no checkpoint"), ([4, 20], "continues from step 20, checkpoint-20 in")):
        for step in steps:
            (tmp_path / "out" / f"checkpoint-{step}").mkdir()
        with pytest.raises(KeyboardInterrupt):
            brim.train(start, rows_of(8), output_dir=tmp_path / "out", progress=False)
        assert message in caplog.text and ("resume_from_checkpoint" in caplog.text) == bool(steps)
        caplog.clear()


def test_refused_resume_names_arguments_of_python(start, tmp_path):
    settings = {**QUICK, "max_steps": 6, "save_strategy": "steps", "save_steps": 3, "progress": False}
    brim.train(start, rows_of(64), output_dir=tmp_path / "out", **settings)
    with pytest.raises(brim.UsageError, match=r'with model="[^" ]*checkpoint-3" and output_dir="NEW"'):
        brim.train(start, rows_of(64), output_dir=tmp_path / "out", resume_from_checkpoint="last", seed=7, **settings)


def test_progress_by_tqdm(start, tmp_path, capsys):
    pytest.importorskip("tqdm")
    brim.train(start, rows_of(64), output_dir=tmp_path / "out", max_steps=4, **QUICK)
    assert "4/4" in capsys.readouterr().err


# --- scikit-learn ---


@pytest.fixture(scope="session")
def estimator(start):
    pytest.importorskip("sklearn")
    from brim.sklearn import BrimClassifier

    return BrimClassifier(str(start), num_train_epochs=3, learning_rate=3e-3, train_batch_size=16, device="cpu", threads=1)


def test_estimator(estimator):
    from sklearn.base import clone, is_classifier

    texts, labels = rows_of(ROWS)
    held_out = rows_of(40, 2)
    with pytest.raises(ValueError, match="not fitted"):
        estimator.predict(texts)
    y = np.array([1 if label == "good" else -1 for label in labels])
    fitted = clone(estimator).fit(np.array(texts, dtype=object).reshape(-1, 1), y)
    assert fitted.classes_.tolist() == [-1, 1] and is_classifier(fitted)
    assert fitted.predict(held_out[0]).tolist() == [1 if label == "good" else -1 for label in held_out[1]]
    proba = fitted.predict_proba(held_out[0])
    assert proba.shape == (40, 2) and np.allclose(proba.sum(axis=1), 1)
    assert (fitted.classes_[proba.argmax(axis=1)] == fitted.predict(held_out[0])).all()
    assert np.allclose(np.exp(fitted.predict_log_proba(held_out[0][:3])), proba[:3])
    folder = fitted.training_.output_dir
    again = pickle.loads(pickle.dumps(fitted))
    assert (again.predict_proba(held_out[0]) == proba).all()
    fitted.fit(texts[:40], labels[:40])  # again, with different classes
    assert fitted.classes_.tolist() == ["bad", "good"] and fitted.training_.output_dir != folder
    del fitted, again
    assert not os.path.exists(folder) or not os.listdir(folder)


def test_estimator_in_searches_and_pipelines(estimator):
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    texts, labels = rows_of(90)
    strip = FunctionTransformer(lambda rows: [row.strip() for row in rows])
    pipeline = make_pipeline(strip, estimator)
    assert cross_val_score(pipeline, texts, labels, cv=2).shape == (2,)
    search = GridSearchCV(estimator, {"learning_rate": [1e-9, 3e-3]}, cv=2).fit(texts, labels)
    assert search.best_params_ == {"learning_rate": 3e-3} and search.score(*rows_of(20, 5)) > 0.9


def test_estimator_checks_that_make_sense_for_texts(estimator):
    from brim.sklearn import BrimClassifier
    from sklearn.utils import estimator_checks as checks

    for name in ("check_no_attributes_set_in_init", "check_get_params_invariance", "check_set_params",
                 "check_parameters_default_constructible", "check_estimator_cloneable", "check_estimator_repr",
                 "check_estimator_tags_renamed", "check_valid_tag_types", "check_estimator_get_tags_default_keys"):
        if hasattr(checks, name):
            getattr(checks, name)("BrimClassifier", BrimClassifier())
    texts, labels = rows_of(8)
    for X, y, message in (("text", ["a"], "list"), (texts, labels[:-1], "one label per text"), ([], [], "no texts"),
                       (texts, ["a"] * 8, "one class"), ([None, *texts[1:]], labels, "not a str"),
                       (np.zeros((4, 2)), [0, 1, 0, 1], "columns"), (texts, [1, "1"] * 4, "a"),
                       (texts, [None, *labels[1:]], r"y\[0\] is None"), (texts, [0.0, float("nan")] * 4, r"y\[1\] is nan")):
        with pytest.raises(ValueError, match=message):
            BrimClassifier(estimator.model).fit(X, y)


def test_estimator_weights(estimator):
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError

    texts, labels = rows_of(40)
    short = clone(estimator).set_params(num_train_epochs=1)
    repeated = clone(short).fit(texts + texts[:10], labels + labels[:10])
    weighted = clone(short).fit(texts, labels, sample_weight=[1] * 40)
    assert weighted.n_features_in_ == 1
    assert (weighted.predict_proba(texts) == clone(short).fit(texts, labels).predict_proba(texts)).all()
    twice = clone(short).fit(texts, labels, sample_weight=[2] * 10 + [1] * 30)
    assert twice.training_.figures["samples"] == repeated.training_.figures["samples"]
    zero = clone(short).fit(texts, labels, sample_weight=[0 if label == "bad" and i > 5 else 1 for i, label in enumerate(labels)])
    assert zero.training_.figures["samples"] < weighted.training_.figures["samples"]
    clone(short).set_params(class_weight={"bad": 2.0, "good": 0.5}, random_state=3).fit(texts, labels)
    balanced = clone(short).set_params(class_weight="balanced", random_state=np.random.RandomState(1)).fit(texts, labels)
    assert balanced.score(texts, labels, sample_weight=np.ones(40)) > 0
    for wrong in ({"class_weight": "even"}, {"class_weight": {"ugly": 1}}, {"random_state": "x"}):
        with pytest.raises(brim.UsageError) as caught:
            clone(short).set_params(**wrong).fit(texts, labels)
        assert caught.value.remedy
    for weights in ([1], [-1] * 40, [0] * 40, [float("nan")] * 40, [1 if label == "bad" else 0 for label in labels]):
        with pytest.raises(brim.UsageError, match="weight"):
            clone(short).fit(texts, labels, sample_weight=weights)
    with pytest.raises(NotFittedError) as caught:
        clone(short).predict(texts)
    assert isinstance(caught.value, brim.Error) and caught.value.remedy


def test_missing_scikit_learn_is_reported():
    code = "import sys; sys.modules['sklearn'] = None\nimport brim\ntry:\n import brim.sklearn\nexcept brim.UsageError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install scikit-learn" in done.stdout, done.stderr
