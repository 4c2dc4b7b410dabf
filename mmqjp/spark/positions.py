"""The committed offsets of a Spark store, read by a process other than the one that holds the store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from feeds.offsets import Offset, Positions
from join_stage.store.schema import StoreSchema
from join_stage.store.spark.manifests import DataFile, newest_files, read_checked
from mmqjp.tables.offsets import OFFSETS, by_file


class StoredPositions:
    """Returns the offsets that the last batch of a store has committed. Reads them only when they have changed."""

    def __init__(self, state: Path) -> None:
        self._state = state.absolute()
        self._files: tuple[DataFile, ...] = ()
        self._positions: Positions = {}

    def __call__(self) -> Positions:
        files = newest_files(self._state, StoreSchema({"offsets": OFFSETS}))["offsets"]
        if files != self._files:
            schema = OFFSETS
            tables = [read_checked(self._state / "offsets" / file.name, file, schema) for file in files]
            rows = pa.concat_tables([schema.empty_table(), *tables]).sort_by("batch").to_pylist()
            self._positions = by_file(Offset(r["source"], r["file"], r["position"], r["mark"] or "") for r in rows)
            self._files = files
        return self._positions
