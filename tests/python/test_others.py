# SPDX-License-Identifier: Apache-2.0
"""Encoder, Tagger, BatchScorer, plan, and the types."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys

import brim
import brim._program
import numpy as np
import pytest
from conftest import SOURCE, tiny_model


def test_encode(encoder_dir):
    encoder = brim.Encoder(encoder_dir)
    vectors = encoder.encode(["ada lives in london", "paris"])
    assert vectors.shape == (2, encoder.get_sentence_embedding_dimension()) and vectors.dtype == np.float32
    assert np.allclose(encoder.encode("paris"), vectors[1], atol=1e-6)
    unit = encoder.encode(["ada", "paris"], normalize_embeddings=True)
    assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    assert np.allclose(encoder.encode("london", prompt="ada lives in "), vectors[0], atol=1e-6)
    assert not np.allclose(brim.Encoder(encoder_dir, pooling="cls").encode("paris"), vectors[1], atol=1e-3)
    with pytest.raises(brim.UsageError, match="query"):
        encoder.encode("a", prompt_name="query")
    again = pickle.loads(pickle.dumps(encoder))
    assert (again.encode("paris") == encoder.encode("paris")).all()


def tables(texts):
    """The same texts in the formats of several libraries."""
    pd, pa, pl = (pytest.importorskip(name) for name in ("pandas", "pyarrow", "polars"))
    frame = pd.DataFrame({"text": texts}, index=range(10, 10 + len(texts)))
    columns = [texts, tuple(texts), iter(texts), np.array(texts), np.array(texts, dtype=object), frame["text"],
               frame["text"].astype("category"), pa.array(texts), pa.chunked_array([texts[:1], texts[1:]]),
               pa.array(texts).dictionary_encode(), pl.Series(texts)]
    return columns + [{"text": texts}, frame, pd.DataFrame({"t": texts}), pa.table({"text": texts}),
                      pl.DataFrame({"text": texts, "id": range(len(texts))})]


def test_encode_puts_the_prompt_before_every_row(encoder_dir):
    encoder = brim.Encoder(encoder_dir, prompts={"query": "ada lives in "})
    texts = ["london", "paris", "london ."]
    wanted = encoder.encode(["ada lives in " + text for text in texts])
    for source in tables(texts):
        assert np.allclose(encoder.encode(source, prompt="ada lives in "), wanted, atol=1e-6), type(source)
    for source in tables(texts):
        assert np.allclose(encoder.encode(source, prompt_name="query"), wanted, atol=1e-6), type(source)
    pd = pytest.importorskip("pandas")
    two = pd.DataFrame({"title": texts, "body": texts})
    assert np.allclose(encoder.encode(two, prompt="ada lives in ", column="body"), wanted, atol=1e-6)
    with pytest.raises(brim.UsageError, match="2 columns") as caught:
        encoder.encode(two, prompt="ada ")
    assert 'column="title", column="body"' in caught.value.remedy
    for missing in (pd.Series(["a", None]), pytest.importorskip("pyarrow").array(["a", None])):
        with pytest.raises(brim.BadData, match="row 1"):
            encoder.encode(missing, prompt="ada ")
    for wrong in (None, 5, b"x", np.zeros((2, 2))):
        with pytest.raises((brim.UsageError, brim.BadData)) as caught:
            encoder.encode(wrong, prompt="ada ")
        assert caught.value.remedy


def test_sentence_transformers_files(encoder_dir, tmp_path):
    path = shutil.copytree(encoder_dir, tmp_path / "st")
    (path / "modules.json").write_text(json.dumps([
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    (path / "config_sentence_transformers.json").write_text('{"prompts": {"query": "ada lives in "}}')
    plain, configured = brim.Encoder(encoder_dir, pooling="cls"), brim.Encoder(path)
    wanted = plain.encode("ada lives in london", normalize_embeddings=True)
    assert np.allclose(configured.encode("ada lives in london"), wanted, atol=1e-6)
    assert np.allclose(configured.encode("london", prompt_name="query"), wanted, atol=1e-6)
    (path / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "ada lives in "}, "default_prompt_name": "query", "truncate_dim": 5}')
    assert np.allclose(brim.Encoder(path).encode("london"), wanted[:5], atol=1e-6)
    (path / "modules.json").write_text(json.dumps([
        {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]))
    (path / "config_sentence_transformers.json").write_text("{}")
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": true}')
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true, "include_prompt": false}')
    configured, plain = brim.Encoder(path), brim.Encoder(encoder_dir)
    assert np.allclose(configured.encode("LONDON"), plain.encode("london"), atol=1e-5)
    assert np.abs(configured.encode("london", prompt="ada lives in ") - plain.encode("ada lives in london")).max() > 1e-3
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
    for strategy in ("none", "simple", "average", "max"):
        assert tagger(text, aggregation_strategy=strategy) == brim.Tagger(tagger_dir, aggregation_strategy=strategy)(text)
    again = pickle.loads(pickle.dumps(brim.Tagger(tagger_dir, aggregation_strategy="max")))
    assert again(text, aggregation_strategy="max") == again(text)


def test_the_wrong_class_for_a_model(tagger_dir):
    with pytest.raises(brim.UsageError, match="Tagger"):
        brim.Classifier(tagger_dir)
    with pytest.raises(brim.UsageError, match="brim.Classifier"):
        brim.Tagger()
    with pytest.raises(brim.UsageError, match="embeddings"):
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


def test_batch_scorer_with_an_invalid_text():
    scorer, items = brim.BatchScorer("vader", batch_size=3), [{}, {}, {}]
    assert [scorer.score_or_queue(text, item) for text, item in zip(["great", "half \ud83d", "awful"], items)][2] < 0
    assert items[0]["sentiment_score"] > 0 and items[1] == {"sentiment_score": None} and len(scorer) == 0
    scorer.batch_size = 1
    assert scorer.score_or_queue("\ud83d", {}) is None and len(scorer) == 0


@pytest.mark.parametrize("reported", ["raised", "by row"])
def test_batch_scorer_keeps_a_failed_batch(monkeypatch, reported):
    scorer, items = brim.BatchScorer("vader", batch_size=2), [{"n": n} for n in range(4)]
    predict = scorer.classifier.predict

    def failing(texts, **settings):
        scorer._waiting.append(("awful", items[3]))  # added by another thread in the meantime
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


def test_batch_scorer_with_a_readonly_item():
    scorer, items = brim.BatchScorer("vader"), [{}, object(), {}]
    for item in items:
        scorer.score_or_queue("great", item)
    with pytest.raises(AttributeError):
        scorer.flush_and_apply()
    assert items[0]["sentiment_score"] > 0 and items[2]["sentiment_score"] > 0 and len(scorer) == 0


def test_batch_scorer_settings(monkeypatch, tagger_dir):
    monkeypatch.setenv("SENTIMENT_MODEL_NAME", "vader")
    assert brim.BatchScorer.from_env().classifier.precision == "exact" and brim.BatchScorer.from_env().batch_size == 10
    for size in ("ten", "0", "100001"):
        with pytest.raises(brim.UsageError, match=f"SENTIMENT_BATCH_SIZE={size}.*from 1 to 100,000"):
            brim.BatchScorer.from_env(env={"SENTIMENT_BATCH_SIZE": size})
    with pytest.raises(brim.UsageError, match="str"):
        brim.BatchScorer("vader").score_or_queue(None, {})


def test_batch_scorer_names_variables_without_effect(caplog):
    env = {"SENTIMENT_MODEL_NAME": "vader", "FEATURE_ADAPTIVE_SENTIMENT": "1", "MARKET_STATUS_OVERRIDE": "closed"}
    with caplog.at_level("WARNING", logger="brim"):
        brim.BatchScorer.from_env(env=env)
    assert [record.getMessage() for record in caplog.records] == [
        "FEATURE_ADAPTIVE_SENTIMENT=1 has no effect here; use a queue of `brim serve`",
        "MARKET_STATUS_OVERRIDE=closed has no effect here; use a queue of `brim serve`"]
    caplog.clear()
    brim.BatchScorer.from_env(env={"SENTIMENT_MODEL_NAME": "vader", "FEATURE_ADAPTIVE_SENTIMENT": "0"})
    assert not caplog.records
    with pytest.raises(brim.Error, match="finbert"):
        brim.BatchScorer.from_env(env={"SENTIMENT_BATCH_SIZE": "5"})


def labelled_model(labels, to):
    """A seeded classifier with its head truncated to the given labels."""
    tiny_model("bert_sequence", to)
    config = json.loads((to / "config.json").read_text())
    weights = to / "model.safetensors"
    data = weights.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8:8 + length]), data[8 + length:]
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            array = np.frombuffer(body[begin:end], np.float32).reshape(entry["shape"])
            if name.startswith("classifier."):
                array = np.resize(array, (len(labels), *array.shape[1:]))
            tensors[name] = array
    at, out = 0, {}
    for name, array in tensors.items():
        out[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(out).encode()
    weights.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in tensors.values()))
    config["id2label"] = {str(i): name for i, name in enumerate(labels)}
    config["label2id"] = {name: i for i, name in enumerate(labels)}
    (to / "config.json").write_text(json.dumps(config))
    return str(to)


@pytest.mark.parametrize("labels, signs", [
    (["negative", "neutral", "positive"], [-1, 0, 1]), (["POSITIVE", "NEGATIVE"], [1, -1]),
    (["LABEL_0", "LABEL_1", "LABEL_2"], [-1, 0, 1]), (["LABEL_0", "LABEL_1"], [-1, 1]),
])
def test_batch_scorer_knows_labels_by_name(labels, signs, tmp_path):
    model = brim.Classifier(labelled_model(labels, tmp_path / "m"), precision="fp32")
    item = {}
    brim.BatchScorer(model, batch_size=1).score_or_queue("ada lives", item)
    scores = model.predict(["ada lives"]).scores[0]
    assert item["sentiment_score"] == pytest.approx(float(scores @ np.array(signs, np.float32)), abs=1e-6)


@pytest.mark.parametrize("labels", [
    [f"LABEL_{i}" for i in range(5)], ["very negative", "negative", "neutral", "positive", "very positive"],
    ["joy", "anger"], ["negative", "neg", "positive"], ["LABEL_1", "LABEL_2"],
])
def test_batch_scorer_requires_a_mapping_for_other_labels(labels, tmp_path):
    model = brim.Classifier(labelled_model(labels, tmp_path / "m"), precision="fp32")
    with pytest.raises(brim.UsageError, match=labels[-1]) as caught:
        brim.BatchScorer(model)
    assert "labels=" in caught.value.remedy
    weights = dict(zip(labels, np.linspace(-1, 1, len(labels)).tolist()))
    item = {}
    brim.BatchScorer(model, batch_size=1, labels=weights).score_or_queue("ada lives", item)
    wanted = float(model.predict(["ada lives"]).scores[0] @ np.array(list(weights.values()), np.float32))
    assert item["sentiment_score"] == pytest.approx(wanted, abs=1e-6)
    for wrong in ({}, {labels[0]: 1}, {**weights, labels[0]: 2}, {**weights, labels[0]: "good"}, {**weights, "x": 0}):
        with pytest.raises(brim.UsageError, match="labels") as caught:
            brim.BatchScorer(model, labels=wrong)
        assert caught.value.remedy


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
    rules = brim.plan("vader")
    assert rules.peak_bytes == 0 and rules.bytes == {} and "0 B" in repr(rules) and "<table>" in rules._repr_html_()


def test_the_module_runs_no_program():
    for file in (SOURCE / "python" / "brim").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "subprocess" not in text and ("_program.path" not in text or file.name == "__main__.py"), file


def test_model_has_a_plan(clf):
    assert clf.plan.peak_bytes == sum(clf.plan.bytes.values()) > 0 and "<table>" in clf.plan._repr_html_()
    assert "default" in repr(clf)


def test_types():
    mypy = pytest.importorskip("mypy")
    assert mypy
    package = pathlib.Path(brim.__file__).parent
    calls = [SOURCE / "tests" / "python" / "typed_calls.py", SOURCE / "examples" / "serve_news" / "bot.py"]
    if importlib.util.find_spec("fastapi"):
        calls.append(SOURCE / "examples" / "fastapi" / "app.py")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", "/dev/null", package, *calls],
                          capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(package.parent)}, cwd=package.parent)
    assert done.returncode == 0, done.stdout


def test_types_by_pyright():
    pyright = shutil.which("pyright", path=f"{pathlib.Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if pyright is None:
        pytest.skip("no pyright")
    package = pathlib.Path(brim.__file__).parent
    calls = [SOURCE / "tests" / "python" / "typed_calls.py", SOURCE / "examples" / "serve_news" / "bot.py"]
    if importlib.util.find_spec("fastapi"):
        calls.append(SOURCE / "examples" / "fastapi" / "app.py")
    done = subprocess.run([pyright, "--pythonpath", sys.executable, package, *calls], capture_output=True, text=True,
                          cwd=package.parent)
    assert done.returncode == 0, done.stdout


def test_stub_matches_the_module():
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
                declaration = signature[0][0]
                assert [part.split(":")[0].strip() for part in declaration[declaration.index("(") + 1:declaration.rindex(")")].split(",")] == wanted


def test_import_requires_only_numpy():
    code = "import sys, brim; print([m for m in ('pandas', 'pyarrow', 'torch', 'polars', 'tqdm') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_modules_are_attributes():
    code = """
