"""Joint bindings: extends the joined nodes of a match to all variables of a conjunctive query (section 6, K+)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from mmqjp.answers.construct import Value
from mmqjp.answers.quota import Steps
from mmqjp.answers.residual import holds, text_of_operand
from mmqjp.documents.record import Record
from mmqjp.queries.forms import FixedSide
from mmqjp.queries.row_targets import RowPart
from templates.witness import plain_node
from xpath_stage.binder import HELD, Node, Part, each_binding
from xscl.algebra.expressions import Expr

SideBinding = Mapping[str, Node]
"""The nodes of one document, by variable."""

JointBinding = Mapping[str, tuple[Record, Node]]
"""The document and node of each variable."""

MAX_CACHED_PER_DOCUMENT, MAX_CACHED = 1_000, 100_000
"""The bindings of one document are cached if there are at most this many. The cache is cleared when it holds more than
MAX_CACHED in all."""

MAX_CACHED_TEXT, MAX_CACHED_TEXTS = 10_000, 1_000
"""Texts of at most this many characters are cached. The cache is cleared when it has MAX_CACHED_TEXTS."""

CHARACTERS_READ_PER_STEP = 256
"""A value that a residual predicate compares costs one step per this many characters."""


class JointBindings:
    """Finds the joint bindings of matches. Caches what one match finds in a document for other matches of the same
    step."""

    def __init__(self) -> None:
        self._bound: dict[tuple[object, ...], tuple[int, list[SideBinding]]] = {}
        self._held = 0
        self._parts: dict[FixedSide, Part] = {}
        self._texts: dict[tuple[int, Node], str] = {}

    def of(self, part: RowPart, inputs: Sequence[Record], nodes: Sequence[int], steps: Steps) -> Iterator[JointBinding]:
        """Yields the joint bindings of a part of a row that have the match's nodes and satisfy its residual predicates.
        `inputs` has one document per side. Takes a step for each binding that is tried."""
        for joint in self._joint(part, inputs, nodes, steps):
            if part.residual:
                text_of = partial(self._text, joint, steps)
                if not all(holds(expr, text_of) for expr in part.residual):
                    continue
            yield joint

    def _joint(
        self, part: RowPart, inputs: Sequence[Record], nodes: Sequence[int], steps: Steps
    ) -> Iterator[JointBinding]:
        """Yields the joint bindings that have the match's nodes."""
        if part.derived is not None:
            steps.take(len(part.derived) + 1)
            yield {one.var: (record := inputs[side], one.node(record.tree, nodes)) for side, one in part.derived}
            return
        sides = [
            self._side(fixed, record, nodes, steps, is_right=bool(i))
            for i, (fixed, record) in enumerate(zip(part.sides, inputs, strict=True))
        ]
        for choice in _choices(sides):
            steps.take()
            joint: dict[str, tuple[Record, Node]] = {}
            for record, bound in zip(inputs, choice, strict=True):
                for var, node in bound.items():
                    joint[var] = record, node
            yield joint

    def text(self, operand: Expr, joint: JointBinding, steps: Steps) -> str:
        """Returns the value of an operand of a residual predicate as a string."""
        return text_of_operand(operand, partial(self._text, joint, steps))

    def _side(
        self, fixed_side: FixedSide, record: Record, nodes: Sequence[int], steps: Steps, *, is_right: bool
    ) -> Iterable[SideBinding]:
        """Returns the bindings of a side's variables, given the joined nodes. Those of a right side come as a list,
        because they are iterated once per left binding."""
        side = fixed_side.side
        if side.hidden is not None:
            return [{child.var: (n + 1, 0) for n, child in enumerate(side.pattern.children) if child.var}]
        derived = fixed_side.derived
        key = (fixed_side, record.docid, *(nodes[slot] for _, slot in fixed_side.fixed))
        known = self._bound.get(key)
        if known is not None:
            steps.take(known[0])
            found: Iterable[SideBinding] = known[1]
        elif derived is not None:
            steps.take(len(derived))
            found = [{one.var: one.node(record.tree, nodes) for one in derived}]
            self._keep(key, len(derived), found)
        else:
            found = self._search(key, fixed_side, record, nodes, steps)
        if derived is not None or not is_right:
            return found
        held = []
        for bound in found:
            steps.take(HELD)
            held.append(bound)
        return held

    def _search(
        self, key: tuple[object, ...], fixed_side: FixedSide, record: Record, nodes: Sequence[int], steps: Steps
    ) -> Iterator[SideBinding]:
        """Yields bindings as they are found. Caches them for later matches if they are few."""
        part = self._parts.get(fixed_side)
        if part is None:
            part = self._parts[fixed_side] = Part(fixed_side.side.pattern)
        fixed = {path: plain_node(nodes[slot]) for path, slot in fixed_side.fixed}
        few: list[SideBinding] | None = []
        before = steps.left
        took = 0
        for binding in each_binding(part, record.tree, fixed, steps.take):
            took += before - steps.left
            bound = dict(binding)
            if few is not None:
                few.append(bound)
                if len(few) > MAX_CACHED_PER_DOCUMENT:
                    few = None
            yield bound
            before = steps.left  # the consumer takes steps, too
        if few is not None:
            self._keep(key, took + before - steps.left, few)

    def _keep(self, key: tuple[object, ...], took: int, found: list[SideBinding]) -> None:
        """Caches the bindings of a side in a document, and the steps that they took."""
        if self._held > MAX_CACHED:
            self._bound.clear()
            self._held = 0
        self._bound[key] = took, found
        self._held += 1 + len(found)

    def _text(self, joint: JointBinding, steps: Steps, var: str) -> str:
        """Returns the text of a variable. Caches short ones, which many residual predicates may compare."""
        record, node = joint[var]
        key = record.docid, node
        text = self._texts.get(key)
        if text is None:
            text = Value(record, node).text()
            if len(text) <= MAX_CACHED_TEXT:
                if len(self._texts) >= MAX_CACHED_TEXTS:
                    self._texts.clear()
                self._texts[key] = text
        steps.take(len(text) // CHARACTERS_READ_PER_STEP)
        return text


def _choices(sides: Sequence[Iterable[SideBinding]]) -> Iterator[tuple[SideBinding, ...]]:
    """Yields all combinations of one binding per side. Iterates the left side once."""
    if len(sides) == 1:
        return ((one,) for one in sides[0])
    left, right = sides
    return ((one, other) for one in left for other in right)
