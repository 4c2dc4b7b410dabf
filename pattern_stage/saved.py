"""Saved events of an operator's state: texts as strings, so that any process can restore them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from common.arrays import Ints
from pattern_stage.columns import Column, Columns
from pattern_stage.values import Texts
from xscl.algebra.events import Schema


def saved(columns: Columns, schema: Schema, texts: Texts, prefix: str) -> dict[str, pa.Array]:
    """Returns events as columns of a table, with prefixed names."""
    width = columns.parts.shape[1]
    found = {
        f"{prefix}t0": pa.array(columns.t0),
        f"{prefix}t1": pa.array(columns.t1),
        f"{prefix}parts": lists(columns.parts.ravel(), np.full(len(columns), width)),
    }
    for place, ((_, kind), column) in enumerate(zip(schema, columns.values, strict=True)):
        found[f"{prefix}{place}"] = saved_values(column, kind == "string", texts)
    return found


def loaded(table: pa.Table, schema: Schema, texts: Texts, prefix: str) -> Columns:
    parts, sizes = flatten_lists(table, f"{prefix}parts")
    return Columns(
        ints(table, f"{prefix}t0"),
        ints(table, f"{prefix}t1"),
        tuple(
            loaded_values(table, f"{prefix}{place}", kind == "string", texts) for place, (_, kind) in enumerate(schema)
        ),
        parts.reshape(len(table), int(sizes[0])),
    )


def saved_values(column: Column, are_texts: bool, texts: Texts) -> pa.Array:
    if not are_texts:
        return pa.array(column, pa.float64())
    codes, numbers = np.unique(column, return_inverse=True)
    return pa.array(texts.texts(codes.astype(np.int64)), pa.string()).take(pa.array(numbers))


def loaded_values(table: pa.Table, name: str, are_texts: bool, texts: Texts) -> Column:
    column = table.column(name).combine_chunks()
    if not are_texts:
        return np.array(column.to_numpy(zero_copy_only=False), np.float64)
    encoded = column.dictionary_encode()
    codes = texts.codes([*encoded.dictionary.to_pylist(), None])
    places: Ints = encoded.indices.fill_null(len(codes) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes[places]


def lists(values: Ints, sizes: Ints) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(sizes)), pa.int32()), pa.array(values, pa.int64()))


def flatten_lists(table: pa.Table, name: str) -> tuple[Ints, Ints]:
    """Returns the concatenated values of a list column, and the size of each list."""
    column = table.column(name).combine_chunks()
    sizes = np.array(column.value_lengths().to_numpy(zero_copy_only=False), np.int64)
    return np.array(column.flatten().to_numpy(zero_copy_only=False), np.int64), sizes


def ints(table: pa.Table, name: str) -> Ints:
    return np.array(table.column(name).to_numpy(), np.int64)
