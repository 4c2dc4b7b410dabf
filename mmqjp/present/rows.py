"""Rows of a table as people and programs read them: times, nodes, and names that are there twice."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from mmqjp.present.times import Clock
from mmqjp.tables.store_schema import TIMES

NODES = "nodes"
"""The column that holds a JSON object as text."""

_EXTREME = re.compile(r"(?:min|max)\((?:\w+\.)?(\w+)\)")
"""What DuckDB and Spark call the earliest and latest value of a column."""


def readable(columns: Sequence[str], rows: Sequence[Sequence[object]], clock: Clock) -> Iterator[list[object]]:
    """Yields rows whose times and nodes can be read."""
    names = [found[1] if (found := _EXTREME.fullmatch(name)) else name for name in columns]
    for row in rows:
        yield [_readable(name, value, clock) for name, value in zip(names, row, strict=True)]


def _readable(name: str, value: object, clock: Clock) -> object:
    if name in TIMES and isinstance(value, int):
        return clock.iso(value)
    if name == NODES and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:  # another column of that name
            return value
    return value


def distinct(names: Sequence[str]) -> list[str]:
    """Returns names for the keys of an object: one that was there before gets the next number that is free.

    >>> distinct(["x", "x", "x_2", "x"])
    ['x', 'x_3', 'x_2', 'x_4']
    """
    taken, last, found = set(names), Counter[str](), list[str]()
    for name in names:
        last[name] += 1
        key = name
        while last[name] > 1 and (key := f"{name}_{last[name]}") in taken:
            last[name] += 1
        taken.add(key)
        found.append(key)
    return found


def cell(value: object) -> object:
    """Returns a value for CSV: numbers stay numbers."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else text(value)


def text(value: object) -> str:
    """Returns a value as text: "" for null, JSON for lists, objects and booleans."""
    match value:
        case None:
            return ""
        case str():
            return value
    return json.dumps(value, ensure_ascii=False)
