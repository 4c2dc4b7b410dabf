r"""XPath 2.0's regular expressions for the oracle, by the definition: what a part can match is a set of ends.

Written from XML Schema, part 2, appendix F, and from 7.6.1 of XPath's functions, for valid patterns only. The time
grows fast with the length of the text, but the texts of tests are short.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache, lru_cache

Captured = frozenset[tuple[int, str]]
"""The number and the text of each group that has captured some."""

State = tuple[int, Captured]
Part = Callable[[str, int, Captured], Iterable[State]]
"""The ends of a part's matches that begin at a place in a text."""

Test = Callable[[str], bool]

_TOKEN = re.compile(r"\\[pP]\{[^}]*\}|\\.|\(\?:|\{[0-9]+(?:,[0-9]*)?\}|.", re.DOTALL)
_NAME_START = re.compile(
    "[:A-Z_a-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f\u2c00-\u2fef"
    "\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff]"
)
_NAME_MORE = re.compile("[-.0-9\u00b7\u0300-\u036f\u203f\u2040]")
_BLOCKS = {
    "BasicLatin": (0, 0x7F),
    "Latin-1Supplement": (0x80, 0xFF),
    "Greek": (0x370, 0x3FF),
    "GreekandCoptic": (0x370, 0x3FF),
    "Arabic": (0x600, 0x6FF),
    "Deseret": (0x10400, 0x1044F),
    "CJKUnifiedIdeographs": (0x4E00, 0x9FFF),
}
_SETS: dict[str, Test] = {
    "s": lambda char: char in " \t\r\n",
    "d": lambda char: unicodedata.category(char) == "Nd",
    "w": lambda char: unicodedata.category(char)[0] not in "PZC",
    "i": lambda char: _NAME_START.match(char) is not None,
    "c": lambda char: (_NAME_START.match(char) or _NAME_MORE.match(char)) is not None,
}


def matches(text: str, pattern: str, flags: str = "") -> bool:
    """Whether some part of the text matches. The flags may be `i`, `s` and `x`."""
    part = _whole(pattern, flags)
    return any(True for start in range(len(text) + 1) for _ in part(text, start, frozenset()))


@lru_cache(maxsize=1000)
def _whole(pattern: str, flags: str) -> Part:
    reader = _Reader(_dense(pattern) if "x" in flags else pattern, flags)
    part = reader.alternatives()
    assert not reader.tokens, f"not a pattern: {pattern!r}"
    return part


def _dense(pattern: str) -> str:
    """The pattern without the white space that is not in brackets."""
    made, brackets = "", list[str]()
    while pattern:
        char, pattern = pattern[0], pattern[1:]
        if brackets or char not in " \t\r\n":
            made += char
        if char == "\\":
            rest = pattern if brackets else pattern.lstrip(" \t\r\n")
            made, pattern = made + rest[:1], rest[1:]
        elif char == "[":
            brackets.append(char)
        elif char == "]" and brackets:
            brackets.pop()
    return made


