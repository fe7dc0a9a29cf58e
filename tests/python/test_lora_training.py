# SPDX-License-Identifier: Apache-2.0
"""brim.train with LoRA and with frozen parameters."""

from __future__ import annotations

import json
import pathlib
import subprocess

import brim
import numpy as np
import pytest
from brim import _program
from conftest import tiny_model

QUICK = {"device": "cpu", "threads": 1, "learning_rate": 1e-2, "train_batch_size": 8, "ignore_mismatched_head": True}
LORA = {"lora_r": 2, "lora_alpha": 6, "lora_dropout": 0.1}
TEXTS = [f"{'london' if i % 2 else 'paris'} word{i % 7} ada" for i in range(32)]
LABELS = ["good" if i % 2 else "bad" for i in range(32)]


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    return tiny_model("bert_sequence", tmp_path_factory.mktemp("models") / "start")


def tensors(file: pathlib.Path) -> dict[str, bytes]:
    """The bytes of each tensor of a safetensors file."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    return {name: data[8 + size + at[0]:8 + size + at[1]] for name, at in
            ((name, entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__")}


def run(start, folder, **settings):
    return brim.train(start, (TEXTS, LABELS), output_dir=folder, max_steps=8, progress=False, **QUICK, **settings)


def test_lora_writes_an_adapter(start, tmp_path):
    done = run(start, tmp_path / "out", **LORA, target_modules=["query", "value"])
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (2, 6, 0.1)
    stored = tensors(tmp_path / "out" / "adapter_model.safetensors")
    adapted = {name.split(".")[-3] for name in stored if ".lora_A." in name}
    assert adapted == {"query", "value"}
    assert not (tmp_path / "out" / "model.safetensors").exists()
    with done.classifier(device="cpu", precision="fp32") as trained:
        assert set(trained.labels) == {"good", "bad"}
        scores = trained.predict(TEXTS).scores
    with brim.Classifier(start, adapter=tmp_path / "out", device="cpu", precision="fp32") as opened:
        assert (opened.predict(TEXTS).scores == scores).all()
    assert np.ptp(scores[:, 0]) > 0


def test_lora_runs_equal_those_of_the_program(start, tmp_path):
    run(start, tmp_path / "ours", **LORA, lora_targets="attention")
    rows = [json.dumps({"text": text, "label": label}) for text, label in zip(TEXTS, LABELS, strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    words = [w for k, v in {**QUICK, **LORA, "max_steps": 8, "lora_targets": "attention"}.items()
             for w in (f"--{k.replace('_', '-')}", str(v).lower()) if w != "true"]
    subprocess.run([_program.path(), "train", "-q", "--model", start, "--train", tmp_path / "rows.jsonl",
                    "--output", tmp_path / "theirs", *words], check=True)
    one, other = (tensors(tmp_path / name / "adapter_model.safetensors") for name in ("ours", "theirs"))
    assert one == other


@pytest.mark.parametrize(("freeze", "frozen", "trained"), [
    ("embeddings", "bert.embeddings.", "bert.encoder.layer.0."),
    ("layers:1", "bert.encoder.layer.0.", "bert.encoder.layer.1."),
    ("all-but-head", "bert.encoder.", "classifier."),
])
def test_frozen_tensors_keep_their_bits(freeze, frozen, trained, start, tmp_path):
    run(start, tmp_path / "out", freeze=freeze)
    before, after = tensors(start / "model.safetensors"), tensors(tmp_path / "out" / "model.safetensors")
    kept = [name for name in after if name.startswith(frozen)]
    assert kept and all(after[name] == before[name] for name in kept)
    changed = [name for name in after if name.startswith(trained) and after[name] != before.get(name)]
    assert changed, f"{trained} is trained"


@pytest.mark.parametrize(("settings", "part"), [
    ({"freeze": "everything"}, "freeze"),
    ({"lora_r": -1}, "lora_r"),
    ({"lora_r": 1000}, "lora_r"),
    ({"lora_r": 2, "lora_targets": "nothing"}, "lora_targets"),
    ({"lora_r": 2, "lora_dropout": 2}, "lora_dropout"),
])
def test_wrong_keywords_are_refused(settings, part, start, tmp_path):
    with pytest.raises(brim.UsageError, match=part):
        run(start, tmp_path / "out", **settings)
    assert not (tmp_path / "out" / "adapter_config.json").exists()
