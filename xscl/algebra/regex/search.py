"""Searches for regular expressions of XPath 2.0, in time that is linear in the text.

A pattern distinguishes few sets of characters. So a text is first written in the symbols of a small alphabet, with one
symbol for all characters that the pattern treats alike. RE2, which never backtracks, then searches in these symbols.
What matches therefore depends neither on RE2's Unicode tables nor on its syntax. RE2 has no back-references: they are
searched for by `xscl.algebra.regex.references`.
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
"""How large the product of a text's length and a pattern's size may be. A search takes some seconds at worst."""

_MAX_KEPT = 1024
"""For how many characters a pattern remembers the symbols."""


class PatternLimit(InputError, ValueError):
    """A search for a regular expression would take too long. Only the pattern and the text decide what is too long."""


class Pattern:
    """A compiled regular expression, which any number of threads may use.

    Raises:
        PatternError: if `pattern` is no regular expression or is too large, or if there is no such flag.
    """

    def __init__(self, pattern: str, flags: str = "") -> None:
        self.pattern = pattern
        tree = parse(pattern, flags)
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
            PatternLimit: if the search would take too long.
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
        # RE2 takes a back-reference for any text. So no match starts before the first that it finds.
        first = self._re2.search(symbols)
        if first is None:
            return False
        found = program.search(text, symbols, first.start())
        if found is None:
            raise PatternLimit(f"the regular expression {self.pattern!r} has too many ways to match the text")
        return found

    def _written(self, tree: Regex) -> str:
        """A tree in the syntax of RE2, over symbols."""
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
def compile_pattern(pattern: str, flags: str = "") -> Pattern:
    """A regular expression of XPath 2.0 with its flags, compiled; each is compiled once.

    Raises:
        PatternError: if `pattern` is no regular expression or is too large, or if there is no such flag.
    """
    return Pattern(pattern, flags)


class Alphabet(dict[int, str]):
    """The symbols of characters, by code point, as `str.translate` looks them up. Characters that are in the same ones
    of `sets` have the same symbol."""

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
        """The symbols of the characters in each set."""

    def __missing__(self, code: int) -> str:
        symbol = chr(self._numbers[bisect_right(self._starts, code) - 1])
        if len(self) >= _MAX_KEPT:
            self.clear()
        self[code] = symbol
        return symbol

    def ascii(self) -> bytes | None:
        """The symbols of ASCII characters, as a table for `bytes.translate`; None if one takes more than a byte."""
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
    """A set of symbols in the syntax of RE2, which writes the empty set as the complement of all."""
    if not symbols:
        return r"[^\x{0}-\x{10FFFF}]"
    written = "".join(f"\\x{{{ord(symbol):x}}}" for symbol in sorted(symbols))
    return f"[{written}]"
