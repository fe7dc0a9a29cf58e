# SPDX-License-Identifier: Apache-2.0
"""Calls of transformers' pipelines and of sentence-transformers: options per call, datasets, streams, tokenizers."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import warnings

import brim
import numpy as np
import pytest
from conftest import tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return brim.Classifier(tiny_model("bert_sequence", tmp_path_factory.mktemp("calls") / "m"), precision="fp32")


@pytest.fixture(scope="module")
def ner(tagger_dir):
    return brim.Tagger(tagger_dir, precision="fp32")


LONG = "ada lives in london . " * 40


def test_max_length_per_call(tiny):
    short = brim.Classifier(tiny._options["model"], precision="fp32", max_length=8)
    assert tiny(LONG, max_length=8)[0]["score"] == pytest.approx(short(LONG, truncation=True)[0]["score"], abs=1e-6)
    assert tiny.predict([LONG, "ada"], max_length=8).truncated.tolist() == [True, False]
    assert np.allclose(tiny.predict([LONG] * 900, max_length=8).scores, short.predict([LONG]).scores, atol=1e-5)
    assert tiny("ada", max_length=8) == tiny("ada")
    assert tiny(LONG, truncation=True, max_length=10_000) == tiny(LONG, truncation=True)


def test_max_length_of_pairs(tmp_path):
    model = tiny_model("bert_pair", tmp_path / "pair")
    wide, short = brim.Classifier(model, precision="fp32"), brim.Classifier(model, precision="fp32", max_length=9)
    pair = {"text": LONG, "text_pair": "paris word1 word2 word3 word4"}
    assert wide(pair, max_length=9)["score"] == pytest.approx(short(pair, truncation=True)["score"], abs=1e-6)


def test_truncation_warns_or_fails(tiny):
    with pytest.warns(UserWarning, match="1 text was truncated") as caught:
        tiny(["ada", LONG])
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny([LONG], truncation=True)
        tiny([LONG], max_length=16)
        tiny("ada")
    with pytest.raises(brim.BadData, match="tokens"):
        tiny([LONG], truncation=False)


class Dataset:
    """Like transformers' KeyDataset: a length and items only."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def test_datasets_and_streams_are_lazy(tiny):
    texts = ["ada lives", "paris", "london"]
    results = tiny(Dataset(texts))
    assert len(results) == 3 and list(results) == tiny(texts)
    pairs = [{"text": "ada lives", "text_pair": None}, {"text": "paris"}]
    assert list(tiny(Dataset(pairs))) == tiny(texts[:2])
    read = []

    def slow():
        for text in texts:
            read.append(text)
            yield text
            import time
            time.sleep(0.05)

    stream = tiny(slow(), top_k=None)
    assert not read and next(stream) == tiny(texts[:1], top_k=None)[0] and len(read) < 3
    assert len(list(stream)) == 2


def test_pipeline(tiny, tagger_dir, tmp_path):
    model = tiny._options["model"]
    pipe = brim.pipeline("text-classification", model=model, device=-1, torch_dtype="float32", top_k=None, batch_size=8)
    assert pipe("ada") == tiny("ada", top_k=None) and pipe("ada", top_k=1) == tiny("ada", top_k=1)
    assert pickle.loads(pickle.dumps(pipe))("ada") == pipe("ada")
    ner = brim.pipeline("ner", model=tagger_dir, dtype="float32")
    assert isinstance(ner, brim.Tagger) and "entity" in ner("ada lives in london")[0]
    grouped = brim.pipeline("token-classification", model=tagger_dir, aggregation_strategy="first", ignore_labels=["O", "LOC"])
    assert all(e["entity_group"] != "LOC" for e in grouped("ada lives in london . paris"))


def test_tagger_options_per_call(ner, tagger_dir):
    text = "ada lives in london ."
    for strategy in ("none", "simple", "first", "average", "max"):
        other = brim.Tagger(tagger_dir, precision="fp32", aggregation_strategy=strategy)
        assert ner(text, aggregation_strategy=strategy) == other(text), strategy
    tokens = ner(text, aggregation_strategy="none", ignore_labels=[])
    assert [e["word"] for e in tokens] == ner.tokenizer.tokenize(text) and [e["index"] for e in tokens] == list(range(1, 6))
    kept = ner(text, aggregation_strategy="none")
    assert kept == [e for e in tokens if e["entity"] != "O"]
    everything = ner(text, ignore_labels=[])
    assert {e["entity_group"] for e in everything} >= {e["entity_group"] for e in ner(text)}
    assert [e for e in everything if e["entity_group"] != "O"] == ner(text)


