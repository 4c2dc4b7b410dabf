"""Existential filters, evaluated bottom-up: which of the registered branches and conditions hold at each node.

Every distinct branch and every distinct condition is one bit. What matters of a node is its class: its name, and what
its children satisfy. Classes are made once and found again by identity, one look-up for a child and one for its parent,
so that a node costs the same whatever the number of filters (the bottom-up states of XPush).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lxml import etree

from xpath_stage.conditions import holds
from xpath_stage.masks import MaskIndex
from xpath_stage.names import Owners, Vocabulary, decrease
from xpath_stage.parse import ParsedDocument, text_of
from xscl.pattern import PatternNode, Test

T = TypeVar("T")

MAX_CLASSES = 200_000
"""Most classes of nodes that are remembered; past it they are made anew."""


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

    name: str
    need: int = 0
    literals: dict[str, int] = field(default_factory=dict)
    xpaths: MaskIndex[_Guarded] = field(default_factory=MaskIndex)
    branches: list[MaskIndex[_Branch]] = field(default_factory=list)
    reads_attributes: bool = False
    by_literals: dict[int, NodeClass] = field(default_factory=dict)

    @property
    def by_name_alone(self) -> bool:
        """Whether its nodes' class follows from the name and the children alone."""
        return not (self.literals or self.xpaths or self.reads_attributes)


@dataclass(frozen=True, slots=True)
class Tests:
    """What is looked at in an element, beside its children: its attributes' names, whether its value is one of
    `literals`, and `elsewhere` anything else."""

    attributes: bool
    literals: dict[str, int]
    elsewhere: bool


class _Upward:
    """What a node satisfies for those above it: filters on the child axis, and on the descendant axis."""

    __slots__ = ("any", "child")

    def __init__(self, child: int, any_: int) -> None:
        self.child, self.any = child, any_


class NodeClass:
    """Nodes of one name at which the same filters hold: those in `mask`."""

    __slots__ = ("kind", "mask", "name", "upward")

    def __init__(self, kind: str, name: str, mask: int, upward: _Upward) -> None:
        self.kind, self.name, self.mask, self.upward = kind, name, mask, upward


class _Below(dict[_Upward, "_Below"]):
    """What some children satisfy for their parent; leads on to what one more child makes of it."""

    __slots__ = ("bank", "by_literals", "by_name", "upward")

    def __init__(self, bank: FilterBank, upward: _Upward) -> None:
        super().__init__()
        self.bank, self.upward = bank, upward
        self.by_name: dict[str, NodeClass] = {}
        self.by_literals: dict[tuple[str, int], NodeClass] = {}

    def __missing__(self, child: _Upward) -> _Below:
        return self.bank.joined(self, child)


