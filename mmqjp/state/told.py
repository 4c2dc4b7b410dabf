"""What queries with ONCE PER have told, as a store keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from join_stage.store.protocol import TableStore
from mmqjp.tables.told import ToldRow, save_told, told_among

AskedKey = tuple[int, int, int]
"""A query, by its qid, and the halves of a key's digest."""


class Told:
    """Reads and writes what was told, within batches of a store."""

    def __init__(self, store: TableStore) -> None:
        self._store = store

    def ends(self, keys: Mapping[AskedKey, tuple[int, int]]) -> dict[AskedKey, list[int]]:
        """Returns when the outputs ended that told these keys, sorted: of each key the ends between two times, which
        are included. Keys that were not told then are left out."""
        found: dict[AskedKey, list[int]] = {}
        if keys:
            rows = told_among(self._store, sorted((*key, *times) for key, times in keys.items()))
            for qid, high, low, t1 in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                found.setdefault((qid, high, low), []).append(t1)
        for ends in found.values():
            ends.sort()
        return found

    def save(self, rows: Sequence[ToldRow]) -> None:
        """Writes what is told now."""
        save_told(self._store, rows)
