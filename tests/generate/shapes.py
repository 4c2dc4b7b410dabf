"""All templates with a number of value joins: Table 6.3 of the thesis."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from templates.graph import Shape, canonical_shape

_ValueJoins = tuple[tuple[int, int], ...]
_Tree = int | tuple["_Tree", ...]
"""The number of a leaf, or the children of an inner node, at least two."""


def templates(joins: int, *, flat: bool) -> list[Shape]:
    """The templates with `joins` value joins. A template and its mirror image are two. On a `flat` schema all leaves of
    a side are children of its root; otherwise, they may be below any inner nodes.

    >>> len(templates(3, flat=True)), len(templates(3, flat=False))
    (6, 16)
    """
    found: dict[object, Shape] = {}
    for edges in _value_joins(joins):
        left, right = (tuple(sorted(set(side))) for side in zip(*edges, strict=True))
        for trees in product(_trees(left, flat), _trees(right, flat)):
            shape = _shape(*trees, edges)
            found.setdefault(canonical_shape(shape).key, shape)
    return list(found.values())


def _value_joins(count: int) -> list[_ValueJoins]:
    """Sets of `count` edges between left and right leaves, one per isomorphism class, grown edge by edge."""
    grown: list[_ValueJoins] = [((0, 0),)]
    for _ in range(count - 1):
        found: dict[object, _ValueJoins] = {}
        for edges in grown:
            lefts, rights = (len(set(side)) for side in zip(*edges, strict=True))
            for edge in product(range(lefts + 1), range(rights + 1)):
                if edge not in edges:
                    more = (*edges, edge)
                    left, right = (next(_trees(tuple(sorted(set(s))), flat=True)) for s in zip(*more, strict=True))
                    found.setdefault(canonical_shape(_shape(left, right, more)).key, more)
        grown = list(found.values())
    return grown


def _trees(leaves: tuple[int, ...], flat: bool) -> Iterator[_Tree]:
    if len(leaves) == 1:
        yield leaves[0]
    elif flat:
        yield leaves
    else:
        for parts in _partitions(leaves):
            if len(parts) > 1:
                yield from product(*(list(_trees(part, flat)) for part in parts))


def _partitions(items: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    if not items:
        yield ()
        return
    first, *rest = items
    for parts in _partitions(tuple(rest)):
        yield ((first,), *parts)
        for i, part in enumerate(parts):
            yield (*parts[:i], (first, *part), *parts[i + 1 :])


def _shape(left: _Tree, right: _Tree, edges: _ValueJoins) -> Shape:
    parents: list[int | None] = []
    places: list[dict[int, int]] = []

    def number(tree: _Tree, parent: int | None) -> None:
        place = len(parents)
        parents.append(parent)
        if isinstance(tree, int):
            places[-1][tree] = place
        else:
            for child in tree:
                number(child, place)

    ends = []
    for tree in (left, right):
        places.append({})
        number(tree, None)
        ends.append(len(parents))
    joins = tuple(sorted((places[0][a], places[1][b]) for a, b in edges))
    return Shape(ends[0], tuple(parents), joins)
