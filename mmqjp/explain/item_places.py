"""Where in an `<item>` a path may lead: the elements and attributes that entries of feeds have as documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from feeds.item import ATTRIBUTES, FIELDS
from xscl.algebra.expressions import NameTest, NodeKind, Step

REPEATED = frozenset({"folder", "author", "category", "link", "enclosure"})
"""The fields of which an item may have several."""

TIMES = frozenset({"timestamp", "updated"})
"""The fields that hold a time."""

ADDRESSES = frozenset({"item_url", "channel_url", "feed_url", "href"})
"""The fields and attributes that hold the address of something."""


@dataclass(frozen=True, slots=True)
class Place:
    """The document, its root, a field or an attribute: its `names` from the root on."""

    names: tuple[str, ...] = ()
    kind: NodeKind = "element"

    @property
    def name(self) -> str:
        """The last of its names; "" for the document."""
        return self.names[-1] if self.names else ""

    @property
    def is_field(self) -> bool:
        """Whether it is a child of the item."""
        return len(self.names) == 2

    def holds_no_text(self) -> bool:
        """Whether it is an element that has attributes alone."""
        return self.is_field and self.name in ATTRIBUTES

    def children(self) -> Iterator[Place]:
        """The elements in it."""
        if not self.names:
            yield ITEM
        elif self == ITEM:
            yield from (Place((*self.names, field)) for field in FIELDS)

    def attributes(self) -> Iterator[Place]:
        """Its attributes."""
        if self.is_field:
            yield from (Place((*self.names, name), "attribute") for name in ATTRIBUTES.get(self.name, ()))

    def below(self) -> Iterator[Place]:
        """The elements at any depth in it."""
        for child in self.children():
            yield child
            yield from child.below()


DOCUMENT, ITEM = Place(), Place(("item",))

Places = frozenset[Place]


def follow(places: Places, step: Step) -> Places:
    """The places to which a step leads from any of these."""
    return frozenset(
        found
        for place in places
        if place.kind == "element"
        for found in _reach(place, step)
        if _accepts(step.test, found)
    )


def is_single(places: Places, steps: tuple[Step, ...]) -> bool:
    """Whether a path without filters leads to one node at most, from a node at one of these places."""
    for step in steps:
        below = follow(places, step)
        if step.axis != "/" or step.filters or len(below) != 1 or any(place.name in REPEATED for place in below):
            return False
        places = below
    return True


def _reach(place: Place, step: Step) -> Iterator[Place]:
    deep = step.axis == "//"
    if step.test.kind == "element":
        yield from place.below() if deep else place.children()
        return
    yield from place.attributes()
    for below in place.below() if deep else ():
        yield from below.attributes()


def _accepts(test: NameTest, place: Place) -> bool:
    return test.prefix in (None, "*") and test.local in ("*", place.name)
