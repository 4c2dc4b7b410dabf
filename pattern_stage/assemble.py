"""Events from the witnesses of a batch: the nodes of each, and its attributes.

There is an event for each distinct choice of nodes that tells events apart. The bindings are counted from the leaves up
before any is made, so that a document with too many of them costs no memory, and none is made that leads nowhere.

Time in event patterns: the horizon, before which everything is known, and the events that wait for it.

What stage 1 found for events in a batch of documents, told from what it found for joins, as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from common.arrays import Ints
from pattern_stage.columns import NULL_TEXT, Column, Columns, Floats, Mask, joined
from pattern_stage.values import Texts
from templates.catalog import Functions, StepEdge
from templates.events import EventPlacement, PlacedAttribute
from templates.witness import ATTRIBUTE_SHIFT, CHAIN_SHIFT, PLAIN, Witnesses
from xscl.algebra.values import OF_EVENTS

ORDER_SHIFT = CHAIN_SHIFT
"""The bits of a place (see `document_order`)."""

MOST_DOCUMENTS = 1 << (63 - ORDER_SHIFT)
"""The largest number of documents that are looked at together: a document's index and a place are one key."""

EdgesOf = Callable[[Iterable[int]], Mapping[int, Collection[StepEdge]]]
"""Returns the edges of groups, by their numbers."""


@dataclass(frozen=True, slots=True)
class EdgeRows:
    """The rows of an edge: the index of the document, and the places of the two nodes."""

    document: Ints
    upper: Ints
    lower: Ints


_NO_ROWS = np.zeros(0, np.int64)
_UNBOUND = EdgeRows(_NO_ROWS, _NO_ROWS, _NO_ROWS)


@dataclass(frozen=True, slots=True)
class FoundValues:
    """The values of one chain of functions: keys of document and place, sorted, and the code of each text."""

    keys: Ints
    codes: Ints


