"""Nodes with several values: those that are joined by their words have a row of R_doc for each key."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from templates.witness import CHAIN_SHIFT, MANY, R_DOC
from xscl.algebra.near import keys


def with_keys(r_doc: pa.Table, thresholds: Mapping[int, str]) -> pa.Table:
    """Rows of R_doc in which the keys of each text that is joined by its words stand for the text, a row for each.

    `thresholds` has those of the chains of functions with several values, by number.
    """
    nodes = r_doc["node"].to_numpy()
    many = np.flatnonzero(nodes & MANY)
    if not len(many):
        return r_doc
    own = r_doc.take(pa.array(many))
    chains = (own["node"].to_numpy() >> CHAIN_SHIFT).tolist()
    found = [keys(text, thresholds[chain]) for text, chain in zip(own["strval"].to_pylist(), chains, strict=True)]
    rows = own.take(pa.array(np.repeat(np.arange(len(own)), list(map(len, found)))))
    texts = pa.array([key for of_text in found for key in of_text], pa.string())
    exploded = rows.set_column(R_DOC.get_field_index("strval"), "strval", pa.chunked_array([texts]))
    others = r_doc.filter(pa.array((nodes & MANY) == 0))
    return pa.concat_tables([others, exploded])
