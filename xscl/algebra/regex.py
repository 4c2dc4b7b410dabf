r"""XPath 2.0 regular expressions: a parser, and searches in time linear in the text.

The grammar is that of XML Schema, part 2, appendix F, with XPath's additions (Functions and Operators 7.6.1): anchors,
reluctant quantifiers, capturing groups, back-references and the escaped dollar; and the non-capturing groups of a later
version. Flags: `i` ignores case, `s` lets `.` match a line end, `x` ignores white space. Unicode categories are those
of `unicodedata.unidata_version`; an unassigned character is in `Cn`.

A pattern distinguishes few sets of characters, so a text is first translated to a small alphabet, with one symbol for
all characters that the pattern treats alike. RE2, which never backtracks, searches these symbols, so the result depends
neither on RE2's Unicode tables nor on its syntax. Patterns with back-references, which RE2 lacks, are searched by
backtracking within a limited number of steps."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import groupby, islice
from typing import Any

import re2

from common.errors import InputError
from common.tools import ClearedCache

LAST = 0x10FFFF

Range = tuple[int, int]  # first and last code point

CharSet = tuple[Range, ...]  # ascending ranges with gaps between them

NONE: CharSet = ()
ALL: CharSet = ((0, LAST),)

_SUBCATEGORIES = {"L": "ultmo", "M": "nce", "N": "dlo", "P": "cdseifo", "Z": "slp", "S": "mcko", "C": "cfon"}
"""The grammar's categories, without `Cs`, because surrogates are not characters."""


def single(char: str) -> CharSet:
    return ((ord(char), ord(char)),)


def union(sets: Iterable[CharSet]) -> CharSet:
    """The characters in any of the sets.

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


def charset(ranges: str) -> CharSet:
    """The characters of the content of a bracket expression, such as `A-Z_a-z`."""
    return union(((ord(first), ord(last or first)),) for first, last in re.findall("(?s)(.)(?:-(.))?", ranges))


_NAME_START = charset(
    ":A-Z_a-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c-\u200d\u2070-\u218f"
    "\u2c00-\u2fef\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
"""NameStartChar of XML 1.0, fifth edition, as for names in documents."""

_NAME_MORE = charset("-.0-9\u00b7\u0300-\u036f\u203f-\u2040")


def complement(chars: CharSet) -> CharSet:
    """The characters outside the set.

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
    return complement(union((complement(chars), without)))


@lru_cache(maxsize=64)
def escape_charset(letter: str) -> CharSet | None:
    r"""The set that a backslash and this letter denote, such as `d` in `\d`; None for other letters."""
    match letter:
        case "s":
            return charset("\t\n\r ")
        case "d":
            return property_charset("Nd")
        case "w":
            return complement(union(property_charset(kind) or NONE for kind in "PZC"))
        case "i":
            return _NAME_START
        case "c":
            return union((_NAME_START, _NAME_MORE))
        case "S" | "D" | "W" | "I" | "C":
            return complement(escape_charset(letter.lower()) or NONE)
    return None


@cache
def _categories() -> dict[str, CharSet]:
    """All categories, of one letter and of two, computed in a tenth of a second when first needed."""
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


def property_charset(name: str) -> CharSet | None:
    r"""The set that `\p{name}` denotes: a category or, after `Is`, a block; None for other names."""
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


KNOWN = "isx"
"""The flags. XPath's `m` is missing: RE2 cannot search for its `^` and `$`."""

_LAST_CASED = 0x1FFFF  # all letters with case are in the first two planes of Unicode


def with_case_variants(chars: CharSet) -> CharSet:
    """The characters and what XPath calls their case variants: characters with the same lower or upper case.

    >>> with_case_variants(single("k")) == union(map(single, "kK\\u212a"))
    True
    """
    variants, cased = _variants()
    between = (cased[bisect_left(cased, first) : bisect_right(cased, last)] for first, last in chars)
    found = [variants[code] for codes in between for code in codes]
    return union([chars, *found]) if found else chars


