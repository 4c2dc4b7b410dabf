"""Assembles events from the witnesses of a batch, and holds them until the horizon has passed. There is an event for
each distinct choice of nodes that distinguishes events. Bindings are counted from the leaves up before any is built, so
a document with too many costs no memory, and no partial binding fails. Before the horizon, all events are known."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from common.arrays import Ints, Mask, equal_ranges, expand_ranges, group_starts
from common.bounds import BEGINNING, END, Micros
from pattern_stage.columns import NULL_TEXT, Column, ColumnRecord, Columns, Floats, joined
from pattern_stage.values import Texts
from templates.catalog import EventPlacement, Functions, PlacedAttribute, StepEdge
from templates.witness import ATTRIBUTE_SHIFT, CHAIN_SHIFT, PLAIN, Witnesses
from xscl.algebra.values import OF_EVENTS

ORDER_SHIFT = CHAIN_SHIFT
"""Bits of a place (see `document_order`). The index of a document in a call has the others of a key."""

EdgesOf = Callable[[Iterable[int]], Mapping[int, Collection[StepEdge]]]  # returns the edges of groups, by group number


@dataclass(frozen=True, slots=True)
class EdgeRows(ColumnRecord):
    """The rows of an edge: document index, and the places of both nodes."""

    document: Ints
    upper: Ints
    lower: Ints


class Witnessed:
    """The event witnesses of a batch: rows by edge, values by chain. Documents are indices into the sorted `docids`."""

    def __init__(self, witnesses: Witnesses, edges_of: EdgesOf, texts: Texts) -> None:
        self.docids = np.sort(witnesses.r_docts["docid"].to_numpy())
        order = np.argsort(witnesses.r_docts["docid"].to_numpy(), kind="stable")
        self.t0, self.t1 = (witnesses.r_docts[name].to_numpy()[order] for name in ("t0", "t1"))
        r_bin = witnesses.r_bin
        group = r_bin["grp"].to_numpy()
        by_group = np.argsort(group, kind="stable")
        nodes = (document_order(r_bin[name].to_numpy()[by_group]) for name in ("node1", "node2"))
        self._rows = EdgeRows(np.searchsorted(self.docids, r_bin["docid"].to_numpy()[by_group]), *nodes)
        starts = group_starts(group[by_group])
        numbers = group[by_group][starts].tolist()
        self._slices: dict[StepEdge, list[slice]] = {}
        edges = edges_of(numbers)
        for number, (begin, end) in zip(numbers, pairwise([*starts.tolist(), len(group)]), strict=True):
            for edge in edges[number]:
                self._slices.setdefault(edge, []).append(slice(begin, end))
        self._values: dict[int, tuple[Ints, Ints]] = {}
        self._r_doc, self._texts = witnesses.r_doc, texts
        self._chains = witnesses.r_doc["node"].to_numpy() >> CHAIN_SHIFT

    def bound(self, edge: StepEdge) -> EdgeRows:
        """Returns the rows of an edge, distinct and sorted."""
        found = joined([self._rows.take(part) for part in self._slices.get(edge, [slice(0)])])
        return found.take(_first_of_each([found.document, found.upper, found.lower]))

    def values(self, chain: int) -> tuple[Ints, Ints]:
        """Returns the values of a chain of functions: sorted keys of document and place, and the code of each text."""
        if (found := self._values.get(chain)) is None:
            table = self._r_doc.filter(pa.array(self._chains == chain))
            document = np.searchsorted(self.docids, table["docid"].to_numpy())
            keys = place_keys(document, document_order(table["node"].to_numpy()))
            encoded = pa.chunked_array(table["strval"]).combine_chunks().dictionary_encode()
            codes = self._texts.codes(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
            order = np.argsort(keys)
            found = self._values[chain] = keys[order], codes[order]
        return found


def document_order(nodes: Ints) -> Ints:
    """Converts node ids, without chains of functions, to places: numbers in document order."""
    return (nodes & 0xFFFFFFFF) << (CHAIN_SHIFT - ATTRIBUTE_SHIFT) | (nodes & PLAIN) >> ATTRIBUTE_SHIFT


def nodes_of(places: Ints) -> Ints:
    shift = CHAIN_SHIFT - ATTRIBUTE_SHIFT
    return places >> shift | (places & ((1 << shift) - 1)) << ATTRIBUTE_SHIFT


def place_keys(document: Ints, places: Ints) -> Ints:
    return document << ORDER_SHIFT | places


def told_apart(witnesses: Witnesses, chains: Mapping[Functions, int]) -> tuple[Witnesses, Witnesses]:
    """Splits witnesses into those for joins and those for events, by a catalog's chains of functions."""
    of_events = np.zeros(max(chains.values(), default=0) + 1, np.bool_)
    for functions, number in chains.items():
        of_events[number] = functions[-1] == OF_EVENTS
    r_bin, r_doc = witnesses.r_bin, witnesses.r_doc
    of_edges = of_events[r_bin["node2"].to_numpy() >> CHAIN_SHIFT]
    of_values = of_events[r_doc["node"].to_numpy() >> CHAIN_SHIFT]
    joins, events = (
        replace(witnesses, r_bin=r_bin.filter(pa.array(edges)), r_doc=r_doc.filter(pa.array(values)))
        for edges, values in ((~of_edges, ~of_values), (of_edges, of_values))
    )
    return joins, events