class Witnessed:
    """The rows for events of a batch: by edge, and values by chain. `docids` are those of its documents, sorted; they
    are named by their index there."""

    def __init__(self, witnesses: Witnesses, edges_of: EdgesOf, texts: Texts) -> None:
        self.docids = np.sort(witnesses.r_docts["docid"].to_numpy())
        order = np.argsort(witnesses.r_docts["docid"].to_numpy(), kind="stable")
        self.t0 = witnesses.r_docts["t0"].to_numpy()[order]
        self.t1 = witnesses.r_docts["t1"].to_numpy()[order]
        r_bin = witnesses.r_bin
        group = r_bin["grp"].to_numpy()
        by_group = np.argsort(group, kind="stable")
        self._document = np.searchsorted(self.docids, r_bin["docid"].to_numpy()[by_group])
        self._upper = document_order(r_bin["node1"].to_numpy()[by_group])
        self._lower = document_order(r_bin["node2"].to_numpy()[by_group])
        numbers, first = np.unique(group[by_group], return_index=True)
        self._slices: dict[StepEdge, list[slice]] = {}
        ends = np.append(first, len(group))[1:]
        edges = edges_of(numbers.tolist())
        for number, begin, end in zip(numbers.tolist(), first.tolist(), ends.tolist(), strict=True):
            for edge in edges[number]:
                self._slices.setdefault(edge, []).append(slice(begin, end))
        self._values: dict[int, FoundValues] = {}
        self._r_doc, self._texts = witnesses.r_doc, texts
        self._chains = witnesses.r_doc["node"].to_numpy() >> CHAIN_SHIFT

    def bound(self, edge: StepEdge) -> EdgeRows:
        """Returns the distinct rows of an edge."""
        slices = self._slices.get(edge)
        if slices is None:
            return _UNBOUND
        columns = self._document, self._upper, self._lower
        return EdgeRows(*(np.concatenate([column[part] for part in slices]) for column in columns))

    def values(self, chain: int) -> FoundValues:
        """Returns the values of a chain of functions."""
        found = self._values.get(chain)
        if found is None:
            found = self._values[chain] = self._read(self._chains == chain)
        return found

    def _read(self, rows: Mask) -> FoundValues:
        table = self._r_doc.filter(pa.array(rows))
        keys = place_keys(
            np.searchsorted(self.docids, table["docid"].to_numpy()), document_order(table["node"].to_numpy())
        )
        encoded = pa.chunked_array(table["strval"]).combine_chunks().dictionary_encode()
        codes = self._texts.codes(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
        order = np.argsort(keys)
        return FoundValues(keys[order], codes[order])


def document_order(nodes: Ints) -> Ints:
    """Returns the ids of nodes, without chains of functions, as numbers in document order."""
    return (nodes & 0xFFFFFFFF) << (CHAIN_SHIFT - ATTRIBUTE_SHIFT) | (nodes & PLAIN) >> ATTRIBUTE_SHIFT


def nodes_of(places: Ints) -> Ints:
    """Returns the ids of the nodes at places."""
    return places >> (CHAIN_SHIFT - ATTRIBUTE_SHIFT) | (places & ((1 << CHAIN_SHIFT - ATTRIBUTE_SHIFT) - 1)) << (
        ATTRIBUTE_SHIFT
    )


def place_keys(document: Ints, places: Ints) -> Ints:
    """Returns a number for each pair of a document, by index, and a place: in this order."""
    return document << ORDER_SHIFT | places


def event_chains(chains: Mapping[Functions, int]) -> Mask:
    """Returns which of the chains of functions of a catalog, by number, are those of events."""
    found = np.zeros(max(chains.values(), default=0) + 1, np.bool_)
    for functions, number in chains.items():
        found[number] = functions[-1] == OF_EVENTS
    return found


def told_apart(witnesses: Witnesses, chains: Mask) -> tuple[Witnesses, Witnesses]:
    """Returns the witnesses for joins, and those for events, whose chains of functions `chains` names."""
    of_edges = chains[witnesses.r_bin["node2"].to_numpy() >> CHAIN_SHIFT]
    of_values = chains[witnesses.r_doc["node"].to_numpy() >> CHAIN_SHIFT]
    joins, events = (
        replace(
            witnesses, r_bin=witnesses.r_bin.filter(pa.array(edges)), r_doc=witnesses.r_doc.filter(pa.array(values))
        )
        for edges, values in ((~of_edges, ~of_values), (of_edges, of_values))
    )
    return joins, events


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


def assemble_events(placement: EventPlacement, witnessed: Witnessed, texts: Texts) -> Assembled:
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
            at, found = _partners(place_keys(document, columns[node.parent]), place_keys(bound.document, bound.upper))
            document = document[at]
            columns = {place: column[at] for place, column in columns.items()}
            columns[number] = bound.lower[found]
    kept = {place: columns[place] for place in placement.key}
    first = _first_of_each([document, *kept.values()])
    many = np.bincount(document[first], minlength=len(witnessed.docids)) > MOST_EVENTS
    first = first[~many[document[first]]]
    return document[first], {place: column[first] for place, column in kept.items()}, np.flatnonzero(crowded | many)


def _leading_on(placement: EventPlacement, rows: list[EdgeRows], documents: int) -> tuple[list[EdgeRows], Mask]:
    """Returns those rows of each node that are in a whole binding, but for nodes above them; and which documents have
    too many bindings: these have no rows."""
    ways: list[Floats] = [np.ones(len(bound.document)) for bound in rows]
    for number in range(len(rows) - 1, 0, -1):
        bound, parent = rows[number], placement.nodes[number].parent
        keys = place_keys(bound.document, bound.upper)  # sorted, as the rows are
        sums = np.append(0, np.cumsum(ways[number]))
        above = place_keys(rows[parent].document, rows[parent].lower)
        ways[parent] *= sums[np.searchsorted(keys, above, "right")] - sums[np.searchsorted(keys, above, "left")]
    crowded = np.bincount(rows[0].document, ways[0], documents) > MOST_BINDINGS
    leading = [(of > 0) & ~crowded[bound.document] for bound, of in zip(rows, ways, strict=True)]
    return [_taken(bound, kept) for bound, kept in zip(rows, leading, strict=True)], crowded


def _distinct(bound: EdgeRows) -> EdgeRows:
    return _taken(bound, _first_of_each([bound.document, bound.upper, bound.lower]))


def _taken(bound: EdgeRows, places: Ints | Mask) -> EdgeRows:
    return EdgeRows(bound.document[places], bound.upper[places], bound.lower[places])


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
    if attribute.node < 0:
        codes = np.full(len(document), texts.code(attribute.constant), np.int64)
        return texts.numbers(codes) if attribute.kind == "number" else codes
    place = places[attribute.node]
    missing = np.zeros(len(document), np.bool_)
    if attribute.edge is not None:
        bound = _distinct(witnessed.bound(attribute.edge))
        keys = place_keys(document, place)
        found, missing = _looked_up(place_keys(bound.document, bound.upper), keys)  # the first row has the first node
        place = np.append(bound.lower, 0)[np.where(missing, len(bound.lower), found)]
    values = witnessed.values(attribute.chain)
    at, none = _looked_up(values.keys, place_keys(document, place))
    column = np.append(values.codes, NULL_TEXT)[np.where(missing | none, len(values.codes), at)]
    return texts.numbers(column) if attribute.kind == "number" else column


def _looked_up(ordered: Ints, keys: Ints) -> tuple[Ints, Mask]:
    at = np.searchsorted(ordered, keys)
    return at, np.append(ordered, -1)[at] != keys


START, END = -(2**62), 2**62
"""Horizons before and after all times."""

OTHER_STREAMS = "*"
"""In a mapping of `settle`, stands for all streams that it does not name."""

Settle = int | None | Mapping[str, int | None]
"""How long events wait for earlier ones, in microseconds: for all streams, or by stream. None means to the end."""


def settle_of(settle: Settle, stream: str) -> int | None:
    """Returns how long events of an external stream wait; None means to the end."""
    return settle.get(stream, settle.get(OTHER_STREAMS)) if isinstance(settle, Mapping) else settle


def next_horizon(
    horizon: int, greatest: Mapping[str, int], streams: Iterable[str], settle: Settle, clock: int | None = None
) -> int:
    """Returns the horizon after a batch, which is never before `horizon`.

    `greatest` has the greatest time of each external stream, and `streams` are those behind any event statement. A live
    one counts to the `clock` only.
    """
    least = END
    for stream in streams:
        waits, time = settle_of(settle, stream), greatest.get(stream)
        if waits is None or time is None:
            return horizon
        least = min(least, (time if clock is None else min(time, clock)) - waits)
    return horizon if least == END else max(horizon, least)


def last_horizon(
    horizon: int, greatest: Mapping[str, int], streams: Iterable[str], settle: Settle, *, lasts: bool
) -> int:
    """Returns the horizon at the end of a finite run: END if no `settle` is given. If its state `lasts`, it is just
    past the greatest time, so that another run may go on."""
    if settle is not None:
        return horizon
    if not lasts:
        return END
    times = [greatest[stream] + 1 for stream in streams if stream in greatest]
    return max([horizon, *times])


class Buffer:
    """Events that wait until the horizon has passed them, by stream."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Columns]] = {}

    def __len__(self) -> int:
        return sum(len(events) for parts in self._waiting.values() for events in parts)

    def add(self, stream: str, events: Columns) -> None:
        """Adds events, in any order."""
        if len(events):
            self._waiting.setdefault(stream, []).append(events)

    def is_due(self, until: int) -> bool:
        """Returns whether any event ends before a time."""
        return any((events.t1 < until).any() for parts in self._waiting.values() for events in parts)

    def release(self, streams: Iterable[str], until: int) -> dict[str, Columns]:
        """Removes the events of some streams that end before a time. Returns them by stream, in the order of t1."""
        released: dict[str, Columns] = {}
        for stream in streams:
            if parts := self._waiting.pop(stream, None):
                events = joined(parts)
                gone = events.t1 < until
                if not gone.all():
                    self._waiting[stream] = [events.take(~gone)]
                if gone.any():
                    due = events.take(gone)
                    released[stream] = due.take(np.argsort(due.t1, kind="stable"))
        return released

    def pass_over(self, until: int) -> None:
        """Drops the events that end before a time."""
        for stream, parts in self._waiting.items():
            self._waiting[stream] = [left for part in parts if len(left := part.take(part.t1 >= until))]

    def drop(self, streams: Iterable[str]) -> None:
        """Drops the events of streams that nothing reads any more."""
        for stream in streams:
            self._waiting.pop(stream, None)

    def parts(self) -> list[Ints]:
        """Returns the numbers of the events that wait."""
        return [events.parts for parts in self._waiting.values() for events in parts]

    def codes(self) -> list[Ints]:
        """Returns the codes of their texts."""
        columns = [column for parts in self._waiting.values() for events in parts for column in events.values]
        return [column for column in columns if column.dtype == np.int64]  # type: ignore[misc]  # the others have numbers