def without_space(pattern: str) -> str:
    """Removes white space from a pattern, except inside brackets.

    >>> without_space(r"a b [c d] \\[ e")
    'ab[c d]\\\\[e'
    """
    kept: list[str] = []
    depth, escaped = 0, False
    for char in pattern:
        if char in " \t\r\n" and not depth:
            continue
        kept.append(char)
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "[":
            depth += 1
        elif char == "]" and depth:
            depth -= 1
    return "".join(kept)


@cache
def _variants() -> tuple[dict[int, CharSet], list[int]]:
    """The case variants of characters that have any, and these characters in order. Takes hundredths of a second."""
    alike: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    cased = [char for char in map(chr, range(_LAST_CASED + 1)) if char.lower() != char or char.upper() != char]
    # This includes letters that are only the lower or upper case of others.
    cases = [case for char in cased for case in (char.lower(), char.upper()) if len(case) == 1]
    for char in {*cased, *cases}:
        alike["lower", char.lower()].add(ord(char))
        alike["upper", char.upper()].add(ord(char))
    found: defaultdict[int, set[int]] = defaultdict(set)
    for codes in alike.values():
        for code in codes:
            found[code] |= codes
    made = {code: tuple((one, one) for one in sorted(codes)) for code, codes in found.items() if len(codes) > 1}
    return made, sorted(made)


MAX_PATTERN = 500  # maximum number of characters of a regular expression

MAX_DEPTH = 50  # maximum nesting of groups and subtractions

MAX_SIZE = 1000  # maximum number of characters, sets, anchors and references, with counted repetitions expanded

_QUANTITY = re.compile(r"\{([0-9]+)(,([0-9]*))?\}")
_SINGLE_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", **{char: char for char in r"\|.?*+(){}$-[]^"}}
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_DOT = complement(union(map(single, "\n\r")))
_META = ".\\?*+{}()|^$[]"


class PatternError(InputError, ValueError):
    """The text is not an XPath 2.0 regular expression, or is too large."""


@dataclass(frozen=True, slots=True)
class Chars:
    chars: CharSet


@dataclass(frozen=True, slots=True)
class Anchor:
    """`^` or, with `end`, `$`: the start or the end of the whole text."""

    end: bool


@dataclass(frozen=True, slots=True)
class Concatenation:
    parts: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    arms: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """An item `least` to `most` times, without limit if `most` is None. Reluctant or not, it matches the same texts."""

    item: Regex
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class CaptureGroup:
    """A capturing group, numbered from 1."""

    item: Regex
    number: int


@dataclass(frozen=True, slots=True)
class Backreference:
    """The text that a group captured last; the empty text if it captured none."""

    number: int


Regex = Chars | Anchor | Concatenation | Alternation | Repeat | CaptureGroup | Backreference


def parse(pattern: str, given: str = "") -> Regex:
    """The tree of a regular expression with flags. Raises PatternError for an invalid `pattern`, one longer than
    MAX_PATTERN, larger than MAX_SIZE or deeper than MAX_DEPTH, or flags in `given` other than `i`, `s` and `x`."""
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"it is longer than {MAX_PATTERN} characters")
    if not set(given) <= set(KNOWN):
        raise PatternError(f'the flags here are i, s and x, not "{given}"')
    tree = _Parser(pattern, given).regex()
    if expanded_size(tree) > MAX_SIZE:
        raise PatternError(f"it is larger than {MAX_SIZE} characters when its repetitions are written out")
    return tree


def expanded_size(tree: Regex) -> int:
    """The number of characters, sets, anchors and references, with counted repetitions expanded; at least 1."""
    match tree:
        case Concatenation(parts=parts) | Alternation(arms=parts):
            return max(1, sum(map(expanded_size, parts)))
        case Repeat(item=item, least=least, most=most):
            return max(1, least, most or 0) * expanded_size(item)
        case CaptureGroup(item=item):
            return expanded_size(item)
    return 1


def _parts_of(tree: Regex) -> Iterator[Regex]:
    """All parts of a tree, itself first."""
    yield tree
    match tree:
        case Concatenation(parts=parts) | Alternation(arms=parts):
            for part in parts:
                yield from _parts_of(part)
        case Repeat(item=item) | CaptureGroup(item=item):
            yield from _parts_of(item)


def _count(digits: str) -> int:
    # Python does not convert thousands of digits. Ten digits already exceed the limit.
    return int(digits.lstrip("0")[:10] or "0")


