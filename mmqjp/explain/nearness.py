"""Says how near texts are: which part of the words of both is in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import chain, islice

from mmqjp.text import printable_line
from xscl.algebra.expressions import Call, Expr
from xscl.algebra.near import LEAST, join_threshold, overlap
from xscl.algebra.word_numbers import first_keys, numbered

FEWEST = 3
"""Texts of fewer words, separated by blanks, are not said to be near."""

VALUE_WIDTH = 60
"""How many characters of a value are shown."""

MOST_COMPARED, MOST_TEXTS = 2_000, 1_000
"""How many pairs of texts are compared at most, and how many texts of each side are looked at."""


def nearest(texts: Iterable[tuple[str, str]]) -> tuple[Fraction, tuple[str, str]]:
    """The largest part of the words of two texts that is in common, and these texts. There is one pair at least."""
    found = ((Fraction(*overlap(*pair)) if any(overlap(*pair)) else Fraction(0), pair) for pair in texts)
    return max(islice(found, MOST_COMPARED), key=lambda one: one[0])


def nearness(expr: Expr, texts: Sequence[Callable[[Expr], str]]) -> str | None:
    """What is told of near() that holds for none of some bindings; None for another condition. Each of `texts` returns
    the text of an operand for one of them."""
    match expr:
        case Call(name="near", args=(one, other, _)):
            part, pair = nearest((text_of(one), text_of(other)) for text_of in texts)
            common, union = overlap(*pair)
            shown = " and ".join(f'"{clipped(text)}"' for text in pair)
            return f"{shown} have {common} of {union} words in common, which is {float(part):.2f}"
    return None


def near_instead(left: Iterable[str], right: Iterable[str], one: str, other: str) -> tuple[str, str] | None:
    """What is told of texts of two sides, none of which are equal, if some are near: that, and what to write. `one` and
    `other` are the operands."""
    found = nearest_of(left, right)
    if found is None:
        return None
    pair, threshold = found
    shown = " and ".join(f'"{clipped(text)}"' for text in pair)
    hint = f"use near({one}, {other}, {threshold}) to find texts that differ in a word"
    common, union = overlap(*pair)
    return f"{shown} have {common} of {union} words in common", hint


def nearest_of(left: Iterable[str], right: Iterable[str]) -> tuple[tuple[str, str], str] | None:
    """The nearest texts of two sides, and the threshold in tenths by which near() finds them; None if it finds none. At
    most MOST_TEXTS of each side are looked at."""
    least = join_threshold(str(float(LEAST)))
    having: dict[str, list[str]] = {}
    for text in islice(right, MOST_TEXTS):
        for key in _keys(text, least):
            having.setdefault(key, []).append(text)
    pairs = (
        (text, other)
        for text in islice(left, MOST_TEXTS)
        for other in dict.fromkeys(other for key in _keys(text, least) for other in having.get(key, ()))
        if text != other
    )
    part, pair = nearest(chain([("", "")], pairs))
    tenths = part * 10 // 1
    return None if part < LEAST else (pair, f"{tenths // 10}.{tenths % 10}")


def _keys(text: str, threshold: str) -> list[str]:
    words = numbered(text, threshold) if len(text.split(maxsplit=FEWEST)) >= FEWEST else ""  # no address, no name
    return first_keys(words) if words else []


def clipped(text: str) -> str:
    """Returns a value on one line, cut short."""
    line = printable_line(text)
    return line if len(line) <= VALUE_WIDTH else line[: VALUE_WIDTH - 1] + "…"
