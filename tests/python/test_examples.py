# SPDX-License-Identifier: Apache-2.0
"""Checks the container and Kubernetes examples with linters."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import SOURCE


def test_kubernetes_knows_the_manifests():
    checker = pytest.importorskip("kubernetes_validate")
    yaml = pytest.importorskip("yaml")
    kinds = []
    for path in sorted((SOURCE / "examples" / "kubernetes").glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            checker.validate(manifest, checker.latest_version(), strict=True)
            kinds.append(manifest["kind"])
    assert sorted(kinds) == ["Deployment", "Job", "Service"]


def test_the_containerfile():
    beside = pathlib.Path(sys.executable).with_name("hadolint")
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("no hadolint")
    done = subprocess.run([hadolint, "--no-color", SOURCE / "examples" / "Containerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