import sys, brim
assert "brim.bulk" not in sys.modules and {"bulk", "ray", "spark"} <= set(dir(brim))
print(brim.bulk.plan.__name__, brim.ray.score.__name__, brim.spark.score.__name__)
print([m for m in ("pandas", "pyarrow", "ray", "pyspark", "boto3") if m in sys.modules], hasattr(brim, "nonsense"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "plan score score\n[] False\n"


def test_names_in_the_docs_exist():
    found = set()
    for page in [SOURCE / "README.md", *(SOURCE / "docs").glob("*.md")]:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            found |= set(re.findall(r"\bbrim((?:\.[A-Za-z_]\w*)+)", block))
    assert {".bulk.plan", ".ray.score", ".spark.score", ".forecast.predict"} <= found
    for name in found - {".sklearn"}:  # imported explicitly, not always installed
        value = brim
        for part in name.split(".")[1:]:
            value = getattr(value, part)


def test_blocks_of_the_docs_run(tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    (tmp_path / "my-model").symlink_to(SOURCE / "models" / "default")
    monkeypatch.chdir(tmp_path)
    ran = 0
    for page in ("README.md", "docs/python.md", "docs/python-models.md", "docs/python-concurrency.md", "docs/python-forecast.md"):
        names: dict[str, object] = {"df": pandas.DataFrame({"text": ["great stuff", "awful"]})}
        text = (SOURCE / page).read_text(encoding="utf-8")
        for block in re.findall(r"(?<! -->\n)^```python\n(.*?)^```", text, re.S | re.M):
            if importlib.util.find_spec("polars") is None:
                block = block.replace(", r.to_polars()", "")
            exec(compile(block, page, "exec"), names)
            ran += 1
    assert ran >= 2


def test_no_network_connections(tmp_path):
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


def test_cells_of_the_notebook_run(tmp_path, monkeypatch):
    """Without the installation and the plots; tests/notebook.py executes all cells with a wheel."""
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    if subprocess.run([brim._program.path(), "help", "serve"], capture_output=True).returncode:
        pytest.skip("built without a server")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    try:
        for cell in json.loads((SOURCE / "examples" / "brim.ipynb").read_text(encoding="utf-8"))["cells"]:
            source = "".join(line for line in cell["source"] if not line.startswith("%"))
            if cell["cell_type"] == "code" and "plt." not in source:
                *before, last = ast.parse(source).body
                exec(compile(ast.Module(before, []), "cell", "exec"), names)
                if isinstance(last, ast.Expr):
                    shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
                    draw = getattr(shown, "_repr_html_", None) or shown.__repr__
                    assert draw()
                else:
                    exec(compile(ast.Module([last], []), "cell", "exec"), names)
    finally:
        if isinstance(server := names.get("server"), subprocess.Popen):
            server.kill()
    assert names["run"].figures["steps"] > 0
    assert names["answer"][0]["label"] == "positive"