class _Reader:
    """Takes the tokens of a pattern one by one. The first is at the end of the list."""

    def __init__(self, pattern: str, flags: str) -> None:
        self._any_case, self._dot = "i" in flags, "" if "s" in flags else "\n\r"
        self.tokens = _TOKEN.findall(pattern)[::-1]
        self._groups = 0

    def _peek(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    def alternatives(self) -> Part:
        arms = [self._sequence()]
        while self._peek() == "|":
            self.tokens.pop()
            arms.append(self._sequence())
        return lambda text, at, captured: {end for arm in arms for end in arm(text, at, captured)}

    def _sequence(self) -> Part:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repetition(self._atom()))

        def ends(text: str, at: int, captured: Captured) -> Iterable[State]:
            states = {(at, captured)}
            for part in parts:
                states = {end for state in states for end in part(text, *state)}
            return states

        return ends

    def _repetition(self, item: Part) -> Part:
        quantifier = self._peek()
        if quantifier not in ("?", "*", "+") and quantifier[:1] != "{":
            return item
        self.tokens.pop()
        if self._peek() == "?":
            self.tokens.pop()  # reluctant: other matches first, but the same ones
        least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(quantifier, (0, None))
        if quantifier[0] == "{":
            low, comma, high = quantifier[1:-1].partition(",")
            least, most = int(low), int(high or low) if high or not comma else None

        def ends(text: str, at: int, captured: Captured) -> Iterable[State]:
            now, found, times = {(at, captured)}, set[State](), 0
            while now:
                if times >= least:
                    now -= found
                    found |= now
                if times == most:
                    break
                now, times = {end for state in now for end in item(text, *state)}, times + 1
            return found

        return ends

    def _atom(self) -> Part:
        token: str = self.tokens.pop()
        if token == "^":
            return lambda text, at, captured: [(at, captured)] if at == 0 else []
        if token == "$":
            return lambda text, at, captured: [(at, captured)] if at == len(text) else []
        if token in ("(", "(?:"):
            return self._group(capturing=token == "(")
        if token[0] == "\\" and token[1] in "123456789":
            return self._reference(token[1])
        dot = self._dot
        test = (
            self._brackets() if token == "[" else (lambda char: char not in dot) if token == "." else self._test(token)
        )
        return lambda text, at, captured: [(at + 1, captured)] if at < len(text) and test(text[at]) else []

    def _group(self, capturing: bool) -> Part:
        self._groups += capturing
        number = self._groups
        inner = self.alternatives()
        assert self.tokens.pop() == ")"

        def ends(text: str, at: int, captured: Captured) -> Iterable[State]:
            for end, inside in inner(text, at, captured):
                others = frozenset(pair for pair in inside if pair[0] != number)
                yield end, others | {(number, text[at:end])}

        return ends if capturing else inner

    def _reference(self, digits: str) -> Part:
        while self._peek() in tuple("0123456789") and int(digits + self._peek()) <= self._groups:
            digits += self.tokens.pop()

        def ends(text: str, at: int, captured: Captured) -> Iterable[State]:
            same = dict(captured).get(int(digits), "")
            return [(at + len(same), captured)] if text.startswith(same, at) else []

        return ends

    def _inside(self) -> str:
        """A token inside brackets. What is one token outside, such as `{2}` or `(?:`, is single characters there."""
        token: str = self.tokens.pop()
        if token[0] != "\\":
            self.tokens += token[:0:-1]
            token = token[0]
        return token

    def _brackets(self) -> Test:
        """The rest of an expression in brackets, after the first bracket."""
        negative = self._peek() == "^"
        if negative:
            self.tokens.pop()
        tests: list[Test] = []
        without: Test | None = None
        while (token := self._inside()) != "]":
            if token == "-" and tests and self._peek() == "[":
                self.tokens.pop()
                without = self._brackets()
            elif self._peek() == "-" and self.tokens[-2] not in ("]", "[", "-") and _one(token):
                self.tokens.pop()
                first, last = _one(token), _one(self._inside())
                tests.append(self._cased(_between(first, last)))
            else:
                tests.append(self._test(token))
        return lambda char: (any(test(char) for test in tests) != negative) and not (without and without(char))

    def _test(self, token: str) -> Test:
        return self._cased(_test(token)) if _one(token) else _test(token)

    def _cased(self, test: Test) -> Test:
        """Without regard to case: the test of the character, or of one with the same lower or upper case."""
        return (lambda char: any(map(test, _case_variants(char)))) if self._any_case else test


def _case_variants(char: str) -> frozenset[str]:
    of_lower, of_upper = _by_case()
    return frozenset(char + of_lower.get(char.lower(), "") + of_upper.get(char.upper(), ""))


@cache
def _by_case() -> tuple[dict[str, str], dict[str, str]]:
    """All characters that have the same lower case, and the same upper case. Past the first two planes none has."""
    of_lower, of_upper = dict[str, str](), dict[str, str]()
    for char in map(chr, range(0x20000)):
        lower, upper = char.lower(), char.upper()
        of_lower[lower] = of_lower.get(lower, "") + char
        of_upper[upper] = of_upper.get(upper, "") + char
    return of_lower, of_upper


def _one(token: str) -> str:
    """The single character that a token stands for; "" if it stands for a set."""
    if token[0] != "\\":
        return token
    if token[1] in "pPsSdDwWiIcC":
        return ""
    return {"n": "\n", "r": "\r", "t": "\t"}.get(token[1], token[1])


def _test(token: str) -> Test:
    """Whether a token stands for a character."""
    one = _one(token)
    if one:
        return lambda char: char == one
    letter = token[1]
    if letter.lower() != "p":
        test = _SETS[letter.lower()]
    elif token.startswith("Is", 3):
        first, last = _BLOCKS[token[5:-1]]
        test = _between(chr(first), chr(last))
    else:
        test = _of_category(token[3:-1])
    return (lambda char: not test(char)) if letter.isupper() else test


def _between(first: str, last: str) -> Test:
    return lambda char: first <= char <= last


def _of_category(name: str) -> Test:
    return lambda char: unicodedata.category(char).startswith(name)
