"""Walks over syntax: trees of dataclasses and tuples, those of the language and the oracle's own."""

from __future__ import annotations

from collections.abc import Iterator


def children(node: object) -> Iterator[object]:
    if isinstance(node, tuple):
        yield from node
    for name in getattr(node, "__dataclass_fields__", ()):
        yield getattr(node, name)


def walk(node: object) -> Iterator[object]:
    """A node and all below it, parents first."""
    yield node
    for child in children(node):
        yield from walk(child)
