# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures: the default model, VADER, the example tweets, tiny seeded models."""

from __future__ import annotations

import csv
import pathlib
import sys

import brim
import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests"))
import loopback_hub  # noqa: E402: found by the line above


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
    """Writes a model of tests/data with a tokenizer."""
    to.mkdir(parents=True)
    for file, data in loopback_hub.tiny_model(name).items():
        (to / file).write_bytes(data)
    return to


@pytest.fixture(scope="session")
def tagger_dir(tmp_path_factory):
    return tiny_model("bert_token", tmp_path_factory.mktemp("models") / "tagger")


@pytest.fixture(scope="session")
def encoder_dir(tmp_path_factory):
    return tiny_model("bert_encoder", tmp_path_factory.mktemp("models") / "encoder")
