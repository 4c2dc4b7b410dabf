"""The ledger: what the engine keeps in its tables between batches and between runs, typed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from feeds.document import Clock, now_us
from feeds.offsets import Offset
from join_stage.costs import Cost
from join_stage.joiner import JoinEngine
from join_stage.store.protocol import StoreError, whole_batch
from mmqjp.tables.notes import Notes
from mmqjp.tables.table_rows import Rows
from templates.catalog import Edge

SCHEMA_VERSION = 4
"""The format of a store. Since 2 queries may be paused, and sources have offsets; since 3 it is written where queries
stand in the catalog; since 4 the numbers of chains of functions are, and documents have arrivals. A version that finds
another normal form, or other templates, for a query has a new format."""

NUMBERED = ("batches", "outputs", "settings", "offsets", "pauses", "commands")
"""The tables whose rows have the number of the batch that wrote them."""

BEFORE_ARRIVALS = 1 << 40
"""Documents of a store from before their arrivals were noted came before all others, in the order of their docids."""

NUMBERS = "numbers"
"""The setting with the next docid, arrival and match: those that had the last ones may be gone."""

_PLACES = ("documents", "docid"), ("documents", "arrival"), ("match_rows", "match")

Mark = tuple[int, int, int]
"""The next docid, arrival and match."""


class Ledger:
    """Reads and appends the rows that are not join state. Callers begin and commit batches, except where said."""

    def __init__(self, store: JoinEngine, now: Clock = now_us) -> None:
        """Raises StoreError for a store of a newer format."""
        self._store, self._now, self._table = store, now, Rows(store)
        self._append, self._rows = self._table.append, self._table.of
        self.version = version = int(self._setting("schema_version") or 0)
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"the store has format {version}, and this version of mmqjp reads formats up to {SCHEMA_VERSION}: "
                "install the version that wrote it, or a newer one"
            )
        self.batch = 1 + max(store.highest(table, "batch") for table in NUMBERED)
        noted = json.loads(self._setting(NUMBERS) or "[0, 0, 0]")
        kept = (store.highest(*place) + 1 for place in _PLACES)
        self.next_docid, self.next_arrival, self.next_match = map(max, kept, noted)

    @property
    def is_current(self) -> bool:
        """Whether the store has the format that this version writes."""
        return self.version == SCHEMA_VERSION

    def mark(self) -> Mark:
        """What is numbered next."""
        return self.next_docid, self.next_arrival, self.next_match

    def back_to(self, mark: Mark) -> None:
        """Numbers again from there: what was numbered since is rolled back."""
        self.next_docid, self.next_arrival, self.next_match = mark

    def groups(self) -> Iterator[tuple[int, frozenset[Edge]]]:
        """The groups of edges that the join state's rows were expanded from."""
        groups: dict[int, set[Edge]] = {}
        for number, *edge in self._table.tuples("groups", "grp var1 var2"):
            groups.setdefault(number, set()).add((edge[0], edge[1]))
        return ((number, frozenset(edges)) for number, edges in groups.items())

    # ------------------------------------------------------------ what comes out

    def save_version(self) -> None:
        """Notes, within a batch, that the store has the format that this version writes."""
        self._append("settings", [("schema_version", str(SCHEMA_VERSION), self.batch)])

    def save_batch(self, taken_at: int, documents: int, dead_letters: int, outputs: int) -> None:
        """Writes of the batch, if it brought anything, when it was taken in, and that it is committed now."""
        if documents or dead_letters or outputs:
            row = (self.batch, taken_at, self._now(), documents, dead_letters, outputs)
            self._append("batches", [row])

    # ------------------------------------------------------------ what a service notes

    def save_notes(self, notes: Notes) -> None:
        """Writes what is committed along with the current batch."""
        self._save_offsets(notes.offsets)
        self._append("settings", [(key, value, self.batch) for key, value in notes.settings.items()])
        now = self._now()
        self._append("commands", [(id, answer, now, self.batch) for id, answer in notes.answers.items()])

    def answer_to(self, command: str) -> str | None:
        """What a command was answered that is done."""
        asked = pa.table({"id": [command]})
        found = self._store.select("SELECT c.answer FROM commands c JOIN asked a ON c.id = a.id", {"asked": asked})
        return next((row["answer"] for row in found.to_pylist()), None)

    def offsets(self) -> dict[tuple[str, str], Offset]:
        """How far each file of each source was read."""
        sql = """SELECT source, file, position, mark FROM offsets JOIN
(SELECT source, file, max(batch) AS batch FROM offsets GROUP BY source, file) latest USING (source, file, batch)"""
        return {
            (row["source"], row["file"]): Offset(row["source"], row["file"], row["position"], row["mark"] or "")
            for row in self._rows(sql)
        }

    def count(self, table: str) -> int:
        """How many rows a table has."""
        return next(int(row["n"]) for row in self._rows(f"SELECT count(*) AS n FROM {table}"))

    def first_match(self) -> int:
        """The number of the first match that is kept, else of the next one."""
        first = next(row["first"] for row in self._rows("SELECT min(match) AS first FROM match_rows"))
        return self.next_match if first is None else int(first)

    def keep_numbers(self) -> None:
        """Notes what is numbered next, whatever is dropped."""
        self._append("settings", [(NUMBERS, json.dumps(self.mark()), self.batch)])

    def arrivals(self) -> pa.Table:
        """The docids of the documents that are kept, in their order, and their arrivals."""
        sql = f"SELECT docid, coalesce(arrival, docid - {BEFORE_ARRIVALS}) AS arrival FROM documents ORDER BY docid"
        return self._store.select(sql)

    def docid_of_arrival(self, arrival: int) -> int | None:
        """The docid of the first document from outside that is kept from an arrival on; None if there is none."""
        sql = f"""SELECT min(docid) AS docid FROM documents
WHERE kind = 'external' AND coalesce(arrival, docid - {BEFORE_ARRIVALS}) >= {arrival}"""
        return next((row["docid"] for row in self._rows(sql)), None)

    def keep_ids(self, before: int) -> None:
        """Keeps the ids of the documents from outside that begin before a time."""
        sql = f"SELECT id, stream, t1 FROM documents WHERE kind = 'external' AND t0 < {before}"
        self._store.append("dropped_ids", self._store.select(sql))

    def drop_superseded_settings(self) -> None:
        """Writes the settings that count anew, and drops all that were written before."""
        latest = self.settings("")
        self._store.drop_before("settings", "batch", self.batch)
        self._append("settings", [(key, value, self.batch) for key, value in latest.items()])

    def renew_offsets(self, offsets: Sequence[Offset]) -> None:
        """Writes the offsets that count anew, and drops all that were written before."""
        self._store.drop_before("offsets", "batch", self.batch)
        self._save_offsets(offsets)

    def _save_offsets(self, offsets: Iterable[Offset]) -> None:
        self._append("offsets", [(o.source, o.file, o.position, self.batch, o.fingerprint or None) for o in offsets])

    def setting(self, key: str) -> str | None:
        """What was noted last under a key."""
        return self._setting(key)

    def settings(self, prefix: str) -> dict[str, str]:
        """What was noted last under each key that begins so, by the rest of the key."""
        rows = self._rows(f"SELECT key, value FROM settings WHERE key LIKE '{prefix}%' ORDER BY batch")
        return {row["key"].removeprefix(prefix): row["value"] for row in rows}

    def save_costs(self, costs: Mapping[int, Cost], plan: str) -> None:
        """Keeps, in a batch of its own, what templates cost with a plan."""
        value = _json({"plan": plan, "templates": {number: asdict(cost) for number, cost in costs.items()}})
        with whole_batch(self._store):
            self._append("settings", [("costs", value, self.batch)])
        self.batch += 1

    def costs(self) -> tuple[str, dict[int, Cost]] | None:
        """The plan that was measured last, and what templates cost with it, by their numbers."""
        value = self._setting("costs")
        if value is None:
            return None
        kept = json.loads(value)
        costs = {
            int(number): Cost(cost["seconds"], cost["matches"], tuple(cost["templates"]))
            for number, cost in kept["templates"].items()
        }
        return kept["plan"], costs

    def dead_letters(self) -> Iterator[dict[str, Any]]:
        """All dead letters, in no particular order."""
        return self._rows("SELECT * FROM dead_letters")

    # ------------------------------------------------------------ rows

    def _setting(self, key: str) -> str | None:
        value: str | None = self._table.latest("settings", key)
        return value


def _json(nodes: object) -> str:
    return json.dumps(nodes, ensure_ascii=False)
