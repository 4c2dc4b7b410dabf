"""Literal tests: residual predicates that look for a literal in a text, and indexes that look for many at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, Protocol

import ahocorasick

from mmqjp.queries.identity import digest
from xscl.algebra.expressions import Call, Expr, String
from xscl.algebra.normal import Conjunct, JoinOp, constant_text


class LiteralTest(NamedTuple):
    """The test of a conjunctive query that looks for `literal` in the text of `operand`. `rest` are its other residual
    predicates. Conjunctive queries that differ only in the literal have the same `id`."""

    id: str
    name: str
    operand: Expr
    literal: str
    rest: tuple[Expr, ...]


def literal_test(op: JoinOp | None, conjunct: Conjunct) -> LiteralTest | None:
    """Returns the last literal test of a conjunctive query; None if there is none."""
    residual = conjunct.residual
    for i in reversed(range(len(residual))):
        match residual[i]:
            case Call(name=name, args=(operand, second)) if name in INDEXES:
                literal = constant_text(second)
                if literal is not None:
                    rest = residual[:i] + residual[i + 1 :]
                    blank = replace(conjunct, residual=(*rest, Call(name, (operand, String("")))))
                    return LiteralTest(_id(op, blank), name, operand, literal, rest)
    return None


@lru_cache(1_000)
def _id(op: JoinOp | None, blank: Conjunct) -> str:
    """Returns an id that stores keep. It is made of `repr`, like that of a form."""
    return PREFIX + digest(repr((op, blank)))


PREFIX = "literals "
"""What the ids of tests begin with. Those of forms and queries do not."""


class LiteralIndex(Protocol):
    """Literals, and which of them a text has."""

    def add(self, literal: str) -> None:
        """Adds a literal that the index does not have."""

    def remove(self, literal: str) -> None:
        """Removes a literal."""

    def found_in(self, text: str) -> set[str]:
        """Returns the literals that a text has."""


FEW = 32
"""So many new literals, and one for each FEW of the others, are looked for one by one until the index is made anew."""


class Substrings:
    """Finds the literals that a text contains, all in one pass (by the automaton of Aho and Corasick)."""

    def __init__(self) -> None:
        self._literals: set[str] = set()
        self._new: dict[str, None] = {}
        self._automaton: ahocorasick.Automaton | None = None
        self._indexed = 0

    def add(self, literal: str) -> None:
        """Adds a literal that the index does not have."""
        self._literals.add(literal)
        self._new[literal] = None

    def remove(self, literal: str) -> None:
        """Removes a literal. The automaton may have it until it is made anew."""
        self._literals.remove(literal)
        self._new.pop(literal, None)

    def found_in(self, text: str) -> set[str]:
        """Returns the literals that a text contains."""
        gone = self._indexed - (len(self._literals) - len(self._new))
        if len(self._new) + gone > FEW + len(self._literals) // FEW:
            self._make()
        found = set()
        if self._automaton is not None:
            found = {literal for _, literal in self._automaton.iter(text)} & self._literals
        found.update(literal for literal in self._new if literal in text)
        return found

    def _make(self) -> None:
        """Makes the automaton anew. The empty literal, which it cannot have, stays among the new ones."""
        self._automaton, self._new, self._indexed = None, dict.fromkeys(self._literals & {""}), 0
        if len(self._literals) > len(self._new):
            self._automaton = ahocorasick.Automaton()
            for literal in self._literals:
                if literal:
                    self._automaton.add_word(literal, literal)
            self._automaton.make_automaton()
            self._indexed = len(self._literals) - len(self._new)


class Affixes:
    """Finds the literals that a text begins with, or ends with: looks up one part of it for each length."""

    def __init__(self, part: Callable[[str, int], str]) -> None:
        """`part` returns the first or last characters of a text, which has at least that many."""
        self._part = part
        self._literals: set[str] = set()
        self._lengths: Counter[int] = Counter()

    def add(self, literal: str) -> None:
        """Adds a literal that the index does not have."""
        self._literals.add(literal)
        self._lengths[len(literal)] += 1

    def remove(self, literal: str) -> None:
        """Removes a literal."""
        self._literals.remove(literal)
        self._lengths[len(literal)] -= 1
        self._lengths += Counter()  # drops those that are 0

    def found_in(self, text: str) -> set[str]:
        """Returns the literals that a text begins or ends with."""
        return {self._part(text, length) for length in self._lengths if length <= len(text)} & self._literals


def _first(text: str, length: int) -> str:
    return text[:length]


def _last(text: str, length: int) -> str:
    return text[len(text) - length :]


INDEXES: Mapping[str, Callable[[], LiteralIndex]] = {
    "contains": Substrings,
    "starts-with": lambda: Affixes(_first),
    "ends-with": lambda: Affixes(_last),
}
"""The index for each function that looks for a literal."""
