# SPDX-License-Identifier: Apache-2.0
"""Models opened with a LoRA adapter."""
import json
import pathlib
import pickle
import subprocess

import brim
import numpy as np
import pytest
from brim import _program
from conftest import tiny_model

ADAPTERS = pathlib.Path(__file__).resolve().parent.parent / "data" / "adapters"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_model("bert_encoder", tmp_path_factory.mktemp("base") / "base")


def test_the_head_is_the_adapters(base):
    with pytest.raises(brim.BadModel):
        brim.Classifier(base, device="cpu")
    with brim.Classifier(base, adapter=ADAPTERS / "bert_new_head", device="cpu", precision="fp32") as clf:
        assert clf.labels == ["LABEL_0", "LABEL_1"]
        scores = clf.predict(["w5 w6", "w7"]).scores
        assert np.isfinite(scores).all()
        with pickle.loads(pickle.dumps(clf)) as copy:
            assert (copy.predict(["w5 w6", "w7"]).scores == scores).all()
    assert isinstance(brim.load_model(base, adapter=str(ADAPTERS / "bert_new_head"), device="cpu"), brim.Classifier)


def test_wrong_adapters_are_refused(base, tmp_path):
    with pytest.raises(brim.BadModel, match="another base model"):
        brim.Classifier(base, adapter=ADAPTERS / "deberta", device="cpu")
    with pytest.raises(brim.UsageError):
        brim.Classifier(base, adapter=3)
    with pytest.raises(brim.UsageError):
        brim.Classifier("vader", adapter=ADAPTERS / "roberta")
    folder = tmp_path / "dora"
    folder.mkdir()
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / file).write_bytes((ADAPTERS / "bert_new_head" / file).read_bytes())
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "use_dora": True}))
    with pytest.raises(brim.BadModel, match="use_dora"):
        brim.Classifier(base, adapter=folder, device="cpu")


def test_shards_with_an_adapter(base, tmp_path):
    """Jobs planned by the program run here with their adapter."""
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(f"{i},w{i % 9} w{i % 5}\n" for i in range(40)))
    words = ["--model", base, "--adapter", ADAPTERS / "bert_new_head", "--device", "cpu", "--precision", "fp32", "-q"]
    program = [_program.path(), "score", tmp_path / "a.csv"]
    subprocess.run([*program, "-o", tmp_path / "out", "--shard", "0/2", *words], check=True)
    job = brim.bulk.load(tmp_path / "out")
    assert brim.bulk.run(job) == [] and brim.bulk.finish(job)["rows"] == 40
    subprocess.run([*program, "-o", tmp_path / "whole.csv", *words], check=True)
    parts = [(tmp_path / "out" / shard.part).read_text().split("\n", 1) for shard in job.shards]
    assert parts[0][0] + "\n" + "".join(rows for _, rows in parts) == (tmp_path / "whole.csv").read_text()
