"""Parses regular expressions of XPath 2.0, and refuses any other.

The grammar is that of XML Schema, part 2, appendix F, with the additions of XPath's Functions and Operators (7.6.1):
`^` and `$`, reluctant quantifiers, capturing groups, back-references and `\\$`; and `(?:...)` of its later version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from common.errors import InputError
from xscl.algebra.regex import charsets, flags
from xscl.algebra.regex.charsets import CharSet

MAX_PATTERN = 500
"""How many characters a regular expression may have."""

MAX_DEPTH = 50
"""How deep groups and subtractions may be nested."""

MAX_SIZE = 1000
"""How many characters, sets, anchors and references a regular expression may have when its counted repetitions are
written out."""

_QUANTITY = re.compile(r"\{([0-9]+)(,([0-9]*))?\}")
_SINGLE_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", **{char: char for char in r"\|.?*+(){}$-[]^"}}
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_DOT = charsets.complement(charsets.union(map(charsets.single, "\n\r")))
_META = ".\\?*+{}()|^$[]"


class PatternError(InputError, ValueError):
    """A text is not a regular expression of XPath 2.0, or is too large."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Edge:
    """`^`, or with `end` `$`: the start or the end of the whole text."""

    end: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part after the other."""

    parts: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the arms."""

    arms: tuple[Regex, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """An item `least` to `most` times, without limit if `most` is None. Reluctant or not, it matches the same texts."""

    item: Regex
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Group:
    """A capturing group. The first has number 1."""

    item: Regex
    number: int


@dataclass(frozen=True, slots=True)
class Reference:
    """The text that a group captured last; the empty text if it captured none."""

    number: int


Regex = Chars | Edge | Sequence | Choice | Repeat | Group | Reference


def parse(pattern: str, given: str = "") -> Regex:
    """The tree of a regular expression with the given flags.

    Raises:
        PatternError: if `pattern` is no regular expression, is longer than MAX_PATTERN or larger than MAX_SIZE, or
            nests deeper than MAX_DEPTH; or if `given` has other flags than `i`, `s` and `x`.
    """
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"it is longer than {MAX_PATTERN} characters")
    if not set(given) <= set(flags.KNOWN):
        raise PatternError(f'the flags here are i, s and x, not "{given}"')
    tree = _Parser(pattern, given).regex()
    if size(tree) > MAX_SIZE:
        raise PatternError(f"it is larger than {MAX_SIZE} characters when its repetitions are written out")
    return tree


def size(tree: Regex) -> int:
    """How many characters, sets, anchors and references a tree has with counted repetitions written out; at least 1."""
    match tree:
        case Sequence(parts=parts) | Choice(arms=parts):
            return max(1, sum(map(size, parts)))
        case Repeat(item=item, least=least, most=most):
            return max(1, least, most or 0) * size(item)
        case Group(item=item):
            return size(item)
    return 1


def references(tree: Regex) -> frozenset[int]:
    """The numbers of the groups that a tree refers back to."""
    match tree:
        case Sequence(parts=parts) | Choice(arms=parts):
            return frozenset().union(*map(references, parts))
        case Repeat(item=item) | Group(item=item):
            return references(item)
        case Reference(number=number):
            return frozenset((number,))
    return frozenset()


def _count(digits: str) -> int:
    # Python converts no number of thousands of digits. Ten digits are past the limit already.
    return int(digits.lstrip("0")[:10] or "0")


