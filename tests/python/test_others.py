# SPDX-License-Identifier: Apache-2.0
"""Encoder, Tagger, BatchScorer, plan, and the types."""

from __future__ import annotations

import ast
import json
import pathlib
import pickle
import shutil
import subprocess
import sys

import brim
import numpy as np
import pytest
from conftest import SOURCE


def test_encode(encoder_dir):
    encoder = brim.Encoder(encoder_dir)
    vectors = encoder.encode(["ada lives in london", "paris"])
    assert vectors.shape == (2, encoder.get_sentence_embedding_dimension()) and vectors.dtype == np.float32
    assert np.allclose(encoder.encode("paris"), vectors[1], atol=1e-6)
    unit = encoder.encode(["ada", "paris"], normalize_embeddings=True)
    assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    assert np.allclose(encoder.encode("london", prompt="ada lives in "), vectors[0], atol=1e-6)
    assert not np.allclose(brim.Encoder(encoder_dir, pooling="cls").encode("paris"), vectors[1], atol=1e-3)
    with pytest.raises(brim.UsageError, match="output_value"):
        encoder.encode("a", output_value="token_embeddings")
    with pytest.raises(brim.UsageError, match="query"):
        encoder.encode("a", prompt_name="query")
    again = pickle.loads(pickle.dumps(encoder))
    assert (again.encode("paris") == encoder.encode("paris")).all()


