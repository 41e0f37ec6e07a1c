"""Prints the output of the cells of examples/queries/questions.ipynb, run by Jupyter's client: notebook.py FOLDER"""

import json
import os
import shutil
import sys

queries = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[".."] * 4, "examples", "queries")
# The notebook expects the tables in its own folder.
folder = os.path.dirname(sys.argv[1])
for name in ("tables.sql", "questions.ipynb"):
    shutil.copy(os.path.join(queries, name), folder)
os.chdir(folder)
for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
    os.environ[name] = os.path.join(folder, "jupyter")

import nbformat
from nbclient import NotebookClient

notebook = nbformat.read("questions.ipynb", as_version=4)
nbformat.validate(notebook)
NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
shown = []
for cell in notebook.cells:
    if cell.cell_type == "code":
        texts = [output.get("data", {}).get("text/plain", "") for output in cell.outputs]
        shown.append("".join(texts))
json.dump(shown, sys.stdout)
