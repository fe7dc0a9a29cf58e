# SPDX-License-Identifier: Apache-2.0
"""Calls of transformers' pipelines and of sentence-transformers: options per call, datasets, streams, tokenizers."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
import warnings

import brim
import numpy as np
import pytest
from conftest import SOURCE, tiny_model


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
    assert pipe("ada") == [tiny("ada", top_k=None)] and pipe("ada", top_k=1) == tiny("ada", top_k=1)
    assert pickle.loads(pickle.dumps(pipe))("ada") == pipe("ada")
    ner = brim.pipeline("ner", model=tagger_dir, dtype="float32")
    assert isinstance(ner, brim.Tagger) and "entity" in ner("ada lives in london")[0]
    grouped = brim.pipeline("token-classification", model=tagger_dir, aggregation_strategy="first", ignore_labels=["O", "LOC"])
    assert all(e["entity_group"] != "LOC" for e in grouped("ada lives in london . paris"))


async def awaited(clf, text):
    return await clf.ascore(text)


def test_defaults_of_a_pipeline_apply_to_all_calls(tiny):
    pipe = brim.pipeline("text-classification", model=tiny._options["model"], dtype="float32", function_to_apply="sigmoid",
                         max_length=8, top_k=2)
    options = {"function_to_apply": "sigmoid", "max_length": 8}
    texts = ["ada lives", LONG]
    wanted = tiny(texts, top_k=2, **options)
    scores = tiny.predict(texts, **options)
    assert pipe(texts) == wanted and [len(row) for row in wanted] == [2, 2]
    assert np.allclose(pipe.predict(texts).scores, scores.scores, atol=1e-6) and pipe.predict(texts).truncated.tolist() == [False, True]
    assert np.allclose(next(pipe.stream(texts)).scores, scores.scores, atol=1e-6)
    for one in (pipe.submit(LONG).result(30), asyncio.run(awaited(pipe, LONG))):
        assert [row["label"] for row in one] == [row["label"] for row in wanted[1]]
        assert np.allclose([row["score"] for row in one], [row["score"] for row in wanted[1]], atol=1e-6)
    assert pipe.predict(texts, function_to_apply="none").scores.max() == tiny.predict(texts, function_to_apply="none", max_length=8).scores.max()
    assert isinstance(pipe.submit("ada", top_k=1).result(30), list)


def test_a_pipeline_has_an_adapter(tmp_path):
    base, adapter = tiny_model("bert_encoder", tmp_path / "base"), SOURCE / "tests/data/adapters/bert_new_head"
    pipe = brim.pipeline("text-classification", model=base, adapter=adapter, device="cpu", dtype="float32")
    assert pipe.labels == ["LABEL_0", "LABEL_1"]


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
    for delimiter in ("", ", ", "_"):  # changes positions, not tokens
        found, joined = ner([words], is_split_into_words=True, delimiter=delimiter, ignore_labels=[])[0], delimiter.join(words)
        assert [e["word"] for e in found] == [e["word"] for e in ner("ada lives in london", ignore_labels=[])]
        assert [joined[e["start"]:e["end"]].replace(delimiter, " ") if delimiter else e["word"] for e in found] == [e["word"] for e in found]
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


def test_pairs_of_an_encoder(tmp_path):
    encoder = brim.Encoder(tiny_model("bert_encoder", tmp_path / "m"), precision="fp32", prompts={"query": "paris "})
    pairs, many = [("ada lives", "in london"), ("ada", "paris")], [("ada lives in london", f"word{i % 40}") for i in range(900)]
    vectors = encoder.encode(pairs)
    assert vectors.shape[0] == 2 and not np.allclose(vectors, encoder.encode(["ada lives in london", "ada paris"]), atol=1e-3)
    assert np.allclose(encoder.encode([list(pair) for pair in pairs], normalize_embeddings=True),
                       vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=1e-6)
    for some in (1, 900):  # the second texts have an effect
        found = encoder.encode([("ada", one) for one in ["paris", "london"] * some])
        assert not np.allclose(found[0], found[1], atol=1e-3) and np.allclose(found[-2:], found[:2], atol=1e-5)
    mixed = encoder.encode(["ada", pairs[0], "paris"])
    assert np.allclose(mixed[[0, 2]], encoder.encode(["ada", "paris"]), atol=1e-6) and np.allclose(mixed[1], vectors[0], atol=1e-6)
    assert np.allclose(encoder.encode(pairs, prompt_name="query"), encoder.encode([("paris " + a, b) for a, b in pairs]), atol=1e-6)
    assert np.allclose(encoder.encode(many)[7], encoder.encode(many[7:8])[0], atol=1e-5)
    for wrong, row in (([("a",)], 0), (["a", ("a", "b", "c")], 1), (["a", ("a", None)], 1), ([("a", "b"), 5], 1)):
        with pytest.raises(brim.BadData) as caught:
            encoder.encode(wrong)
        assert caught.value.row == row
    with pytest.raises(brim.UsageError, match="pairs"):
        encoder.encode(pairs, output_value="token_embeddings")


def test_a_failed_change_of_the_length_keeps_the_encoder_open(encoder_dir):
    encoder = brim.Encoder(encoder_dir, precision="fp32", max_length=9, truncate_dim=5)
    before = encoder.encode(["ada"])
    for wrong in (1, 2**63, "long"):
        with pytest.raises(brim.UsageError):
            encoder.max_seq_length = wrong
        assert encoder.max_seq_length == 9 and np.array_equal(encoder.encode(["ada"]), before)


def test_all_outputs_have_the_requested_width(encoder_dir):
    torch = pytest.importorskip("torch")
    encoder = brim.Encoder(encoder_dir, precision="fp32", truncate_dim=7)
    found = encoder.encode("ada lives", output_value=None)
    assert torch.allclose(found["sentence_embedding"], torch.from_numpy(encoder.encode("ada lives")), atol=1e-6)
    assert encoder.encode("ada lives", output_value=None, truncate_dim=3)["sentence_embedding"].shape == (3,)


def test_models_by_name(tagger_dir, encoder_dir, tmp_path):
    assert isinstance(brim.load_model("vader"), brim.Classifier) and isinstance(brim.load_model(tagger_dir), brim.Tagger)
    assert isinstance(brim.load_model(), brim.Classifier)
    encoder = brim.load_model(encoder_dir)
    assert isinstance(encoder, brim.Encoder) and encoder.encode("ada").shape == (48,)
    gliner = brim.load_model(SOURCE / "tests/data/gliner/span", device="cpu")
    assert isinstance(gliner, brim.Tagger) and isinstance(gliner("Ada", labels=["person"]), list)
    for name, kind in (("bert_sequence", brim.Classifier), ("bert_token", brim.Tagger), ("bert_encoder", brim.Encoder)):
        folder = tiny_model(name, tmp_path / name)  # without a class name, the tensors decide
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "architectures"}))
        assert isinstance(brim.load_model(folder), kind), name


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