MOST_EVENTS = 10_000  # maximum number of events of a definition in a document

MOST_BINDINGS = 16 * MOST_EVENTS
"""Maximum number of bindings of a definition in a document; several may be one event if elements of one name nest."""


@dataclass(frozen=True, slots=True)
class Assembled(ColumnRecord):
    """A definition's events in a batch, in document order: docid, interval, node ids (root first), attributes."""

    docids: Ints
    t0: Ints
    t1: Ints
    nodes: Ints
    values: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.docids)


def assemble_events(placement: EventPlacement, witnessed: Witnessed, texts: Texts) -> tuple[Assembled, Ints]:
    """Returns events, and the docids of documents with more than MOST_EVENTS, which have none here."""
    document, places, crowded = _bindings(placement, witnessed)
    values = tuple([_attribute(attribute, document, places, witnessed, texts) for attribute in placement.attributes])
    nodes = nodes_of(np.stack([places[node] for node in placement.key], axis=1))
    docids, t0, t1 = (column[document] for column in (witnessed.docids, witnessed.t0, witnessed.t1))
    return Assembled(docids, t0, t1, nodes, values), witnessed.docids[crowded]


# ---------------------------------------------------------------- bindings


def _bindings(placement: EventPlacement, witnessed: Witnessed) -> tuple[Ints, dict[int, Ints], Ints]:
    """Returns the document index of each event and the places of its nodes, and the documents with too many."""
    rows = [witnessed.bound(node.edge) for node in placement.nodes]
    rows, crowded = _leading_on(placement, rows, len(witnessed.docids))
    document, columns = rows[0].document, {0: rows[0].lower}
    for number, (node, bound) in enumerate(zip(placement.nodes, rows, strict=True)):
        if number:
            above, below = place_keys(document, columns[node.parent]), place_keys(bound.document, bound.upper)
            found, at = expand_ranges(*equal_ranges(above, below))
            document = document[at]
            columns = {place: column[at] for place, column in columns.items()}
            columns[number] = bound.lower[found]
    kept = {place: columns[place] for place in placement.key}
    first = _first_of_each([document, *kept.values()])
    many = np.bincount(document[first], minlength=len(witnessed.docids)) > MOST_EVENTS
    first = first[~many[document[first]]]
    return document[first], {place: column[first] for place, column in kept.items()}, np.flatnonzero(crowded | many)


def _leading_on(placement: EventPlacement, rows: list[EdgeRows], documents: int) -> tuple[list[EdgeRows], Mask]:
    """Returns each node's rows that extend to whole bindings below, and a mask of documents with too many: no rows."""
    ways: list[Floats] = [np.ones(len(bound.document)) for bound in rows]
    for number in range(len(rows) - 1, 0, -1):
        bound, parent = rows[number], placement.nodes[number].parent
        keys = place_keys(bound.document, bound.upper)  # sorted, as the rows are
        sums = np.append(0, np.cumsum(ways[number]))
        low, high = equal_ranges(place_keys(rows[parent].document, rows[parent].lower), keys)
        ways[parent] *= sums[high] - sums[low]
    crowded = np.bincount(rows[0].document, ways[0], documents) > MOST_BINDINGS
    leading = [(of > 0) & ~crowded[bound.document] for bound, of in zip(rows, ways, strict=True)]
    return [bound.take(kept) for bound, kept in zip(rows, leading, strict=True)], crowded


def _first_of_each(columns: list[Ints]) -> Ints:
    """Returns the places of distinct rows, sorted by row."""
    order = np.lexsort(columns[::-1])
    return order[group_starts(*(column[order] for column in columns))]


# ---------------------------------------------------------------- attributes


