"""Existential filters, evaluated bottom-up: which of the registered branches and conditions hold at each node.

Every distinct branch and every distinct condition is one bit. A node's mask depends only on its name, on the conditions
it meets and on its children's masks, so the step from a child to its parent is memoised by (name, mask).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from lxml import etree

from xpath_stage.conditions import holds
from xpath_stage.masks import MaskIndex
from xpath_stage.parse import ParsedDocument, text_of
from xscl.pattern import PatternNode, Test

MEMO_LIMIT = 200_000
"""Most entries of the memo of (name, mask); past it the memo starts anew."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """A branch as a filter of the node it hangs off: `required` is what its own top node needs."""

    bit: int
    axis: str
    required: int


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A condition in XPath, with the other filters that a pattern requires of the same node."""

    xpath: str
    guard: int


@dataclass(slots=True)
class _Name:
    """What matters at nodes of one kind and name: conditions to test, branches whose top they may be.

    A condition in XPath is worth its evaluation only where all else that some pattern asks of the node holds.
    """

    literals: dict[str, int] = field(default_factory=dict)
    xpaths: MaskIndex[_Guarded] = field(default_factory=MaskIndex)
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
        self._literals: dict[Test, Counter[str]] = {}
        self._guarded: dict[Test, Counter[_Guarded]] = {}
        self._on_attributes = 0
        self._names: dict[tuple[str, str], _Name] = {}
        self._memo: dict[tuple[str, int], tuple[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._bit_of)

    def require(self, node: PatternNode) -> int:
        """The mask that a node must have to pass `node`'s conditions and branches; registers what is new."""
        mask = 0
        for child in node.children:
            name = str(child)
            required = self.require(child)
            bit = self._acquire("branch", name)
            if name not in self._branch_of:
                branch = self._branch_of[name] = _Branch(bit, child.axis, required)
                self._branches.setdefault(child.test, MaskIndex()).add(branch, required)
            mask |= 1 << bit
        for literal in _literals(node):
            self._literals.setdefault(node.test, Counter())[literal] += 1
            mask |= 1 << self._acquire("literal", literal)
        guard = mask
        for xpath in _xpaths(node):
            self._guarded.setdefault(node.test, Counter())[_Guarded(xpath, guard)] += 1
            mask |= 1 << self._acquire("xpath", xpath)
        self._on_attributes += node.test.kind == "attribute"
        self._changed()
        return mask

    def release(self, node: PatternNode) -> None:
        """Gives back what `require` registered for the node."""
        guard = self._guard(node)
        for xpath in _xpaths(node):
            _decrease(self._guarded[node.test], _Guarded(xpath, guard))
            self._let_go("xpath", xpath)
        for literal in _literals(node):
            _decrease(self._literals[node.test], literal)
            self._let_go("literal", literal)
        for child in node.children:
            self.release(child)
            if self._let_go("branch", str(child)):
                self._branches[child.test].remove(self._branch_of.pop(str(child)))
        self._on_attributes -= node.test.kind == "attribute"
        self._changed()

    def _guard(self, node: PatternNode) -> int:
        """The mask of a registered node's branches and literals."""
        mask = 0
        for child in node.children:
            mask |= 1 << self._bit_of["branch", str(child)]
        for literal in _literals(node):
            mask |= 1 << self._bit_of["literal", literal]
        return mask

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
                    mask = self._own(self._name("attribute", str(name)), element, 0, place, str(value))
                    attributes[index, place] = mask
                    by_child, by_any = self._upward("attribute", str(name), mask)
                    below_child |= by_child
                    below_any |= by_any
            tag = str(element.tag)
            mask = elements[index] = self._own(self._name("element", tag), element, below_child | below_any)
            by_child, by_any = self._upward("element", tag, mask)
            return by_child, by_any | below_any

        visit(document.elements[0])
        return Masks(elements, attributes)

    def _own(self, name: _Name, element: etree._Element, below: int, place: int = 0, value: str | None = None) -> int:
        """The filters that hold at a node: those of `below` and its own conditions."""
        mask = below
        if name.literals:
            mask |= name.literals.get(text_of(element) if value is None else value, 0)
        for xpath in {item.xpath for item in name.xpaths.satisfied(mask)}:
            if holds(xpath, element, place):
                mask |= 1 << self._bit_of["xpath", xpath]
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
            for test, literals in self._literals.items():
                if test.kind == kind and test.accepts(label):
                    for literal in literals:
                        name.literals[literal] = 1 << self._bit_of["literal", literal]
            for test, guarded in self._guarded.items():
                if test.kind == kind and test.accepts(label):
                    for item in guarded:
                        name.xpaths.add(item, item.guard)
            for test, index in self._branches.items():
                if test.kind == kind and test.accepts(label):
                    name.branches.append(index)
                    name.need |= index.need
        return name


def _literals(node: PatternNode) -> list[str]:
    return [condition.literal for condition in node.conditions if condition.literal is not None]


def _xpaths(node: PatternNode) -> list[str]:
    return [condition.xpath for condition in node.conditions if condition.xpath is not None]


def _decrease(counter: Counter[Any], key: object) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
