"""The outbox: stores matches and outputs, and tracks how far each sink has acknowledged the outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from join_stage.joiner import JoinEngine
from mmqjp.answers.answer import Answer
from mmqjp.answers.answer_rows import answer_rows, by_answer
from mmqjp.answers.fan_out import FanOut
from mmqjp.answers.output import Output, json_nodes
from mmqjp.answers.outputs import Chunk, Outputs, OutputStream
from mmqjp.answers.spread.written_outputs import WrittenOutputs
from mmqjp.answers.stored_outputs import stored_chunks, stored_chunks_by_time
from mmqjp.queries.members import Members
from mmqjp.tables.answers import matches_behind
from mmqjp.tables.ledger import Ledger
from mmqjp.tables.table_rows import TableRows

if TYPE_CHECKING:
    from mmqjp.answers.spread.spread import SpreadAnswers

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
    """Appends matches and answers, and reads outputs. The caller begins and commits batches."""

    def __init__(self, store: JoinEngine, ledger: Ledger, spread: SpreadAnswers | None = None) -> None:
        """`spread` has the answers that executors have found."""
        self._store, self._ledger, self._spread = store, ledger, spread

    @property
    def next_match(self) -> int:
        """The number of the next match."""
        return self._ledger.next_match

    def save_matches(self, rows: pa.Table) -> None:
        """Appends rows to the table `match_rows`."""
        self._store.append("match_rows", rows)
        self._ledger.next_match += len(rows)

    def save_untold(self, rows: Sequence[tuple[int, int]]) -> None:
        """Appends rows to the table `untold`."""
        TableRows(self._store).append("untold", rows)

    def save_answers(self, answers: Sequence[Answer], members: Mapping[str, Members]) -> Outputs:
        """Numbers answers and their outputs, and appends them, with the matches behind them. Returns the outputs in the
        order of their numbers, which is the order of output lines. `members` has those of each form."""
        ledger, first_seq = self._ledger, self._ledger.next_seq
        if self._spread is not None and (files := self._spread.write(answers, members)) is not None:
            return WrittenOutputs(files, members, range(first_seq, ledger.next_seq), self._stored)
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

    def _stored(self, after: int) -> Iterator[Chunk]:
        return stored_chunks(self._store, after)

    def outputs(self, after: int) -> OutputStream:
        """Returns the stored outputs with numbers greater than `after`, in the order of their numbers."""
        return OutputStream(
            lambda: stored_chunks(self._store, after) if after + 1 < self._ledger.next_seq else iter(())
        )

    def lines(self, after: int) -> OutputStream:
        """Returns the same outputs in the order of the output lines of a run: by t1, query, documents, nodes."""
        return OutputStream(lambda: stored_chunks_by_time(self._store, after))

    def matches_behind(self, outputs: Sequence[Output]) -> dict[int, list[tuple[str | None, tuple[int, ...]]]]:
        """Returns the matches that may be behind some stored outputs, by `seq`: each as the form of its query, None in
        stores of earlier formats, and the docids of its documents, in the query's order."""
        columns = {
            "seq": pa.array([output.seq for output in outputs], pa.int64()),
            "documents": pa.array([output.documents for output in outputs], pa.list_(pa.string())),
            "nodes": pa.array([json_nodes(output.nodes) for output in outputs], pa.string()),
        }
        found: dict[int, list[tuple[str | None, tuple[int, ...]]]] = {}
        for row in matches_behind(self._store, pa.table(columns)).to_pylist() if outputs else ():
            docids = (row["docid1"],) if row["docid2"] is None else (row["docid1"], row["docid2"])
            found.setdefault(row["seq"], []).append((row["form"], docids))
        return found

    def position(self, sink: str) -> Position:
        """Returns the stored position of a sink."""
        return Position.from_setting(self._ledger.setting(SINK_PREFIX + sink))
