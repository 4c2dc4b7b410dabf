"""The shortcuts for few values give what the long ways give."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from join_stage import arrays
from join_stage.arrays import dictionary_encode
from join_stage.duckdb import DuckDBEngine
from join_stage.signature.postings import flatten_edges
from join_stage.tables import R_BIN_FLAT, by_edges
from templates.witness import R_BIN, R_GROUP
from tests.generate.seeds import seeds


@pytest.mark.parametrize("seed", seeds(4, 500))
def test_few_values_have_the_codes_of_many(seed: int, monkeypatch: pytest.MonkeyPatch):
    rng = random.Random(seed)
    values = np.array([rng.randint(-3, 3) << 40 for _ in range(rng.randrange(10))], np.int64)
    few = dictionary_encode(values)
    monkeypatch.setattr(arrays, "FEW", -1)
    for one, other in zip(few, dictionary_encode(values), strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_rows_by_groups_are_expanded_as_a_store_expands_them(seed: int):
    rng = random.Random(seed)
    edges = {group: [(group, var) for var in range(rng.randint(1, 3))] for group in rng.sample(range(9), 5)}
    given = [(rng.randrange(4), rng.choice(list(edges)), rng.randrange(9), rng.randrange(9)) for _ in range(5 * seed)]
    r_bin = pa.table([[row[i] for row in given] for i in range(4)], schema=R_BIN)
    listed = [(group, *edge) for group, several in edges.items() for edge in several]
    engine = DuckDBEngine()
    engine.append("groups", pa.table([[row[i] for row in listed] for i in range(3)], schema=R_GROUP))
    order = [(name, "ascending") for name in R_BIN_FLAT.names]
    assert flatten_edges(r_bin, edges).sort_by(order).equals(by_edges(engine, r_bin).sort_by(order))
    engine.close()
