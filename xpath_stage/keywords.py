"""Indexes of literals that many queries look for in one text: one pass finds those that are there. Tests of a node with
a literal, as filters have them, are recognised by their text in XPath."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import ahocorasick

from xscl.algebra.joins import EXTENSION_PREFIX
from xscl.algebra.near import spaced_words, words


class LiteralIndex(Protocol):
    def add(self, literal: str) -> None: ...

    def remove(self, literal: str) -> None: ...

    def found_in(self, text: str) -> set[str]:
        """The literals for which the test holds of a text."""


FEW = 32
"""Up to this many new literals, plus one per FEW existing ones, are searched one by one before a rebuild."""


class Substrings:
    """Finds all contained literals in one pass (Aho-Corasick automaton)."""

    def __init__(self) -> None:
        self._literals, self._new = set[str](), set[str]()
        self._automaton: ahocorasick.Automaton | None = None
        self._indexed = 0

    def add(self, literal: str) -> None:
        self._literals.add(literal)
        self._new.add(literal)

    def remove(self, literal: str) -> None:
        """The automaton may still have it until the next rebuild."""
        self._literals.remove(literal)
        self._new.discard(literal)

    def found_in(self, text: str) -> set[str]:
        gone = self._indexed - (len(self._literals) - len(self._new))
        if len(self._new) + gone > FEW + len(self._literals) // FEW:
            self._make()
        found = {literal for literal in self._new if literal in text}
        if self._automaton is not None:
            found |= {literal for _, literal in self._automaton.iter(text)} & self._literals
        return found

    def _make(self) -> None:
        """Rebuilds the automaton. The empty literal, which it cannot hold, stays among the new ones."""
        self._automaton, self._new = None, self._literals & {""}
        self._indexed = len(self._literals) - len(self._new)
        if self._indexed:
            self._automaton = ahocorasick.Automaton()
            for literal in self._literals - self._new:
                self._automaton.add_word(literal, literal)
            self._automaton.make_automaton()


class Affixes:
    """Finds literals at the start or end of a text, with one lookup per distinct length."""

    def __init__(self, *, at_start: bool) -> None:
        self._at_start = at_start
        self._literals: set[str] = set()
        self._lengths: Counter[int] = Counter()

    def add(self, literal: str) -> None:
        self._literals.add(literal)
        self._lengths[len(literal)] += 1

    def remove(self, literal: str) -> None:
        self._literals.remove(literal)
        self._lengths[len(literal)] -= 1
        self._lengths += Counter()  # drops those that are 0

    def found_in(self, text: str) -> set[str]:
        parts = (text[:length] if self._at_start else text[len(text) - length :] for length in self._lengths)
        return self._literals.intersection(parts)


class Phrases(Substrings):
    """Finds the literals whose words follow one another in a text."""

    def __init__(self) -> None:
        super().__init__()
        self._literal_of: dict[str, set[str]] = {}

    def add(self, literal: str) -> None:
        spaced = spaced_words(literal)
        self._literal_of.setdefault(spaced, set()).add(literal)
        if spaced.strip():  # what has no words is found nowhere
            super().add(spaced)

    def remove(self, literal: str) -> None:
        spaced = spaced_words(literal)
        same = self._literal_of[spaced]
        same.remove(literal)
        if not same:
            del self._literal_of[spaced]
            if spaced.strip():
                super().remove(spaced)

    def found_in(self, text: str) -> set[str]:
        return set().union(*map(self._literal_of.__getitem__, super().found_in(spaced_words(text))))


class WordLiterals:
    """Finds the literals whose words are all in a text, by one of their words."""

    def __init__(self) -> None:
        self._by_word: dict[str, dict[str, frozenset[str]]] = {}

    def add(self, literal: str) -> None:
        wanted = words(literal)
        self._by_word.setdefault(max(wanted, default=""), {})[literal] = wanted

    def remove(self, literal: str) -> None:
        word = max(words(literal), default="")
        del self._by_word[word][literal]
        if not self._by_word[word]:
            del self._by_word[word]

    def found_in(self, text: str) -> set[str]:
        there = {*spaced_words(text).split()}
        those = (self._by_word[word].items() for word in there & self._by_word.keys())
        return {literal for some in those for literal, wanted in some if wanted <= there}


INDEXES: Mapping[str, Callable[[], LiteralIndex]] = {
    "contains": Substrings,
    "starts-with": lambda: Affixes(at_start=True),
    "ends-with": lambda: Affixes(at_start=False),
    "has-words": WordLiterals,
    "has-phrase": Phrases,
}


class Keyword(NamedTuple):
    """A test of the text of the first node of a path: one of INDEXES, with a literal."""

    path: str
    name: str
    literal: str


_KEYWORD = re.compile(
    rf"""(?:{EXTENSION_PREFIX}:)?({"|".join(INDEXES)})\((?:string\()?(\.[^()"']*?)\)?, ("[^"]*"|'[^']*')\)"""
)


def keyword_of(xpath: str) -> Keyword | None:
    """The test that a condition in XPath is, if it is one.

    >>> keyword_of('contains(./title, "storm")')
    Keyword(path='./title', name='contains', literal='storm')
    """
    found = _KEYWORD.fullmatch(xpath)
    return Keyword(found[2], found[1], found[3][1:-1]) if found else None