def test_tagger_inputs(ner):
    words = ["ada", "lives", "in", "london"]
    assert ner(words, is_split_into_words=True) == [ner("ada lives in london")]
    assert ner(np.array(words), is_split_into_words=True) == [ner("ada lives in london")]
    assert ner("ada zanzibar", aggregation_strategy="none", ignore_labels=[])[1]["word"] == "zanzibar"
    assert ner([words, ["paris"]], is_split_into_words=True) == ner(["ada lives in london", "paris"])
    assert list(ner(iter(["ada lives", "paris"]))) == ner(["ada lives", "paris"])
    assert list(ner(Dataset(["ada lives", "paris"]))) == ner(["ada lives", "paris"])


def test_stride_reads_long_texts(ner):
    text = "word1 word2 . " * 60 + "ada lives in london"
    at = len(text) - len("ada lives in london")
    with pytest.warns(UserWarning, match="truncated"):
        assert all(e["start"] < at for e in ner(text))
    spread = ner(text, stride=4, aggregation_strategy="none", ignore_labels=[])
    assert max(e["end"] for e in spread) == len(text)


def test_tokenizer(tiny):
    ids = tiny.tokenizer.encode("ada lives in london")
    assert len(tiny.tokenizer.tokenize("ada lives in london")) == len(ids) - 2
    assert tiny.tokenizer(["ada", "ada lives"])["input_ids"][1] == tiny.tokenizer.encode("ada lives")
    assert tiny.tokenizer.encode("ada lives in london", max_length=4)[-1] == ids[-1]
    assert tiny.tokenizer.decode(ids, skip_special_tokens=True) == "ada lives in london"
    assert tiny.tokenizer.model_max_length == tiny.max_length


def test_fields_of_structs():
    texts = ["great", "awful"]
    vader = brim.Classifier("vader")
    wanted = vader.predict(texts).labels
    rows = [{"body": text, "id": i} for i, text in enumerate(texts)]
    assert vader.predict({"meta": rows}, column="meta.body").labels == wanted
    pa = pytest.importorskip("pyarrow")
    assert vader.predict(pa.table({"meta": rows}), column="meta.body").labels == wanted
    pl = pytest.importorskip("polars")
    assert vader.predict(pl.DataFrame({"meta": rows}), column="meta.body").labels == wanted
    assert vader.predict(pl.LazyFrame({"text": texts, "n": [1, 2]})).labels == wanted
    with pytest.raises(brim.UsageError, match="no field 'title'"):
        vader.predict(pl.DataFrame({"meta": rows}), column="meta.title")


def test_type_names_of_columns():
    pa = pytest.importorskip("pyarrow")
    vader = brim.Classifier("vader")
    for kind in (pa.int64(), pa.float32(), pa.binary(), pa.timestamp("us"), pa.list_(pa.string()), pa.bool_()):
        with pytest.raises(brim.BadData, match=str(kind).split("[")[0].split("<")[0].replace("float", "float32")):
            vader.predict(pa.table({"text": pa.array([None], kind)}))


def test_encoder_calls(encoder_dir):
    encoder = brim.Encoder(encoder_dir, precision="fp32", prompts={"query": "ada ", "document": "paris "}, device="cpu")
    texts = ["lives in london", "london", "word1"]
    vectors = encoder.encode(texts, device="cpu")
    assert np.allclose(encoder.encode_query("london"), encoder.encode("london", prompt="ada "), atol=1e-6)
    assert np.allclose(encoder.encode_document(texts), encoder.encode(texts, prompt_name="document"), atol=1e-6)
    assert np.allclose(encoder.encode(texts, truncate_dim=3), vectors[:, :3], atol=1e-6)
    unit = encoder.encode(texts, truncate_dim=3, normalize_embeddings=True)
    assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    assert np.allclose(np.diag(encoder.similarity(vectors, vectors)), 1, atol=1e-5)
    assert np.allclose(encoder.similarity_pairwise(vectors, vectors[::-1])[1], 1, atol=1e-5)
    assert encoder.encode(texts, precision="ubinary").dtype == np.uint8
    assert encoder.encode(texts, precision="int8").dtype == np.int8
    tokens = encoder.encode(texts, output_value="token_embeddings")
    assert [len(t) for t in tokens] == [len(encoder.tokenizer.encode(t)) for t in texts]
    assert np.allclose(tokens[0].mean(axis=0), vectors[0], atol=1e-5)
    assert encoder.tokenize(texts)["attention_mask"].sum() == sum(len(t) for t in tokens)
    encoder.max_seq_length = 8
    assert encoder.max_seq_length == 8 and encoder.prompts and not np.allclose(encoder.encode(LONG), vectors[0])


