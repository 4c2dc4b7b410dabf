"""Matches as Markdown: a table for each query that forges show. Nothing in a title can become markup."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import BinaryIO

from mmqjp.present.facts import Fact, values, why
from mmqjp.present.groups import Group
from mmqjp.present.item import Item
from mmqjp.present.match import Match
from mmqjp.present.report import Report, counted, source
from mmqjp.present.times import Clock

_SPECIAL = re.compile(r"[\\`*_\[\]<>|~&$]|:(?=//)|(?<=www)\.")
"""What could begin markup inside a cell, or make an address of a text."""

_REFERENCE = re.compile(r"(?=@|[#!]\d|\bGH-\d)")
"""A forge tells the person or team whose name follows an @, makes an address of what has one inside, and links or even
closes the issue whose number follows a #, ! or GH-: not if an invisible character stands before it."""


def write_markdown(report: Report, out: BinaryIO) -> None:
    """Writes the matches of a report."""
    out.write(f"**{report.summary}**\n".encode())
    for group in report.groups:
        out.write(_head(group).encode())
        for match in group.matches:
            out.write(f"| {_times(match, report.clock)} | {_what(match)} | {_why(match)} |\n".encode())


def write_markdown_rows(header: Iterable[str], rows: Iterable[Iterable[str]], out: BinaryIO) -> None:
    """Writes a table of texts."""
    names = list(header)
    out.write(f"| {' | '.join(map(escaped, names))} |\n|{' --- |' * len(names)}\n".encode())
    for row in rows:
        out.write(f"| {' | '.join(map(escaped, row))} |\n".encode())


def escaped(text: str) -> str:
    """Returns a text that Markdown shows as it is.

    >>> print(escaped("a|b [c](http://d) <e>"))
    a\\|b \\[c\\](http\\://d) \\<e\\>
    """
    return _REFERENCE.sub("\u2060", _SPECIAL.sub(r"\\\g<0>", _in_line(text)))


def _in_line(text: str) -> str:
    """Returns a text with its spaces, but without line breaks and other control characters."""
    return "".join(char if char.isprintable() else " " for char in text)


def _head(group: Group) -> str:
    title = f"\n## {escaped(group.name)}: {counted(len(group))}\n"
    return f"{title}\n| when | what | why |\n| --- | --- | --- |\n"


def _times(match: Match, clock: Clock) -> str:
    return "<br>".join("" if item.time is None else clock.minute(item.time) for item in match.items)


def _what(match: Match) -> str:
    return "<br>".join(f"{_title(item)}, {escaped(source(item))}" for item in match.items)


def _title(item: Item) -> str:
    # The address stands in angle brackets, where only these, a backslash, a pipe and a line break would end it.
    return f"[{escaped(item.title)}](<{item.link}>)" if item.link else escaped(item.title)


def _why(match: Match) -> str:
    chosen = [f"{escaped(name)}: {escaped(text)}" for name, text in values(match)]
    return "<br>".join([*map(_fact, why(match)), *chosen])


def _fact(fact: Fact) -> str:
    return "".join(f'"{escaped(word.text)}"' if word.kind == "value" else escaped(word.text) for word in fact)