class _Parser:
    """Reads a pattern from left to right. `_at` is the place of the next character."""

    def __init__(self, pattern: str, given: str) -> None:
        self._text = flags.without_space(pattern) if "x" in given else pattern
        self._ignores_case = "i" in given
        self._dot = charsets.ALL if "s" in given else _DOT
        self._at = 0
        self._depth = 0
        self._opened = 0
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
        return arms[0] if len(arms) == 1 else Choice(tuple(arms))

    def _branch(self) -> Regex:
        parts: list[Regex] = []
        while self._next() not in ("", "|", ")"):
            parts.append(self._quantified(self._atom()))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _quantified(self, item: Regex) -> Regex:
        if self._next() == "{":
            return self._counted(item)
        if self._next() not in _QUANTIFIERS:
            return item
        least, most = _QUANTIFIERS[self._next()]
        self._at += 1
        self._took("?")
        return Repeat(item, least, most)

    def _counted(self, item: Regex) -> Regex:
        found = _QUANTITY.match(self._text, self._at)
        if not found:
            raise self._error("a repetition is written {2}, {2,} or {2,5}, and a brace \\{")
        least = _count(found[1])
        most = least if found[2] is None else _count(found[3]) if found[3] else None
        if most is not None and most < least:
            raise self._error("the second number of a repetition is less than the first")
        self._at = found.end()
        self._took("?")
        return Repeat(item, least, most)

    def _atom(self) -> Regex:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return Chars(self._brackets())
        if char == "\\":
            return self._escape()
        self._at += 1
        if char in "^$":
            return Edge(char == "$")
        if char == ".":
            return Chars(self._dot)
        if char in "?*+":
            raise self._error(f"{char} repeats nothing: write \\{char} for the character", self._at - 1)
        if char in _META:
            raise self._error(f"write \\{char} for the character {char}", self._at - 1)
        return Chars(self._cased(charsets.single(char)))

    def _cased(self, chars: CharSet) -> CharSet:
        return flags.with_case_variants(chars) if self._ignores_case else chars

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
        return Group(item, number)

    def _escape(self) -> Regex:
        if self._next(1) in tuple("123456789"):
            return self._reference()
        return Chars(self._escaped_set() or charsets.single(self._escaped_char()))

    def _reference(self) -> Reference:
        """A back-reference. It takes as many digits as give the number of a group that was opened before."""
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
        return Reference(number)

    # ------------------------------------------------------------ characters and sets

    def _escaped_set(self) -> CharSet | None:
        r"""A set such as `\d` or `\p{L}`, if that is next; else None."""
        letter = self._next(1)
        if letter not in ("p", "P"):
            found = charsets.escaped(letter)
            self._at += 2 if found is not None else 0
            return found
        end = self._text.find("}", self._at)
        if self._next(2) != "{" or end < 0:
            raise self._error(f"\\{letter} is followed by a category or block in braces: \\{letter}{{L}}")
        name = self._text[self._at + 3 : end]
        found = charsets.named(name)
        if found is None:
            raise self._error(f"there is no category or block {name}")
        self._at = end + 1
        return found if letter == "p" else charsets.complement(found)

    def _escaped_char(self) -> str:
        """One character after a backslash."""
        letter = self._next(1)
        if letter not in _SINGLE_ESCAPES:
            raise self._error(f"there is no escape \\{letter} in XPath" if letter else "nothing follows the backslash")
        self._at += 2
        return _SINGLE_ESCAPES[letter]

    def _brackets(self) -> CharSet:
        """A set in brackets, without the set that it subtracts, if any."""
        opened = self._at
        self._at += 1
        self._deeper(1)
        negative = self._took("^")
        start = self._at
        sets, without = list[CharSet](), charsets.NONE
        while not self._took("]"):
            if not self._next():
                raise self._error("this bracket is not closed", opened)
            if sets and self._text.startswith("-[", self._at):
                self._at += 1
                without = self._brackets()
                if self._next() != "]":
                    raise self._error("a subtraction ends its brackets: write ] after it")
            else:
                sets.append(self._part(start))
        if not sets:
            raise self._error("these brackets are empty", opened)
        self._deeper(-1)
        found = charsets.union(sets)
        return charsets.difference(charsets.complement(found) if negative else found, without)

    def _part(self, start: int) -> CharSet:
        """A character, a range or a set, inside brackets whose parts begin at `start`."""
        at = self._at
        if self._next() == "\\":
            found = self._escaped_set()
            if found is not None:
                return found
        elif self._next() == "-" and at > start and self._next(1) != "]" and not self._text.startswith("-[", at + 1):
            raise self._error("in the middle of brackets write \\- for the character -")
        first = self._bracket_char()
        # A hyphen makes no range at the end of brackets, nor before a subtraction.
        if self._next() != "-" or self._next(1) in ("]", "[") or self._text.startswith("--[", self._at):
            if self._text.startswith("--]", at):
                raise self._error("two hyphens at the end of brackets: write one")
            return self._cased(charsets.single(first))
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
