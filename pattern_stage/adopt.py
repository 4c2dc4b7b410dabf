"""Takes over what waits in another kernel, whose events were numbered apart: those that are known here keep their
numbers, and what both have waits once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pattern_stage.columns import Ints
from pattern_stage.lineage import COMPOSED, DIGEST_NUMBERS, LINEAGE, TOGETHER, Lineage
from pattern_stage.partition.apart import State, as_one
from pattern_stage.partition.sets import Numbers


def adopted(state: State, others: State, parts: Iterable[Ints], theirs: Lineage, ours: Lineage) -> dict[str, pa.Table]:
    """Returns a state with what `others` has beside it. Their `parts` are numbered in their lineage, and in ours from
    now on, too."""
    return as_one([state, _numbers(theirs.rows(parts), ours).in_state(others)])


def _numbers(rows: pa.Table, ours: Lineage) -> Numbers:
    """Returns numbers of ours for rows of another lineage. Those that ours lacks are added to it."""
    known = {_key(row, row["refers"]): row["number"] for row in ours.table().to_pylist()}
    number_of: dict[int, int] = {-1: -1}
    new: list[dict[str, object]] = []
    for row in sorted(rows.to_pylist(), key=lambda row: row["number"]):  # what a set or an event is made of is less
        refers = _refers(row, number_of)
        key = _key(row, refers)
        number = known.get(key)
        if number is None:
            number = known[key] = ours.next + len(new)
            new.append(row | {"number": number, "refers": refers})
        number_of[row["number"]] = number
    ours.restore(pa.Table.from_pylist(new, LINEAGE))
    theirs = np.array(sorted(number_of), np.int64)
    return Numbers(theirs, np.array([number_of[number] for number in theirs.tolist()], np.int64))


def _refers(row: Mapping[str, Any], number_of: Mapping[int, int]) -> list[int]:
    """Returns what a row refers to, in our numbers: of an event of a document, these are nodes."""
    refers: list[int] = row["refers"]
    if row["docid"] == TOGETHER:
        return [number_of[number] for number in refers]
    if row["docid"] == COMPOSED:
        return [*refers[:DIGEST_NUMBERS], *(number_of[number] for number in refers[DIGEST_NUMBERS:])]
    return refers


def _key(row: Mapping[str, Any], refers: list[int]) -> Hashable:
    """Returns what an event is the same by."""
    if row["docid"] == TOGETHER:
        return frozenset(refers) - {-1}
    if row["docid"] == COMPOSED:
        return row["stream"], tuple(refers[:DIGEST_NUMBERS])
    return row["stream"], row["docid"], tuple(node for node in refers if node >= 0)
