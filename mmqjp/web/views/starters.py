"""Queries to begin with: some of those that `mmqjp demo` brings along, each with what it is for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

NAMES = ("same_story", "follow_up", "retitled", "safety_research", "elsewhere")
"""Those that are of use over any feeds, in the order in which they are shown."""

_NUMBER = re.compile(r"^-- (?:\d+\. )?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Starter:
    """A query to begin with: its name, what it is for, and its text."""

    name: str
    purpose: str
    text: str


@cache
def starters() -> tuple[Starter, ...]:
    """Returns the queries."""
    text = files("mmqjp.demo").joinpath("reader.xscl").read_text("utf-8")
    found = {}
    for block in text.split("\n\n"):
        comment, _, query = block.partition("\nFROM" if "\nSELECT" not in block else "\nSELECT")
        if query:
            query = ("FROM" if "\nSELECT" not in block else "SELECT") + query.rstrip("\n;")
            name = query.rpartition("PUBLISH ")[2]
            found[name] = Starter(name, " ".join(_NUMBER.sub("", comment).split()), query + "\n")
    return tuple(found[name] for name in NAMES)
