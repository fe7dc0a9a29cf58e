# SPDX-License-Identifier: Apache-2.0
"""Models from a hub: the error for a missing model, and pull=True."""

import brim
import loopback_hub
import pytest


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = loopback_hub.start_hub()
    server.files = loopback_hub.tiny_model("bert_sequence")
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", loopback_hub.address(server))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    yield server
    server.shutdown()
    server.server_close()


def test_missing_model_names_the_command(hub):
    with pytest.raises(brim.UsageError, match="brim pull org/name"):
        brim.Classifier("org/name")
    assert not hub.seen


def test_pull_downloads_once(hub):
    with brim.Classifier("org/name", pull=True) as clf:
        first = clf("ada lives in london")
    requests = len(hub.seen)
    assert requests > 1
    with brim.Classifier("org/name", pull=True) as clf:
        assert clf("ada lives in london") == first
    with brim.Classifier("org/name") as clf:
        assert clf("ada lives in london") == first
    assert len(hub.seen) == requests


def test_encoder_pulls(hub):
    hub.files = loopback_hub.tiny_model("bert_encoder")
    assert brim.Encoder("org/encoder@v1", pull=True).encode(["ada"]).shape[0] == 1


def test_refusals_are_usage_errors(hub):
    hub.mode = "404"
    with pytest.raises(brim.UsageError, match="not found"):
        brim.Classifier("org/name", pull=True)


def test_offline(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(brim.UsageError, match="HF_HUB_OFFLINE"):
        brim.Classifier("org/name", pull=True)
    assert not hub.seen


def test_rules_need_no_download(hub):
    assert brim.Classifier("vader", pull=True)("great")[0]["label"] == "positive"
    assert not hub.seen
