"""Searches for regular expressions of XPath 2.0, in time that is linear in the text.

A pattern tells few sets of characters apart, so each text is first written in the symbols of a small alphabet, one for
all the characters that the pattern treats alike. In these symbols RE2 searches, which never tries twice, whatever the
pattern. So neither Unicode's tables nor the syntax of RE2 have a part in what matches; only back-references are beyond
it (`xscl.algebra.regex.references`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

import re2

from common.errors import InputError
from xscl.algebra.regex.charsets import CharSet
from xscl.algebra.regex.references import Program
from xscl.algebra.regex.syntax import (
    Chars,
    Choice,
    Edge,
    Group,
    PatternError,
    Reference,
    Regex,
    Repeat,
    Sequence,
    parse,
    references,
    size,
)

MAX_WORK = 100_000_000
"""The greatest product of a text's length and a pattern's size that are searched: some seconds at worst."""

_MAX_KEPT = 1024
"""How many characters that are not ASCII a pattern remembers the symbols of."""


class PatternLimit(InputError, ValueError):
    """A search for a regular expression would take too long. What is too long depends on nothing but the pattern and
    the text."""


class Pattern:
    """A compiled regular expression. Equal ones may be used by any number of threads.

    Raises:
        PatternError: when `pattern` is no regular expression, or too large.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        tree = parse(pattern)
        self._size = size(tree)
        self._symbols = Alphabet(dict.fromkeys(_sets(tree)))
        self._ascii = self._symbols.ascii()
        options = re2.Options()
        options.never_capture, options.log_errors = True, False
        try:
            self._re2 = re2.compile(self._written(tree).encode(), options)
        except re2.error as error:
            raise PatternError(f"it is too large: {error}") from None
        referred = references(tree)
        self._program = Program(tree, referred, self._symbols.of_set) if referred else None

    def found_in(self, text: str) -> bool:
        """Whether a part of `text` matches.

        Raises:
            PatternLimit: when the text is too long for this pattern.
        """
        if len(text) * self._size > MAX_WORK:
            raise PatternLimit(f"the text is too long for the regular expression {self.pattern!r}")
        if self._program is not None:
            return self._found_by_program(text, self._program)
        if self._ascii is not None and text.isascii():
            return self._re2.search(text.encode().translate(self._ascii)) is not None
        return self._re2.search(text.translate(self._symbols).encode()) is not None

    def _found_by_program(self, text: str, program: Program) -> bool:
        symbols = text.translate(self._symbols)
        # To RE2 a back-reference is any text: no match starts before the first that it finds.
        first = self._re2.search(symbols)
        if first is None:
            return False
        found = program.search(text, symbols, first.start())
        if found is None:
            raise PatternLimit(f"the regular expression {self.pattern!r} has too many ways to match the text")
        return found

    def _written(self, tree: Regex) -> str:
        """A tree in the syntax of RE2 and in symbols."""
        match tree:
            case Chars(chars=chars):
                return _bracketed(self._symbols.of_set[chars])
            case Edge(end=end):
                return r"\z" if end else r"\A"
            case Sequence(parts=parts):
                return "".join(map(self._written, parts))
            case Choice(arms=arms):
                return f"(?:{'|'.join(map(self._written, arms))})"
            case Repeat(most=0):
                return ""
            case Repeat(item=item, least=least, most=most):
                return f"(?:{self._written(item)}){{{least},{'' if most is None else most}}}"
            case Group(item=item):
                return self._written(item)
            case Reference():
                return "(?s:.*)"
        raise AssertionError(f"not a regular expression: {tree!r}")


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> Pattern:
    """The compiled form of a regular expression of XPath 2.0, made once.

    Raises:
        PatternError: when `pattern` is none, or too large.
    """
    return Pattern(pattern)


class Alphabet(dict[int, str]):
    """The symbols of characters, by code point, as `str.translate` asks for them: the same for two characters that are
    in the same ones of some sets."""

    def __init__(self, sets: dict[CharSet, None]) -> None:
        super().__init__()
        toggles: defaultdict[int, int] = defaultdict(int, {0: 0})
        for bit, chars in enumerate(sets):
            for first, last in chars:
                toggles[first] ^= 1 << bit
                toggles[last + 1] ^= 1 << bit
        self._starts = sorted(toggles)
        number_of: dict[int, int] = {}
        self._numbers = []
        mask = 0
        for start in self._starts:
            mask ^= toggles[start]
            self._numbers.append(number_of.setdefault(mask, len(number_of)))
        self.of_set = {
            chars: frozenset(chr(number) for mask, number in number_of.items() if mask >> bit & 1)
            for bit, chars in enumerate(sets)
        }
        """The symbols of each set."""

    def __missing__(self, code: int) -> str:
        symbol = chr(self._numbers[bisect_right(self._starts, code) - 1])
        if len(self) >= _MAX_KEPT:
            self.clear()
        self[code] = symbol
        return symbol

    def ascii(self) -> bytes | None:
        """The symbols of the ASCII characters as a table of `bytes.translate`; None if some are not of one byte."""
        symbols = "".join(self[code] for code in range(128))
        return symbols.encode() + bytes(128) if symbols.isascii() else None


def _sets(tree: Regex) -> Iterator[CharSet]:
    match tree:
        case Chars(chars=chars):
            yield chars
        case Sequence(parts=parts) | Choice(arms=parts):
            for part in parts:
                yield from _sets(part)
        case Repeat(item=item) | Group(item=item):
            yield from _sets(item)


def _bracketed(symbols: frozenset[str]) -> str:
    """Symbols as a set of RE2's; an empty one is the complement of all."""
    if not symbols:
        return r"[^\x{0}-\x{10FFFF}]"
    written = "".join(f"\\x{{{ord(symbol):x}}}" for symbol in sorted(symbols))
    return f"[{written}]"
