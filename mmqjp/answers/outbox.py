"""The outbox: stores matches and outputs, and tracks how far each sink has acknowledged the outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from join_stage.joiner import JoinEngine
from mmqjp.answers.answer import Answer
from mmqjp.answers.output import Output, sorted_outputs
from mmqjp.answers.output_tables import ROWS_AT_A_TIME, Outputs, numbered, outputs_in
from mmqjp.queries.model import Subscription
from mmqjp.tables.answers import TABLES, outputs_between, outputs_by_time
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.table_rows import TableRows

MATCH_QUERIES = TABLES["match_queries"]

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
        self._store, self._ledger = store, ledger

    def save_matches(
        self, rows: list[tuple[object, ...]], matches: Sequence[int], queries: Sequence[Subscription]
    ) -> None:
        """Appends matches.

        `rows` has (match, template, docid1, docid2, t0, t1, bindings), one for each match. `matches` and `queries` have
        one length: they say which queries got something of which match.
        """
        TableRows(self._store).append("match_rows", rows)
        if matches:
            columns = {
                "match": matches,
                "query": [query.name for query in queries],
                "qid": [query.qid for query in queries],
            }
            self._store.append("match_queries", pa.table(columns, MATCH_QUERIES))
        self._ledger.next_match += len(rows)

    def save_outputs(self, answers: Sequence[Answer]) -> Outputs:
        """Numbers the outputs of answers and appends them, with the matches behind them. Returns them in the order of
        their numbers, which is the order of output lines."""
        ledger, tables = self._ledger, []
        for some in numbered(answers, ledger.next_seq, ledger.batch):
            self._store.append("outputs", some.outputs)
            self._store.append("output_matches", some.matches)
            tables.append(some.outputs)
        outputs = Outputs(tables)
        ledger.next_seq += len(outputs)
        return outputs

    def outputs(self, after: int) -> Iterator[Output]:
        """Yields the stored outputs with numbers greater than `after`, in the order of their numbers."""
        end = self._ledger.next_seq
        if after + 1 >= end:
            return
        for low in range(max(after + 1, self._ledger.first_seq()), end, ROWS_AT_A_TIME):
            yield from outputs_in(outputs_between(self._store, low, low + ROWS_AT_A_TIME))

    def lines(self, after: int) -> Iterator[Output]:
        """Yields the same outputs in the order of the output lines of a run: by t1, query, documents, nodes."""
        found = outputs_in(outputs_by_time(self._store, after))
        for _, group in groupby(found, key=lambda o: (o.t1, o.query, o.documents)):
            yield from sorted_outputs(group)

    def position(self, sink: str) -> Position:
        """Returns the stored position of a sink."""
        return Position.from_setting(self._ledger.setting(SINK_PREFIX + sink))
