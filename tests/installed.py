# SPDX-License-Identifier: Apache-2.0
"""Checks an installed module on a machine without a compiler and without libcurl: labels, the program on the PATH, errors for
CUDA, a download over HTTPS, a server.
  installed.py HUB_CERTIFICATE     loopback_hub.py must be next to this file"""
import http.client
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import brim
from loopback_hub import COMMIT, FILES, address, environment, start_hub

TEXTS = [f"I love this, number {i}" for i in range(10)]


def require(condition, text):
    if not condition:
        sys.exit(f"installed.py: FAILED: {text}")


def check_module():
    for model in ("", "vader"):
        with brim.Classifier(model) as clf:
            require(clf.predict(TEXTS).labels == ["positive"] * 10, f"labels of model '{model}'")
    require(brim.plan(device="rtx3070").peak_bytes > 0, "plan")
    try:
        brim.Classifier(device="cuda").close()
    except brim.Error as error:
        require("./brim" not in str(error), f"a wheel has no ./brim: {error}")


def check_program():
    program = shutil.which("brim")
    require(program is not None, "brim is on the PATH")
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    require(shown.split()[:2] == ["brim", brim.__version__], f"version {shown}")


def check_download(certificate):
    with tempfile.TemporaryDirectory() as home:
        hub = start_hub(certificate)
        done = subprocess.run(["brim", "pull", "org/name"], env=environment(home, address(hub, "https"), SSL_CERT_FILE=certificate),
                              capture_output=True, text=True, timeout=120)
        require(done.returncode == 0, f"brim pull: {done.stderr}")
        file = pathlib.Path(home, "hub/models--org--name/snapshots", COMMIT, "model.safetensors")
        require(file.read_bytes() == FILES["model.safetensors"], "the downloaded file")


def check_server():
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder, "log")
        with log.open("w") as file, subprocess.Popen(["brim", "serve", "--listen", "127.0.0.1:0"], stderr=file) as server:
            try:
                for _ in range(600):
                    found = [line for line in log.read_text().splitlines() if line.startswith("listening on http://")]
                    if found or server.poll() is not None:
                        break
                    time.sleep(0.1)
                require(found, f"the server does not listen: {log.read_text()}")
                connection = http.client.HTTPConnection(found[0].split("/")[-1], timeout=60)
                connection.request("POST", "/predict", '{"inputs": "what a great day"}', {"Content-Type": "application/json"})
                body = connection.getresponse().read().decode()
                require("positive" in body, f"answer of the server: {body}")
            finally:
                server.terminate()


if __name__ == "__main__":
    check_module()
    check_program()
    check_download(sys.argv[1])
    check_server()
    print(f"installed: brim {brim.__version__} with Python {sys.version.split()[0]}")
