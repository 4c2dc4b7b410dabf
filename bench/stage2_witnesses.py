"""The witnesses of documents with a known schema, computed without stage 1, which would find the same ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from bench.stage2_queries import ROOT, Registered
from templates.witness import R_BIN, R_DOC, R_DOCTS, R_GROUP, Witnesses

SECOND = 1_000_000


def witnesses(
    registered: Registered, stream: str, leaves: Sequence[pa.Array], first_docid: int, *, groups: bool = True
) -> Witnesses:
    """The witnesses of documents that arrive a second apart: `leaves[i]` has the string values of leaf i.

    A group holds the edges between two nodes; `groups` tells to name them, as the first batch of a stream has to.
    """
    count = len(leaves[0])
    docids = np.arange(first_docid, first_docid + count, dtype=np.int64)
    by_nodes = _edges_by_nodes(registered, stream)
    # No other stream's groups have these numbers.
    numbers = range(registered.streams.index(stream) << 16, (registered.streams.index(stream) << 16) + len(by_nodes))
    edges = [(number, *edge) for number, of in zip(numbers, by_nodes.values(), strict=True) for edge in of]
    valued = [i for i in range(len(leaves)) if _is_valued(registered, stream, i)]
    node_of, schema = registered.schema.node_of, registered.schema
    times = docids * SECOND
    return Witnesses(
        _table(
            R_BIN,
            np.tile(docids, len(by_nodes)),
            np.repeat(np.array(numbers, np.int32), count),
            np.repeat(np.array([nodes[0] for nodes in by_nodes], np.int64), count),
            np.repeat(np.array([nodes[1] for nodes in by_nodes], np.int64), count),
        ),
        _table(R_GROUP, *zip(*edges, strict=True)) if groups and edges else R_GROUP.empty_table(),
        _table(
            R_DOC,
            np.tile(docids, len(valued)),
            np.repeat(np.array([node_of[schema.leaf(i)] for i in valued], np.int64), count),
            pa.concat_arrays([leaves[i] for i in valued]) if valued else [],
            pa.repeat(stream, count * len(valued)),
        ),
        _table(R_DOCTS, docids, times, times),
    )


def _edges_by_nodes(registered: Registered, stream: str) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """The edges of a stream's variables, by the pair of nodes that each binds."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    steps, node_of = registered.catalog.steps, registered.schema.node_of
    for edge in sorted(registered.edges):
        if steps[edge[0]].stream == stream:
            above, below = (node_of[steps[variable].node.test.local] for variable in edge)
            found.setdefault((above, below), []).append(edge)
    return found


def _is_valued(registered: Registered, stream: str, leaf: int) -> bool:
    """Whether some value join reads the leaf."""
    steps, tag = registered.catalog.steps, registered.schema.leaf(leaf)
    return any(steps[v].stream == stream and steps[v].node.test.local == tag for v in registered.values)


def _table(schema: pa.Schema, *columns: object) -> pa.Table:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def document(registered: Registered, values: Sequence[str]) -> bytes:
    """The document itself, for stage 1 to find the same witnesses in: `values[i]` is that of leaf i."""
    parts: dict[str, list[str]] = {}
    for i, value in enumerate(values):
        tag = registered.schema.leaf(i)
        parts.setdefault(registered.schema.above(i), []).append(f"<{tag}>{value}</{tag}>")
    inner = "".join("".join(of) if tag == ROOT else f"<{tag}>{''.join(of)}</{tag}>" for tag, of in parts.items())
    return f"<{ROOT}>{inner}</{ROOT}>".encode()
