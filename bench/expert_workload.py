"""Subscriptions to one channel each, as XSCL and as rows of a table of parameters, and the program that an expert
would write for them by hand: lxml, three joins in DuckDB, a line for each match."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import BinaryIO

import duckdb
import pyarrow as pa
from lxml import etree

from bench.realistic_workload import FIELDS, fields
from bench.workload import CHANNELS, HOUR, channel
from feeds.documents import Document

KINDS = {"title": 96, "author": 6, "mention": 168}
"""The kinds of subscription, and the hours of their longest windows."""

_XSCL = {
    "title": ("[./title->t]", "t = t'", "[./title->t']"),
    "author": ("[./author->p]", "p = p'", "[./author->p']"),
    "mention": ("[./item_url->u]", "u = h", "[./link/@href->h]"),
}
_JOINS = {
    "title": "items l ON l.channel = p.channel JOIN items r ON r.title = l.title",
    "author": "items l ON l.channel = p.channel JOIN authors a ON a.doc = l.doc JOIN authors b ON b.author = a.author "
    "JOIN items r ON r.doc = b.doc",
    "mention": "items l ON l.channel = p.channel JOIN links k ON k.href = l.url JOIN items r ON r.doc = k.doc",
}


@dataclass(frozen=True)
class Parameters:
    """A subscription: an item of `channel`, and then one that has the same title or author, or links to it, within a
    window in hours."""

    name: str
    kind: str
    channel: str
    hours: int

    @property
    def xscl(self) -> str:
        """The subscription as an XSCL query."""
        left, equal, right = _XSCL[self.kind]
        here = f'[./channel_url = "{self.channel}"]'
        return f"FROM S//item->a{here}{left} FOLLOWED BY {{{equal}, {self.hours} h}} S//item->b{right}"


def parameters(count: int, seed: int = 6) -> list[Parameters]:
    """`count` subscriptions, the kinds in turn. Their names are those that unnamed queries get."""
    rng = Random(seed)
    kinds = list(KINDS)
    made = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        about = int(CHANNELS * rng.random() ** 2)
        made.append(Parameters(f"q{number + 1}", kind, channel(about), rng.randint(1, KINDS[kind])))
    return made


def script(asked: Iterable[Parameters]) -> str:
    """All of them as one XSCL script."""
    return "".join(f"{one.xscl};\n" for one in asked)


class Expert:
    """The program without mmqjp. Close it when done."""

    def __init__(self, asked: Sequence[Parameters], lines: Path) -> None:
        self._connection = duckdb.connect()
        for name, schema in FIELDS.items():
            self._connection.register("empty", schema.empty_table())
            self._connection.execute(f"CREATE TABLE {name} AS SELECT * FROM empty")
        columns = {
            "name": [one.name for one in asked],
            "kind": [one.kind for one in asked],
            "channel": [one.channel for one in asked],
            "width": [one.hours * HOUR for one in asked],
        }
        self._connection.register("given", pa.table(columns))
        self._connection.execute("CREATE TABLE parameters AS SELECT * FROM given")
        self._documents: list[Document] = []
        self._bodies: list[str] = []
        self._lines: BinaryIO = lines.open("wb")

    def process(self, batch: Sequence[Document]) -> None:
        """Takes in documents, and writes a line for each match that one of them completes."""
        first = len(self._documents)
        self._documents += batch
        self._bodies += [_body(document) for document in batch]
        for name, table in fields(batch, first).items():
            self._connection.register("arrived", table)
            self._connection.execute(f"INSERT INTO {name} SELECT * FROM arrived")
        for kind, join in _JOINS.items():
            found = self._connection.execute(
                f"SELECT DISTINCT p.name, l.doc, r.doc FROM parameters p JOIN {join} "
                f"WHERE p.kind = '{kind}' AND r.doc >= {first} AND l.t < r.t AND r.t - l.t <= p.width"
            )
            while rows := found.fetchmany(10_000):
                self._lines.write("".join(self._line(*row) for row in rows).encode())

    def close(self) -> None:
        """Flushes the lines and closes the database."""
        self._lines.close()
        self._connection.close()

    def _line(self, name: str, left: int, right: int) -> str:
        one, other = self._documents[left], self._documents[right]
        xml = f'<match query="{name}" t0="{one.t0}" t1="{other.t1}">{self._bodies[left]}{self._bodies[right]}</match>'
        line = {
            "query": name,
            "t0": one.t0,
            "t1": other.t1,
            "documents": [one.id, other.id],
            "streams": [one.stream, other.stream],
            "xml": xml,
        }
        return json.dumps(line, ensure_ascii=False) + "\n"


def _body(document: Document) -> str:
    return etree.tostring(etree.fromstring(document.xml_bytes()), encoding="unicode")
