"""Existential filters, evaluated bottom-up: which of the registered branches and conditions hold at each node.

Every distinct branch and every distinct condition is one bit. What matters of a node is its class: its name, and what
its children satisfy. Classes are made once and found again by identity, one look-up for a child and one for its parent,
so that a node costs the same whatever the number of filters (the bottom-up states of XPush).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, count
from operator import not_
from typing import TypeVar

from lxml import etree

from xpath_stage.columns import Columns
from xpath_stage.conditions import holds
from xpath_stage.masks import MaskIndex
from xpath_stage.names import Memo, Tags, Vocabulary, decrease, owner_test
from xscl.pattern import PatternNode, Test

T = TypeVar("T")


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
    plain: NodeClass | None = None
    by_literals: dict[int, NodeClass] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tests:
    """What is looked at in an element, beside its children: its attributes' names, whether its value is one of
    `literals`, and `elsewhere` anything else."""

    attributes: bool
    literals: dict[str, int]
    elsewhere: bool


class _Upward:
    """What a node satisfies for those above it: filters on the child axis, and on the descendant axis."""

    __slots__ = ("any", "child", "some")

    def __init__(self, child: int, any_: int) -> None:
        self.child, self.any, self.some = child, any_, bool(child or any_)


class NodeClass:
    """Nodes of one name at which the same filters hold: those in `mask`."""

    __slots__ = ("kind", "mask", "name", "upward")

    def __init__(self, kind: str, name: str, mask: int, upward: _Upward) -> None:
        self.kind, self.name, self.mask, self.upward = kind, name, mask, upward


class _Marked:
    """An element that is told apart from others of its tag by its own value, the literals in `own`, or by what its
    attributes satisfy."""

    __slots__ = ("attributes", "own", "tag")

    def __init__(self, tag: str, own: int, attributes: _Upward) -> None:
        self.tag, self.own, self.attributes = tag, own, attributes


class _Below(dict[_Upward, "_Below"]):
    """What some children satisfy for their parent; leads on to what one more child makes of it."""

    __slots__ = ("bank", "by_label", "upward")

    def __init__(self, bank: FilterBank, upward: _Upward) -> None:
        super().__init__()
        self.bank, self.upward = bank, upward
        self.by_label: dict[str | _Marked, NodeClass] = {}

    def __missing__(self, child: _Upward) -> _Below:
        return self.bank.joined(self, child)


class FilterBank:
    """The registered filters, counted, each with a bit of its own."""

    def __init__(self, vocabulary: Vocabulary, limit: int) -> None:
        self._vocabulary, self._limit = vocabulary, limit
        self._bit_of: dict[tuple[str, str], int] = {}
        self._uses: dict[tuple[str, str], int] = {}
        self._free: list[int] = []
        self._branch_of: dict[str, _Branch] = {}
        self._branches: dict[Test, MaskIndex[_Branch]] = {}
        self._literals: dict[Test, Counter[str]] = {}
        self._element_literals: Counter[str | None] = Counter()
        self._guarded: dict[Test, Counter[_Guarded]] = {}
        self._needs: dict[Test, int] = {}
        self.owners = Tags()
        """Elements of which some filter reads the attributes."""
        self.forget()

    def __bool__(self) -> bool:
        return bool(self._bit_of)

    @property
    def reads_trees(self) -> bool:
        """Whether some filter is in XPath."""
        return any(self._guarded.values())

    # ------------------------------------------------------------ registration

    def require(self, node: PatternNode) -> int:
        """The mask that a node must have to pass `node`'s conditions and branches; registers what is new."""
        mask = 0
        self._vocabulary.add(node.test)
        for child in node.children:
            name = str(child)
            required = self.require(child)
            if child.test.kind == "attribute":
                self.owners.add(owner_test(node.test, child.axis))
            bit = self._acquire("branch", name)
            if name not in self._branch_of:
                branch = self._branch_of[name] = _Branch(bit, child.axis, required)
                self._branches.setdefault(child.test, MaskIndex()).add(branch, required)
            mask |= 1 << bit
        for literal in _literals(node):
            self._literals.setdefault(node.test, Counter())[literal] += 1
            if node.test.kind == "element":
                self._element_literals[literal] += 1
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
            if node.test.kind == "element":
                decrease(self._element_literals, literal)
            self._let_go("literal", literal)
        for child in node.children:
            self.release(child)
            if child.test.kind == "attribute":
                self.owners.remove(owner_test(node.test, child.axis))
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
        self.made = 0
        self._known_names: dict[tuple[str, str], _Name] = {}
        self._element_names: Memo[str, _Name] = Memo(lambda tag: self._name("element", tag), self._limit)
        self._attribute_names: Memo[str, _Name] = Memo(lambda name: self._name("attribute", name), self._limit)
        self._marked: Memo[tuple[str, int, _Upward], _Marked] = Memo(lambda marks: _Marked(*marks), self._limit)
        self._upward: dict[tuple[int, int], _Upward] = {}
        self._by_upward: dict[tuple[int, int], _Below] = {}
        self._interned: dict[tuple[str, str, int, _Upward], NodeClass] = {}
        self._leaf = self._below(0, 0)

    def classes(self, columns: Columns, attributes: Sequence[NodeClass]) -> list[NodeClass]:
        """The class of each element; `attributes` are those of the attributes in the columns."""
        labels, counts = self._labels(columns, attributes), columns.counts
        found: list[NodeClass] = []
        waiting: list[_Upward] = []
        leaf, leaves = self._leaf, self._leaf.by_label
        # Backwards, so that a node's children come before it.
        for label, children in zip(reversed(labels), reversed(counts), strict=True):
            if children:
                below = leaf
                for _ in range(children):
                    below = below[waiting.pop()]
                node = below.by_label.get(label)
            else:
                below, node = leaf, leaves.get(label)
            if node is None:
                node = self._class_of(label, below, columns, len(labels) - 1 - len(found))
            found.append(node)
            waiting.append(node.upward)
        found.reverse()
        return found

    def attribute_classes(self, columns: Columns) -> list[NodeClass]:
        """The class of each attribute."""
        known, found = self._attribute_names, []
        for label, value in zip(columns.names, columns.values, strict=True):
            name = known[label]
            mask = name.literals.get(value)
            if mask is None and not name.xpaths:
                found.append(name.plain or self._plain(name))
            else:
                found.append(self._attribute_class(name, mask or 0, columns, len(found)))
        return found

    def _plain(self, name: _Name) -> NodeClass:
        """The class of attributes of a name whose values equal no literal."""
        name.plain = self._intern("attribute", name, 0, 0)
        return name.plain

    def _attribute_class(self, name: _Name, own: int, columns: Columns, number: int) -> NodeClass:
        if name.xpaths:
            own = self._own(name, own, columns.element(columns.owners[number]), columns.places[number])
            return self._intern("attribute", name, own, 0)
        node = name.by_literals.get(own)
        if node is None:
            node = name.by_literals[own] = self._intern("attribute", name, own, 0)
        return node

    def _labels(self, columns: Columns, attributes: Sequence[NodeClass]) -> Sequence[str | _Marked]:
        """What tells the elements apart beside their children."""
        tags, names, nothing = columns.tags, self._element_names, self._leaf.upward
        own = self._satisfied_literals(columns) if self._element_literals else {}
        below: dict[int, _Below] = {}
        for owner, node in zip(columns.owners, attributes, strict=True):
            if node.upward.some and names[tags[owner]].reads_attributes:
                below[owner] = below.get(owner, self._leaf)[node.upward]
        if not (own or below):
            return tags
        labels: list[str | _Marked] = list(tags)
        for number in own.keys() | below.keys():
            upward = below[number].upward if number in below else nothing
            labels[number] = self._marked[tags[number], own.get(number, 0), upward]
        return labels

    def _satisfied_literals(self, columns: Columns) -> dict[int, int]:
        """The literals, as a mask, that the values of elements equal, where there are some."""
        tags, texts, names, literals = columns.tags, columns.texts, self._element_names, self._element_literals
        columns.string_values(number for number in tuple(columns.unread) if names[tags[number]].literals)
        masks: dict[int, int] = {}
        for number in compress(count(), map(literals.__contains__, texts)):
            if mask := names[tags[number]].literals.get(texts[number] or ""):
                masks[number] = mask
        if "" in literals:
            for number in compress(count(), map(not_, texts)):
                if mask := names[tags[number]].literals.get(""):
                    masks[number] = mask
        return masks

    def tests_of(self, tag: str) -> Tests:
        """What is looked at in elements with this tag, beside their children."""
        name = self._element_names[tag]
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
        if self.made < self._limit:
            below[child] = found
            self.made += 1
        return found

    def _class_of(self, label: str | _Marked, below: _Below, columns: Columns, number: int) -> NodeClass:
        if isinstance(label, _Marked):
            name, own, joined = self._element_names[label.tag], label.own, below[label.attributes]
        else:
            name, own, joined = self._element_names[label], 0, below
        mask = joined.upward.child | joined.upward.any | own
        if name.xpaths:
            return self._intern("element", name, self._own(name, mask, columns.element(number), 0), joined.upward.any)
        node = self._intern("element", name, mask, joined.upward.any)
        if self.made < self._limit:
            below.by_label[label] = node
            self.made += 1
        return node

    def _own(self, name: _Name, mask: int, element: etree._Element, place: int) -> int:
        """The filters that hold at a node: those in `mask` and its conditions in XPath."""
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
            if self.made < self._limit:
                self._upward[by_child, by_any] = upward
                self.made += 1
        key = (kind, name.name, mask & name.need, upward)
        found = self._interned.get(key)
        if found is None:
            found = NodeClass(*key)
            if self.made < self._limit:
                self._interned[key] = found
                self.made += 1
        return found

    def _below(self, child: int, any_: int) -> _Below:
        found = self._by_upward.get((child, any_))
        if found is None:
            found = _Below(self, _Upward(child, any_))
            if self.made < self._limit:
                self._by_upward[child, any_] = found
                self.made += 1
        return found

    def _name(self, kind: str, label: str) -> _Name:
        label = self._vocabulary.canonical(label)
        found = self._known_names.get((kind, label))
        if found is None:
            found = self._known_names[kind, label] = self._made_name(kind, label)
        return found

    def _made_name(self, kind: str, label: str) -> _Name:
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
        name.reads_attributes = kind == "element" and label in self.owners
        return name


def _accepting(by_test: Mapping[Test, T], kind: str, label: str) -> Iterator[T]:
    """The items under the tests that a node of this name passes."""
    return (item for test, item in by_test.items() if test.kind == kind and test.accepts(label))


def _literals(node: PatternNode) -> list[str]:
    return [condition.literal for condition in node.conditions if condition.literal is not None]


def _xpaths(node: PatternNode) -> list[str]:
    return [condition.xpath for condition in node.conditions if condition.xpath is not None]
