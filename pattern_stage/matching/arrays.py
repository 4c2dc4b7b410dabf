"""Values of several events of a match as one text, which is JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pattern_stage.columns import Column
from pattern_stage.values import Texts
from xscl.algebra.events import Kind


def plain_values(column: Column, texts: Texts) -> list[Any]:
    """Returns the values of a column: texts, numbers, None for NULL."""
    if column.dtype == np.float64:
        return [None if value != value else value for value in column.tolist()]
    return texts.texts(column.astype(np.int64, copy=False))


def json_arrays(values: Sequence[Any], ends: Sequence[int]) -> Iterator[str]:
    """Yields JSON arrays of consecutive values. Each ends where `ends` says.

    >>> list(json_arrays(["a", 2.5, None], [1, 1, 3]))
    ['["a"]', '[]', '[2.5, null]']
    """
    begin = 0
    for end in ends:
        yield json.dumps(values[begin:end], ensure_ascii=False)
        begin = end


def joined_arrays(texts: Sequence[str | None], ends: Sequence[int]) -> Iterator[str]:
    """Yields JSON arrays of consecutive values that are JSON. Each ends where `ends` says.

    >>> list(joined_arrays(["[1]", "[2]", "[3]"], [1, 3]))
    ['[[1]]', '[[2], [3]]']
    """
    begin = 0
    for end in ends:
        yield f"[{', '.join(map(str, texts[begin:end]))}]"
        begin = end


def as_json(values: Sequence[Any], kinds: Sequence[Kind], texts: Texts) -> str:
    """Returns the values of an event, which are of these kinds, as a JSON array."""
    found = [
        texts.text(value) if kind == "string" else None if value != value else value
        for value, kind in zip(values, kinds, strict=True)
    ]
    return json.dumps(found, ensure_ascii=False)
