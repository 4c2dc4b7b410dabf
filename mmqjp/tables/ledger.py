"""The ledger: what is numbered from batch to batch, and what is noted along with a batch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from feeds.document import Clock, now_us
from feeds.offsets import Offset
from join_stage.costs import Cost
from join_stage.store.protocol import StoreError, TableStore, whole_batch
from mmqjp.tables import answers, batches, commands, dead_letters, documents, offsets, settings
from mmqjp.tables.notes import Notes

SCHEMA_VERSION = 5
"""The format of a store. Since 2 queries may be paused, and sources have offsets; since 3 it is written where queries
stand in the catalog; since 4 the numbers of chains of functions are, and documents have arrivals; since 5 outputs have
numbers and ids. A version that finds another normal form, or other templates, for a query has a new format."""

NUMBERED = ("batches", "outputs", "settings", "offsets", "pauses", "commands")
"""The tables whose rows have the number of the batch that wrote them."""

NUMBERS = "numbers"
"""The setting with the next docid, arrival, match and output: those that had the last ones may be gone."""

COSTS = "costs"
"""The setting with what templates cost when a run was closed."""

_PLACES = ("documents", "docid"), ("documents", "arrival"), ("match_rows", "match"), ("outputs", "seq")

Mark = tuple[int, int, int, int]
"""The next docid, arrival, match and output."""


class Ledger:
    """Reads and writes what is noted, in the batch whose number is `batch`. Callers begin and commit batches, except
    where said."""

    def __init__(self, store: TableStore, now: Clock = now_us) -> None:
        """Raises StoreError for a store of a newer format."""
        self._store, self._now = store, now
        self.version = version = int(self.setting("schema_version") or 0)
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"the store has format {version}, and this version of mmqjp reads formats up to {SCHEMA_VERSION}: "
                "install the version that wrote it, or a newer one"
            )
        self.batch = 1 + max(store.highest(table, "batch") for table in NUMBERED)
        noted = json.loads(self.setting(NUMBERS) or "[]")
        kept = (store.highest(*place) + 1 for place in _PLACES)
        # An older store has noted fewer.
        numbers = (max(pair) for pair in zip_longest(kept, noted, fillvalue=0))
        self.next_docid, self.next_arrival, self.next_match, self.next_seq = numbers

    @property
    def is_current(self) -> bool:
        """Whether the store has the format that this version writes."""
        return self.version == SCHEMA_VERSION

    # ------------------------------------------------------------ numbers

    def mark(self) -> Mark:
        """What is numbered next."""
        return self.next_docid, self.next_arrival, self.next_match, self.next_seq

    def back_to(self, mark: Mark) -> None:
        """Numbers again from there: what was numbered since is rolled back."""
        self.next_docid, self.next_arrival, self.next_match, self.next_seq = mark

    def keep_numbers(self) -> None:
        """Notes what is numbered next, whatever is dropped."""
        self._save_setting(NUMBERS, json.dumps(self.mark()))

    def first_match(self) -> int:
        """The number of the first match that is kept, else of the next one."""
        first = answers.first(self._store, "match_rows", "match")
        return self.next_match if first is None else first

    def first_seq(self) -> int:
        """The number of the first output that is kept, else of the next one."""
        first = answers.first(self._store, "outputs", "seq")
        return self.next_seq if first is None else first

    def arrivals(self) -> pa.Table:
        """The docids of the documents that are kept, in their order, and their arrivals."""
        return documents.arrivals(self._store)

    def docid_of_arrival(self, arrival: int) -> int | None:
        """The docid of the first document from outside that is kept from an arrival on; None if there is none."""
        return documents.first_from(self._store, arrival)

    # ------------------------------------------------------------ what is noted along with a batch

    def save_version(self) -> None:
        """Notes, within a batch, that the store has the format that this version writes."""
        self._save_setting("schema_version", str(SCHEMA_VERSION))

    def save_batch(self, taken_at: int, documents: int, dead_letters: int, outputs: int) -> None:
        """Writes of the batch, if it brought anything, when it was taken in, and that it is committed now."""
        batches.save_batch(self._store, self.batch, taken_at, self._now(), documents, dead_letters, outputs)

    def save_notes(self, notes: Notes) -> None:
        """Writes what is committed along with the current batch."""
        offsets.save_offsets(self._store, notes.offsets, self.batch)
        settings.save_settings(self._store, notes.settings, self.batch)
        commands.save_answers(self._store, notes.answers, self._now(), self.batch)

    def answer_to(self, command: str) -> str | None:
        """What a command was answered that is done."""
        return commands.answer_to(self._store, command)

    def offsets(self) -> dict[tuple[str, str], Offset]:
        """How far each file of each source was read."""
        return offsets.offsets(self._store)

    def setting(self, key: str) -> str | None:
        """What was noted last under a key."""
        return settings.setting(self._store, key)

    def settings(self, prefix: str) -> dict[str, str]:
        """What was noted last under each key that begins so, by the rest of the key."""
        return settings.settings(self._store, prefix)

    def save_costs(self, costs: Mapping[int, Cost], plan: str) -> None:
        """Keeps, in a batch of its own, what templates cost with a plan."""
        noted = {"plan": plan, "templates": {number: asdict(cost) for number, cost in costs.items()}}
        with whole_batch(self._store):
            self._save_setting(COSTS, json.dumps(noted, ensure_ascii=False))
        self.batch += 1

    def costs(self) -> tuple[str, dict[int, Cost]] | None:
        """The plan that was measured last, and what templates cost with it, by their numbers."""
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
        """All dead letters, in no particular order."""
        return dead_letters.dead_letters(self._store)

    def _save_setting(self, key: str, value: str) -> None:
        settings.save_settings(self._store, {key: value}, self.batch)
