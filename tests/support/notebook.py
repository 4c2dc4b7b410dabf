"""Runs the notebook in examples/ as a person would in a fresh clone, and compares or writes what its cells print."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.support.doc_session import session
from tests.support.places import ROOT

NOTEBOOK = ROOT / "examples" / "first-hour.ipynb"
LONGEST = 120
"""The longest time for a cell, in seconds."""


def run() -> tuple[nbformat.NotebookNode, nbformat.NotebookNode]:
    """Returns the notebook as it is, and as it is after a run. Raises CellExecutionError for a cell that fails."""
    shown = nbformat.read(NOTEBOOK, as_version=4)
    ran = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as directory, session(Path(directory).resolve()):
        settings = {"metadata": {"path": str(Path(directory) / "examples")}}
        NotebookClient(ran, timeout=LONGEST, resources=settings, record_timing=False).execute()
    return shown, ran


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What each cell of code prints."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return ["".join(output.get("text", "") for output in cell.outputs).rstrip() for cell in cells]


def write() -> None:
    _, ran = run()
    nbformat.write(ran, NOTEBOOK)
