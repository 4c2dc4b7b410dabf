"""The outbox: matches and outputs as they are committed, and which outputs have reached their reader."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from join_stage.joiner import JoinEngine
from join_stage.store.protocol import whole_batch
from mmqjp.answers.output import Output, sorted_outputs
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.table_rows import Rows

WRITTEN_AT_A_TIME = 10_000
"""Outputs that are made rows together."""

DELIVERED = "delivered"
"""The setting with the last batch whose outputs have reached their reader."""


class Outbox:
    """Reads and appends matches and outputs. Callers begin and commit batches, except where said."""

    def __init__(self, store: JoinEngine, ledger: Ledger) -> None:
        self._store, self._ledger, rows = store, ledger, Rows(store)
        self._append, self._rows = rows.append, rows.of

    def save_matches(self, rows: list[tuple[object, ...]], users: list[tuple[object, ...]]) -> None:
        """Matches as (match, template, docid1, docid2, t0, t1, bindings), and the queries (match, query, qid) that
        they were delivered to."""
        self._append("match_rows", rows)
        self._append("match_queries", users)
        self._ledger.next_match += len(rows)

    def save_outputs(self, outputs: Sequence[Output]) -> None:
        """Writes outputs, some after the other: as rows they take far more room than as they are."""
        for start in range(0, len(outputs), WRITTEN_AT_A_TIME):
            some = outputs[start : start + WRITTEN_AT_A_TIME]
            rows = [
                (o.query, o.t0, o.t1, o.documents, o.streams, _json(o.nodes), o.xml, self._ledger.batch) for o in some
            ]
            self._append("outputs", rows)

    def undelivered(self) -> Iterator[Output]:
        """The outputs that were committed but not marked as delivered, in the order of output lines."""
        delivered = self._ledger.setting(DELIVERED) or "-1"
        sql = f"SELECT * FROM outputs WHERE batch > {delivered} ORDER BY t1, query, documents"
        outputs = (_output(row) for row in self._rows(sql))
        for _, group in groupby(outputs, key=lambda o: (o.t1, o.query, o.documents)):
            yield from sorted_outputs(group)

    def mark_delivered(self) -> None:
        """Notes, in a batch of its own, that all outputs so far have reached their reader."""
        with whole_batch(self._store):
            self._append("settings", [(DELIVERED, str(self._ledger.batch - 1), self._ledger.batch)])
        self._ledger.batch += 1

    def outputs_after(self, batch: int) -> Iterator[list[Output]]:
        """The outputs of the batches after one, as each batch returned them."""
        sql = f"SELECT DISTINCT batch FROM outputs WHERE batch > {batch} ORDER BY batch"
        for batch in [row["batch"] for row in self._rows(sql)]:
            yield sorted_outputs(map(_output, self._rows(f"SELECT * FROM outputs WHERE batch = {batch}")))


def _json(nodes: object) -> str:
    return json.dumps(nodes, ensure_ascii=False)


def _output(row: dict[str, Any]) -> Output:
    documents, streams = tuple(row["documents"]), tuple(row["streams"])
    return Output(row["query"], row["t0"], row["t1"], documents, streams, json.loads(row["nodes"]), row["xml"])
