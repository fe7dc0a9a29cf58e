# SPDX-License-Identifier: Apache-2.0
"""Checks the container files and Kubernetes manifests: with linters if installed, and that the server accepts their options."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from brim import _program
from conftest import SOURCE

CONTAINERFILES = sorted((SOURCE / "packaging").glob("Containerfile*"))
MANIFESTS = sorted((SOURCE / "examples" / "kubernetes").glob("*.yaml"))


def instructions(path):
    """(name, arguments) of each instruction; comments removed, continued lines joined."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


def checked(arguments, folder):
    """Runs `brim serve` with these arguments and --check."""
    if subprocess.run([_program.path(), "help", "serve"], capture_output=True).returncode:
        pytest.skip("built without a server")
    return subprocess.run([_program.path(), *arguments, "--check"], cwd=folder, capture_output=True, text=True)


def test_kubernetes_knows_the_manifests():
    checker = pytest.importorskip("kubernetes_validate")
    yaml = pytest.importorskip("yaml")
    kinds = []
    for path in MANIFESTS:
        for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            checker.validate(manifest, checker.latest_version(), strict=True)
            kinds.append(manifest["kind"])
    assert sorted(kinds) == ["Deployment", "Job", "Service"]


def test_probes_are_routes_of_the_server():
    text = (SOURCE / "examples" / "kubernetes" / "serve.yaml").read_text(encoding="utf-8")
    probes = dict(re.findall(r"(\w+)Probe:[^\n]*\n\s*httpGet: \{path: (\S+), port: http\}", text))
    assert sorted(probes) == ["liveness", "readiness", "startup"]
    assert probes["liveness"] != probes["readiness"], "an overloaded server is not ready, but must not be restarted"
    routes = json.loads((SOURCE / "src" / "serve" / "openapi.json").read_text(encoding="utf-8"))["paths"]
    assert set(probes.values()) <= set(routes)


def test_the_server_accepts_the_arguments_of_the_deployment(tmp_path):
    text = (SOURCE / "examples" / "kubernetes" / "serve.yaml").read_text(encoding="utf-8")
    arguments = json.loads(re.search(r"args: (\[.*\])", text).group(1))
    keys = tmp_path / "keys"
    keys.write_text("news:score:" + "0" * 64 + "\n")
    keys.chmod(0o600)
    done = checked([str(keys) if one == "/etc/brim/keys" else one for one in arguments], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_container_files(path, tmp_path):
    found = instructions(path)
    stages = [i for i, (name, _) in enumerate(found) if name == "FROM"]
    for _, image in (found[i] for i in stages):
        assert re.match(r"docker\.io/library/[a-z]+:(?!latest)\S+", image), "a registry and a version"
    for name, text in found:
        if name == "RUN" and "apt-get install" in text:
            assert "apt-get update" in text and "rm -rf /var/lib/apt/lists/*" in text
            assert all("-y --no-install-recommends" in one for one in text.split("apt-get install")[1:])
    last = dict(found[stages[-1]:])
    assert int(last["USER"].split(":")[0]) > 0, "not root"
    assert json.loads(last["ENTRYPOINT"]) == ["/usr/bin/brim"]
    command = json.loads(last["CMD"])
    assert command[command.index("--listen") + 1] == f"0.0.0.0:{last['EXPOSE']}", "a loopback address cannot be published"
    done = checked(command, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", CONTAINERFILES, ids=lambda path: path.name)
def test_hadolint(path):
    beside = pathlib.Path(sys.executable).with_name("hadolint")
    hadolint = str(beside) if beside.exists() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("no hadolint")
    done = subprocess.run([hadolint, "--no-color", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
