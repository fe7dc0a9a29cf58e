#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Executes examples/brim.ipynb from top to bottom, with a wheel, in a new environment: notebook.py DIST
Installs Jupyter's kernel and the packages that the notebook names from PyPI. Exits with 77 (skipped) if DIST has no wheel for
this interpreter."""
import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
RUN = """
import sys
import nbclient, nbformat

notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
kinds = [kind for output in outputs for kind in output.get("data", {})]
assert kinds.count("image/png") >= 3, f"plots: {kinds}"
assert kinds.count("text/html") >= 4, f"tables and curves: {kinds}"
assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
print(f"notebook: {len(notebook.cells)} cells, {kinds.count('image/png')} plots, passed")
"""


def main():
    dist = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        python = os.path.join(folder, "venv", "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", os.path.dirname(os.path.dirname(python))], check=True)
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        chosen = os.path.join(folder, "chosen")
        if subprocess.run([*pip, "download", "--no-index", "--no-deps", "--find-links", dist, "--only-binary=:all:", "--dest", chosen, "brim"]).returncode:
            print(f"notebook: Skipped, {dist} has no wheel for {python}")
            sys.exit(77)
        subprocess.run([*pip, "install", "nbclient", "ipykernel"], check=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BRIM_") and name != "PYTHONPATH"}
        environment["BRIM_WHEEL"] = str(next(pathlib.Path(chosen).glob("brim-*.whl")))
        environment["PATH"] = os.path.dirname(python) + os.pathsep + os.environ["PATH"]
        work = os.path.join(folder, "work")
        os.mkdir(work)
        done = subprocess.run([python, "-c", RUN, SOURCE / "examples" / "brim.ipynb", work], env=environment)
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
