"""Bottom-up evaluation of filters: the class of a node says which registered branches and conditions hold there.

The class of a node follows from its name and from what its children satisfy. Classes are interned, and found by one
look-up for each child and one for the node. So a node costs the same whatever the number of filters (the bottom-up
states of XPush).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, count
from operator import not_
from sys import maxsize

from lxml import etree

from xpath_stage.columns import Columns
from xpath_stage.conditions import holds
from xpath_stage.filters import AtName, FilterBank
from xpath_stage.masks import bits
from xpath_stage.names import Memo, Vocabulary
from xscl.algebra.expressions import NodeKind


@dataclass(frozen=True, slots=True)
class Tests:
    """What is tested at an element, beside its children: the names of its `attributes`, whether its value is one of
    `literals`, and anything `elsewhere`."""

    attributes: bool
    literals: dict[str, int]
    elsewhere: bool


class _Upward:
    """The filters that a node satisfies for nodes above it, as masks: on the `child` axis, and on the descendant axis
    (`any`). `some` says that there are any."""

    __slots__ = ("any", "child", "some")

    def __init__(self, child: int, any_: int) -> None:
        self.child, self.any, self.some = child, any_, bool(child or any_)


class NodeClass:
    """The class of nodes of one name at which the filters in `mask` hold. `selective` says that some depend on
    values."""

    __slots__ = ("kind", "mask", "name", "selective", "upward")

    def __init__(self, kind: NodeKind, name: str, mask: int, upward: _Upward, selective: bool) -> None:
        self.kind, self.name, self.mask, self.upward, self.selective = kind, name, mask, upward, selective


class _MarkedElement:
    """The label of an element that differs from others of its tag: by its value, which equals the literal of the bit
    `own`, or by what its attributes satisfy."""

    __slots__ = ("attributes", "own", "tag")

    def __init__(self, tag: str, own: int | None, attributes: _Upward) -> None:
        self.tag, self.own, self.attributes = tag, own, attributes


class _Attribute:
    """The classes of attributes of one name, by the bit of the literal that their value equals. `plain` is the class of
    those that equal none."""

    __slots__ = ("by_literal", "literals", "name", "plain", "xpaths")

    def __init__(self, name: AtName, plain: NodeClass) -> None:
        self.name, self.plain = name, plain
        self.literals, self.xpaths = name.literals, name.xpaths
        self.by_literal: dict[int | None, NodeClass] = {}


class _Siblings(dict[_Upward, "_Siblings"]):
    """What the first children of a node satisfy together. Maps what the next child satisfies to the result."""

    __slots__ = ("by_label", "classes", "upward")

    def __init__(self, classes: Classes, upward: _Upward) -> None:
        super().__init__()
        self.classes, self.upward = classes, upward
        self.by_label: dict[str | _MarkedElement, NodeClass] = {}

    def __missing__(self, child: _Upward) -> _Siblings:
        return self.classes.joined(self, child)


class Classes:
    """The classes of the nodes that were met. At most `limit` are cached."""

    def __init__(self, bank: FilterBank, vocabulary: Vocabulary, limit: int) -> None:
        self._bank, self._vocabulary, self._limit = bank, vocabulary, limit
        self.forget()

    def forget(self) -> None:
        """Drops all classes."""
        self.made = 0
        canonical = self._vocabulary.canonical
        # There are no more of these than the registered tests distinguish.
        elements: Memo[str, AtName] = Memo(lambda name: self._bank.at("element", name), maxsize)
        attributes: Memo[str, _Attribute] = Memo(self._attribute, maxsize)
        self._elements: Memo[str, AtName] = Memo(lambda tag: elements[canonical(tag)], self._limit)
        self._attributes: Memo[str, _Attribute] = Memo(lambda name: attributes[canonical(name)], self._limit)
        self._marked: Memo[tuple[str, int | None, _Upward], _MarkedElement] = Memo(
            lambda marks: _MarkedElement(*marks), self._limit
        )
        self._upward: dict[tuple[int, int], _Upward] = {}
        self._by_upward: dict[tuple[int, int], _Siblings] = {}
        self._interned: dict[tuple[NodeKind, str, int, _Upward], NodeClass] = {}
        self._leaf = self._below(0, 0)

    def tests_of(self, tag: str) -> Tests:
        """What is tested at elements with this tag, beside their children."""
        name = self._elements[tag]
        # The attributes are not known here, and any of them may have conditions.
        elsewhere = bool(name.xpaths) or (name.reads_attributes and self._bank.tests_attributes)
        return Tests(name.reads_attributes, name.literals, elsewhere)

    # ------------------------------------------------------------ elements

    def of_elements(self, columns: Columns, attributes: Sequence[NodeClass]) -> list[NodeClass]:
        """The class of each element. `attributes` are the classes of the attributes in the columns."""
        labels, counts = self._labels(columns, attributes), columns.counts
        found: list[NodeClass] = []
        waiting: list[_Upward] = []
        leaf, leaves = self._leaf, self._leaf.by_label
        # Backwards, so that children come before their parents.
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

    def _labels(self, columns: Columns, attributes: Sequence[NodeClass]) -> Sequence[str | _MarkedElement]:
        """What distinguishes elements, beside their children: tags, or labels where those do not suffice."""
        tags, names, nothing = columns.tags, self._elements, self._leaf.upward
        own = self._satisfied_literals(columns) if self._bank.element_literals else {}
        below: dict[int, _Siblings] = {}
        for owner, node in zip(columns.owners, attributes, strict=True):
            if node.upward.some and names[tags[owner]].reads_attributes:
                below[owner] = below.get(owner, self._leaf)[node.upward]
        if not (own or below):
            return tags
        labels: list[str | _MarkedElement] = list(tags)
        for number in own.keys() | below.keys():
            upward = below[number].upward if number in below else nothing
            labels[number] = self._marked[tags[number], own.get(number), upward]
        return labels

    def _satisfied_literals(self, columns: Columns) -> dict[int, int]:
        """The bits of the literals that the values of elements equal, by the number of the element."""
        tags, texts, names, literals = columns.tags, columns.texts, self._elements, self._bank.element_literals
        columns.string_values(number for number in tuple(columns.unread) if names[tags[number]].literals)
        found: dict[int, int] = {}
        for number in compress(count(), map(literals.__contains__, texts)):
            if (bit := names[tags[number]].literals.get(texts[number] or "")) is not None:
                found[number] = bit
        if "" in literals:
            for number in compress(count(), map(not_, texts)):
                if (bit := names[tags[number]].literals.get("")) is not None:
                    found[number] = bit
        return found

    def joined(self, below: _Siblings, child: _Upward) -> _Siblings:
        """What the children `below` and one more satisfy together. The result is cached in `below`."""
        upward = below.upward
        found = self._below(upward.child | child.child, upward.any | child.any)
        if self.made < self._limit:
            below[child] = found
            self.made += 1
        return found

    def _class_of(self, label: str | _MarkedElement, below: _Siblings, columns: Columns, number: int) -> NodeClass:
        if isinstance(label, _MarkedElement):
            name, own, joined = self._elements[label.tag], label.own, below[label.attributes]
        else:
            name, own, joined = self._elements[label], None, below
        mask = joined.upward.child | joined.upward.any | _mask(own)
        if name.xpaths:
            return self._intern(name, self._own(name, mask, columns.element(number), 0), joined.upward.any)
        node = self._intern(name, mask, joined.upward.any)
        if self.made < self._limit:
            below.by_label[label] = node
            self.made += 1
        return node

    # ------------------------------------------------------------ attributes

    def of_attributes(self, columns: Columns) -> list[NodeClass]:
        """The class of each attribute."""
        known, found = self._attributes, []
        for label, value in zip(columns.names, columns.values, strict=True):
            name = known[label]
            own = name.literals.get(value)
            if own is None and not name.xpaths:
                found.append(name.plain)
            else:
                found.append(self._attribute_class(name, own, columns, len(found)))
        return found

    def _attribute(self, label: str) -> _Attribute:
        name = self._bank.at("attribute", label)
        return _Attribute(name, self._intern(name, 0, 0))

    def _attribute_class(self, attribute: _Attribute, own: int | None, columns: Columns, number: int) -> NodeClass:
        name = attribute.name
        if name.xpaths:
            mask = self._own(name, _mask(own), columns.element(columns.owners[number]), columns.places[number])
            return self._intern(name, mask, 0)
        node = attribute.by_literal.get(own)
        if node is None:
            node = attribute.by_literal[own] = self._intern(name, _mask(own), 0)
        return node

    # ------------------------------------------------------------ both

    def _own(self, name: AtName, mask: int, element: etree._Element, place: int) -> int:
        """The filters that hold at a node: those in `mask`, and those of its XPath conditions that do."""
        for xpath in {item.xpath for item in name.xpaths.satisfied(mask)}:
            if holds(xpath, element, place):
                mask |= 1 << self._bank.bit_of_xpath(xpath)
        return mask

    def _intern(self, name: AtName, mask: int, below_any: int) -> NodeClass:
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
        key = (name.kind, name.name, mask & name.need, upward)
        found = self._interned.get(key)
        if found is None:
            found = NodeClass(*key, not self._bank.selective.isdisjoint(bits(mask & name.need)))
            if self.made < self._limit:
                self._interned[key] = found
                self.made += 1
        return found

    def _below(self, child: int, any_: int) -> _Siblings:
        found = self._by_upward.get((child, any_))
        if found is None:
            found = _Siblings(self, _Upward(child, any_))
            if self.made < self._limit:
                self._by_upward[child, any_] = found
                self.made += 1
        return found


def _mask(bit: int | None) -> int:
    return 0 if bit is None else 1 << bit
