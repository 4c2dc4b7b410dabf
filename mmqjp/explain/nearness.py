"""Says how near texts are: which part of the words of both is in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import islice, product

from mmqjp.text import printable_line
from xscl.algebra.expressions import Call, Expr
from xscl.algebra.near import LEAST, overlap

VALUE_WIDTH = 60
"""How many characters of a value are shown."""

MOST_COMPARED = 2_000
"""How many pairs of texts are compared at most."""


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
    pairs = list(islice(product(left, right), MOST_COMPARED))
    part, pair = nearest(pairs) if pairs else (Fraction(0), ("", ""))
    if part < LEAST:
        return None
    shown = " and ".join(f'"{clipped(text)}"' for text in pair)
    tenths = part * 10 // 1
    hint = f"use near({one}, {other}, {tenths // 10}.{tenths % 10}) to find texts that differ in a word"
    common, union = overlap(*pair)
    return f"{shown} have {common} of {union} words in common", hint


def clipped(text: str) -> str:
    """Returns a value on one line, cut short."""
    line = printable_line(text)
    return line if len(line) <= VALUE_WIDTH else line[: VALUE_WIDTH - 1] + "…"