def test_cross_encoder(tmp_path):
    model = brim.CrossEncoder(tiny_model("bert_pair", tmp_path / "cross"), precision="fp32", activation_fn="none")
    pairs = [("ada lives", "in london"), ("ada lives", "paris")]
    scores = model.predict(pairs)
    assert len(scores) == 2 and np.allclose(model.predict(pairs[0]), scores[0], atol=1e-6)
    assert np.allclose(model.predict(pairs, activation_fn="sigmoid"), 1 / (1 + np.exp(-scores)), atol=1e-5)
    if model.num_labels == 1:
        ranked = model.rank("ada lives", ["in london", "paris"], return_documents=True)
        assert [r["score"] for r in ranked] == sorted((float(s) for s in scores), reverse=True)
        assert ranked[0]["text"] == ["in london", "paris"][ranked[0]["corpus_id"]]
    else:
        assert np.allclose(model.predict(pairs, apply_softmax=True).sum(axis=1), 1, atol=1e-5)
        with pytest.raises(brim.UsageError, match="one score"):
            model.rank("a", ["b"])
    assert np.allclose(pickle.loads(pickle.dumps(model)).predict(pairs), scores, atol=1e-6)


def test_models_by_name(tagger_dir, encoder_dir):
    assert isinstance(brim.load_model("vader"), brim.Classifier) and isinstance(brim.load_model(tagger_dir), brim.Tagger)
    assert isinstance(brim.load_model(), brim.Classifier)


def test_compare(tweets):
    labels = brim.Classifier().predict(tweets).labels
    found = brim.compare(["vader", "default"], (tweets, labels))
    assert found["default"]["accuracy"] == 1 and found.recommended in ("vader", "default")
    assert "default" in repr(found) and "<table>" in found._repr_html_() and found.pairs[0]["agreement"] <= 1
    unlabelled = brim.compare(["vader", "default"], tweets)
    assert unlabelled.recommended is None and len(unlabelled.models) == 2


def test_gpu_stats():
    for gpu in brim.gpu_stats():
        assert {"index", "name", "healthy", "utilization_pct", "vram_used_mb"} <= set(gpu)


@pytest.mark.skipif(not os.environ.get("BRIM_NVML_STAND_IN"), reason="needs the library of the tests")
def test_units_of_gpu_stats():
    code = "import brim, json; print(json.dumps(brim.gpu_stats()))"
    scenario = "name=H200,util=87,mem=20000/144000,temp=54,power=412|name=old,no=utilization+memory+temperature+power"
    env = {**os.environ, "BRIM_NVML_LIBRARY": os.environ["BRIM_NVML_STAND_IN"], "BRIM_NVML_SCENARIO": scenario}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    first, second = json.loads(done.stdout)
    assert first["name"] == "H200" and first["healthy"] and first["utilization_pct"] == 87
    assert first["vram_used_mb"] == 20000 and first["vram_total_mb"] == 144000
    assert first["temperature_c"] == 54 and first["power_w"] == 412
    assert second["utilization_pct"] is None and second["vram_used_mb"] is None


def test_a_closed_model_waits_for_running_calls(tweets):
    import threading

    clf, got = brim.Classifier("vader"), []
    thread = threading.Thread(target=lambda: got.append(len(clf.predict(tweets * 2000))))
    thread.start()
    while not clf._callers and thread.is_alive():
        pass
    clf.close()
    assert not thread.is_alive() or not clf._callers
    thread.join()
    assert got == [len(tweets) * 2000]
