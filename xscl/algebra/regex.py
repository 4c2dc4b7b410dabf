"""Searches for XPath 2.0 regular expressions, in time that is linear in the text.

A pattern distinguishes few sets of characters, so a text is first written in a small alphabet, with one symbol for all
characters that the pattern treats alike. RE2, which never backtracks, searches in these symbols: the result depends
neither on RE2's Unicode tables nor on its syntax. Back-references, which RE2 lacks, are searched for by backtracking
within a number of steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import re2

from common.errors import InputError
from xscl.algebra.regex_syntax import (
    Alternation,
    Anchor,
    Backreference,
    CaptureGroup,
    Chars,
    CharSet,
    Concatenation,
    PatternError,
    Regex,
    Repeat,
    expanded_size,
    parse,
    references,
)

MAX_STEPS = 200_000
"""Maximum number of steps of a search, about a fifth of a second."""

_Captured = tuple[tuple[int, int, int], ...]
"""For each referenced group: where it was opened, and the start and end of its last capture."""

_UNSET = (-1, 0, 0)
_MATCHED = 0


@dataclass(frozen=True, slots=True)
class _OneOf:
    symbols: frozenset[str]
    then: int


@dataclass(frozen=True, slots=True)
class _At:
    end: bool
    then: int


@dataclass(frozen=True, slots=True)
class _Fork:
    ways: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Open:
    place: int
    then: int


@dataclass(frozen=True, slots=True)
class _Close:
    place: int
    then: int


@dataclass(frozen=True, slots=True)
class _Again:
    place: int
    then: int


class RegexProgram:
    """A regular expression as states with successors; state 0 means a match. A search visits each combination of state,
    place and captures once, so it finds a match if there is one, and a repetition of the empty text ends."""

    def __init__(self, tree: Regex, referred: frozenset[int], symbols: Mapping[CharSet, frozenset[str]]) -> None:
        """`referred` are the numbers of referenced groups, `symbols` those of each set of characters."""
        self._symbols = symbols
        self._place = {number: place for place, number in enumerate(sorted(referred))}
        self._states: list[_OneOf | _At | _Fork | _Open | _Close | _Again] = [_Fork(())]
        self._start = self._before(tree, _MATCHED)

    def _state(self, state: _OneOf | _At | _Fork | _Open | _Close | _Again) -> int:
        self._states.append(state)
        return len(self._states) - 1

    def _before(self, tree: Regex, then: int) -> int:
        match tree:
            case Chars(chars=chars):
                return self._state(_OneOf(self._symbols[chars], then))
            case Anchor(end=end):
                return self._state(_At(end, then))
            case Concatenation(parts=parts):
                for part in reversed(parts):
                    then = self._before(part, then)
                return then
            case Alternation(arms=arms):
                return self._state(_Fork(tuple(self._before(arm, then) for arm in arms)))
            case Repeat():
                return self._repeated(tree, then)
            case CaptureGroup(item=item, number=number) if number in self._place:
                place = self._place[number]
                return self._state(_Open(place, self._before(item, self._state(_Close(place, then)))))
            case CaptureGroup(item=item):
                return self._before(item, then)
            case Backreference(number=number):
                return self._state(_Again(self._place[number], then))
        raise AssertionError(f"not a regular expression: {tree!r}")

    def _repeated(self, repeat: Repeat, then: int) -> int:
        if repeat.most is None:
            loop = self._state(_Fork(()))
            self._states[loop] = _Fork((self._before(repeat.item, loop), then))
            first = loop
        else:
            first = then
            for _ in range(repeat.most - repeat.least):
                first = self._state(_Fork((self._before(repeat.item, first), then)))
        for _ in range(repeat.least):
            first = self._before(repeat.item, first)
        return first

    def search(self, text: str, symbols: str, first: int) -> bool | None:
        """Whether a match starts at `first` or later; None past MAX_STEPS. `symbols` encode `text`."""
        steps = 0
        for begin in range(first, len(text) + 1):
            todo: list[tuple[int, int, _Captured]] = [(self._start, begin, (_UNSET,) * len(self._place))]
            seen = set(todo)
            while todo:
                steps += 1
                if steps > MAX_STEPS:
                    return None
                state, at, captured = todo.pop()
                if state == _MATCHED:
                    return True
                for following in self._following(state, at, captured, text, symbols):
                    if following not in seen:
                        seen.add(following)
                        todo.append(following)
        return False

    def _following(
        self, number: int, at: int, captured: _Captured, text: str, symbols: str
    ) -> list[tuple[int, int, _Captured]]:
        state = self._states[number]
        match state:
            case _OneOf():
                return [(state.then, at + 1, captured)] if symbols[at : at + 1] in state.symbols else []
            case _At():
                return [(state.then, at, captured)] if at == (len(text) if state.end else 0) else []
            case _Fork():
                return [(way, at, captured) for way in state.ways]
            case _Open():
                _, start, end = captured[state.place]
                return [(state.then, at, _changed(captured, state.place, (at, start, end)))]
            case _Close():
                return [(state.then, at, _changed(captured, state.place, (-1, captured[state.place][0], at)))]
            case _Again():
                _, start, end = captured[state.place]
                same = text.startswith(text[start:end], at)
                return [(state.then, at + end - start, captured)] if same else []


def _changed(captured: _Captured, place: int, group: tuple[int, int, int]) -> _Captured:
    return (*captured[:place], group, *captured[place + 1 :])


MAX_WORK = 100_000_000
"""Maximum product of a text's length and a pattern's size. A search takes some seconds at worst."""

_MAX_KEPT = 1024
"""Maximum number of characters whose symbols a pattern caches."""


class PatternLimit(InputError, ValueError):
    """A regular expression search would take too long, which depends only on the pattern and the text."""


class CompiledRegex:
    """A thread-safe regular expression. Raises PatternError if invalid, too large, or for an unknown flag."""

    def __init__(self, pattern: str, flags: str = "") -> None:
        self.pattern = pattern
        tree = parse(pattern, flags)
        self._size = expanded_size(tree)
        self._symbols = Alphabet(dict.fromkeys(_sets(tree)))
        self._ascii = self._symbols.ascii()
        options = re2.Options()
        options.never_capture, options.log_errors = True, False
        try:
            self._re2 = re2.compile(self._written(tree).encode(), options)
        except re2.error as error:
            raise PatternError(f"it is too large: {error}") from None
        referred = references(tree)
        self._program = RegexProgram(tree, referred, self._symbols.of_set) if referred else None

    def found_in(self, text: str) -> bool:
        """Whether a part of `text` matches. Raises PatternLimit if the search would take too long."""
        if len(text) * self._size > MAX_WORK:
            raise PatternLimit(f"the text is too long for the regular expression {self.pattern!r}")
        if self._program is not None:
            return self._found_by_program(text, self._program)
        if self._ascii is not None and text.isascii():
            return self._re2.search(text.encode().translate(self._ascii)) is not None
        return self._re2.search(text.translate(self._symbols).encode()) is not None

    def _found_by_program(self, text: str, program: RegexProgram) -> bool:
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
        match tree:
            case Chars(chars=chars):
                return _bracketed(self._symbols.of_set[chars])
            case Anchor(end=end):
                return r"\z" if end else r"\A"
            case Concatenation(parts=parts):
                return "".join(map(self._written, parts))
            case Alternation(arms=arms):
                return f"(?:{'|'.join(map(self._written, arms))})"
            case Repeat(most=0):
                return ""
            case Repeat(item=item, least=least, most=most):
                return f"(?:{self._written(item)}){{{least},{'' if most is None else most}}}"
            case CaptureGroup(item=item):
                return self._written(item)
            case Backreference():
                return "(?s:.*)"
        raise AssertionError(f"not a regular expression: {tree!r}")


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str, flags: str = "") -> CompiledRegex:
    """A cached XPath 2.0 expression. Raises PatternError if invalid, too large, or for an unknown flag."""
    return CompiledRegex(pattern, flags)


class Alphabet(dict[int, str]):
    """Symbols by code point for `str.translate`. Characters in the same ones of `sets` share a symbol."""

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
        case Concatenation(parts=parts) | Alternation(arms=parts):
            for part in parts:
                yield from _sets(part)
        case Repeat(item=item) | CaptureGroup(item=item):
            yield from _sets(item)


def _bracketed(symbols: frozenset[str]) -> str:
    """A set of symbols in the syntax of RE2, which writes the empty set as the complement of all."""
    if not symbols:
        return r"[^\x{0}-\x{10FFFF}]"
    written = "".join(f"\\x{{{ord(symbol):x}}}" for symbol in sorted(symbols))
    return f"[{written}]"
