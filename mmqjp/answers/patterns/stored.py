"""Events, the horizon and snapshots as a store keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from join_stage.joiner import JoinEngine
from mmqjp.answers.patterns.parts import written
from mmqjp.tables.events import EVENTS, events_from, save_events, save_snapshot, snapshot
from mmqjp.tables.ledger import Ledger
from pattern_stage.assemble import Assembled
from pattern_stage.columns import Column, Columns, Ints
from pattern_stage.horizon import START
from pattern_stage.lineage import LINEAGE, Lineage
from pattern_stage.values import Texts
from xscl.algebra.events import Schema

PATTERNS = "patterns"
"""The setting with the state of time in event patterns."""

_LINEAGE, _HORIZON = "lineage", "horizon"
"""The parts of a snapshot that are not the kernel's."""


class Taken(NamedTuple):
    """The id of a definition whose events are taken, and the number from which on they have theirs."""

    id: int
    first: int


@dataclass(slots=True)
class PatternTime:
    """The horizon; the greatest time of each external stream; the next number of an event; and the definitions, by
    name, whose events are taken, also those in documents that were kept when they were first read."""

    horizon: int = START
    greatest: dict[str, int] = field(default_factory=dict)
    next_number: int = 0
    taken: dict[str, Taken] = field(default_factory=dict)

    def to_setting(self) -> str:
        """Returns the JSON text to store as a setting."""
        return json.dumps(
            {"horizon": self.horizon, "greatest": self.greatest, "next": self.next_number, "taken": self.taken},
            ensure_ascii=False,
        )

    @staticmethod
    def from_setting(text: str | None) -> PatternTime:
        """Parses the text of a setting. None is that of a store without events."""
        if text is None:
            return PatternTime()
        kept = json.loads(text)
        taken = {name: Taken(*since) for name, since in kept["taken"].items()}
        return PatternTime(kept["horizon"], kept["greatest"], kept["next"], taken)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was waiting at a horizon: the parts of the kernel's state by name, and what its numbers stand for."""

    horizon: int
    kernel: dict[str, pa.Table]
    lineage: pa.Table


class StoredEvents:
    """Reads and writes events and snapshots, within batches of a store."""

    def __init__(self, store: JoinEngine, ledger: Ledger) -> None:
        self._store, self._ledger = store, ledger

    def time(self) -> PatternTime:
        """Returns the time as of the last batch."""
        return PatternTime.from_setting(self._ledger.setting(PATTERNS))

    def save_time(self, time: PatternTime) -> None:
        """Writes the time."""
        self._ledger.save_settings({PATTERNS: time.to_setting()})

    def save_events(self, rows: Sequence[pa.Table]) -> None:
        """Writes events, as `rows_of` makes them."""
        if rows:
            table = pa.concat_tables(rows)
            batch = pa.repeat(self._ledger.batch, len(table))
            save_events(self._store, table.append_column("batch", batch).select(EVENTS.names).cast(EVENTS))

    def save_snapshot(self, found: Snapshot) -> None:
        """Writes a snapshot, and drops what it makes superfluous."""
        horizon = pa.table({"horizon": [found.horizon]})
        parts = {f"op {name}": table for name, table in found.kernel.items()}
        save_snapshot(
            self._store,
            {_HORIZON: horizon, _LINEAGE: found.lineage, **parts},
            self._ledger.batch,
            found.horizon,
        )

    def snapshot(self) -> Snapshot:
        """Returns the latest snapshot; one of nothing from the start if there is none."""
        parts = snapshot(self._store)
        if not parts:
            return Snapshot(START, {}, LINEAGE.empty_table())
        kernel = {name.removeprefix("op "): table for name, table in parts.items() if name.startswith("op ")}
        return Snapshot(parts[_HORIZON]["horizon"][0].as_py(), kernel, parts[_LINEAGE])

    def events_from(self, horizon: int) -> pa.Table:
        """Returns the rows of events that end at a horizon or later."""
        return events_from(self._store, horizon)


def rows_of(name: str, found: Assembled, numbers: Ints, texts: Texts) -> pa.Table:
    """Returns events of documents as rows of the table of events, without the batch."""
    columns = [written(column, texts) for column in found.values]
    attributes = [text for row in zip(*columns, strict=True) for text in row]
    return pa.table(
        {
            "number": numbers,
            "stream": pa.repeat(name, len(found)),
            "docid": found.docids,
            "nodes": _lists(pa.array(found.nodes.ravel()), found.nodes.shape[1], len(found)),
            "t0": found.t0,
            "t1": found.t1,
            "attributes": _lists(pa.array(attributes, pa.string()), len(columns), len(found)),
        }
    )


def events_of(
    rows: pa.Table, schemas: Mapping[str, Schema], lineage: Lineage, texts: Texts, taken: Mapping[str, Taken]
) -> dict[str, Columns]:
    """Returns rows of the table of events as events, by stream, and adds what their numbers stand for to a lineage.

    Only streams that are `taken` are there, and no rows from before: there may have been another definition then.
    """
    found: dict[str, Columns] = {}
    streams = rows["stream"].combine_chunks().dictionary_encode()
    names, at = streams.dictionary.to_pylist(), streams.indices.to_numpy()
    for place, name in enumerate(names):
        schema = schemas.get(name)
        if schema is None or name not in taken:
            continue
        numbers = rows["number"].to_numpy()
        own = rows.take(np.flatnonzero((at == place) & (numbers >= taken[name].first))).combine_chunks()
        lists = own["attributes"].combine_chunks()
        values = lists.flatten().to_pylist()
        columns = [_column(values[i :: len(schema)], kind, texts) for i, (_, kind) in enumerate(schema)]
        number, t0, t1 = (own[column].to_numpy().astype(np.int64) for column in ("number", "t0", "t1"))
        found[name] = Columns(t0, t1, tuple(columns), number.reshape(-1, 1))
        lineage.restore(own.select(["number", "stream", "docid", "t0", "t1", "nodes"]).rename_columns(LINEAGE.names))
    return found


def _column(values: Sequence[str | None], kind: str, texts: Texts) -> Column:
    if kind == "string":
        return texts.codes(values)
    return np.array([np.nan if value is None else float(value) for value in values], np.float64)


def _lists(values: pa.Array, width: int, count: int) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * width), values)
