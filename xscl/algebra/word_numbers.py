"""The words of a text as numbers, which stand for them where texts are joined by their words.

A number has 63 bits: seven for the length of the word, of which longer ones have less, and 56 of a digest. So the
ascending numbers of a text are its words in an order that is the same for all texts, the longest first, and those are
the rarest as a rule. Words with one number are taken for one word when documents are found; `near` itself compares
words.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b

from xscl.algebra.words import words_again

DIGITS = 16
"""The hexadecimal digits of a number."""

THRESHOLD = 3
"""The characters of a threshold in tenths, such as 0.6 and 1.0."""

_LONGEST = 127


def numbered(text: str, threshold: str) -> str:
    """The words of a text as R_doc has them: the threshold by which it is joined, in tenths, and the numbers of its
    words in hexadecimal, ascending. "" if it has no words.

    >>> numbered("Storm, storm", "0.6") == numbered("the storm", "0.6")[:-16]
    True
    """
    numbers = _numbers(text) if len(text) <= _MOST_REMEMBERED else _numbers.__wrapped__(text)
    return f"{threshold}{numbers}" if numbers else ""


def first_keys(words: str, places: Mapping[str, int] | None = None) -> list[str]:
    """The first words of a text, given what `numbered` tells, each with the threshold: texts that are near have one of
    them in common (see `join_stage.near.keys`). Words with `places` come last, in the order of these."""
    numbers, tenths = split(words), _tenths(words)
    if places:
        numbers.sort(key=lambda number: places.get(number, -1))
    most = len(numbers) + (-tenths * len(numbers) // 10) + 1
    return [f"{words[:THRESHOLD]}{number}" for number in numbers[:most]]


def have_enough_in_common(one: str, other: str) -> bool:
    """Whether J of two texts, given what `numbered` tells, is at least their threshold. Words with one number count as
    one word, so some may be taken for near that are not."""
    ours, theirs, tenths = _set(one), _set(other), _tenths(one)
    return len(ours & theirs) * (10 + tenths) >= tenths * (len(ours) + len(theirs))


def as_digits(number: int) -> str:
    """The number of a word as `numbered` writes it."""
    return f"{number:0{DIGITS}x}"


def split(words: str) -> list[str]:
    """The numbers of the words of a text, given what `numbered` tells."""
    return [words[at : at + DIGITS] for at in range(THRESHOLD, len(words), DIGITS)]


@lru_cache(maxsize=8_192)
def _set(words: str) -> frozenset[str]:
    return frozenset(split(words))


def _tenths(words: str) -> int:
    return int(words[0] + words[2])


_MOST_REMEMBERED = 1_000
"""The words of a text of at most so many characters are remembered: several queries ask for them."""


@lru_cache(maxsize=8_192)
def _numbers(text: str) -> str:
    return "".join(sorted(map(_number, words_again(text))))


@lru_cache(maxsize=65_536)
def _number(word: str) -> str:
    length = _LONGEST - min(len(word), _LONGEST)
    return f"{length:02x}{blake2b(word.encode('utf-8', 'surrogatepass'), digest_size=7).hexdigest()}"
