"""The witness relations that stage 1 hands to stage 2, as Arrow schemas (thesis 6.3.1).

Node ids are 64-bit. The low 32 bits have the number of an element in document order. For an attribute, the next 12
bits have its position among the attributes of that element, from 1. For a derived value, the bits above have the number
of its chain of functions, from 1. The catalog numbers chains, and a store keeps the numbers. The highest of these bits
says that the value is all words of a text, by which it is joined: it is near others that have some of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

R_BIN = pa.schema([("docid", pa.int64()), ("grp", pa.int32()), ("node1", pa.int64()), ("node2", pa.int64())])
"""Factorised R_binW: a row stands for one row (docid, var1, var2, node1, node2) for each edge of its group."""

R_GROUP = pa.schema([("grp", pa.int32()), ("var1", pa.int32()), ("var2", pa.int32())])
"""The edges of each group. The edges of a group always bind together."""

R_DOC = pa.schema([("docid", pa.int64()), ("node", pa.int64()), ("strval", pa.string()), ("stream", pa.string())])
"""The string values of the nodes that some value join reads, and the stream of the document: not all streams join."""

R_DOCTS = pa.schema([("docid", pa.int64()), ("t0", pa.int64()), ("t1", pa.int64())])
"""The interval timestamps of the documents, in UTC microseconds."""

ATTRIBUTE_SHIFT = 32
"""The shift of the position of an attribute in a node id."""

CHAIN_SHIFT = 44
"""The shift of the number of a chain of functions in a node id."""

MANY_CHAIN = 1 << 62 - CHAIN_SHIFT
"""The bit of the number of a chain of functions that says that a text is joined by its words, as by several values."""

MANY = MANY_CHAIN << CHAIN_SHIFT
"""The same in a node id."""

MOST_CHAINS = MANY_CHAIN - 1
"""The greatest number of a chain of functions, without this bit."""

PLAIN = (1 << CHAIN_SHIFT) - 1
"""The bits of a node id without the chain of functions."""


@dataclass(frozen=True, slots=True)
class Witnesses:
    """The witnesses of a batch of documents, as tables of R_BIN, R_GROUP, R_DOC and R_DOCTS."""

    r_bin: pa.Table
    r_group: pa.Table
    r_doc: pa.Table
    r_docts: pa.Table


NO_WITNESSES = Witnesses(*(schema.empty_table() for schema in (R_BIN, R_GROUP, R_DOC, R_DOCTS)))
"""The witnesses of no documents."""


def node_id(element: int, attribute: int = 0, chain: int = 0) -> int:
    """The id of a node. `attribute` is a position from 1, 0 for the element itself. `chain` is the number of a chain of
    functions from 1, 0 for the value of the node itself."""
    return element | attribute << ATTRIBUTE_SHIFT | chain << CHAIN_SHIFT


def plain_node(node: int) -> tuple[int, int]:
    """(element, attribute) of a node id, without its functions."""
    return node & 0xFFFFFFFF, (node & PLAIN) >> ATTRIBUTE_SHIFT