def _attribute(
    attribute: PlacedAttribute, document: Ints, places: dict[int, Ints], witnessed: Witnessed, texts: Texts
) -> Column:
    if attribute.node < 0:
        column = np.full(len(document), texts.code(attribute.constant), np.int64)
    else:
        place, missing = places[attribute.node], np.zeros(len(document), np.bool_)
        if attribute.edge is not None:
            bound = witnessed.bound(attribute.edge)
            keys = place_keys(bound.document, bound.upper)
            found, missing = _looked_up(keys, place_keys(document, place))  # the first row has the first node
            place = np.append(bound.lower, 0)[np.where(missing, len(bound.lower), found)]
        keys, codes = witnessed.values(attribute.chain)
        at, none = _looked_up(keys, place_keys(document, place))
        column = np.append(codes, NULL_TEXT)[np.where(missing | none, len(codes), at)]
    return texts.derived_numbers("number", column) if attribute.kind == "number" else column


def _looked_up(ordered: Ints, keys: Ints) -> tuple[Ints, Mask]:
    at = np.searchsorted(ordered, keys)
    return at, np.append(ordered, -1)[at] != keys


EVENT_TIME = "\0events"  # pseudo-stream behind what event queries publish; its watermark is the horizon of events

OTHER_STREAMS = "*"  # in a mapping of `settle`, the key of all streams not named

Settle = int | None | Mapping[str, int | None]
"""How long events wait for earlier ones, in microseconds: for all streams, or by stream. None waits to the end."""


def settle_of(settle: Settle, stream: str) -> int | None:
    return settle.get(stream, settle.get(OTHER_STREAMS)) if isinstance(settle, Mapping) else settle


def next_horizon(
    horizon: Micros, greatest: Mapping[str, int], streams: Iterable[str], settle: Settle, clock: int | None = None
) -> Micros:
    """Returns the horizon after a batch, which never decreases. `greatest` has the greatest time of each external
    stream; `streams` are those that event statements depend on. A live stream counts only up to the `clock`."""
    least: int = END
    for stream in streams:
        time = greatest.get(stream)
        waits = settle_of(settle, stream)
        if waits is None or time is None:
            return horizon
        least = min(least, (time if clock is None else min(time, clock)) - waits)
    return horizon if least == END else Micros(max(horizon, least))


def last_horizon(
    horizon: Micros,
    greatest: Mapping[str, int],
    streams: Iterable[str],
    settle: Settle,
    *,
    lasts: bool,
    fed: Collection[str] = (),
) -> Micros:
    """Returns the horizon at the end of a finite run: END without `settle`; if the state `lasts`, just past the
    greatest time, so that another run may continue. Streams that are `fed` by feeds end where these were read."""
    if settle is not None:
        return horizon
    known = {stream: greatest.get(stream, BEGINNING) + 1 for stream in streams if stream in greatest or stream in fed}
    end = max(known.values(), default=BEGINNING) if lasts else END
    return Micros(max(horizon, min([end, *(time for stream, time in known.items() if stream in fed)])))


def released_at(
    end: Micros, greatest: Mapping[str, int], streams: Iterable[str], settle: Settle
) -> tuple[str, Micros | None] | None:
    """Returns the stream that is furthest behind the time which it must have passed before an event that ends at `end`
    is released, and that time (None: never); None if no stream holds the event."""
    found: list[tuple[float, str, Micros | None]] = []
    for stream in streams:
        waits = settle_of(settle, stream)
        until = None if waits is None else Micros(end + waits)
        lacks = float("inf") if until is None else until - greatest.get(stream, BEGINNING)
        if lacks >= 0:
            found.append((lacks, stream, until))
    return max(found)[1:] if found else None


class Buffer:
    """Events, by stream, until the horizon passes them."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Columns]] = {}

    def __len__(self) -> int:
        return sum(len(events) for parts in self._waiting.values() for events in parts)

    @property
    def first(self) -> Micros | None:
        """The end of the earliest event."""
        ends = (int(events.t1.min()) for parts in self._waiting.values() for events in parts if len(events))
        return min(map(Micros, ends), default=None)

    def add(self, stream: str, events: Columns) -> None:
        if len(events):
            self._waiting.setdefault(stream, []).append(events)

    def is_due(self, until: int) -> bool:
        return any((events.t1 < until).any() for parts in self._waiting.values() for events in parts)

    def release(self, streams: Iterable[str], until: int) -> dict[str, Columns]:
        """Removes and returns the events of some streams that end before a time, by stream, sorted by t1."""
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
        for stream, parts in self._waiting.items():
            self._waiting[stream] = [left for part in parts if len(left := part.take(part.t1 >= until))]

    def drop(self, streams: Iterable[str]) -> None:
        for stream in streams:
            self._waiting.pop(stream, None)

    def parts(self) -> list[Ints]:
        return [events.parts for parts in self._waiting.values() for events in parts]

    def codes(self) -> list[Ints]:
        columns = [column for parts in self._waiting.values() for events in parts for column in events.values]
        return [column for column in columns if column.dtype == np.int64]  # type: ignore[misc]  # the others have numbers