def test_sentence_transformers_files(encoder_dir, tmp_path):
    import shutil

    path = shutil.copytree(encoder_dir, tmp_path / "st")
    (path / "modules.json").write_text(json.dumps([
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    (path / "config_sentence_transformers.json").write_text('{"prompts": {"query": "ada lives in "}}')
    plain, told = brim.Encoder(encoder_dir, pooling="cls"), brim.Encoder(path)
    wanted = plain.encode("ada lives in london", normalize_embeddings=True)
    assert np.allclose(told.encode("ada lives in london"), wanted, atol=1e-6)
    assert np.allclose(told.encode("london", prompt_name="query"), wanted, atol=1e-6)
    (path / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "ada lives in "}, "default_prompt_name": "query", "truncate_dim": 5}')
    assert np.allclose(brim.Encoder(path).encode("london"), wanted[:5], atol=1e-6)
    (path / "modules.json").write_text(json.dumps([
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]))
    (path / "config_sentence_transformers.json").write_text("{}")
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": true}')
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true, "include_prompt": false}')
    told, plain = brim.Encoder(path), brim.Encoder(encoder_dir)
    assert np.allclose(told.encode("LONDON"), plain.encode("london"), atol=1e-5)
    assert np.abs(told.encode("london", prompt="ada lives in ") - plain.encode("ada lives in london")).max() > 1e-3
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(brim.BadModel, match="max_tokens"):
        brim.Encoder(path)
    (path / "modules.json").write_text("{")
    with pytest.raises(brim.BadModel, match="modules.json"):
        brim.Encoder(path)


def test_tagger(tagger_dir):
    tagger = brim.Tagger(tagger_dir)
    text = "ada lives in london ."
    entities = tagger(text)
    assert tagger([text, "paris"])[0] == entities
    for entity in entities:
        assert list(entity) == ["entity_group", "score", "word", "start", "end"]
        assert entity["entity_group"] in ("PER", "LOC") and text[entity["start"]:entity["end"]] == entity["word"]
    assert tagger([text, None], on_error="null")[1] == []
    with pytest.raises(brim.UsageError, match='opened with "first"'):
        tagger(text, aggregation_strategy="simple")
    with pytest.raises(brim.UsageError, match="first, simple, average or max"):
        brim.Tagger(tagger_dir, aggregation_strategy="none")
    again = pickle.loads(pickle.dumps(brim.Tagger(tagger_dir, aggregation_strategy="max")))
    assert again(text, aggregation_strategy="max") == again(text)


def test_the_wrong_class_for_a_model(tagger_dir):
    with pytest.raises(brim.UsageError, match="Tagger"):
        brim.Classifier(tagger_dir)
    with pytest.raises(brim.UsageError, match="brim.Classifier"):
        brim.Tagger()
    with pytest.raises(brim.UsageError, match="vectors"):
        brim.Encoder("vader")


class Item:
    sentiment_score: float


@pytest.mark.parametrize("model", ["vader", ""])
def test_batch_scorer(model):
    scorer = brim.BatchScorer.from_env(model, env={"SENTIMENT_BATCH_SIZE": "2"})
    items = [{"title": "I love this"}, {"title": "I hate this, awful"}, {"title": "great"}]
    assert scorer.score_or_queue(items[0]["title"], items[0]) is None and len(scorer) == 1
    assert scorer.score_or_queue(items[1]["title"], items[1]) == items[1]["sentiment_score"] < 0
    assert items[0]["sentiment_score"] > 0 and len(scorer) == 0
    scorer.score_or_queue(items[2]["title"], items[2])
    assert scorer.flush_and_apply(items) is not items and len(scorer) == 0
    assert all(-1 <= item["sentiment_score"] <= 1 for item in items)
    item = Item()
    scorer.score_or_queue("great", item)
    assert scorer.flush_and_apply() == [item] and item.sentiment_score > 0


def test_batch_scorer_and_a_text_that_cannot_be_read():
    scorer, items = brim.BatchScorer("vader", batch_size=3), [{}, {}, {}]
    assert [scorer.score_or_queue(text, item) for text, item in zip(["great", "half \ud83d", "awful"], items)][2] < 0
    assert items[0]["sentiment_score"] > 0 and items[1] == {"sentiment_score": None} and len(scorer) == 0
    scorer.batch_size = 1
    assert scorer.score_or_queue("\ud83d", {}) is None and len(scorer) == 0


@pytest.mark.parametrize("reported", ["raised", "by row"])
def test_batch_scorer_keeps_a_batch_that_failed(monkeypatch, reported):
    scorer, items = brim.BatchScorer("vader", batch_size=2), [{"n": n} for n in range(4)]
    predict = scorer.classifier.predict

    def failing(texts, **settings):
        scorer._waiting.append(("awful", items[3]))  # another thread's, which comes meanwhile
        if reported == "raised":
            raise brim.DeviceLost("the card is gone", "start again")
        result = predict(texts, **settings)
        result.errors = [(0, brim.DeviceLost("the card is gone", "start again"))]
        return result

    monkeypatch.setattr(scorer.classifier, "predict", failing)
    scorer.score_or_queue("great", items[0])
    with pytest.raises(brim.DeviceLost):
        scorer.score_or_queue("awful", items[1])
    assert len(scorer) == 3 and "sentiment_score" not in items[0]
    monkeypatch.setattr(scorer.classifier, "predict", predict)
    assert scorer.score_or_queue("great", items[2]) > 0 and len(scorer) == 0
    assert [item["sentiment_score"] > 0 for item in items] == [True, False, True, False]


def test_batch_scorer_and_an_item_that_takes_no_score():
    scorer, items = brim.BatchScorer("vader"), [{}, object(), {}]
    for item in items:
        scorer.score_or_queue("great", item)
    with pytest.raises(AttributeError):
        scorer.flush_and_apply()
    assert items[0]["sentiment_score"] > 0 and items[2]["sentiment_score"] > 0 and len(scorer) == 0


def test_batch_scorer_settings(monkeypatch, tagger_dir):
    monkeypatch.setenv("SENTIMENT_MODEL_NAME", "vader")
    assert brim.BatchScorer.from_env().classifier.precision == "exact" and brim.BatchScorer.from_env().batch_size == 10
    with pytest.raises(brim.UsageError, match="SENTIMENT_BATCH_SIZE"):
        brim.BatchScorer.from_env(env={"SENTIMENT_BATCH_SIZE": "ten"})
    with pytest.raises(brim.UsageError, match="str"):
        brim.BatchScorer("vader").score_or_queue(None, {})


def test_plan():
    plan = brim.plan(device="rtx3070", limit="6GiB")
    assert sum(plan.bytes.values()) == plan.peak_bytes <= plan.limit_bytes == 6 << 30
    assert "tokens per batch" in repr(plan) and "<table>" in plan._repr_html_() and plan["precision"]
    assert brim.plan(task="train", device="rtx3070").data["task"] == "train"
    with pytest.raises(brim.DoesNotFit) as caught:
        brim.plan(task="train", device="rtx3070", limit="100MiB")
    assert caught.value.remedy
    with pytest.raises(brim.UsageError):
        brim.plan(device="toaster")


def test_a_model_shows_its_plan(clf):
    assert clf.plan.peak_bytes == sum(clf.plan.bytes.values()) > 0 and "<table>" in clf.plan._repr_html_()
    assert "default" in repr(clf)


def test_types():
    mypy = pytest.importorskip("mypy")
    assert mypy
    package = pathlib.Path(brim.__file__).parent
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", "/dev/null", package],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_stub_names_what_is_there():
    """Every class, method, property and parameter of _brim.pyi and of the module itself."""
    from brim import _brim

    stub = ast.parse(pathlib.Path(brim.__file__).with_name("_brim.pyi").read_text())
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    assert sorted(classes) == sorted(name for name, value in vars(_brim).items() if isinstance(value, type))
    for name, node in classes.items():
        here = {key: value for key, value in vars(getattr(_brim, name)).items() if key == "__len__" or key[0] != "_"}
        methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
        assert sorted(here) == sorted(methods), name
        for key, method in methods.items():
            if signature := getattr(here[key], "__nb_signature__", None):
                wanted = [argument.arg for argument in method.args.args]
                told = signature[0][0]
                assert [part.split(":")[0].strip() for part in told[told.index("(") + 1:told.rindex(")")].split(",")] == wanted


def test_import_takes_numpy_alone():
    code = "import sys, brim; print([m for m in ('pandas', 'pyarrow', 'torch', 'polars', 'tqdm') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_nothing_is_connected_to(tmp_path):
    code = """
import sys
connected = []
sys.addaudithook(lambda event, args: connected.append(event) if event.startswith("socket.") else None)
import brim
brim.Classifier()("great")
brim.Classifier("vader").predict(["great"] * 500)
brim.plan(device="rtx3070")
print(connected)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_cell_of_the_notebook_runs(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    shutil.copy(SOURCE / "examples" / "tweets.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in json.loads((SOURCE / "examples" / "brim.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            *before, last = tree.body
            exec(compile(ast.Module(before, []), "cell", "exec"), names)
            if isinstance(last, ast.Expr):
                shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
                draw = getattr(shown, "_repr_html_", None) or shown.__repr__
                assert draw()
            else:
                exec(compile(ast.Module([last], []), "cell", "exec"), names)
    assert names["run"].figures["steps"] > 0
