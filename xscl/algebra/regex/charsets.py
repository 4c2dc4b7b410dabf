"""Sets of characters, as sorted ranges of code points, and the sets that XML Schema's regular expressions name.

Python's Unicode database (`unicodedata.unidata_version`) says which characters a category has. A character that it does
not assign is in `Cn`.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import groupby

LAST = 0x10FFFF

Range = tuple[int, int]
"""The first and last code point of a range."""

CharSet = tuple[Range, ...]
"""Ranges in order, with gaps between them."""

NONE: CharSet = ()
ALL: CharSet = ((0, LAST),)

_SUBCATEGORIES = {"L": "ultmo", "M": "nce", "N": "dlo", "P": "cdseifo", "Z": "slp", "S": "mcko", "C": "cfon"}
"""The categories of the grammar. There is no `Cs`, because surrogates are no characters."""

_NAME_START: CharSet = (
    (0x3A, 0x3A),
    (0x41, 0x5A),
    (0x5F, 0x5F),
    (0x61, 0x7A),
    (0xC0, 0xD6),
    (0xD8, 0xF6),
    (0xF8, 0x2FF),
    (0x370, 0x37D),
    (0x37F, 0x1FFF),
    (0x200C, 0x200D),
    (0x2070, 0x218F),
    (0x2C00, 0x2FEF),
    (0x3001, 0xD7FF),
    (0xF900, 0xFDCF),
    (0xFDF0, 0xFFFD),
    (0x10000, 0xEFFFF),
)
"""NameStartChar of XML 1.0, fifth edition, as for names in documents."""

_NAME_MORE: CharSet = ((0x2D, 0x2E), (0x30, 0x39), (0xB7, 0xB7), (0x300, 0x36F), (0x203F, 0x2040))


def single(char: str) -> CharSet:
    """The set of one character."""
    return ((ord(char), ord(char)),)


def union(sets: Iterable[CharSet]) -> CharSet:
    """The characters that are in any of the sets.

    >>> union([((1, 3), (9, 9)), ((4, 5),)])
    ((1, 5), (9, 9))
    """
    made: list[Range] = []
    for first, last in sorted(one for chars in sets for one in chars):
        if made and first <= made[-1][1] + 1:
            made[-1] = made[-1][0], max(last, made[-1][1])
        else:
            made.append((first, last))
    return tuple(made)


def complement(chars: CharSet) -> CharSet:
    """The characters that are not in the set.

    >>> complement(((0, 3),))
    ((4, 1114111),)
    """
    made: list[Range] = []
    start = 0
    for first, last in chars:
        if first > start:
            made.append((start, first - 1))
        start = last + 1
    if start <= LAST:
        made.append((start, LAST))
    return tuple(made)


def difference(chars: CharSet, without: CharSet) -> CharSet:
    """The characters of `chars` that are not in `without`."""
    return complement(union((complement(chars), without)))


def has(chars: CharSet, code: int) -> bool:
    """Whether a code point is in the set."""
    place = bisect_right(chars, (code, LAST)) - 1
    return place >= 0 and code <= chars[place][1]


@lru_cache(maxsize=64)
def escaped(letter: str) -> CharSet | None:
    r"""The set that a letter after a backslash stands for, such as `d` in `\d`; None for other letters."""
    match letter:
        case "s":
            return (0x9, 0xA), (0xD, 0xD), (0x20, 0x20)
        case "d":
            return named("Nd")
        case "w":
            return complement(union(named(kind) or NONE for kind in "PZC"))
        case "i":
            return _NAME_START
        case "c":
            return union((_NAME_START, _NAME_MORE))
        case "S" | "D" | "W" | "I" | "C":
            return complement(escaped(letter.lower()) or NONE)
    return None


@cache
def _categories() -> dict[str, CharSet]:
    """All categories, of one letter and of two. To make them takes a tenth of a second, when a pattern needs one."""
    ranges: dict[str, list[Range]] = {}
    first = 0
    for category, codes in groupby(map(unicodedata.category, map(chr, range(LAST + 1)))):
        last = first + sum(1 for _ in codes) - 1
        ranges.setdefault(category, []).append((first, last))
        first = last + 1
    made = {category: tuple(of_one) for category, of_one in ranges.items()}
    for kind in _SUBCATEGORIES:
        made[kind] = union(of_one for category, of_one in made.items() if category[0] == kind)
    return made


def named(name: str) -> CharSet | None:
    r"""The set that `\p{name}` stands for: a category or, after `Is`, a block; None for other names."""
    if name[:1] in _SUBCATEGORIES and (len(name) == 1 or (len(name) == 2 and name[1] in _SUBCATEGORIES[name[0]])):
        return _categories()[name]
    return _block(name[2:]) if name.startswith("Is") else None


def _block(name: str) -> CharSet | None:
    # Imported here because patterns rarely name a block, and elementpath is slow to import.
    from elementpath.regex import unicode_block

    if name == "NoBlock":
        return None
    try:
        found = unicode_block(name).codepoints
    except KeyError:
        return None
    return union(((one, one),) if isinstance(one, int) else ((one[0], one[1] - 1),) for one in found)
