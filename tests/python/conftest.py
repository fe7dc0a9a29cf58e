# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures: the default model, VADER, the example tweets, tiny seeded models."""

from __future__ import annotations

import csv
import json
import pathlib
import shutil

import brim
import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def clf():
    return brim.Classifier()


@pytest.fixture(scope="session")
def vader():
    return brim.Classifier("vader")


@pytest.fixture(scope="session")
def tweets():
    with open(SOURCE / "examples" / "tweets.csv", newline="", encoding="utf-8") as file:
        return [row["text"] for row in csv.DictReader(file)]


def tiny_model(name: str, to: pathlib.Path) -> pathlib.Path:
    """Copies a model of tests/data, which has no tokenizer, and adds one with a matching vocabulary size."""
    shutil.copytree(SOURCE / "tests" / "data" / "models" / name, to)
    size = json.loads((to / "config.json").read_text())["vocab_size"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ada", "lives", "in", "london", "paris", "."]
    (to / "vocab.txt").write_text("\n".join(words + [f"word{i}" for i in range(size - len(words))]) + "\n")
    (to / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    return to


@pytest.fixture(scope="session")
def tagger_dir(tmp_path_factory):
    return tiny_model("bert_token", tmp_path_factory.mktemp("models") / "tagger")


@pytest.fixture(scope="session")
def encoder_dir(tmp_path_factory):
    return tiny_model("bert_encoder", tmp_path_factory.mktemp("models") / "encoder")
