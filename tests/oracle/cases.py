"""Small hand-written cases for the oracle and the engines: documents and rows in a short notation."""

from __future__ import annotations

import re

import pytest
from _pytest.mark import ParameterSet

from feeds.documents import Document
from tests.generate.documents import SECOND
from tests.oracle.bindings import OutputRow
from tests.oracle.evaluation import evaluate
from tests.support.places import DATA
from xscl.parser import parse_script


def cases(name: str) -> list[ParameterSet]:
    """The cases of a file in tests/data/oracle: a script, documents, and a line for each result, `-` if empty."""
    blocks = (DATA / "oracle" / f"{name}.txt").read_text("utf-8").strip().split("\n\n")
    found = []
    for block in blocks:
        script, documents, *expected = (line for line in block.split("\n") if not line.startswith("# "))
        found.append(pytest.param(script, documents, ["" if line == "-" else line for line in expected], id=script))
    return found


def docs(text: str) -> list[Document]:
    """The documents of a text like `[stream:]id@seconds[-seconds] <xml/> | ...`."""
    return [_doc(part) for part in text.split(" | ")]


def _doc(text: str) -> Document:
    found = re.fullmatch(r"(?:(\w+):)?(\w+)@([\d.]+)(?:-([\d.]+))? (.*)", text, re.DOTALL)
    assert found, text
    stream, identity, t0, t1, xml = found.groups()
    times = (round(float(t0) * SECOND), round(float(t1 or t0) * SECOND))
    return Document(identity, xml.encode(), stream or "S", times)


def run(script: str, documents: str) -> list[OutputRow]:
    """The oracle's rows for a script and documents, which are written as for `docs`."""
    return evaluate(parse_script(script), docs(documents))


def brief(rows: list[OutputRow]) -> list[str]:
    """Each row as `query: documents | name=node ...`, sorted."""
    return sorted(
        f"{row.query}: {' '.join(row.documents)} | {' '.join(f'{name}={node}' for name, node in row.nodes)}"
        for row in rows
    )


def answers(script: str, documents: str) -> list[str]:
    """The rows of a script with one unnamed query, in the short notation, without the name of the query."""
    return [line.removeprefix("q1: ") for line in brief(run(script, documents))]
