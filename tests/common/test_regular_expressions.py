"""Regular expressions find the same on each Python that is supported.

Before 3.11.5, a possessive group that is tried once more, and fails after some characters, goes on behind them (CPython
issue 106052). With an empty alternative at its end it does not fail: it matches nothing, and that ends it. A possessive
quantifier of a single character is right everywhere, and so is an atomic group.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from re import _constants as codes
from re import _parser as sre
from typing import Any

import pytest

from tests.test_project import PACKAGES
from xscl import lalr
from xscl.lalr import lark_of
from xscl.parser import parse_script

SINGLE = {codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN}


def all_patterns() -> Iterator[tuple[str, re.Pattern[Any]]]:
    """The regular expressions that modules have as constants, or in a table, by the names of the modules."""
    for package in PACKAGES:
        if package == "bench":
            continue
        for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
            if module.name.endswith("__main__"):
                continue
            for value in vars(import_module(module.name)).values():
                for one in value.values() if isinstance(value, dict) else [value]:
                    for found in pattern_of(one):
                        yield module.name, found


def pattern_of(value: object) -> list[re.Pattern[Any]]:
    """The regular expression that a value is, or is a method of, such as `match`; none otherwise."""
    found = getattr(value, "__self__", value)
    return [found] if isinstance(found, re.Pattern) else []


def loses_its_place(pattern: re.Pattern[Any]) -> bool:
    """Whether a possessive group may fail."""
    return any(not may_be_empty(group) for group in possessive(parsed(pattern)))


def parsed(pattern: re.Pattern[Any]) -> Any:
    """What Python's own parser makes of an expression."""
    flags = pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
    return sre.parse(pattern.pattern, flags)


def possessive(part: Any) -> Iterator[Any]:
    """The groups in a part of an expression that have a possessive quantifier."""
    if isinstance(part, sre.SubPattern):
        for code, value in part:
            if code is codes.POSSESSIVE_REPEAT and not (len(value[2]) == 1 and value[2][0][0] in SINGLE):
                yield value[2]
            yield from possessive(value)
    elif isinstance(part, tuple | list):
        for one in part:
            yield from possessive(one)


def may_be_empty(group: Any) -> bool:
    return len(group) == 1 and group[0][0] is codes.BRANCH and len(group[0][1][1][-1]) == 0


def test_no_possessive_group_can_fail():
    found = list(all_patterns())
    assert len(found) > 100
    assert [(name, pattern.pattern) for name, pattern in found if loses_its_place(pattern)] == []


def test_nor_can_those_that_a_grammar_makes():
    lark = lark_of("xscl")
    (found,) = pattern_of(lalr._scan(lark.terminals, lark.ignore_tokens, frozenset({"FROM"})))
    assert list(possessive(parsed(found))) and not loses_its_place(found)


@pytest.mark.parametrize(
    ("text", "loses"),
    [("(?:b|(?!--)-+)*+", True), ("x(?:(?:ab)*c)?+", True), ("(?:b|(?!--)-+|)*+", False), ("[ab]*+(?>a+b|)c++", False)],
)
def test_those_that_may_fail_are_found(text: str, loses: bool):
    assert loses_its_place(re.compile(text)) is loses


def test_comments_are_comments():
    """What showed the fault: all of this was taken for a name."""
    assert parse_script("-- Books.\nFROM S//a->x").queries
