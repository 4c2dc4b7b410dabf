"""Few rows become the same Arrow table as many."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from mmqjp.tables import schema as schema_module
from mmqjp.tables.schema import TABLES, rows_table


def drawn(rng: random.Random, kind: pa.DataType) -> object:
    if rng.random() < 0.1:
        return None
    if pa.types.is_list(kind):
        return tuple(drawn(rng, kind.value_type) for _ in range(rng.randrange(3)))
    if pa.types.is_integer(kind):
        return rng.randrange(1 << 31)
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    text = "".join(rng.choices("aé \U0001f600", k=rng.randrange(4)))
    return text.encode() if pa.types.is_binary(kind) else text


@pytest.mark.parametrize("table", sorted(TABLES))
def test_few_rows_become_what_many_become(table: str, monkeypatch: pytest.MonkeyPatch):
    rng, schema = random.Random(table), TABLES[table]
    for count in range(4):
        given = [tuple(drawn(rng, field.type) for field in schema) for _ in range(count)]
        few = rows_table(given, schema)
        with monkeypatch.context() as patch:
            patch.setattr(schema_module, "FEW_ROWS", 0)
            many = rows_table(given, schema)
        few.validate(full=True)
        assert few.schema.equals(schema)
        assert few.equals(many)
