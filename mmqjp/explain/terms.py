"""Pieces of normal forms as text that people read: terms, windows, streams, patterns' variables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from mmqjp.queries.model import Owner, Target
from templates.catalog import INFINITE
from xscl import to_xscl
from xscl.algebra.normal import Conjunct, Side, Term
from xscl.algebra.pattern import PatternNode
from xscl.syntax import Window

SHOWN = 10
"""How many names a list of those who share something has."""


def term_text(term: Term) -> str:
    """A term as the query would write it: `lower-case(t1)`."""
    return applied(term.functions, term.var)


def applied(functions: tuple[str, ...], text: str) -> str:
    """Functions around an operand, the innermost first."""
    for name in functions:
        text = f"{name}({text})"
    return text


def window_text(microseconds: int | None) -> str:
    """A window with the largest unit that it is a whole number of; None and INFINITE are INF."""
    return to_xscl(Window(None if microseconds == INFINITE else microseconds))


def names_of_others(targets: Iterable[Target], own: Collection[Owner]) -> str:
    """Whose the targets are other than one's own: the first few by name; empty if nobody's."""
    names: dict[str, None] = {}
    for target in targets:
        if target.owner in own:
            continue
        names[target.owner.label] = None
        if len(names) > SHOWN:
            return ", ".join([*list(names)[:SHOWN], "and more"])
    return ", ".join(names)


def leaf_sides(conjunct: Conjunct) -> Iterator[Side]:
    """The query blocks of a conjunctive query, left to right, those of its inner joins in their place."""
    for side in conjunct.sides():
        if side.hidden is None:
            yield side
        else:
            yield from leaf_sides(side.hidden.conjuncts[0])


def definition_text(definition: tuple[PatternNode, ...]) -> str:
    """A variable's definition as a path; a node's derived value has its functions around it."""
    text = ""
    for node in definition:
        if node.axis != ".":
            text += str(node)
        elif node.functions:
            text = applied(node.functions, text)
        else:
            text += "/."
    return text
