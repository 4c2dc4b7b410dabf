"""Events from the witnesses of a batch: the nodes of each, and its attributes.

There is an event for each distinct choice of nodes that tells events apart. The bindings are counted from the leaves up
before any is made, so that a document with too many of them costs no memory, and none is made that leads nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pattern_stage.columns import NULL_TEXT, Column, Floats, Ints, Mask
from pattern_stage.values import Texts
from pattern_stage.witnessed import Bound, Witnessed, keys_of, nodes_of
from templates.event_places import EventPlacement, PlacedAttribute

MOST_EVENTS = 10_000
"""The largest number of events of a definition in a document."""

MOST_BINDINGS = 16 * MOST_EVENTS
"""The largest number of ways in which a document may bind the nodes of a definition. Several may be one event, if
elements of one name lie in one another."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """The events of a definition in a batch, in document order: the docid of each, its interval, the ids of its nodes,
    the root first, a column for each, and a column for each attribute. `crowded` are the docids of the documents that
    have more than MOST_EVENTS: these have none."""

    docids: Ints
    t0: Ints
    t1: Ints
    nodes: Ints
    values: tuple[Column, ...]
    crowded: Ints

    def __len__(self) -> int:
        return len(self.docids)

    def take(self, places: Ints | Mask) -> Assembled:
        """Returns the events at these places."""
        return Assembled(
            self.docids[places],
            self.t0[places],
            self.t1[places],
            self.nodes[places],
            tuple([column[places] for column in self.values]),
            self.crowded,
        )


def assemble(placement: EventPlacement, witnessed: Witnessed, texts: Texts) -> Assembled:
    """Returns the events of a definition in a batch."""
    document, places, crowded = _bindings(placement, witnessed)
    values = [_attribute(attribute, document, places, witnessed, texts) for attribute in placement.attributes]
    return Assembled(
        witnessed.docids[document],
        witnessed.t0[document],
        witnessed.t1[document],
        nodes_of(np.stack([places[node] for node in placement.key], axis=1)),
        tuple(values),
        witnessed.docids[crowded],
    )


# ---------------------------------------------------------------- bindings


def _bindings(placement: EventPlacement, witnessed: Witnessed) -> tuple[Ints, dict[int, Ints], Ints]:
    """Returns the document of each event and the places of its nodes, by node; and the documents with too many. They
    are named by index."""
    rows = [_distinct(witnessed.bound(node.edge)) for node in placement.nodes]
    rows, crowded = _leading_on(placement, rows, len(witnessed.docids))
    document, columns = rows[0].document, {0: rows[0].lower}
    for number, (node, bound) in enumerate(zip(placement.nodes, rows, strict=True)):
        if number:
            at, found = _partners(keys_of(document, columns[node.parent]), keys_of(bound.document, bound.upper))
            document = document[at]
            columns = {place: column[at] for place, column in columns.items()}
            columns[number] = bound.lower[found]
    kept = {place: columns[place] for place in placement.key}
    first = _first_of_each([document, *kept.values()])
    many = np.bincount(document[first], minlength=len(witnessed.docids)) > MOST_EVENTS
    first = first[~many[document[first]]]
    return document[first], {place: column[first] for place, column in kept.items()}, np.flatnonzero(crowded | many)


def _leading_on(placement: EventPlacement, rows: list[Bound], documents: int) -> tuple[list[Bound], Mask]:
    """Returns those rows of each node that are in a whole binding, but for nodes above them; and which documents have
    too many bindings: these have no rows."""
    ways: list[Floats] = [np.ones(len(bound.document)) for bound in rows]
    for number in range(len(rows) - 1, 0, -1):
        bound, parent = rows[number], placement.nodes[number].parent
        keys = keys_of(bound.document, bound.upper)  # sorted, as the rows are
        sums = np.append(0, np.cumsum(ways[number]))
        above = keys_of(rows[parent].document, rows[parent].lower)
        ways[parent] *= sums[np.searchsorted(keys, above, "right")] - sums[np.searchsorted(keys, above, "left")]
    crowded = np.bincount(rows[0].document, ways[0], documents) > MOST_BINDINGS
    leading = [(of > 0) & ~crowded[bound.document] for bound, of in zip(rows, ways, strict=True)]
    return [_taken(bound, kept) for bound, kept in zip(rows, leading, strict=True)], crowded


def _distinct(bound: Bound) -> Bound:
    """Returns the rows of an edge once, in the order of document, upper and lower node."""
    return _taken(bound, _first_of_each([bound.document, bound.upper, bound.lower]))


def _taken(bound: Bound, places: Ints | Mask) -> Bound:
    return Bound(bound.document[places], bound.upper[places], bound.lower[places])


def _first_of_each(columns: list[Ints]) -> Ints:
    """Returns where each distinct row of columns is, in the order of the rows."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), np.bool_)
    new[:1] = True
    for column in columns:
        ordered = column[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    return order[new]


def _partners(keys: Ints, ordered: Ints) -> tuple[Ints, Ints]:
    """Returns the pairs of equal keys, as places in `keys` and in the keys that are `ordered`."""
    low, high = np.searchsorted(ordered, keys, "left"), np.searchsorted(ordered, keys, "right")
    counts = high - low
    at = np.repeat(np.arange(len(keys)), counts)
    return at, np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(low, counts)


# ---------------------------------------------------------------- attributes


def _attribute(
    attribute: PlacedAttribute, document: Ints, places: dict[int, Ints], witnessed: Witnessed, texts: Texts
) -> Column:
    """Returns an attribute of events, whose documents and places of nodes are given."""
    if attribute.node < 0:
        codes = np.full(len(document), texts.code(attribute.constant), np.int64)
        return texts.numbers(codes) if attribute.kind == "number" else codes
    place = places[attribute.node]
    missing = np.zeros(len(document), np.bool_)
    if attribute.edge is not None:
        bound = _distinct(witnessed.bound(attribute.edge))
        keys = keys_of(document, place)
        found, missing = _looked_up(keys_of(bound.document, bound.upper), keys)  # the first row has the first node
        place = np.append(bound.lower, 0)[np.where(missing, len(bound.lower), found)]
    values = witnessed.values(attribute.chain)
    at, none = _looked_up(values.keys, keys_of(document, place))
    column = np.append(values.codes, NULL_TEXT)[np.where(missing | none, len(values.codes), at)]
    return texts.numbers(column) if attribute.kind == "number" else column


def _looked_up(ordered: Ints, keys: Ints) -> tuple[Ints, Mask]:
    """Returns where each key is first among the keys that are `ordered`, and which are not there."""
    at = np.searchsorted(ordered, keys)
    return at, np.append(ordered, -1)[at] != keys
