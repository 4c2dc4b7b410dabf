"""Near-equal texts: `near(x, y, threshold)`.

Two texts are near if enough of the words of both are in common: J, the number of words that both have, divided by the
number of those that one of them has, is at least the threshold. `join_stage.near` finds them.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from xscl.algebra.words import words_again

LEAST, MOST = Fraction(1, 2), Fraction(1)
"""The least and the greatest threshold."""

MANY_WORDS = "words"
"""Ends the chain of functions of a text that is joined by its words, with the threshold as its literal. The value is
what `xscl.algebra.word_numbers` tells of them. No query can name it: `words` of a query has no literal."""

_MOST_REMEMBERED = 1_000
"""What two texts of at most so many characters have in common is remembered."""


def near(text: str, other: str, threshold: str) -> bool:
    """Whether J of two texts is at least a threshold, a decimal number. Texts without words are near nothing.

    >>> near("Storm hits the coast", "The storm hits coast", "1"), near("a b c d", "a b c e", "0.6")
    (True, True)
    """
    common, union = overlap(text, other)
    wanted = _fraction(threshold)
    return common > 0 and common * wanted.denominator >= wanted.numerator * union


def overlap(text: str, other: str) -> tuple[int, int]:
    """The number of words that two texts have in common, and of those that one of them has."""
    if len(text) <= _MOST_REMEMBERED and len(other) <= _MOST_REMEMBERED:
        return _overlap(text, other)
    return _counted(text, other)


@lru_cache(maxsize=65_536)
def _overlap(text: str, other: str) -> tuple[int, int]:
    return _counted(text, other)


def _counted(text: str, other: str) -> tuple[int, int]:
    ours, theirs = words_again(text), words_again(other)
    common = len(ours & theirs)
    return common, len(ours) + len(theirs) - common


@lru_cache(maxsize=1_024)
def _fraction(threshold: str) -> Fraction:
    return Fraction(threshold)


def join_threshold(threshold: str) -> str:
    """A threshold rounded down to tenths: by that, texts are joined. Near thresholds so share keys.

    >>> join_threshold("0.68"), join_threshold("1")
    ('0.6', '1.0')
    """
    tenths = _fraction(threshold) * 10 // 1
    return f"{tenths // 10}.{tenths % 10}"
