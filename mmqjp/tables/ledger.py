"""The ledger: numbers documents, matches and outputs across batches, and stores metadata with each batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from common.tools import from_json
from feeds.documents import Now, now_us
from feeds.readers import Offset
from join_stage.protocol import Cost
from join_stage.store.protocol import StoreError, TableStore, whole_batch
from mmqjp.tables.schema import (
    ARRIVAL,
    CommitMetadata,
    TableRows,
    by_file,
    read_settings,
    save_deliveries,
    single_number,
)

SCHEMA_VERSION = 10
"""The format of a store.

Format 2 added pauses of queries and offsets of sources; 3 placements of queries; 4 numbered chains of functions, and
arrivals; 5 numbers and ids of outputs; 6 answers in place of outputs, and forms; 7 the keys of ONCE PER; 8 undelivered
outputs; 9 events; 10 see `mmqjp.state.migration`. A change of normal forms or templates needs a new format.
"""

BATCH_TABLES = (
    "batches", "answers", "earlier_outputs", "memberships", "settings", "offsets", "pauses", "commands", "events",
    "pattern_state",
)  # fmt: skip
"""Tables whose column `batch` is the number of the batch that wrote the row."""

NEXT_IDS = "numbers"
"""Setting with the next numbers, since the rows with the highest may be dropped."""

COSTS = "costs"

_ID_COLUMNS = (
    (("documents", "docid"),),
    (("documents", "arrival"),),
    (("match_rows", "match"),),
    (("answers", "last_seq"), ("earlier_outputs", "seq")),
    (("answers", "answer"),),
)

NextIds = tuple[int, int, int, int, int]
"""Next docid, arrival, match, output and answer."""


class Ledger:
    """Reads and writes numbers and metadata, in batches of the caller unless noted. `batch` is the running one."""

    def __init__(self, store: TableStore, now: Now = now_us) -> None:
        """Raises StoreError if the store has a newer format."""
        self._store, self._rows, self._now = store, TableRows(store), now
        self.version = version = int(self.setting("schema_version") or 0)
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"the store has format {version}, and this version of mmqjp reads formats up to {SCHEMA_VERSION}: "
                "install the version that wrote it, or a newer one"
            )
        self.committed_at = 0
        """Time of this process's last commit, in microseconds."""
        self.batch = 1 + max(store.highest(table, "batch") for table in BATCH_TABLES)
        noted = json.loads(self.setting(NEXT_IDS) or "[]")
        kept = (max(store.highest(*column) for column in columns) + 1 for columns in _ID_COLUMNS)
        # Older stores have saved fewer.
        docid, arrival, match, seq, answer = (max(pair) for pair in zip_longest(kept, noted, fillvalue=0))
        self.restore_next_ids((docid, arrival, match, seq, answer))

    @property
    def is_current(self) -> bool:
        return self.version == SCHEMA_VERSION

    # ------------------------------------------------------------ numbers

    def next_ids(self) -> NextIds:
        return self.next_docid, self.next_arrival, self.next_match, self.next_seq, self.next_answer

    def restore_next_ids(self, next_ids: NextIds) -> None:
        self.next_docid, self.next_arrival, self.next_match, self.next_seq, self.next_answer = next_ids

    def save_next_ids(self) -> None:
        """Persists the next numbers, so that none is reused after rows are dropped."""
        self.save_settings({NEXT_IDS: json.dumps(self.next_ids())})

    def arrivals(self) -> pa.Table:
        """Returns `docid` and `arrival` of all stored documents, by docid."""
        return self._store.select(f"SELECT docid, {ARRIVAL} AS arrival FROM documents ORDER BY docid")

    def docid_of_arrival(self, arrival: int) -> int | None:
        """Returns the first stored external docid at or after an arrival, or None."""
        sql = f"SELECT min(docid) AS docid FROM documents WHERE kind = 'external' AND {ARRIVAL} >= {arrival}"
        return single_number(self._store, sql)

    # ------------------------------------------------------------ metadata

    def save_version(self) -> None:
        self.save_settings({"schema_version": str(SCHEMA_VERSION)})

    def save_batch(self, taken_at: int, documents: int, dead_letters: int, outputs: int) -> None:
        """Writes the batch's row unless it is empty. `taken_at` is in microseconds."""
        self.committed_at = self._now()
        if documents or dead_letters or outputs:
            row = (self.batch, taken_at, self.committed_at, documents, dead_letters, outputs)
            self._rows.append("batches", [row])

    def save_metadata(self, metadata: CommitMetadata) -> None:
        self._save_offsets(metadata.offsets)
        self.save_settings(metadata.settings)
        now = self._now()
        self._rows.append("commands", [(id, answer, now, self.batch) for id, answer in metadata.answers.items()])
        save_deliveries(self._store, metadata.gaps, metadata.undelivered)

    def answer_to(self, command: str) -> str | None:
        asked = pa.table({"id": [command]})
        found = self._store.select("SELECT c.answer FROM commands c JOIN asked a ON c.id = a.id", {"asked": asked})
        return next((row["answer"] for row in found.to_pylist()), None)

    def offsets(self) -> dict[tuple[str, str], Offset]:
        return by_file(
            self._rows.select("""SELECT source, file, position, mark FROM offsets JOIN
(SELECT source, file, max(batch) AS batch FROM offsets GROUP BY source, file) latest USING (source, file, batch)""")
        )

    def _save_offsets(self, found: Iterable[Offset]) -> None:
        self._rows.append("offsets", [(o.source, o.file, o.position, self.batch, o.fingerprint or None) for o in found])

    def compact_offsets(self, latest: Iterable[Offset]) -> None:
        """Rewrites the current offsets, in a batch, and drops earlier rows."""
        self._store.drop_before("offsets", "batch", self.batch)
        self._save_offsets(latest)

    def setting(self, key: str) -> str | None:
        found = self._store.read("settings", ["value", "batch"], key).sort_by("batch")
        value: str | None = found["value"][-1].as_py() if len(found) else None
        return value

    def settings(self, prefix: str) -> dict[str, str]:
        return read_settings(self._store, prefix)

    def save_settings(self, values: Mapping[str, str]) -> None:
        self._rows.append("settings", [(key, value, self.batch) for key, value in values.items()])

    def compact_settings(self) -> None:
        latest = self.settings("")
        self._store.drop_before("settings", "batch", self.batch)
        self.save_settings(latest)

    def save_costs(self, costs: Mapping[int, Cost], plan: str) -> None:
        """Writes template costs under a plan, in a batch of its own."""
        noted = {"plan": plan, "templates": {number: asdict(cost) for number, cost in costs.items()}}
        with whole_batch(self._store):
            self.save_settings({COSTS: json.dumps(noted, ensure_ascii=False)})
        self.batch += 1

    def costs(self) -> tuple[str, dict[int, Cost]] | None:
        """Returns the last measured plan and its template costs, or None."""
        if (value := self.setting(COSTS)) is None:
            return None
        kept = json.loads(value)
        return kept["plan"], {int(number): from_json(Cost, cost) for number, cost in kept["templates"].items()}

    def dead_letters(self) -> Iterator[dict[str, Any]]:
        return self._rows.select("SELECT * FROM dead_letters")
