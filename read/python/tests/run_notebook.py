"""Runs the cells of a notebook: by nbclient, as Jupyter does, or where that is missing one after another."""

import json
import sys

path = sys.argv[1]
try:
    import ipykernel  # noqa: F401
    import nbclient
    import nbformat
except ImportError:
    with open(path) as file:
        cells = [cell for cell in json.load(file)["cells"] if cell["cell_type"] == "code"]
    names = {}
    for cell in cells:
        exec("".join(cell["source"]), names)
    print(f"{len(cells)} cells have run one after another")
else:
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    print(f"{sum(cell.cell_type == 'code' for cell in notebook.cells)} cells have run in Jupyter")