class _Parser:
    def __init__(self, pattern: str, given: str) -> None:
        self._text = without_space(pattern) if "x" in given else pattern
        self._ignores_case = "i" in given
        self._dot = ALL if "s" in given else _DOT
        self._at = self._depth = self._opened = 0
        self._closed: set[int] = set()

    def regex(self) -> Regex:
        tree = self._choice()
        if self._at < len(self._text):
            raise self._error(f"{self._next()} closes nothing: write \\{self._next()}")
        return tree

    def _next(self, ahead: int = 0) -> str:
        return self._text[self._at + ahead : self._at + ahead + 1]

    def _took(self, expected: str) -> bool:
        if not self._text.startswith(expected, self._at):
            return False
        self._at += len(expected)
        return True

    def _error(self, message: str, at: int | None = None) -> PatternError:
        return PatternError(f"{message} (at character {(self._at if at is None else at) + 1})")

    def _deeper(self, by: int) -> None:
        self._depth += by
        if self._depth > MAX_DEPTH:
            raise self._error(f"it nests more than {MAX_DEPTH} deep")

    # ------------------------------------------------------------ pieces

    def _choice(self) -> Regex:
        arms = [self._branch()]
        while self._took("|"):
            arms.append(self._branch())
        return arms[0] if len(arms) == 1 else Alternation(tuple(arms))

    def _branch(self) -> Regex:
        parts: list[Regex] = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._quantified(self._atom()))
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _quantified(self, item: Regex) -> Regex:
        if self._next() in _QUANTIFIERS:
            least, most = _QUANTIFIERS[self._next()]
            self._at += 1
        elif self._next() == "{":
            found = _QUANTITY.match(self._text, self._at)
            if not found:
                raise self._error("a repetition is written {2}, {2,} or {2,5}, and a brace \\{")
            least = _count(found[1])
            most = least if found[2] is None else _count(found[3]) if found[3] else None
            if most is not None and most < least:
                raise self._error("the second number of a repetition is less than the first")
            self._at = found.end()
        else:
            return item
        self._took("?")
        return Repeat(item, least, most)

    def _atom(self) -> Regex:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return Chars(self._brackets())
        if char == "\\":
            is_reference = self._next(1) in tuple("123456789")
            return self._reference() if is_reference else Chars(self._escaped_set() or single(self._escaped_char()))
        self._at += 1
        if char in "^$":
            return Anchor(char == "$")
        if char == ".":
            return Chars(self._dot)
        if char in "?*+":
            raise self._error(f"{char} repeats nothing: write \\{char} for the character", self._at - 1)
        if char in _META:
            raise self._error(f"write \\{char} for the character {char}", self._at - 1)
        return Chars(self._cased(single(char)))

    def _cased(self, chars: CharSet) -> CharSet:
        return with_case_variants(chars) if self._ignores_case else chars

    def _group(self) -> Regex:
        opened = self._at
        self._at += 1
        self._deeper(1)
        number = 0
        if not self._took("?:"):
            if self._next() == "?":
                raise self._error("a group begins with ( or (?: in XPath", opened)
            self._opened += 1
            number = self._opened
        item = self._choice()
        if not self._took(")"):
            raise self._error("this parenthesis is not closed", opened)
        self._deeper(-1)
        if not number:
            return item
        self._closed.add(number)
        return CaptureGroup(item, number)

    def _reference(self) -> Backreference:
        """Reads as many digits as form the number of a group opened before."""
        at = self._at
        number = int(self._next(1))
        self._at += 2
        while self._next() in tuple("0123456789") and number * 10 + int(self._next()) <= self._opened:
            number = number * 10 + int(self._next())
            self._at += 1
        if number not in self._closed:
            raise self._error(f"\\{number} refers to a group that is not closed before it", at)
        if self._ignores_case:
            raise self._error(f"\\{number} cannot be compared without regard to case: leave out the flag i", at)
        return Backreference(number)

    # ------------------------------------------------------------ characters and sets

    def _escaped_set(self) -> CharSet | None:
        r"""Reads a set such as `\d` or `\p{L}`, if one is next; else returns None."""
        letter = self._next(1)
        if letter not in ("p", "P"):
            found = escape_charset(letter)
            self._at += 2 if found is not None else 0
            return found
        end = self._text.find("}", self._at)
        if self._next(2) != "{" or end < 0:
            raise self._error(f"\\{letter} is followed by a category or block in braces: \\{letter}{{L}}")
        name = self._text[self._at + 3 : end]
        if (found := property_charset(name)) is None:
            raise self._error(f"there is no category or block {name}")
        self._at = end + 1
        return found if letter == "p" else complement(found)

    def _escaped_char(self) -> str:
        letter = self._next(1)
        if letter not in _SINGLE_ESCAPES:
            raise self._error(f"there is no escape \\{letter} in XPath" if letter else "nothing follows the backslash")
        self._at += 2
        return _SINGLE_ESCAPES[letter]

    def _brackets(self) -> CharSet:
        opened = self._at
        self._at += 1
        self._deeper(1)
        negative = self._took("^")
        sets, without = list[CharSet](), NONE
        while not self._took("]"):
            if not self._next():
                raise self._error("this bracket is not closed", opened)
            if sets and self._text.startswith("-[", self._at):
                self._at += 1
                without = self._brackets()
                if self._next() != "]":
                    raise self._error("a subtraction ends its brackets: write ] after it")
            else:
                sets.append(self._part())
        if not sets:
            raise self._error("these brackets are empty", opened)
        self._deeper(-1)
        found = union(sets)
        return difference(complement(found) if negative else found, without)

    def _part(self) -> CharSet:
        at = self._at
        if self._next() == "\\" and (found := self._escaped_set()) is not None:
            return found
        first = self._bracket_char()
        # A hyphen at the end of brackets, or before a subtraction, is not a range.
        if self._next() != "-" or self._next(1) in ("]", "[") or self._text.startswith("--[", self._at):
            if self._text.startswith("--]", at):
                raise self._error("two hyphens at the end of brackets: write one")
            return self._cased(single(first))
        self._at += 1
        if self._text[at] == "-" or self._next() == "-":
            raise self._error("a range that begins or ends with a hyphen is written with \\-")
        last = self._bracket_char()
        if last < first:
            raise self._error(f"the range {first}-{last} is empty", at)
        return self._cased(((ord(first), ord(last)),))

    def _bracket_char(self) -> str:
        char = self._next()
        if char == "\\":
            return self._escaped_char()
        if char in ("[", "]", ""):
            raise self._error(f"inside brackets write \\{char} for the character {char}" if char else "it ends early")
        self._at += 1
        return char


