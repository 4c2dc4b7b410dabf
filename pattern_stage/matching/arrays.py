"""Values of several events of a match as one text, which is JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pattern_stage.columns import Column
from pattern_stage.matching.slots import FIRST_SLOT
from pattern_stage.values import Texts
from xscl.algebra.events import Kind


class Chain(Protocol):
    """Events in the order of time, and of each its input."""

    @property
    def events(self) -> Sequence[tuple[Any, ...]]: ...

    @property
    def components(self) -> Sequence[int]: ...


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


def events_of(chains: Sequence[Chain], kinds: Mapping[int, Sequence[Kind]], texts: Texts) -> Column:
    """Returns the attribute EVENTS of chains. The events of an input have values of these kinds."""
    values = [
        _values(event, kinds.get(of, ()), texts)
        for one in chains
        for event, of in zip(one.events, one.components, strict=True)
    ]
    return texts.codes(json_arrays(values, np.cumsum([len(one.events) for one in chains]).tolist()))


def _values(event: tuple[Any, ...], kinds: Sequence[Kind], texts: Texts) -> list[Any]:
    return [
        texts.text(value) if kind == "string" else None if value != value else value
        for value, kind in zip(event[FIRST_SLOT:], kinds, strict=True)
    ]
