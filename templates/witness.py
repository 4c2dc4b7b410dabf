"""The witness relations that stage 1 hands to stage 2, as Arrow schemas (thesis 6.3.1).

`node` ids are 64-bit: an element's number in document order in the low 32 bits; for an attribute also its place among
its owner's attributes, counted from 1, in the next 12; for a derived value also the number of its chain of functions,
from 1, on top. The catalog hands out the numbers of chains, and a store keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

R_BIN = pa.schema([("docid", pa.int64()), ("grp", pa.int32()), ("node1", pa.int64()), ("node2", pa.int64())])
"""Factorised R_binW: a row stands for (docid, var1, var2, node1, node2) with every edge (var1, var2) of its group."""

R_GROUP = pa.schema([("grp", pa.int32()), ("var1", pa.int32()), ("var2", pa.int32())])
"""The edges of each group of edges that always bind together."""

R_DOC = pa.schema([("docid", pa.int64()), ("node", pa.int64()), ("strval", pa.string()), ("stream", pa.string())])
"""String values of the nodes that some value join reads, with the document's stream: only some streams are joined."""

R_DOCTS = pa.schema([("docid", pa.int64()), ("t0", pa.int64()), ("t1", pa.int64())])
"""Interval timestamps of the documents, UTC microseconds."""

ATTRIBUTE_SHIFT = 32
"""How far an attribute's place is shifted in its node id."""

CHAIN_SHIFT = 44
"""How far the number of a chain of functions is shifted in a node id."""

MOST_CHAINS = (1 << 63 - CHAIN_SHIFT) - 1
"""The greatest number of a chain of functions."""

PLAIN = (1 << CHAIN_SHIFT) - 1
"""The bits of a node id that do not tell by which functions a value is derived."""


@dataclass(frozen=True, slots=True)
class Witnesses:
    """The witnesses of a batch of documents."""

    r_bin: pa.Table
    r_group: pa.Table
    r_doc: pa.Table
    r_docts: pa.Table


NO_WITNESSES = Witnesses(*(schema.empty_table() for schema in (R_BIN, R_GROUP, R_DOC, R_DOCTS)))
"""Those of no documents."""


def node_id(element: int, attribute: int = 0, chain: int = 0) -> int:
    """The id of a node: `attribute` counts from 1, 0 is the element itself; so does `chain`, the number of a chain of
    functions, 0 if the value is the node's own."""
    return element | attribute << ATTRIBUTE_SHIFT | chain << CHAIN_SHIFT


def plain_node(node: int) -> tuple[int, int]:
    """(element, attribute) of a node id, without its functions."""
    return node & 0xFFFFFFFF, (node & PLAIN) >> ATTRIBUTE_SHIFT