# ---------------------------------------------------------------- searches

MAX_STEPS = 200_000  # maximum number of steps of a search with back-references, about a fifth of a second

_Captured = tuple[tuple[int, int, int], ...]
"""For each referenced group: where it was opened, and the start and end of its last capture."""

_Search = tuple[int, int, _Captured]  # a state, a place in the text, and the captures so far

_Step = Callable[[str, str, int, _Captured], list[_Search]]
"""Returns a state's successors at a position of a text, which is also given in symbols, with captures."""

_UNSET = (-1, 0, 0)
_MATCHED = 0


class RegexProgram:
    """A regular expression as states with successors; state 0 means a match. A search visits each combination of state,
    position and captures once, so it finds a match if there is one, and repetitions of the empty text terminate."""

    def __init__(self, tree: Regex, referred: frozenset[int], symbols: Mapping[CharSet, frozenset[str]]) -> None:
        """`referred` are the numbers of referenced groups, `symbols` those of each set of characters."""
        self._symbols = symbols
        self._place = {number: place for place, number in enumerate(sorted(referred))}
        self._steps: list[_Step] = []
        self._fork([])
        self._start = self._before(tree, _MATCHED)

    def _state(self, step: _Step) -> int:
        self._steps.append(step)
        return len(self._steps) - 1

    def _fork(self, ways: list[int]) -> int:
        return self._state(lambda text, symbols, at, captured: [(way, at, captured) for way in ways])

    def _if(self, holds: Callable[[str, str, int], bool], then: int, length: int) -> int:
        def step(text: str, symbols: str, at: int, captured: _Captured) -> list[_Search]:
            return [(then, at + length, captured)] if holds(text, symbols, at) else []

        return self._state(step)

    def _before(self, tree: Regex, then: int) -> int:
        """Adds a tree's states, which lead to the state `then`, and returns the first."""
        match tree:
            case Chars(chars=chars):
                own = self._symbols[chars]
                return self._if(lambda text, symbols, at: symbols[at : at + 1] in own, then, 1)
            case Anchor(end=end):
                return self._if(lambda text, symbols, at: at == (len(text) if end else 0), then, 0)
            case Concatenation(parts=parts):
                for part in reversed(parts):
                    then = self._before(part, then)
                return then
            case Alternation(arms=arms):
                return self._fork([self._before(arm, then) for arm in arms])
            case Repeat():
                return self._repeated(tree, then)
            case CaptureGroup(item=item, number=number) if number in self._place:
                return self._captured(item, self._place[number], then)
            case CaptureGroup(item=item):
                return self._before(item, then)
            case Backreference(number=number):
                return self._again(self._place[number], then)
        raise AssertionError(f"not a regular expression: {tree!r}")

    def _repeated(self, repeat: Repeat, then: int) -> int:
        if repeat.most is None:
            ways: list[int] = []
            first = self._fork(ways)
            ways += self._before(repeat.item, first), then
        else:
            first = then
            for _ in range(repeat.most - repeat.least):
                first = self._fork([self._before(repeat.item, first), then])
        for _ in range(repeat.least):
            first = self._before(repeat.item, first)
        return first

    def _captured(self, item: Regex, place: int, then: int) -> int:
        def opens(text: str, symbols: str, at: int, captured: _Captured) -> list[_Search]:
            return [(inner, at, (*captured[:place], (at, *captured[place][1:]), *captured[place + 1 :]))]

        def closes(text: str, symbols: str, at: int, captured: _Captured) -> list[_Search]:
            return [(then, at, (*captured[:place], (-1, captured[place][0], at), *captured[place + 1 :]))]

        inner = self._before(item, self._state(closes))
        return self._state(opens)

    def _again(self, place: int, then: int) -> int:
        def step(text: str, symbols: str, at: int, captured: _Captured) -> list[_Search]:
            _, start, end = captured[place]
            return [(then, at + end - start, captured)] if text.startswith(text[start:end], at) else []

        return self._state(step)

    def search(self, text: str, symbols: str, first: int) -> bool | None:
        """Whether a match starts at `first` or later; None past MAX_STEPS. `symbols` encode `text`."""
        steps = 0
        for begin in range(first, len(text) + 1):
            todo: list[_Search] = [(self._start, begin, (_UNSET,) * len(self._place))]
            seen = set(todo)
            while todo:
                steps += 1
                if steps > MAX_STEPS:
                    return None
                state, at, captured = todo.pop()
                if state == _MATCHED:
                    return True
                for following in self._steps[state](text, symbols, at, captured):
                    if following not in seen:
                        seen.add(following)
                        todo.append(following)
        return False


