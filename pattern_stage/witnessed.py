"""What stage 1 found for events in a batch of documents, told from what it found for joins, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pattern_stage.columns import Ints, Mask
from pattern_stage.values import Texts
from templates.catalog import Edge, Functions
from templates.witness import ATTRIBUTE_SHIFT, CHAIN_SHIFT, PLAIN, Witnesses
from xscl.algebra.functions import OF_EVENTS

ORDER_SHIFT = CHAIN_SHIFT
"""The bits of a place (see `places_of`)."""

MOST_DOCUMENTS = 1 << (63 - ORDER_SHIFT)
"""The largest number of documents that are looked at together: a document's index and a place are one key."""

EdgesOf = Callable[[Iterable[int]], Mapping[int, Collection[Edge]]]
"""Returns the edges of groups, by their numbers."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The rows of an edge: the index of the document, and the places of the two nodes."""

    document: Ints
    upper: Ints
    lower: Ints


_NO_ROWS = np.zeros(0, np.int64)
_UNBOUND = Bound(_NO_ROWS, _NO_ROWS, _NO_ROWS)


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
        self._upper = places_of(r_bin["node1"].to_numpy()[by_group])
        self._lower = places_of(r_bin["node2"].to_numpy()[by_group])
        numbers, first = np.unique(group[by_group], return_index=True)
        self._slices: dict[Edge, list[slice]] = {}
        ends = np.append(first, len(group))[1:]
        edges = edges_of(numbers.tolist())
        for number, begin, end in zip(numbers.tolist(), first.tolist(), ends.tolist(), strict=True):
            for edge in edges[number]:
                self._slices.setdefault(edge, []).append(slice(begin, end))
        self._values: dict[int, FoundValues] = {}
        self._r_doc, self._texts = witnesses.r_doc, texts
        self._chains = witnesses.r_doc["node"].to_numpy() >> CHAIN_SHIFT

    def bound(self, edge: Edge) -> Bound:
        """Returns the distinct rows of an edge."""
        slices = self._slices.get(edge)
        if slices is None:
            return _UNBOUND
        columns = self._document, self._upper, self._lower
        return Bound(*(np.concatenate([column[part] for part in slices]) for column in columns))

    def values(self, chain: int) -> FoundValues:
        """Returns the values of a chain of functions."""
        found = self._values.get(chain)
        if found is None:
            found = self._values[chain] = self._read(self._chains == chain)
        return found

    def _read(self, rows: Mask) -> FoundValues:
        table = self._r_doc.filter(pa.array(rows))
        keys = keys_of(np.searchsorted(self.docids, table["docid"].to_numpy()), places_of(table["node"].to_numpy()))
        encoded = pa.chunked_array(table["strval"]).combine_chunks().dictionary_encode()
        codes = self._texts.codes(encoded.dictionary.to_pylist())[encoded.indices.to_numpy()]
        order = np.argsort(keys)
        return FoundValues(keys[order], codes[order])


def places_of(nodes: Ints) -> Ints:
    """Returns the ids of nodes, without chains of functions, as numbers in document order."""
    return (nodes & 0xFFFFFFFF) << (CHAIN_SHIFT - ATTRIBUTE_SHIFT) | (nodes & PLAIN) >> ATTRIBUTE_SHIFT


def nodes_of(places: Ints) -> Ints:
    """Returns the ids of the nodes at places."""
    return places >> (CHAIN_SHIFT - ATTRIBUTE_SHIFT) | (places & ((1 << CHAIN_SHIFT - ATTRIBUTE_SHIFT) - 1)) << (
        ATTRIBUTE_SHIFT
    )


def keys_of(document: Ints, places: Ints) -> Ints:
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
