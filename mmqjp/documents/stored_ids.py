"""Tells which ids of documents a store has, without asking it about new ones."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.distinct import distinct, merged
from join_stage.store.protocol import TableStore
from mmqjp.tables.documents import ids_between, ids_of_dropped, known_ids

READ_IDS = 200_000
"""The number of docids whose ids are read at a time."""

RECENT_IDS = 10_000
"""The hashes of at least this many new ids are kept apart before they are sorted in."""

Key = tuple[str, str]
"""A stream and an id."""


class StoredIds:
    """The ids of a store's documents, and those of dropped documents that are kept.

    They are in memory as hashes, eight bytes each. An id whose hash is new is not in the store; for all others the
    store is asked. So a hash may stay after its id has gone.
    """

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self._sorted: NDArray[np.int64] | None = None
        self._recent: set[int] = set()

    def add(self, stream: str, id: str) -> None:
        """Adds a document that is about to be stored."""
        self._recent.add(hash((stream, id)))

    def forget(self) -> None:
        """Reads the ids again when they are next needed, because many have gone."""
        self._sorted = None
        self._recent.clear()

    def among(self, keys: Iterable[Key]) -> set[Key]:
        """Returns those of some keys that the store has."""
        asked = list(keys)
        hashes = np.fromiter(map(hash, asked), np.int64, len(asked))
        known = self._hashes()
        place = np.searchsorted(known, hashes)
        place[place == len(known)] = 0
        possible = known[place] == hashes if len(known) else np.zeros(len(asked), np.bool_)
        numbers = hashes.tolist()
        maybe = self._recent.intersection(numbers).union(hashes[possible].tolist())
        if not maybe:
            return set()
        return known_ids(self._store, [key for key, number in zip(asked, numbers, strict=True) if number in maybe])

    def _hashes(self) -> NDArray[np.int64]:
        """Returns the sorted hashes, but for the recent ones."""
        if self._sorted is None:
            self._sorted = self._read()
        elif len(self._recent) > max(RECENT_IDS, len(self._sorted) // 8):
            self._sorted = merged(self._sorted, np.fromiter(self._recent, np.int64, len(self._recent)))
            self._recent.clear()
        return self._sorted

    def _read(self) -> NDArray[np.int64]:
        found = [_hashed(ids_of_dropped(self._store))]
        end = self._store.highest("documents", "docid") + 1
        for first in range(0, end, READ_IDS):
            found.append(_hashed(ids_between(self._store, first, first + READ_IDS)))
        return distinct(np.concatenate(found))


def _hashed(keys: pa.Table) -> NDArray[np.int64]:
    pairs = zip(keys["stream"].to_pylist(), keys["id"].to_pylist(), strict=True)
    return np.fromiter(map(hash, pairs), np.int64, len(keys))