MAX_WORK = 100_000_000
"""Maximum product of a text's length and a pattern's size. A search takes some seconds at worst."""

MAX_FOUND = 1_000_000_000
"""Maximum product of a text's length and the number of extracted matches: each may scan the rest of the text."""

_MAX_KEPT = 1024  # maximum number of characters whose symbols a pattern caches


class PatternLimit(InputError, ValueError):
    """A regular expression search would take too long, which depends only on the pattern and the text."""


class CompiledRegex:
    """A thread-safe regular expression. Raises PatternError if invalid, too large, or for an unknown flag."""

    def __init__(self, pattern: str, flags: str = "") -> None:
        self.pattern = pattern
        self._tree = tree = parse(pattern, flags)
        self._size = expanded_size(tree)
        self._symbols = Alphabet(dict.fromkeys(node.chars for node in _parts_of(tree) if isinstance(node, Chars)))
        self._ascii = self._symbols.ascii()
        options = re2.Options()
        options.never_capture, options.log_errors = True, False
        try:
            self._re2 = re2.compile(self._written(tree).encode(), options)
        except re2.error as error:
            raise PatternError(f"it is too large: {error}") from None
        referred = frozenset(node.number for node in _parts_of(tree) if isinstance(node, Backreference))
        self._program = RegexProgram(tree, referred, self._symbols.of_set) if referred else None

    def found_in(self, text: str) -> bool:
        """Whether a part of `text` matches. Raises PatternLimit if the search would take too long."""
        if len(text) * self._size > MAX_WORK:
            raise PatternLimit(f"the text is too long for the regular expression {self.pattern!r}")
        if self._program is None:
            is_ascii = self._ascii is not None and text.isascii()
            symbols = text.encode().translate(self._ascii) if is_ascii else text.translate(self._symbols).encode()
            return self._re2.search(symbols) is not None
        # RE2 searches with any text in place of a back-reference, so no match starts before its first.
        in_symbols = text.translate(self._symbols)
        first = self._re2.search(in_symbols)
        found = first is not None and self._program.search(text, in_symbols, first.start())
        if found is None:
            raise PatternLimit(f"the regular expression {self.pattern!r} has too many ways to match the text")
        return found

    def found(self, text: str) -> Iterator[str]:
        """The matches in a text, or the first group of each, from left to right; of a long text, only as many as
        MAX_FOUND allows. Raises PatternLimit if the search would take too long."""
        if len(text) * self._size > MAX_WORK:
            raise PatternLimit(f"the text is too long for the regular expression {self.pattern!r}")
        group = min(self._finder.groups, 1)
        matches = self._finder.finditer(text.translate(self._symbols))
        for match in islice(matches, MAX_FOUND // (len(text) + 1)):
            start, end = match.span(group)
            if start < end:
                yield text[start:end]

    def prepare_to_find(self) -> None:
        """Raises PatternError for what `found` cannot search for: back-references."""
        _ = self._finder

    @cached_property
    def _finder(self) -> Any:
        """The pattern in symbols, with the first group as the only one. Raises PatternError for back-references."""
        if self._program is not None:
            raise PatternError("extract() takes no back-references")
        options = re2.Options()
        options.log_errors = False
        return re2.compile(self._written(self._tree, first=True), options)

    def _written(self, tree: Regex, *, first: bool = False) -> str:
        """The pattern in symbols. With `first`, its first group is a group."""
        match tree:
            case Chars(chars=chars):
                return _bracketed(self._symbols.of_set[chars])
            case Anchor(end=end):
                return r"\z" if end else r"\A"
            case Concatenation(parts=parts):
                return "".join(self._written(part, first=first) for part in parts)
            case Alternation(arms=arms):
                return f"(?:{'|'.join(self._written(arm, first=first) for arm in arms)})"
            case Repeat(most=0):
                return ""
            case Repeat(item=item, least=least, most=most):
                return f"(?:{self._written(item, first=first)}){{{least},{'' if most is None else most}}}"
            case CaptureGroup(item=item, number=number):
                inside = self._written(item, first=first)
                return f"({inside})" if first and number == 1 else inside
            case Backreference():
                return "(?s:.*)"
        raise AssertionError(f"not a regular expression: {tree!r}")


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str, flags: str = "") -> CompiledRegex:
    """A cached XPath 2.0 expression. Raises PatternError if invalid, too large, or for an unknown flag."""
    return CompiledRegex(pattern, flags)


class Alphabet(ClearedCache[int, str]):
    """Symbols by code point for `str.translate`. Characters that are in the same `sets` share a symbol."""

    def __init__(self, sets: dict[CharSet, None]) -> None:
        super().__init__(_MAX_KEPT)
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
        symbol = self[code] = chr(self._numbers[bisect_right(self._starts, code) - 1])
        return symbol

    def ascii(self) -> bytes | None:
        """The symbols of ASCII characters, as a table for `bytes.translate`; None if one takes more than a byte."""
        symbols = "".join(self[code] for code in range(128))
        return symbols.encode() + bytes(128) if symbols.isascii() else None


def _bracketed(symbols: frozenset[str]) -> str:
    """A set of symbols in RE2's syntax; the empty set is the complement of all."""
    if not symbols:
        return r"[^\x{0}-\x{10FFFF}]"
    return "[" + "".join(f"\\x{{{ord(symbol):x}}}" for symbol in sorted(symbols)) + "]"
