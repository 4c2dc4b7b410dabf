"""The outbox: appends matches and answers within batches, and tracks how far each sink has acknowledged the outputs. It
also migrates stores up to format 4, whose outputs get numbers and ids and whose sinks get positions by number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from join_stage.protocol import JoinEngine
from mmqjp.answers.fan_out import (
    FanOut,
    Outputs,
    OutputStream,
    WrittenOutputs,
    answer_rows,
    by_answer,
    outputs_in,
    stored_chunks,
    stored_chunks_by_time,
)
from mmqjp.answers.output import Answer, Output, json_nodes, output_order
from mmqjp.queries.model import Members, text_digest
from mmqjp.tables import schema
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.lookup import docids_of
from mmqjp.tables.schema import find_output_matches

if TYPE_CHECKING:
    from mmqjp.answers.spread import SpreadAnswers

SINK_PREFIX = "sink:"
"""Prefix of the settings that hold sink positions, before the sink's name."""


@dataclass(frozen=True, slots=True)
class Position:
    """A sink's position: every output up to number `acked` is acknowledged; -1 for none. `details` is what this kind of
    sink needs to resume, such as a file's name and length."""

    acked: int = -1
    details: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_setting(cls, value: str | None) -> Position:
        """Parses a setting; None gives the position of a new sink."""
        noted = json.loads(value or "{}")
        return cls(noted.pop("acked", -1), noted)

    def to_setting(self) -> str:
        return json.dumps({"acked": self.acked, **self.details}, ensure_ascii=False)


class Outbox:
    """Appends matches and answers, and reads outputs. The caller controls the batch."""

    def __init__(self, store: JoinEngine, ledger: Ledger, spread: SpreadAnswers | None = None) -> None:
        self._store, self._ledger, self._spread = store, ledger, spread

    @property
    def next_match(self) -> int:
        return self._ledger.next_match

    def save_matches(self, rows: pa.Table) -> None:
        self._store.append("match_rows", rows)
        self._ledger.next_match += len(rows)

    def withhold_told(self, answers: Sequence[Answer], members: Mapping[str, Members], first_qid: int) -> None:
        """Withholds from the queries with at least `first_qid` what is stored already, under the same ids, as outputs
        of equal queries before them."""
        pairs = (zip(of.qids.tolist(), of.identities, strict=True) for of in members.values())
        own = {qid: identity.text for some in pairs for qid, identity in some if qid >= first_qid}
        asked = pa.table({"qid": pa.array(own, pa.int64()), "identity": pa.array(own.values(), pa.string())})
        again = set(schema.registered_before(self._store, asked, first_qid)["qid"].to_pylist()) if own else set()
        rows = [
            (place, qid, own[qid], answer.choice)
            for place, answer in enumerate(answers)
            for qid in (again.intersection(members[answer.form].qids.tolist()) if answer.form in members else ())
        ]
        if not rows:
            return
        given = dict(zip(("place", "qid", "identity", "choice"), zip(*rows, strict=True), strict=True))
        for row in schema.output_before(self._store, pa.table(given)).to_pylist():
            answer = answers[row["place"]]
            answer.withheld = tuple({*answer.withheld, row["qid"]})

    def save_answers(self, answers: Sequence[Answer], members: Mapping[str, Members]) -> Outputs:
        """Numbers and appends answers and outputs with the matches behind them. Returns the outputs by number, which is
        line order. `members` are by form."""
        ledger, first_seq = self._ledger, self._ledger.next_seq
        if self._spread is not None and (files := self._spread.write(answers, members)) is not None:
            stored = partial(stored_chunks, self._store)
            return WrittenOutputs(files, members, range(first_seq, ledger.next_seq), stored)
        if not answers:
            return Outputs()
        rows = answer_rows(answers, members, ledger.batch, ledger.next_answer, ledger.next_seq)
        self._store.append("answers", rows.answers)
        self._store.append("withheld", rows.withheld)
        self._store.append("answer_matches", rows.matches)
        ledger.next_answer += len(rows.answers)
        ledger.next_seq += rows.outputs
        fan_out = cache(lambda: FanOut(rows.answers, members, by_answer(rows.withheld)))
        return Outputs(lambda: fan_out().chunks(), rows.outputs)

    def outputs(self, after: int) -> OutputStream:
        """Returns the stored outputs numbered above `after`, by number."""
        return OutputStream(
            lambda: stored_chunks(self._store, after) if after + 1 < self._ledger.next_seq else iter(())
        )

    def lines(self, after: int) -> OutputStream:
        return OutputStream(lambda: stored_chunks_by_time(self._store, after))

    def matches_behind(self, outputs: Sequence[Output]) -> dict[int, list[tuple[str | None, tuple[int, ...]]]]:
        columns = {
            "seq": pa.array([output.seq for output in outputs], pa.int64()),
            "documents": pa.array([output.documents for output in outputs], pa.list_(pa.string())),
            "nodes": pa.array([json_nodes(output.nodes) for output in outputs], pa.string()),
        }
        found: dict[int, list[tuple[str | None, tuple[int, ...]]]] = {}
        for row in find_output_matches(self._store, pa.table(columns)).to_pylist() if outputs else ():
            found.setdefault(row["seq"], []).append((row["form"], docids_of(row)))
        return found

    def position(self, sink: str) -> Position:
        return Position.from_setting(self._ledger.setting(SINK_PREFIX + sink))


EARLIER = "earlier_outputs"

_DELIVERED, _WRITTEN = "delivered", "written"
"""Settings of format 4: the last delivered batch, and the file that it was written to."""


def number_outputs(store: JoinEngine, ledger: Ledger) -> None:
    """Numbers a store's outputs in commit order, within a batch. The id is a digest of the line; the position of
    `--output`, stored as a batch, becomes a number."""
    rows = store.read(EARLIER, schema.ANSWER_TABLES[EARLIER].names).sort_by("batch")
    if len(rows):
        store.drop_before(EARLIER, "batch", rows["batch"][-1].as_py() + 1)
    delivered, acked = int(ledger.setting(_DELIVERED) or -1), -1
    alike: Counter[str] = Counter()
    for batch, found in _batches(rows):
        ready = []
        for output in sorted(outputs_in(found), key=output_order):
            fields = {name: value for name, value in output.to_dict().items() if name not in ("id", "seq")}
            line = json.dumps(fields, ensure_ascii=False)
            ready.append(replace(output, id=text_digest(f"{line} {alike[line]}"), seq=ledger.next_seq))
            alike[line] += 1
            ledger.next_seq += 1
        given = {"nodes": [json_nodes(output.nodes) for output in ready], "batch": [batch] * len(ready)}
        columns = {name: given.get(name) or [getattr(one, name) for one in ready] for name in rows.schema.names}
        store.append(EARLIER, pa.table(columns, schema.ANSWER_TABLES[EARLIER]))
        if batch <= delivered:
            acked = ledger.next_seq - 1
    written = ledger.setting(_WRITTEN)
    if acked >= 0 or written:
        position = Position(acked, json.loads(written or "{}"))
        ledger.save_settings({f"{SINK_PREFIX}output": position.to_setting()})


def _batches(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    if not len(rows):
        return
    batches, starts = np.unique(rows["batch"].to_numpy(), return_index=True)
    for batch, start, end in zip(batches.tolist(), starts, [*starts[1:], len(rows)], strict=True):
        yield batch, rows.slice(start, end - start)
