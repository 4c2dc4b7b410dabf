"""What waits as a table with a row for each key: the rows of the m-op in it, the numbers of its events, and a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pattern_stage.columns import column_of
from pattern_stage.matching.saved_parts import SavedPart
from pattern_stage.operators import Renumber
from pattern_stage.saved import flat, lists, loaded_values, saved_values
from pattern_stage.values import Texts
from xscl.algebra.events import Kind


class Loaded(NamedTuple):
    """A row of the table: `rows` says which row each of the saved ones is now."""

    key: tuple[Any, ...]
    data: str
    numbers: list[int]
    rows: dict[int, int]


def keyed_table(saved: Sequence[tuple[tuple[Any, ...], SavedPart]], kinds: Sequence[Kind], texts: Texts) -> pa.Table:
    """Returns parts with their keys as a table. Keys have values of these kinds; one without values stands for all."""
    if not saved:
        return pa.table({})
    columns = {}
    for place, kind in enumerate(kinds):
        null: Any = -1 if kind == "string" else np.nan
        values = column_of([key[place] if key else null for key, _ in saved], are_texts=kind == "string")
        columns[f"key_{place}"] = saved_values(values, kind == "string", texts)
    return pa.table(
        {
            "rows": _lists([part.rows for _, part in saved]),
            "parts": _lists([part.numbers for _, part in saved]),
            "data": pa.array([part.data for _, part in saved], pa.string()),
            **columns,
        }
    )


def keyed_rows(table: pa.Table, kinds: Sequence[Kind], texts: Texts, renumber: Renumber) -> Iterator[Loaded]:
    """Yields the rows of a table that have any rows of the m-op left."""
    if not len(table):
        return
    columns = [
        loaded_values(table, f"key_{place}", kind == "string", texts).tolist() for place, kind in enumerate(kinds)
    ]
    keys = list(zip(*columns, strict=True)) if columns else [()] * len(table)
    rows, row_sizes = flat(table, "rows")
    numbers, sizes = flat(table, "parts")
    now = renumber(rows)
    row_end = end = 0
    data = table["data"].to_pylist()
    for key, text, row_size, size in zip(keys, data, row_sizes.tolist(), sizes.tolist(), strict=True):
        here = slice(row_end, row_end + row_size)
        known = {old: new for old, new in zip(rows[here].tolist(), now[here].tolist(), strict=True) if new >= 0}
        if known:
            yield Loaded(key, text, numbers[end : end + size].tolist(), known)
        row_end, end = row_end + row_size, end + size


def _lists(values: Sequence[Sequence[int]]) -> pa.Array:
    sizes = np.array([len(one) for one in values], np.int64)
    return lists(np.array([one for some in values for one in some], np.int64), sizes)
