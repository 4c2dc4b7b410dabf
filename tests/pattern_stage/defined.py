"""The events of definitions in documents, by brute force: every match of the block, and every choice of nodes."""

from __future__ import annotations

from itertools import product

from tests.oracle.bindings import Stored, Value
from tests.oracle.evaluation import ROOTS, Evaluation
from tests.oracle.event_values import as_number
from tests.oracle.match import Matcher
from tests.oracle.walk import walk
from xscl.algebra.values import VarPath
from xscl.syntax import DefinedAttribute, EventDefinition, Script

Defined = tuple[tuple[tuple[int, int], ...], tuple[str | float | None, ...]]
"""An event: its nodes as (element, position of the attribute), and its values. The nodes are the root, those of other
variables, and those that are taken."""


def defined_events(definition: EventDefinition, xml: bytes | str) -> set[Defined]:
    evaluation, document = Evaluation(Script((), ()), ()), Stored("", "", 0, 0, xml, ())
    place = Matcher(document.tree, {})._rank
    attributes, last = definition.attributes, definition.block.steps[-1].var
    used = dict.fromkeys(one.var for a in attributes for one in walk(a.operand) if isinstance(one, VarPath))
    found: set[Defined] = set()
    for match in evaluation._in_document(definition.block, frozenset({ROOTS, *used}), document):
        bound = [match.roots[0].value, *(match.visible[var] for var in used if var != last)]
        choices: list[list[Value | None]] = []
        for a in attributes:
            values = evaluation._values(a.operand, match.visible)
            choices.append([*values] if a.each else [next(iter(values), None)])
        for chosen in product(*choices):
            taken = [one for a, one in zip(attributes, chosen, strict=True) if a.each]
            nodes = tuple(place(one.node) for one in (*bound, *taken) if one and one.node)
            found.add((nodes, tuple(_value(a, one) for a, one in zip(attributes, chosen, strict=True))))
    return found


def _value(attribute: DefinedAttribute, value: Value | None) -> str | float | None:
    if value is None:
        return None
    return as_number(value.text) if attribute.number else value.text
