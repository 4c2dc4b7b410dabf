"""Joint bindings: extends the joined nodes of a match to all variables of a conjunctive query (section 6, K+)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from mmqjp.answers.construct import Value
from mmqjp.answers.derived_variables import DerivedVariable, derived_variables
from mmqjp.answers.quota import Steps
from mmqjp.answers.residual import holds
from mmqjp.documents.records import Record
from mmqjp.queries.model import Target
from templates.witness import plain_node
from xpath_stage.binder import HELD, Node, Part, each_binding
from xscl.algebra.normal import Side

SideBinding = Mapping[str, Node]
"""The nodes of one document, by variable."""

JointBinding = Mapping[str, tuple[Record, Node]]
"""The document and node of each variable."""

MAX_CACHED_PER_DOCUMENT, MAX_CACHED = 1_000, 100_000
"""The bindings of one document are cached if there are at most this many. The cache is cleared when it holds more than
MAX_CACHED in all."""

CHARACTERS_READ_PER_STEP = 256
"""A value that a residual predicate compares costs one step per this many characters."""


class JointBindings:
    """Finds the joint bindings of matches. Caches what one match finds in a document for other matches of the same
    step."""

    def __init__(self) -> None:
        self._bound: dict[tuple[object, ...], tuple[int, list[SideBinding]]] = {}
        self._held = 0
        self._known_derived: dict[tuple[Target, int], list[DerivedVariable] | None] = {}
        self._parts: dict[int, Part] = {}

    def of(
        self, target: Target, inputs: Sequence[Record], nodes: Sequence[int], steps: Steps
    ) -> Iterator[JointBinding]:
        """Yields the joint bindings of a target that have the match's nodes and satisfy its residual predicates.
        `inputs` has one document per side. Takes a step for each binding that is tried."""
        conjunct = target.conjunct
        sides = [
            self._side(target, i, side, record, nodes, steps)
            for i, (side, record) in enumerate(zip(conjunct.sides(), inputs, strict=True))
        ]
        for choice in _choices(sides):
            steps.take()
            joint: dict[str, tuple[Record, Node]] = {}
            for record, bound in zip(inputs, choice, strict=True):
                joint.update((var, (record, node)) for var, node in bound.items())
            if conjunct.residual:
                text_of = partial(_text, joint, steps)
                if not all(holds(expr, text_of) for expr in conjunct.residual):
                    continue
            yield joint

    def _side(
        self, target: Target, i: int, side: Side, record: Record, nodes: Sequence[int], steps: Steps
    ) -> Iterable[SideBinding]:
        """Returns the bindings of a side's variables, given the joined nodes. Those of a right side come as a list,
        because they are iterated once per left binding."""
        if side.hidden is not None:
            return [{child.var: (n + 1, 0) for n, child in enumerate(side.pattern.children) if child.var}]
        derived = self._derived(target, i, side)
        if derived is not None:
            steps.take(len(derived))
            return [{one.var: one.node(record, nodes) for one in derived}]
        minor, slots = target.placement.minors[i], target.placement.slots[i]
        fixed = {node.path: plain_node(nodes[slot]) for node, slot in zip(minor.nodes, slots, strict=True)}
        key = (id(side), record.docid, *sorted(fixed.items()))
        known = self._bound.get(key)
        if known is not None:
            steps.take(known[0])
        found = self._search(key, side, record, fixed, steps) if known is None else known[1]
        if i == 0:
            return found
        held = []
        for bound in found:
            steps.take(HELD)
            held.append(bound)
        return held

    def _search(
        self, key: tuple[object, ...], side: Side, record: Record, fixed: Mapping[tuple[int, ...], Node], steps: Steps
    ) -> Iterator[SideBinding]:
        """Yields bindings as they are found. Caches them for later matches if they are few."""
        few: list[SideBinding] | None = []
        before = steps.left
        took = 0
        for binding in each_binding(self._part(side), record.tree, fixed, steps.take):
            took += before - steps.left
            bound = dict(binding)
            if few is not None:
                few.append(bound)
                if len(few) > MAX_CACHED_PER_DOCUMENT:
                    few = None
            yield bound
            before = steps.left  # the consumer takes steps, too
        if few is not None:
            if self._held > MAX_CACHED:
                self._bound.clear()
                self._held = 0
            self._bound[key] = took + before - steps.left, few
            self._held += 1 + len(few)

    def _derived(self, target: Target, i: int, side: Side) -> list[DerivedVariable] | None:
        """Returns how all variables of a side follow from the joined nodes; None if the pattern must be matched."""
        key = target, i
        if key not in self._known_derived:
            minor, slots = target.placement.minors[i], target.placement.slots[i]
            fixed = {node.path: slot for node, slot in zip(minor.nodes, slots, strict=True)}
            self._known_derived[key] = derived_variables(side.pattern, fixed)
        return self._known_derived[key]

    def _part(self, side: Side) -> Part:
        """Returns a side's pattern, prepared for binding."""
        part = self._parts.get(id(side))
        if part is None:
            part = self._parts[id(side)] = Part(side.pattern)
        return part


def _choices(sides: Sequence[Iterable[SideBinding]]) -> Iterator[tuple[SideBinding, ...]]:
    """Yields all combinations of one binding per side. Iterates the left side once."""
    if len(sides) == 1:
        return ((one,) for one in sides[0])
    left, right = sides
    return ((one, other) for one in left for other in right)


def _text(joint: JointBinding, steps: Steps, var: str) -> str:
    text = Value(*joint[var]).text()
    steps.take(len(text) // CHARACTERS_READ_PER_STEP)
    return text
