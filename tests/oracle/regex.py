"""XPath 2.0's regular expressions for the oracle, translated for the module `regex`, with characters as numbers.

Written from XML Schema, part 2, appendix F, and from 7.6.1 of XPath's functions, for valid patterns only. The time may
grow fast with the length of the text, but the texts of tests are short.
"""

from __future__ import annotations

from functools import cache, lru_cache

import regex

_TOKEN = regex.compile(r"\\[pP]\{[^}]*\}|\\.|\(\?:|\{[0-9]+(?:,[0-9]*)?\}|.", regex.DOTALL)
_SPACED = regex.compile(r"(\[(?:\\.|[^\]\[\\]|(?1))*\])|(\\)[ \t\r\n]*(.)|[ \t\r\n]", regex.DOTALL)
_NAME_START = (
    r":A-Z_a-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f\u2c00-\u2fef"
    r"\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
_BLOCKS = {
    "BasicLatin": (0, 0x7F),
    "Latin-1Supplement": (0x80, 0xFF),
    "Greek": (0x370, 0x3FF),
    "GreekandCoptic": (0x370, 0x3FF),
    "Arabic": (0x600, 0x6FF),
    "Deseret": (0x10400, 0x1044F),
    "CJKUnifiedIdeographs": (0x4E00, 0x9FFF),
}
_SETS = {
    "s": r"\x20\t\r\n",
    "d": r"\p{Nd}",
    "w": r"^\p{P}\p{Z}\p{C}",
    "i": _NAME_START,
    "c": rf"\-.0-9\u00b7\u0300-\u036f\u203f\u2040{_NAME_START}",
}


def matches(text: str, pattern: str, flags: str = "") -> bool:
    """Whether some part of the text matches. The flags may be `i`, `s` and `x`."""
    return _compiled(pattern, flags).search(text) is not None


@lru_cache(maxsize=1000)
def _compiled(pattern: str, flags: str) -> regex.Pattern[str]:
    if "x" in flags:
        pattern = _SPACED.sub(r"\1\2\3", pattern)  # white space counts in brackets only
    return regex.compile(_Reader(pattern, flags).whole(), regex.V1)


class _Reader:
    """Takes the tokens of a pattern one by one. The first is at the end of the list."""

    def __init__(self, pattern: str, flags: str) -> None:
        self._any_case, self._dot = "i" in flags, r"[\s\S]" if "s" in flags else r"[^\n\r]"
        self._tokens = _TOKEN.findall(pattern)[::-1]

    def _peek(self) -> str:
        return self._tokens[-1] if self._tokens else ""

    def whole(self) -> str:
        made, groups = "", 0
        as_they_are = {"|", "?", "*", "+", "(", "(?:", ")"}
        others = {"^": r"(?:\A)", "$": r"(?:\Z)", ".": self._dot}
        while self._tokens:
            token: str = self._tokens.pop()
            groups += token == "("
            if token in as_they_are or (len(token) > 1 and token[0] == "{"):
                made += token
            elif token in others:
                made += others[token]
            elif token == "[":
                made += self._brackets()
            elif token[0] == "\\" and token[1] in "123456789":
                number = token[1]
                while self._peek() in tuple("0123456789") and int(number + self._peek()) <= groups:
                    number += self._tokens.pop()
                made += rf"(?({number})\g<{number}>|)"  # what has captured nothing is empty
            else:
                made += f"[{self._set(token)}]"
        return made

    def _inside(self) -> str:
        """A token inside brackets. What is one token outside, such as `{2}` or `(?:`, is single characters there."""
        token: str = self._tokens.pop()
        if token[0] != "\\":
            self._tokens += token[:0:-1]
            token = token[0]
        return token

    def _brackets(self) -> str:
        """The rest of an expression in brackets, after the first bracket."""
        negative = self._peek() == "^"
        if negative:
            self._tokens.pop()
        inside, without = "", ""
        while (token := self._inside()) != "]":
            if token == "-" and inside and self._peek() == "[":
                self._tokens.pop()
                without = f"--{self._brackets()}"
            elif self._peek() == "-" and self._tokens[-2] not in ("]", "[", "-") and _one(token):
                self._tokens.pop()
                inside += self._range(_one(token), _one(self._inside()))
            else:
                inside += f"[{self._set(token)}]"
        return f"[[{'^' * negative}{inside}]{without}]"

    def _set(self, token: str) -> str:
        if one := _one(token):
            return self._range(one, one)
        letter = token[1].lower()
        if letter != "p":
            found = _SETS[letter]
        elif token.startswith("Is", 3):
            first, last = _BLOCKS[token[5:-1]]
            found = _range(chr(first), chr(last))
        else:
            found = rf"\p{{{token[3:-1]}}}"
        return found if token[1] == letter else f"^[{found}]"

    def _range(self, first: str, last: str) -> str:
        """Without regard to case: also the characters with the same lower or upper case as one of the range."""
        if not self._any_case:
            return _range(first, last)
        of_lower, of_upper = _by_case()
        chars = set(map(chr, range(ord(first), ord(last) + 1)))
        alike = {more for one in chars for more in of_lower.get(one.lower(), "") + of_upper.get(one.upper(), "")}
        return _range(first, last) + "".join(_range(one, one) for one in sorted(alike - chars))


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


def _range(first: str, last: str) -> str:
    return rf"\U{ord(first):08x}-\U{ord(last):08x}"