class FilterBank:
    """The registered filters, counted, each with a bit of its own."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bit_of: dict[tuple[str, str], int] = {}
        self._uses: dict[tuple[str, str], int] = {}
        self._free: list[int] = []
        self._branch_of: dict[str, _Branch] = {}
        self._branches: dict[Test, MaskIndex[_Branch]] = {}
        self._literals: dict[Test, Counter[str]] = {}
        self._guarded: dict[Test, Counter[_Guarded]] = {}
        self._needs: dict[Test, int] = {}
        self._owners = Owners()
        self.forget()

    def __bool__(self) -> bool:
        return bool(self._bit_of)

    # ------------------------------------------------------------ registration

    def require(self, node: PatternNode) -> int:
        """The mask that a node must have to pass `node`'s conditions and branches; registers what is new."""
        mask = 0
        self._vocabulary.add(node.test)
        for child in node.children:
            name = str(child)
            required = self.require(child)
            if child.test.kind == "attribute":
                self._owners.add(owner_of(node, child))
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
        self._needs[node.test] = self._needs.get(node.test, 0) | mask
        return mask

    def release(self, node: PatternNode) -> None:
        """Gives back what `require` registered for the node."""
        guard = self._guard(node)
        for xpath in _xpaths(node):
            decrease(self._guarded[node.test], _Guarded(xpath, guard))
            self._let_go("xpath", xpath)
        for literal in _literals(node):
            decrease(self._literals[node.test], literal)
            self._let_go("literal", literal)
        for child in node.children:
            self.release(child)
            if child.test.kind == "attribute":
                self._owners.remove(owner_of(node, child))
            if self._let_go("branch", str(child)):
                self._branches[child.test].remove(self._branch_of.pop(str(child)))
        self._vocabulary.remove(node.test)

    def _guard(self, node: PatternNode) -> int:
        """The mask of a registered node's branches and literals."""
        mask = 0
        for child in node.children:
            mask |= 1 << self._bit_of["branch", str(child)]
        for literal in _literals(node):
            mask |= 1 << self._bit_of["literal", literal]
        return mask

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

    # ------------------------------------------------------------ classes

    def forget(self) -> None:
        """Forgets all classes."""
        self.classes = 0
        self._names: dict[tuple[str, str], _Name] = {}
        self._upward: dict[tuple[int, int], _Upward] = {}
        self._by_upward: dict[tuple[int, int], _Below] = {}
        self._interned: dict[tuple[str, str, int, _Upward], NodeClass] = {}
        self._leaf = self._below(0, 0)

    def element_classes(self, document: ParsedDocument) -> list[NodeClass]:
        """The class of each element of a document, in document order."""
        tags, counts = document.tags, document.counts
        found: list[NodeClass] = []
        waiting: list[_Upward] = []
        leaf, leaves = self._leaf, self._leaf.by_name
        # Backwards, so that a node's children come before it.
        for tag, count in zip(reversed(tags), reversed(counts), strict=True):
            if count:
                below = leaf
                for _ in range(count):
                    below = below[waiting.pop()]
                node = below.by_name.get(tag)
            else:
                below, node = leaf, leaves.get(tag)
            if node is None:
                node = self._class_of(tag, below, document.elements[len(tags) - 1 - len(found)])
            found.append(node)
            waiting.append(node.upward)
        found.reverse()
        return found

    def attribute_class(self, name: str, value: str, owner: etree._Element, place: int) -> NodeClass:
        """The class of an attribute, the one at `place` (from 1) among its owner's."""
        known = self._names.get(("attribute", name)) or self._name("attribute", name)
        if known.xpaths:
            return self._intern("attribute", known, self._own(known, 0, value, owner, place), 0)
        own = known.literals.get(value, 0)
        found = known.by_literals.get(own)
        if found is None:
            found = known.by_literals[own] = self._intern("attribute", known, own, 0)
        return found

    def tests_of(self, tag: str) -> Tests:
        """What is looked at in elements with this tag, beside their children."""
        name = self._name("element", tag)
        # Which attributes there are is not known: any of them may have conditions.
        elsewhere = bool(name.xpaths) or (name.reads_attributes and self._conditional_attributes())
        return Tests(name.reads_attributes, name.literals, elsewhere)

    def _conditional_attributes(self) -> bool:
        return any(
            test.kind == "attribute" and by for kind in (self._literals, self._guarded) for test, by in kind.items()
        )

    def joined(self, below: _Below, child: _Upward) -> _Below:
        """What `child` makes of `below`; remembered there."""
        upward = below.upward
        found = self._below(upward.child | child.child, upward.any | child.any)
        if self.classes < MAX_CLASSES:
            below[child] = found
            self.classes += 1
        return found

    def _class_of(self, tag: str, below: _Below, element: etree._Element) -> NodeClass:
        known = self._names.get(("element", tag)) or self._name("element", tag)
        if known.reads_attributes:
            for place, (name, value) in enumerate(element.items(), 1):
                below = below[self.attribute_class(name, value, element, place).upward]  # type: ignore[arg-type]
        mask = below.upward.child | below.upward.any
        text = text_of(element) if known.literals else ""
        if known.xpaths:
            return self._intern("element", known, self._own(known, mask, text, element, 0), below.upward.any)
        own = known.literals.get(text, 0)
        # The tag alone is looked for before anything is read of the element.
        memo: dict[Any, NodeClass] = below.by_name if known.by_name_alone else below.by_literals
        key = tag if known.by_name_alone else (tag, own)
        node = memo.get(key)
        if node is None:
            node = self._intern("element", known, mask | own, below.upward.any)
            if self.classes < MAX_CLASSES:
                memo[key] = node
                self.classes += 1
        return node

    def _own(self, name: _Name, below: int, value: str, element: etree._Element, place: int) -> int:
        """The filters that hold at a node: those of `below` and its own conditions."""
        mask = below | name.literals.get(value, 0)
        for xpath in {item.xpath for item in name.xpaths.satisfied(mask)}:
            if holds(xpath, element, place):
                mask |= 1 << self._bit_of["xpath", xpath]
        return mask

    def _intern(self, kind: str, name: _Name, mask: int, below_any: int) -> NodeClass:
        by_child, by_any = 0, below_any
        for index in name.branches:
            for branch in index.satisfied(mask):
                if branch.axis == "/":
                    by_child |= 1 << branch.bit
                else:
                    by_any |= 1 << branch.bit
        upward = self._upward.get((by_child, by_any))
        if upward is None:
            upward = _Upward(by_child, by_any)
            if self.classes < MAX_CLASSES:
                self._upward[by_child, by_any] = upward
                self.classes += 1
        key = (kind, name.name, mask & name.need, upward)
        found = self._interned.get(key)
        if found is None:
            found = NodeClass(*key)
            if self.classes < MAX_CLASSES:
                self._interned[key] = found
                self.classes += 1
        return found

    def _below(self, child: int, any_: int) -> _Below:
        found = self._by_upward.get((child, any_))
        if found is None:
            found = _Below(self, _Upward(child, any_))
            if self.classes < MAX_CLASSES:
                self._by_upward[child, any_] = found
                self.classes += 1
        return found

    def _name(self, kind: str, label: str) -> _Name:
        found = self._names.get((kind, label))
        if found is None:
            canonical = self._vocabulary.canonical(label)
            found = self._names.get((kind, canonical))
            if found is None:
                found = self._names[kind, canonical] = self._known(kind, canonical)
            if self.classes < MAX_CLASSES:
                self._names[kind, label] = found
                self.classes += 1
        return found

    def _known(self, kind: str, label: str) -> _Name:
        name = _Name(label)
        for literals in _accepting(self._literals, kind, label):
            for literal in literals:
                name.literals[literal] = name.literals.get(literal, 0) | 1 << self._bit_of["literal", literal]
        for guarded in _accepting(self._guarded, kind, label):
            for item in guarded:
                if item not in name.xpaths:
                    name.xpaths.add(item, item.guard)
        for index in _accepting(self._branches, kind, label):
            name.branches.append(index)
        for need in _accepting(self._needs, kind, label):
            name.need |= need
        name.reads_attributes = kind == "element" and label in self._owners
        return name


def owner_of(parent: PatternNode, attribute: PatternNode) -> Test | None:
    """What an attribute's owner must pass, None if it may be any element."""
    return parent.test if attribute.axis == "/" else None


def _accepting(by_test: Mapping[Test, T], kind: str, label: str) -> Iterator[T]:
    """The items under the tests that a node of this name passes."""
    return (item for test, item in by_test.items() if test.kind == kind and test.accepts(label))


def _literals(node: PatternNode) -> list[str]:
    return [condition.literal for condition in node.conditions if condition.literal is not None]


def _xpaths(node: PatternNode) -> list[str]:
    return [condition.xpath for condition in node.conditions if condition.xpath is not None]
