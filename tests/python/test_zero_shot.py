# SPDX-License-Identifier: Apache-2.0
"""Zero-shot classification: the call and the result of transformers' pipeline, with its scores."""

from __future__ import annotations

import json
import pickle

import brim
import numpy as np
import pytest
from conftest import SOURCE, tiny_model

GOLDEN = json.loads((SOURCE / "tests/data/zero_shot.json").read_text())


def nli_model(folder, labels):
    """bert_pair with the vocabulary of the goldens and these labels."""
    tiny_model("bert_pair", folder)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, 96))]) + "\n")
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(i): label for i, label in enumerate(labels)}
    del config["label2id"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def classify(tmp_path_factory):
    folder = nli_model(tmp_path_factory.mktemp("models") / "nli", GOLDEN["cases"][0]["model_labels"])
    with brim.ZeroShotClassifier(folder, device="cpu", precision="fp32") as model:
        yield model


def test_scores_equal_transformers(classify):
    for case in GOLDEN["cases"]:
        if case["model_labels"] != GOLDEN["cases"][0]["model_labels"]:
            continue
        options = {"multi_label": case.get("multi_label", False), "hypothesis_template": case.get("template", "This example is {}.")}
        results = classify(GOLDEN["texts"], case["labels"], **options)
        assert [r["sequence"] for r in results] == GOLDEN["texts"]
        for result, want in zip(results, case["scores"], strict=True):
            assert result["scores"] == sorted(result["scores"], reverse=True)
            got = dict(zip(result["labels"], result["scores"], strict=True))
            assert [got[label] for label in case["labels"]] == pytest.approx(want, abs=1e-4)


def test_calls_like_the_pipeline(classify):
    one = classify("w22", candidate_labels="w10, w20 w21,w30,")
    assert list(one) == ["sequence", "labels", "scores"]
    assert sorted(one["labels"]) == ["w10", "w20 w21", "w30"]
    assert classify(["w22"], ["w10", "w20 w21", "w30"]) == [one]
    assert sum(one["scores"]) == pytest.approx(1, abs=1e-5)
    columns = classify.predict(["w22", "w77"], ["w10", "w30"])
    assert columns.scores.shape == (2, 2)
    assert columns.label_names == ["w10", "w30"]
    assert columns.labels[0] == classify("w22", ["w10", "w30"])["labels"][0]
    many = classify.predict(["w22"] * 5000, ["w10", "w30"])
    assert np.allclose(many.scores, columns.scores[0], atol=1e-6)


def test_rejects_invalid_labels(classify):
    for labels in ([], "", None, ["a", "a"], ["a", " "], [1], [f"label {i}" for i in range(10000)]):
        with pytest.raises(brim.UsageError, match="candidate_labels"):
            classify("w22", labels)
    for template in ("about", "{0}", "{x}", "{{}}", 7):
        with pytest.raises(brim.UsageError, match="hypothesis_template"):
            classify("w22", ["a"], hypothesis_template=template)
    with pytest.raises(brim.UsageError, match="sequences"):
        classify([], ["a"])


def test_requires_an_nli_model(tmp_path):
    with pytest.raises(brim.BadModel, match="negative, neutral, positive"):
        brim.ZeroShotClassifier(tiny_model("bert_pair", tmp_path / "classifier"), device="cpu")
    with pytest.raises(brim.UsageError):
        brim.ZeroShotClassifier(tiny_model("bert_token", tmp_path / "tagger"), device="cpu")


def test_survives_pickling(classify):
    copy = pickle.loads(pickle.dumps(classify))
    assert copy("w22", ["w10", "w30"]) == classify("w22", ["w10", "w30"])
    copy.close()
    with pytest.raises(brim.Cancelled):
        copy("w22", ["w10"])


def test_entities_equal_those_of_gliner():
    folder = SOURCE / "tests/data/gliner/span_rnn"
    golden = json.loads((folder / "golden.json").read_text())
    with brim.Tagger(folder, device="cpu", precision="fp32") as ner:
        for case in golden["cases"]:
            found = ner(golden["texts"], labels=case["labels"], threshold=case["threshold"], nested=case["nested"])
            for entities, wanted in zip(found, case["entities"], strict=True):
                assert [(e["start"], e["end"], e["entity_group"]) for e in entities] == [tuple(w[:3]) for w in wanted]
                assert np.allclose([e["score"] for e in entities], [w[3] for w in wanted], atol=1e-4)
        for wrong in ({}, {"threshold": 0.3}, {"labels": ["a", "a"]}, {"labels": "a", "threshold": 2}, {"labels": [1]}, {"labels": ["\ud83d"]},
                      {"labels": 5}, {"labels": "a", "threshold": 10**400}, {"labels": "a", "stride": 3}):
            with pytest.raises(brim.UsageError):
                ner("Ada", **wrong)
