"""The ledger: numbers documents, matches and outputs across batches, and stores metadata with each batch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from feeds.documents import Now, now_us
from feeds.readers import Offset
from join_stage.protocol import Cost
from join_stage.store.protocol import StoreError, TableStore, whole_batch
from mmqjp.tables import schema
from mmqjp.tables.schema import CommitMetadata

SCHEMA_VERSION = 10
"""The format of a store.

Format 2 added pauses of queries and offsets of sources. Format 3 added placements of queries in the catalog. Format 4
added numbered chains of functions and arrivals of documents. Format 5 added numbers and ids of outputs. Format 6 stores
answers instead of outputs, and the forms of queries. Format 7 added what was told once. Format 8 added what sinks did
not get. Format 9 added events. A version that computes another normal form or another template for a query needs a new
format.
"""

BATCH_TABLES = (
    "batches", "answers", "earlier_outputs", "memberships", "settings", "offsets", "pauses", "commands", "events",
    "pattern_state",
)  # fmt: skip
"""The tables with a column `batch`: the number of the batch that wrote the row."""

NEXT_IDS = "numbers"
"""The setting with the next docid, arrival, match and output. The rows with the highest numbers may be dropped."""

COSTS = "costs"
"""The setting with the costs of templates in the last run."""

_ID_COLUMNS = (
    (("documents", "docid"),),
    (("documents", "arrival"),),
    (("match_rows", "match"),),
    (("answers", "last_seq"), ("earlier_outputs", "seq")),
    (("answers", "answer"),),
)

NextIds = tuple[int, int, int, int, int]
"""The next docid, arrival, match, output and answer."""


class Ledger:
    """Reads and writes numbers and metadata. `batch` is the number of the running batch. The caller begins and commits
    batches, unless a method says otherwise."""

    def __init__(self, store: TableStore, now: Now = now_us) -> None:
        """Raises StoreError if the store has a newer format."""
        self._store, self._now = store, now
        self.version = version = int(self.setting("schema_version") or 0)
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"the store has format {version}, and this version of mmqjp reads formats up to {SCHEMA_VERSION}: "
                "install the version that wrote it, or a newer one"
            )
        self.committed_at = 0
        """When the last batch of this process was committed, in microseconds."""
        self.batch = 1 + max(store.highest(table, "batch") for table in BATCH_TABLES)
        noted = json.loads(self.setting(NEXT_IDS) or "[]")
        kept = (max(store.highest(*column) for column in columns) + 1 for columns in _ID_COLUMNS)
        # Older stores have saved fewer.
        docid, arrival, match, seq, answer = (max(pair) for pair in zip_longest(kept, noted, fillvalue=0))
        self.restore_next_ids((docid, arrival, match, seq, answer))

    @property
    def is_current(self) -> bool:
        """Whether the store has the format of this version."""
        return self.version == SCHEMA_VERSION

    # ------------------------------------------------------------ numbers

    def next_ids(self) -> NextIds:
        """Returns the next numbers."""
        return self.next_docid, self.next_arrival, self.next_match, self.next_seq, self.next_answer

    def restore_next_ids(self, next_ids: NextIds) -> None:
        """Resets the next numbers after a rollback."""
        self.next_docid, self.next_arrival, self.next_match, self.next_seq, self.next_answer = next_ids

    def save_next_ids(self) -> None:
        """Writes the next numbers, so that dropping rows does not reuse numbers."""
        self._save_setting(NEXT_IDS, json.dumps(self.next_ids()))

    def first_match(self) -> int:
        """Returns the lowest number of a stored match, or the next number if there is none."""
        first = schema.lowest(self._store, "match_rows", "match")
        return self.next_match if first is None else first

    def first_answer(self) -> int:
        """Returns the lowest number of a stored answer, or the next number if there is none."""
        first = schema.lowest(self._store, "answers", "answer")
        return self.next_answer if first is None else first

    def arrivals(self) -> pa.Table:
        """Returns the `docid` and `arrival` of all stored documents, in the order of their docids."""
        return schema.arrivals(self._store)

    def docid_of_arrival(self, arrival: int) -> int | None:
        """Returns the docid of the first stored external document at or after an arrival, or None."""
        return schema.first_docid_from(self._store, arrival)

    # ------------------------------------------------------------ metadata

    def save_version(self) -> None:
        """Writes, within a batch, that the store has the format of this version."""
        self._save_setting("schema_version", str(SCHEMA_VERSION))

    def save_batch(self, taken_at: int, documents: int, dead_letters: int, outputs: int) -> None:
        """Writes the row of the batch, unless it added nothing. `taken_at` is in microseconds."""
        self.committed_at = self._now()
        schema.save_batch(self._store, self.batch, taken_at, self.committed_at, documents, dead_letters, outputs)

    def save_metadata(self, metadata: CommitMetadata) -> None:
        """Writes the metadata of the running batch."""
        schema.save_offsets(self._store, metadata.offsets, self.batch)
        schema.save_settings(self._store, metadata.settings, self.batch)
        schema.save_answers(self._store, metadata.answers, self._now(), self.batch)
        schema.save_deliveries(self._store, metadata.gaps, metadata.undelivered)

    def answer_to(self, command: str) -> str | None:
        """Returns the stored answer to a command by its id, or None if the command is not done."""
        return schema.answer_to(self._store, command)

    def offsets(self) -> dict[tuple[str, str], Offset]:
        """Returns the offset of each file, by source and file."""
        return schema.offsets(self._store)

    def setting(self, key: str) -> str | None:
        """Returns the latest value of a setting, or None."""
        return schema.setting(self._store, key)

    def settings(self, prefix: str) -> dict[str, str]:
        """Returns the latest values of all settings with a prefix, by the rest of their keys."""
        return schema.read_settings(self._store, prefix)

    def save_costs(self, costs: Mapping[int, Cost], plan: str) -> None:
        """Writes, in a batch of its own, the costs of templates under a plan, by template."""
        noted = {"plan": plan, "templates": {number: asdict(cost) for number, cost in costs.items()}}
        with whole_batch(self._store):
            self._save_setting(COSTS, json.dumps(noted, ensure_ascii=False))
        self.batch += 1

    def costs(self) -> tuple[str, dict[int, Cost]] | None:
        """Returns the plan that was measured last and the costs of templates under it, or None."""
        value = self.setting(COSTS)
        if value is None:
            return None
        kept = json.loads(value)
        costs = {
            int(number): Cost(cost["seconds"], cost["matches"], tuple(cost["templates"]))
            for number, cost in kept["templates"].items()
        }
        return kept["plan"], costs

    def dead_letters(self) -> Iterator[dict[str, Any]]:
        """Yields all dead letters, in no particular order."""
        return schema.dead_letters(self._store)

    def save_settings(self, values: Mapping[str, str]) -> None:
        """Writes settings by key, within a batch."""
        schema.save_settings(self._store, values, self.batch)

    def _save_setting(self, key: str, value: str) -> None:
        schema.save_settings(self._store, {key: value}, self.batch)
