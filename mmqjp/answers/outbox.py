"""The outbox: matches and outputs as they are committed, and up to which output each sink has acknowledged them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from join_stage.joiner import JoinEngine
from mmqjp.answers.output import Draft, Output, numbered, sorted_outputs
from mmqjp.tables.answers import outputs_between, outputs_by_time
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.table_rows import Rows

ROWS_AT_A_TIME = 10_000
"""Outputs that are rows at one time, read or written."""

SINK = "sink:"
"""The settings with the positions of sinks begin so; the sink's name follows."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a sink is: it has every output up to the number `acked`, -1 for none. `place` is what else the kind of
    sink must find again, such as a file's name and length."""

    acked: int = -1
    place: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_setting(cls, value: str | None) -> Position:
        """The position that a setting holds; that of a new sink for None."""
        noted = json.loads(value or "{}")
        return cls(noted.pop("acked", -1), noted)

    def to_setting(self) -> str:
        """The position as the JSON text of a setting."""
        return json.dumps({"acked": self.acked, **self.place}, ensure_ascii=False)


class Outbox:
    """Reads and appends matches and outputs. Callers begin and commit batches."""

    def __init__(self, store: JoinEngine, ledger: Ledger) -> None:
        self._store, self._ledger, self._append = store, ledger, Rows(store).append

    def save_matches(self, rows: list[tuple[object, ...]], users: list[tuple[object, ...]]) -> None:
        """Matches as (match, template, docid1, docid2, t0, t1, bindings), and the queries (match, query, qid) that
        they gave something."""
        self._append("match_rows", rows)
        self._append("match_queries", users)
        self._ledger.next_match += len(rows)

    def save_outputs(self, drafts: Sequence[Draft]) -> list[Output]:
        """Numbers outputs, writes them and which matches they are of, and returns them in the order of their numbers,
        which is that of output lines."""
        ledger = self._ledger
        ready = numbered(drafts, ledger.next_seq)
        ledger.next_seq += len(ready)
        # Some after the other: as rows they take far more room than as they are.
        for start in range(0, len(ready), ROWS_AT_A_TIME):
            some = ready[start : start + ROWS_AT_A_TIME]
            self._append("outputs", [output_row(draft.output, ledger.batch) for draft in some])
            self._append("output_matches", [(draft.output.seq, match) for draft in some for match in draft.matches])
        return [draft.output for draft in ready]

    def outputs(self, after: int) -> Iterator[Output]:
        """The outputs that are kept with numbers greater than `after`, in the order of their numbers."""
        end = self._ledger.next_seq
        if after + 1 >= end:
            return
        for low in range(max(after + 1, self._ledger.first_seq()), end, ROWS_AT_A_TIME):
            yield from map(output_of, outputs_between(self._store, low, low + ROWS_AT_A_TIME))

    def lines(self, after: int) -> Iterator[Output]:
        """The same in the order of the output lines of a run: by t1, query, documents, nodes."""
        found = map(output_of, outputs_by_time(self._store, after))
        for _, group in groupby(found, key=lambda o: (o.t1, o.query, o.documents)):
            yield from sorted_outputs(group)

    def position(self, sink: str) -> Position:
        """How far a sink is, as noted last."""
        return Position.from_setting(self._ledger.setting(SINK + sink))


def output_row(output: Output, batch: int) -> tuple[object, ...]:
    """An output as a row of the table `outputs`."""
    o = output
    nodes = json.dumps(o.nodes, ensure_ascii=False)
    return o.query, o.t0, o.t1, o.documents, o.streams, nodes, o.xml, batch, o.seq, o.id


def output_of(row: Mapping[str, Any]) -> Output:
    """The output that a row of the table `outputs` holds."""
    documents, streams = tuple(row["documents"]), tuple(row["streams"])
    nodes = json.loads(row["nodes"])
    return Output(row["query"], row["t0"], row["t1"], documents, streams, nodes, row["xml"], row["id"], row["seq"])
