"""The outbox: stores matches and outputs, and tracks how far each sink has acknowledged the outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from join_stage.joiner import JoinEngine
from mmqjp.answers.output import Draft, Output, json_nodes, number, sorted_outputs
from mmqjp.tables.answers import outputs_between, outputs_by_time
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.table_rows import TableRows

ROWS_AT_A_TIME = 10_000
"""The number of outputs that are converted to or from rows at a time."""

SINK_PREFIX = "sink:"
"""The prefix of the settings with positions of sinks. The name of the sink follows."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a sink: it has acknowledged every output up to the number `acked`, or none if that is -1.

    `details` is what this kind of sink needs to resume, such as the name and length of a file.
    """

    acked: int = -1
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_setting(cls, value: str | None) -> Position:
        """Parses the value of a setting. None gives the position of a new sink."""
        noted = json.loads(value or "{}")
        return cls(noted.pop("acked", -1), noted)

    def to_setting(self) -> str:
        """Returns the JSON text to store as a setting."""
        return json.dumps({"acked": self.acked, **self.details}, ensure_ascii=False)


class Outbox:
    """Reads and appends matches and outputs. The caller begins and commits batches."""

    def __init__(self, store: JoinEngine, ledger: Ledger) -> None:
        self._store, self._ledger, self._append = store, ledger, TableRows(store).append

    def save_matches(self, rows: list[tuple[object, ...]], users: list[tuple[object, ...]]) -> None:
        """Appends matches.

        `rows` has (match, template, docid1, docid2, t0, t1, bindings), one for each match. `users` has (match, query,
        qid), one for each query that a match gave something.
        """
        self._append("match_rows", rows)
        self._append("match_queries", users)
        self._ledger.next_match += len(rows)

    def save_outputs(self, drafts: list[Draft]) -> list[Output]:
        """Numbers outputs and appends them, with the matches behind them. Returns them in the order of their numbers,
        which is the order of output lines."""
        ledger = self._ledger
        number(drafts, ledger.next_seq)
        ledger.next_seq += len(drafts)
        # In slices: rows take far more memory than the outputs themselves.
        for start in range(0, len(drafts), ROWS_AT_A_TIME):
            some = drafts[start : start + ROWS_AT_A_TIME]
            self._append("outputs", [output_row(draft.output, ledger.batch) for draft in some])
            self._append("output_matches", [(draft.output.seq, match) for draft in some for match in draft.matches])
        return [draft.output for draft in drafts]

    def outputs(self, after: int) -> Iterator[Output]:
        """Yields the stored outputs with numbers greater than `after`, in the order of their numbers."""
        end = self._ledger.next_seq
        if after + 1 >= end:
            return
        for low in range(max(after + 1, self._ledger.first_seq()), end, ROWS_AT_A_TIME):
            yield from map(output_of, outputs_between(self._store, low, low + ROWS_AT_A_TIME))

    def lines(self, after: int) -> Iterator[Output]:
        """Yields the same outputs in the order of the output lines of a run: by t1, query, documents, nodes."""
        found = map(output_of, outputs_by_time(self._store, after))
        for _, group in groupby(found, key=lambda o: (o.t1, o.query, o.documents)):
            yield from sorted_outputs(group)

    def position(self, sink: str) -> Position:
        """Returns the stored position of a sink."""
        return Position.from_setting(self._ledger.setting(SINK_PREFIX + sink))


def output_row(output: Output, batch: int) -> tuple[object, ...]:
    """Returns an output as a row of the table `outputs`."""
    o = output
    return o.query, o.t0, o.t1, o.documents, o.streams, json_nodes(o.nodes), o.xml, batch, o.seq, o.id


def output_of(row: Mapping[str, Any]) -> Output:
    """Returns the output that a row of the table `outputs` holds."""
    documents, streams = tuple(row["documents"]), tuple(row["streams"])
    nodes = json.loads(row["nodes"])
    return Output(row["query"], row["t0"], row["t1"], documents, streams, nodes, row["xml"], row["id"], row["seq"])
