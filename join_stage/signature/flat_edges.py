"""Expands rows of R_bin by groups into rows by edges, without a store."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa

from join_stage.arrays import expand_ranges
from join_stage.state_tables import R_BIN_FLAT
from templates.catalog import Edge


def flat(r_bin: pa.Table, edges: Mapping[int, Collection[Edge]]) -> pa.Table:
    """Rows of R_BIN as rows of R_BIN_FLAT. `edges` has those of each group."""
    keys, code = np.unique(r_bin["grp"].to_numpy(), return_inverse=True)
    of_keys = [edges[key] for key in keys.tolist()]
    ends = np.cumsum([0, *map(len, of_keys)])
    at, row = expand_ranges(ends[code], ends[code + 1])
    variables = np.array([edge for several in of_keys for edge in several], np.int32).reshape(-1, 2)[at]
    docid, node1, node2 = (r_bin[name].to_numpy()[row] for name in ("docid", "node1", "node2"))
    return pa.table([docid, variables[:, 0], variables[:, 1], node1, node2], schema=R_BIN_FLAT)
