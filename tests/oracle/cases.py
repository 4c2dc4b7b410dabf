"""Small hand-written cases: documents and rows, events and results, in short notations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import cast

import pytest
from _pytest.mark import ParameterSet

from feeds.documents import Document, Visit, VisitOutcome
from tests.generate.documents import SECOND
from tests.oracle.bindings import OutputRow
from tests.oracle.evaluation import evaluate
from tests.oracle.event_syntax import Cel, Kind, Schema
from tests.oracle.event_values import Value
from tests.oracle.events import Event, World, event
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


def case(name: str, part: str) -> tuple[str, str, list[str]]:
    """The first case of a file whose script has this part."""
    script, documents, expected = next(one.values for one in cases(name) if part in str(one.id))
    return str(script), str(documents), cast(list[str], expected)


def docs(text: str) -> list[Document]:
    """The documents of a text like `[stream:][feed/]id@seconds[-seconds] <xml/> | ...`."""
    return [one for one in arriving(text) if isinstance(one, Document)]


def arriving(text: str) -> list[Document | Visit]:
    """The documents of such a text, and visits like `[stream:]feed!seconds`, `feed?` if awaited, `feed.` if ended."""
    return [_item(part) for part in text.split(" | ")]


def _item(text: str) -> Document | Visit:
    if found := re.fullmatch(r"(?:(\w+):)?(\w+)([!?.])([\d.]*)", text):
        stream, feed, sign, time = found.groups()
        outcome = cast(VisitOutcome, {"!": "complete", "?": "awaited", ".": "ended"}[sign])
        return Visit(feed, round(float(time or 0) * SECOND), outcome, stream or "S")
    found = re.fullmatch(r"(?:(\w+):)?(?:(\w+)/)?(\w+)@([\d.]+)(?:-([\d.]+))? (.*)", text, re.DOTALL)
    assert found, text
    stream, feed, identity, t0, t1, xml = found.groups()
    times = (round(float(t0) * SECOND), round(float(t1 or t0) * SECOND))
    return Document(identity, xml.encode(), stream or "S", times, feed=feed or "")


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


Given = tuple[str, str, str]
"""A stream: its name, its schema, and its events, as `events` takes them."""


def schema(text: str) -> Schema:
    """The schema of a text like `name price:number`."""
    kinds: dict[str, Kind] = {"": "string", "number": "number", "string": "string"}
    return {name: kinds[kind] for name, _, kind in (word.partition(":") for word in text.split())}


def events(of: Schema, text: str) -> list[Event]:
    """The events of a text like `IBM 80 @1 | - 22 @2-3`, where - is NULL and times are seconds. Parts are places."""
    return [_event(of, place, part) for place, part in enumerate(text.split(" | "))] if text else []


def _event(of: Schema, place: int, text: str) -> Event:
    *words, times = text.split()
    t0, _, t1 = times.removeprefix("@").partition("-")
    values = {name: _value(kind, word) for (name, kind), word in zip(of.items(), words, strict=True)}
    return event(values, round(float(t0) * SECOND), round(float(t1 or t0) * SECOND), [text + f"#{place}"])


def _value(kind: Kind, word: str) -> Value:
    if word == "-":
        return None
    return float(word) if kind == "number" else word


@dataclass(frozen=True)
class Written:
    """A statement by its text, where only a kernel is asked."""

    words: str

    def text(self) -> str:
        return self.words

    @property
    def publish(self) -> str | None:
        return self.words.partition(" PUBLISH ")[2] or None


def written(statements: Sequence[str], given: Iterable[Given]) -> World:
    """A world with these statements and streams. Events are numbered as they are written."""
    known, streams, last = dict[str, Schema](), dict[str, list[Event]](), count(1)
    for name, of, text in given:
        known[name] = schema(of)
        streams[name] = [replace(one, parts=frozenset([next(last)])) for one in events(known[name], text)]
    made = World(known, streams, [])
    made.statements = cast(Sequence[Cel], list(map(Written, statements)))
    return made


def brief_events(found: Iterable[Event]) -> list[str]:
    """Each event as `name=value ... [t0,t1]`, names in the order of the alphabet, sorted."""
    return sorted(f"{_brief_values(one.values)} [{_time(one.t0)},{_time(one.t1)}]".strip() for one in found)


def _brief_values(values: Mapping[str, Value]) -> str:
    return " ".join(
        f"{name}={'-' if value is None else value if isinstance(value, str) else f'{value:.4g}'}"
        for name, value in sorted(values.items())
    )


def _time(microseconds: int) -> str:
    return f"{microseconds / SECOND:.10g}"
