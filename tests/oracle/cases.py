"""Small hand-written cases for the oracle and the engines: documents in short, rows in short."""

from __future__ import annotations

import re

from feeds.document import Document
from tests.generate.documents import SECOND
from tests.oracle.bindings import OutputRow
from tests.oracle.evaluation import evaluate
from xscl import parse_script


def docs(text: str) -> list[Document]:
    """Documents written `[stream:]id@seconds[-seconds] <xml/>` and separated by ` | `."""
    return [_doc(part) for part in text.split(" | ")]


def _doc(text: str) -> Document:
    found = re.fullmatch(r"(?:(\w+):)?(\w+)@([\d.]+)(?:-([\d.]+))? (.*)", text, re.DOTALL)
    assert found, text
    stream, identity, t0, t1, xml = found.groups()
    times = (round(float(t0) * SECOND), round(float(t1 or t0) * SECOND))
    return Document(identity, xml.encode(), stream or "S", times)


def run(script: str, documents: str) -> list[OutputRow]:
    """The oracle's rows for a script's text and documents as `docs` reads them."""
    return evaluate(parse_script(script), docs(documents))


def brief(rows: list[OutputRow]) -> list[str]:
    """Each row as `query: documents | name=node ...`, sorted."""
    return sorted(
        f"{row.query}: {' '.join(row.documents)} | {' '.join(f'{name}={node}' for name, node in row.nodes)}"
        for row in rows
    )


def answers(script: str, documents: str) -> list[str]:
    """The rows of a script of one unnamed query, in short, without the query's name."""
    return [line.removeprefix("q1: ") for line in brief(run(script, documents))]
