"""The oracle's PATTERN with ERRORS (docs/semantics.md, section 26): the examples of approximate matching."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.oracle.event_syntax import Window
from tests.oracle.near_matches import lacking
from tests.oracle.pattern_cases import Given, told
from tests.oracle.pattern_syntax import Letter, Near, OneOf, Times

A, B, C, D = (Letter(name) for name in "ABCD")
WORD = (A, OneOf(((B,), (C,))), D, B)


def letters(text: str) -> tuple[Given, ...]:
    """The streams that WORD reads, of a text such as `a1 e2 a3`: events of A, E, A at these seconds."""
    words = text.split()
    return tuple(
        (name, "x", " | ".join(f"- @{word[1:]}" for word in words if word[0].upper() == name)) for name in "ABCD"
    )


def by_time(found: list[str], given: tuple[Given, ...]) -> list[str]:
    """Matches with the times of their events in place of their numbers."""
    times = [part.split("@")[1] for _, _, text in given for part in text.split(" | ") if part]
    shown = []
    for one in found:
        numbers, _, rest = one.partition(" @")
        shown.append(([int(times[int(number) - 1]) for number in numbers.split()], rest.partition(" ")[2]))
    return [f"{','.join(map(str, numbers))} {errors}".strip() for numbers, errors in sorted(shown)]


def test_a1():
    given = letters("c1 d2 a3 e4 b5")
    found = by_time(told(Near(WORD, 2, Window("4")), *given), given)
    assert found == ["1,2 -2", "1,2,5 -1", "1,5 -2", "2,5 -2", "3,5 -2"]


LONG = letters("a1 e2 e3 b4 c5 e6 a7 e8 e9 c10 d11 a12 e13 b14 d15")


@pytest.mark.parametrize(("errors", "within", "count"), [(2, "4", 13), (2, "5", 14), (1, "4", 3), (0, "4", 0)])
def test_a2(errors, within, count):
    found = by_time(told(Near(WORD, errors, Window(within)), *LONG), LONG)
    assert len(found) == count
    if errors == 1:
        assert found == ["7,10,11 -1", "10,11,14 -1", "12,14,15 -1"]
    if errors == 2:
        assert {"1,4 -2", "10,11,14 -1"} <= set(found)


@pytest.mark.parametrize(
    ("word", "seen", "errors"),
    [
        ((A, B, C), "AC", 1),
        ((A, Letter("B", needed=True), C), "AC", None),
        ((A, Times(B, 0), C), "ABBC", 0),
        ((A, Times(B, 2), C), "AC", 2),
        ((Times(OneOf(((A, B), (C,))), 1),), "ABCAB", 0),
        ((Times(OneOf(((A, B), (C,))), 1),), "ACB", 2),
        ((A, B), "BA", None),
        ((A, B), "C", None),
    ],
)
def test_lacking(word, seen, errors):
    assert lacking(word, seen) == (float("inf") if errors is None else errors)


def test_needed_letters_and_keys():
    near = Near((A, B, Letter("C", needed=True)), 1, Window("10"), ("x",))
    given = ("A", "x", "p @1"), ("B", "x", "p @2 | q @2"), ("C", "x", "p @3 | q @4 | - @4")
    assert told(near, *given) == ["1 2 4 @3", "1 4 @3 -1", "2 4 @3 -1", "3 5 @4 -1"]
    assert told(replace(near, apart=True), *given) == ["1 2 4 @3", "3 5 @4 -1"]
