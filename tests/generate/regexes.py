r"""Random regular expressions of XPath 2.0, mostly valid ones, and texts that they may match."""

from __future__ import annotations

import re
from random import Random

from tests.oracle import regex as oracle_regex

CHARACTERS = tuple("abcxyzABCZ019_+-$.,:;#&|~!/\"'<=>()[]{}*?^\\ \t\n\r") + tuple(
    "\u00a0\u00adäß\u00b7\u0131\u0301\u03a3\u03c2٣\u2003\u2028\u203f\u20ac一\ufb01\uff21"
    "\U00010400\U0001d7d8\U0001f600\U00020000\U000f0000\U000effff"
)
"""Characters of every kind that patterns tell apart; all have been assigned since Unicode 9, or never will be."""

PLAIN = tuple("aabbcx1")
CATEGORIES = ("L", "Lu", "Ll", "Lm", "Lo", "M", "Mn", "N", "Nd", "No", "P", "Pd", "Po", "Pc", "Z", "Zs")
OTHERS = ("S", "Sm", "Sc", "So", "C", "Cc", "Cf", "Co", "Cn")
BLOCKS = ("BasicLatin", "Latin-1Supplement", "Greek", "GreekandCoptic", "Arabic", "Deseret", "CJKUnifiedIdeographs")
ESCAPES = tuple(f"\\{letter}" for letter in "sSdDwWiIcC")
SINGLE_ESCAPES = tuple(f"\\{letter}" for letter in r"nrt\|.?*+(){}$-[]^")
QUANTIFIERS = ("?", "*", "+", "{1}", "{2}", "{0,1}", "{1,2}", "{2,}", "{0,}", "{02}", "{1,3}")

WRONG = r"""
    \X \R \h \G \K \m \b \B \A \Z \z \0 \9 \12 \x41 \u0041 \N \Q \E \f \v \a \e \# \/ \' \: \_ \< \@
    \p \pL \p{} \p{l} \p{LC} \p{Lx} \p{Latin} \p{IsNope} \p{IsLatin1Supplement} \p{Isgreek} \P{ \p{^L}
    (?i) (?i:a) (?= (?! (?<= (?<n> (?P<n> (?> (?# (?| (? (*) ** ++ *+ a{,2} {,2} {2,1} {1,2,3} {x} {-1}
    { } ] [ ( ) [] [^] [[:alpha:]] [a[b]] [b-a] [a-\d] [a--] [--a] a??? {2}{2} \1 | ^ $ (|a) () (a)
"""
"""What other kinds of regular expressions have, or none; to some contexts a few of these are right."""


class RegexMaker:
    """Makes patterns; `odd` in a hundred of their parts are wrong, or right by chance. Those with reluctant repetitions
    have all kinds of repetitions; of the others none that Saxon does not cope with."""

    def __init__(self, rng: Random, odd: int = 0, references: bool = True, reluctant: bool = False) -> None:
        self._rng = rng
        self._odd = odd
        self._references = references
        self._reluctant = reluctant
        self._opened = 0
        self._closed: list[int] = []

    def pattern(self, depth: int = 2) -> str:
        """One pattern, in which groups are nested so deep at most."""
        self._opened, self._closed = 0, []
        return self._regex(depth)

    def _chance(self, percent: int) -> bool:
        return self._rng.randrange(100) < percent

    def _regex(self, depth: int) -> str:
        return "|".join(self._branch(depth) for _ in range(self._rng.choice((1, 1, 1, 2, 3))))

    def _branch(self, depth: int) -> str:
        pieces = "".join(self._piece(depth) for _ in range(self._rng.choice((0, 1, 1, 2, 2, 3, 4))))
        return ("^" if self._chance(8) else "") + pieces + ("$" if self._chance(8) else "")

    def _piece(self, depth: int) -> str:
        known = len(self._closed)
        atom = self._atom(depth)
        if self._chance(30) and (self._reluctant or self._saxon_repeats(atom)):
            atom += self._rng.choice(QUANTIFIERS)
            if not self._reluctant:
                del self._closed[known:]
            atom += "?" if self._reluctant and self._chance(30) else ""
        return atom

    def _saxon_repeats(self, atom: str) -> bool:
        """Whether Saxon copes with a repetition of this: of what may be empty it may not end. (It also has faults where
        anchors, back-references, and groups that are referred to are repeated, and where a repetition is reluctant.)"""
        if atom[0] != "(":
            return atom not in ("^", "$") and not atom[1:].isdigit()
        return not self._odd and not re.search(r"\\[0-9]", atom) and not oracle_regex.matches("", f"^{atom}$")

    def _atom(self, depth: int) -> str:
        rng, shape = self._rng, self._rng.randrange(100)
        if self._chance(self._odd):
            return rng.choice(WRONG.split())
        if shape < 40:
            return self._char(rng.choice(PLAIN if self._chance(60) else CHARACTERS), r".\?*+{}()|^$[]")
        if shape < 50:
            return rng.choice(".^$." if self._reluctant else ".")
        if shape < 60:
            return self._set()
        if shape < 75:
            return self._brackets(1)
        if shape < 85 and self._references and self._closed:
            return f"\\{rng.choice(self._closed)}"
        if depth == 0:
            return rng.choice(PLAIN)
        if self._chance(25):
            return f"(?:{self._regex(depth - 1)})"
        self._opened += 1
        number = self._opened
        inner = self._regex(depth - 1)
        self._closed.append(number)
        return f"({inner})"

    def _char(self, char: str, meta: str) -> str:
        if char in meta or (char in "-$." and self._chance(20)):
            return f"\\{char}"
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char, char) if self._chance(50) else char

    def _set(self) -> str:
        rng, shape = self._rng, self._rng.randrange(100)
        if shape < 60:
            return rng.choice(ESCAPES)
        letter = rng.choice("ppP")
        return f"\\{letter}{{{rng.choice(CATEGORIES + OTHERS) if shape < 85 else 'Is' + rng.choice(BLOCKS)}}}"

    def _brackets(self, depth: int) -> str:
        rng = self._rng
        if self._chance(self._odd):
            return "[" + "".join(rng.choice(r"a-^[]\&|~:bz-") for _ in range(rng.randrange(1, 6))) + "]"
        parts = [self._part() for _ in range(rng.choice((1, 1, 2, 3)))]
        # A hyphen may stand at either end.
        first, last = ("-" if self._chance(5) else ""), ("-" if self._chance(5) else "")
        inside = ("^" if self._chance(25) else "") + first + "".join(parts) + last
        if depth and self._chance(20):
            inside += f"-{self._brackets(depth - 1)}"
        return f"[{inside}]"

    def _part(self) -> str:
        rng, shape = self._rng, self._rng.randrange(100)
        if shape < 25:
            return self._set()
        if shape < 35:
            return rng.choice(SINGLE_ESCAPES)
        one, other = sorted(rng.choice(PLAIN if self._chance(50) else CHARACTERS) for _ in range(2))
        first = self._char(one, r"-^[]" + "\\")
        return first if shape < 65 else f"{first}-{self._char(other, r'-[]' + chr(92))}"


def random_text(rng: Random, pattern: str) -> str:
    """A short text, mostly of characters that are plain or stand in the pattern."""
    near = [char for char in pattern if char not in "\\()[]{}"] or ["a"]
    pools = (PLAIN, near, CHARACTERS) if rng.random() < 0.5 else (PLAIN, PLAIN, near)
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.choice((0, 1, 2, 3, 4, 6, 9))))
