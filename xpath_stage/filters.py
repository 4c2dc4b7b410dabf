"""Existential filters, evaluated bottom-up: which of the registered branches and conditions hold at each node.

Every distinct branch and every distinct condition is one bit. A node's mask depends only on its name, on the conditions
it meets and on its children's masks, so the step from a child to its parent is memoised by (name, mask).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from lxml import etree

from xpath_stage.conditions import holds
from xpath_stage.masks import MaskIndex
from xpath_stage.parse import ParsedDocument, text_of
from xscl.pattern import Condition, PatternNode, Test

MEMO_LIMIT = 200_000
"""Most entries of the memo of (name, mask); past it the memo starts anew."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """A branch as a filter of the node it hangs off: `required` is what its own top node needs."""

    bit: int
    axis: str
    required: int


@dataclass(slots=True)
class _Name:
    """What matters at nodes of one kind and name: conditions to test, branches whose top they may be."""

    literals: dict[str, int] = field(default_factory=dict)
    xpaths: list[tuple[str, int]] = field(default_factory=list)
    branches: list[MaskIndex[_Branch]] = field(default_factory=list)
    need: int = 0


@dataclass(frozen=True, slots=True)
class Masks:
    """For each element the filters that hold there; `attributes` has the masks of its attributes, by place."""

    elements: list[int]
    attributes: dict[tuple[int, int], int]


class FilterBank:
    """All registered filters. Branches and conditions that queries share are counted and held once."""

    def __init__(self) -> None:
        self._bit_of: dict[tuple[str, str], int] = {}
        self._uses: dict[tuple[str, str], int] = {}
        self._free: list[int] = []
        self._branches: dict[Test, MaskIndex[_Branch]] = {}
        self._branch_of: dict[str, _Branch] = {}
        self._conditions: dict[Test, Counter[Condition]] = {}
        self._on_attributes = 0
        self._names: dict[tuple[str, str], _Name] = {}
        self._memo: dict[tuple[str, int], tuple[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._bit_of)

    def require(self, node: PatternNode) -> int:
        """The mask that a node must have to pass `node`'s conditions and branches; registers what is new."""
        mask = 0
        for condition in node.conditions:
            mask |= 1 << self._acquire("condition", str(condition))
            self._conditions.setdefault(node.test, Counter())[condition] += 1
        for child in node.children:
            name = str(child)
            required = self.require(child)
            bit = self._acquire("branch", name)
            if name not in self._branch_of:
                branch = self._branch_of[name] = _Branch(bit, child.axis, required)
                self._branches.setdefault(child.test, MaskIndex()).add(branch, required)
            mask |= 1 << bit
        self._on_attributes += node.test.kind == "attribute"
        self._changed()
        return mask

    def release(self, node: PatternNode) -> None:
        """Gives back what `require` registered for the node."""
        for condition in node.conditions:
            self._let_go("condition", str(condition))
            counts = self._conditions[node.test]
            counts[condition] -= 1
            if not counts[condition]:
                del counts[condition]
        for child in node.children:
            self.release(child)
            if self._let_go("branch", str(child)):
                self._branches[child.test].remove(self._branch_of.pop(str(child)))
        self._on_attributes -= node.test.kind == "attribute"
        self._changed()

    def _changed(self) -> None:
        self._names.clear()
        self._memo.clear()

    def _acquire(self, kind: str, name: str) -> int:
        key = (kind, name)
        if key not in self._bit_of:
            self._bit_of[key] = self._free.pop() if self._free else len(self._bit_of)
        self._uses[key] = self._uses.get(key, 0) + 1
        return self._bit_of[key]

    def _let_go(self, kind: str, name: str) -> bool:
        key = (kind, name)
        self._uses[key] -= 1
        if self._uses[key]:
            return False
        del self._uses[key]
        self._free.append(self._bit_of.pop(key))
        return True

    # ------------------------------------------------------------ evaluation

    def masks(self, document: ParsedDocument) -> Masks:
        """The filters that hold at each node of a document."""
        elements = [0] * len(document.elements)
        attributes: dict[tuple[int, int], int] = {}
        count = 0

        def visit(element: etree._Element) -> tuple[int, int]:
            """What the subtree satisfies for its parent: (filters on the child axis, on the descendant axis)."""
            nonlocal count
            index = count
            count += 1
            below_child = below_any = 0
            for child in element:
                by_child, by_any = visit(child)
                below_child |= by_child
                below_any |= by_any
            if self._on_attributes and element.attrib:
                for place, (name, value) in enumerate(element.attrib.items(), 1):
                    mask = self._own(self._name("attribute", str(name)), element, place, str(value))
                    attributes[index, place] = mask
                    by_child, by_any = self._upward("attribute", str(name), mask)
                    below_child |= by_child
                    below_any |= by_any
            tag = str(element.tag)
            mask = elements[index] = below_child | below_any | self._own(self._name("element", tag), element, 0, None)
            by_child, by_any = self._upward("element", tag, mask)
            return by_child, by_any | below_any

        visit(document.elements[0])
        return Masks(elements, attributes)

    def _own(self, name: _Name, element: etree._Element, place: int, value: str | None) -> int:
        """The conditions that a node itself meets."""
        mask = 0
        if name.literals:
            mask = name.literals.get(text_of(element) if value is None else value, 0)
        for xpath, bit in name.xpaths:
            if holds(xpath, element, place):
                mask |= bit
        return mask

    def _upward(self, kind: str, label: str, mask: int) -> tuple[int, int]:
        name = self._name(kind, label)
        key = (f"@{label}" if kind == "attribute" else label, mask & name.need)
        found = self._memo.get(key)
        if found is None:
            by_child = by_any = 0
            for index in name.branches:
                for branch in index.satisfied(mask):
                    if branch.axis == "/":
                        by_child |= 1 << branch.bit
                    else:
                        by_any |= 1 << branch.bit
            if len(self._memo) >= MEMO_LIMIT:
                self._memo.clear()
            found = self._memo[key] = (by_child, by_any)
        return found

    def _name(self, kind: str, label: str) -> _Name:
        key = (kind, label)
        name = self._names.get(key)
        if name is None:
            if len(self._names) >= MEMO_LIMIT:
                self._names.clear()
            name = self._names[key] = _Name()
            accepting = [test for test in self._conditions if test.kind == kind and test.accepts(label)]
            for condition in dict.fromkeys(c for test in accepting for c in self._conditions[test]):
                bit = 1 << self._bit_of["condition", str(condition)]
                if condition.literal is not None:
                    name.literals[condition.literal] = bit
                else:
                    name.xpaths.append((str(condition.xpath), bit))
            for test, index in self._branches.items():
                if test.kind == kind and test.accepts(label):
                    name.branches.append(index)
                    name.need |= index.need
        return name
