"""Formats pieces of normal forms for people: terms, windows, streams, definitions of variables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from mmqjp.queries.model import Owner, Target
from templates.catalog import INFINITE
from templates.template import Shape
from xscl import to_xscl
from xscl.algebra.normal import Conjunct, Side, Term
from xscl.algebra.pattern import PatternNode
from xscl.syntax import Window

MAX_NAMES = 10
"""The maximum length of a list of names."""


def term_text(term: Term) -> str:
    """Formats a term as in a query: `lower-case(t1)`."""
    return applied(term.functions, term.var)


def applied(functions: tuple[str, ...], text: str) -> str:
    """Wraps functions around an operand, the innermost first."""
    for function in functions:
        name, _, literal = function.partition(" ")
        text = f"{name}({text}, {literal})" if literal else f"{name}({text})"
    return text


def window_text(microseconds: int | None) -> str:
    """Formats a window with the largest unit that divides it. None and INFINITE are INF."""
    return to_xscl(Window(None if microseconds == INFINITE else microseconds))


_DURATIONS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000))


def duration_text(microseconds: int) -> str:
    """Formats a time span with its two largest units; less than a second with its microseconds.

    >>> duration_text(250_200_000_000), duration_text(60_000_000), duration_text(1_000_002), duration_text(-7)
    ('2 d 21 h', '1 min', '1 s 2 µs', '-7 µs')
    """
    if microseconds < 0:
        return f"-{duration_text(-microseconds)}"
    for place, (unit, size) in enumerate(_DURATIONS):
        if microseconds >= size:
            rest, below = microseconds % size, _DURATIONS[place + 1] if place + 1 < len(_DURATIONS) else ("µs", 1)
            more = f" {rest // below[1]:,} {below[0]}" if rest >= below[1] else ""
            return f"{microseconds // size:,} {unit}{more}"
    return f"{microseconds:,} µs"


def names_of_others(targets: Iterable[Target], own: Collection[Owner]) -> str:
    """Returns the names of the owners of targets, except those in `own`. Long lists are cut short; nobody is ""."""
    names: dict[str, None] = {}
    for target in targets:
        if target.owner in own:
            continue
        names[target.owner.label] = None
        if len(names) > MAX_NAMES:
            return ", ".join([*list(names)[:MAX_NAMES], "and more"])
    return ", ".join(names)


def leaf_sides(conjunct: Conjunct) -> Iterator[Side]:
    """Yields the query blocks of a conjunctive query, left to right, including those of inner joins."""
    for side in conjunct.sides():
        if side.hidden is None:
            yield side
        else:
            yield from leaf_sides(side.hidden.conjuncts[0])


def definition_text(definition: tuple[PatternNode, ...]) -> str:
    """Formats the definition of a variable as a path. A derived value has its functions around it."""
    text = ""
    for node in definition:
        if node.axis != ".":
            text += str(node)
        elif node.functions:
            text = applied(node.functions, text)
        else:
            text += "/."
    return text


def structure_text(shape: Shape) -> str:
    """Returns the template's trees, with children in parentheses, and its value joins."""
    children: dict[int | None, list[int]] = {}
    for node, parent in enumerate(shape.parents):
        children.setdefault(parent, []).append(node)

    def text(node: int) -> str:
        below = ", ".join(map(text, children.get(node, [])))
        return f"var{node + 1}({below})" if below else f"var{node + 1}"

    joins = ", ".join(f"var{left + 1} = var{right + 1}" for left, right in shape.joins)
    return "; ".join([*map(text, children[None]), *([joins] if joins else [])])
