"""A saved state of several parts: each as `Kernel.state` returns it, under names that say whose it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from pattern_stage.columns import Ints
from pattern_stage.saved import flat, ints, lists

_ROWS = "/rows"

_NUMBERS = frozenset(("rows", "row", "event", "origin"))
"""The columns that number what a state has."""

State = Mapping[str, pa.Table]


def named(group: str, part: int, state: State) -> dict[str, pa.Table]:
    """Returns the state of a part of a group under the names that it is saved by."""
    return {f"{group}.{part} {name}": table for name, table in state.items()}


def as_one(several: Sequence[State]) -> dict[str, pa.Table]:
    """Returns states, which may be saved in parts, as groups of one."""
    found: dict[str, pa.Table] = {}
    for number, state in enumerate(several):
        for key, table in state.items():
            group, _, name = key.rpartition(" ")
            group, _, part = group.rpartition(".")
            found[f"{number}-{group}.{part or 0} {name}"] = table
    return found


def states(saved: State) -> Iterator[State]:
    """Yields the states that are saved as one. A kernel that takes over all of them has what waits once.

    The parts of a group have nothing in common. Groups may.
    """
    groups = [list(parts) for _, parts in groupby(_parts(saved), key=lambda one: one[0].rpartition(".")[0])]
    held = Counter(name for parts in groups for name in {name for _, state in parts for name in state})
    common = {name for name, count in held.items() if count > 1 and name + _ROWS in held}
    seen: dict[str, set[Hashable]] = {name: set() for name in common}
    for parts in groups:
        new: dict[str, Counter[Hashable]] = {name: Counter() for name in common}
        for _, state in parts:
            mine = dict(state)
            for name in common & state.keys():
                mine[name] = _unseen(state[name], state[name + _ROWS], seen[name], new[name])
            yield mine
        for name in common:
            seen[name].update(new[name])


def _parts(saved: State) -> Iterable[tuple[str, dict[str, pa.Table]]]:
    found: dict[str, dict[str, pa.Table]] = {}
    for key in sorted(saved):
        part, _, name = key.rpartition(" ")
        found.setdefault(part, {})[name] = saved[key]
    return found.items()


def _unseen(table: pa.Table, rows: pa.Table, seen: set[Hashable], new: Counter[Hashable]) -> pa.Table:
    """Returns a table of what waits without what other groups have, and counts all of it in `new`.

    Of events in windows, equal ones are told apart by their numbers: as many as any group has are in all.
    """
    keys = dict(zip(ints(rows, "row").tolist(), rows["key"].to_pylist(), strict=True))
    columns = [table[name].to_pylist() for name in table.column_names if name not in _NUMBERS]
    instances = [repr(values) for values in zip(*columns, strict=True)]
    if "rows" not in table.column_names:  # windows of AGGREGATE
        kept = []
        for row, instance in zip(ints(table, "row").tolist(), instances, strict=True):
            new[keys[row], instance] += 1
            numbered = keys[row], instance, new[keys[row], instance]
            new[numbered] = 1
            kept.append(numbered not in seen)
        return table.filter(pa.array(kept, pa.bool_()))
    numbers, sizes = flat(table, "rows")
    of = np.repeat(np.arange(len(sizes)), sizes)
    pairs = [(keys[row], instances[at]) for row, at in zip(numbers.tolist(), of.tolist(), strict=True)]
    new.update(pairs)
    there = np.array([pair not in seen for pair in pairs], np.bool_)
    counts: Ints = np.bincount(of[there], minlength=len(sizes))
    place = table.column_names.index("rows")
    return table.set_column(place, "rows", lists(numbers[there], counts)).filter(pa.array(counts > 0))
