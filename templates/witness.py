"""The witness relations that stage 1 passes to stage 2, as Arrow schemas (thesis 6.3.1), and 64-bit node ids.

In a node id, the low 32 bits number an element in document order, and the next 12 bits an attribute's position in it,
from 1. Above them is the number of a derived value's chain of functions, from 1, which the catalog assigns and the
store keeps. Its highest bit says that the value is all words of a text, joined to others that share some of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import pyarrow as pa

R_BIN = pa.schema([("docid", pa.int64()), ("grp", pa.int32()), ("node1", pa.int64()), ("node2", pa.int64())])
"""Factorised R_binW: a row stands for one row (docid, var1, var2, node1, node2) for each edge of its group."""

R_GROUP = pa.schema([("grp", pa.int32()), ("var1", pa.int32()), ("var2", pa.int32())])
"""The edges of each group, which always bind together."""

R_DOC = pa.schema([("docid", pa.int64()), ("node", pa.int64()), ("strval", pa.string()), ("stream", pa.string())])
"""String values of the nodes that some value join reads, and the document's stream: not all streams join."""

R_DOCTS = pa.schema([("docid", pa.int64()), ("t0", pa.int64()), ("t1", pa.int64())])
"""The documents' intervals in UTC microseconds."""

ATTRIBUTE_SHIFT = 32

ELEMENT = (1 << ATTRIBUTE_SHIFT) - 1  # the bits of a node id that number the element

CHAIN_SHIFT = 44

MANY_CHAIN = 1 << 62 - CHAIN_SHIFT
"""The bit of a chain's number that says that a text is joined by its words, as by several values."""

MANY = MANY_CHAIN << CHAIN_SHIFT  # MANY_CHAIN in a node id

MOST_CHAINS = MANY_CHAIN - 1  # maximum number of a chain of functions, without this bit

PLAIN = (1 << CHAIN_SHIFT) - 1  # the bits of a node id without the chain of functions


@dataclass(frozen=True, slots=True)
class Witnesses:
    """The witnesses of a batch of documents, as tables of R_BIN, R_GROUP, R_DOC and R_DOCTS."""

    r_bin: pa.Table
    r_group: pa.Table
    r_doc: pa.Table
    r_docts: pa.Table

    @property
    def has_many_values(self) -> bool:
        """Whether nodes have several values, as texts joined by words do."""
        return bool((self.r_doc["node"].to_numpy() >= MANY).any())


def edges_by_group(r_group: pa.Table) -> dict[int, list[tuple[int, int]]]:
    """The distinct edges of each group of R_GROUP, sorted, by group in order."""
    rows = sorted(set(zip(*(r_group[name].to_pylist() for name in R_GROUP.names), strict=True)))
    return {number: [edge[1:] for edge in edges] for number, edges in groupby(rows, itemgetter(0))}


NO_WITNESSES = Witnesses(*(schema.empty_table() for schema in (R_BIN, R_GROUP, R_DOC, R_DOCTS)))


def node_id(element: int, attribute: int = 0, chain: int = 0) -> int:
    """`attribute` is a position from 1, 0 for the element; `chain` is 0 for the plain value."""
    return element | attribute << ATTRIBUTE_SHIFT | chain << CHAIN_SHIFT


def plain_node(node: int) -> tuple[int, int]:
    """(element, attribute) of a node id, without its functions."""
    return node & ELEMENT, (node & PLAIN) >> ATTRIBUTE_SHIFT
