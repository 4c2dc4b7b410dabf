"""Stored outputs: reads answers and members from the store, some batches at a time, and fans them out."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import groupby

import pyarrow as pa

from common.batches import in_batches
from join_stage.store.protocol import TableStore
from mmqjp.answers.answer_rows import by_answer
from mmqjp.answers.fan_out import FanOut, OutputLines
from mmqjp.answers.output import Output, output_order, read_nodes, sorted_outputs
from mmqjp.answers.outputs import Chunk
from mmqjp.queries.identity import Identity
from mmqjp.queries.members import Members
from mmqjp.tables import answers

ANSWERS_AT_A_TIME, EARLIER_AT_A_TIME = 20_000, 10_000
"""How many answers, of whole batches, and outputs of earlier formats are read together."""


def stored_chunks(store: TableStore, after: int) -> Iterator[Chunk]:
    """Yields the stored outputs with numbers greater than `after`, in the order of their numbers."""
    end = store.highest("earlier_outputs", "seq") + 1
    for low in range(max(after + 1, _first_earlier(store)), end, EARLIER_AT_A_TIME) if after + 1 < end else ():
        rows = answers.earlier_outputs_between(store, low, low + EARLIER_AT_A_TIME)
        yield Given(list(outputs_in(rows)))
    batches = answers.batches_after(store, after)
    pairs = list(zip(batches["batch"].to_pylist(), batches["answers"].to_pylist(), strict=True))
    for some in in_batches(pairs, ANSWERS_AT_A_TIME, ANSWERS_AT_A_TIME, lambda pair: pair[1]):
        first, last = some[0][0], some[-1][0]
        fan_out = _fan_out(store, answers.answers_of_batches(store, first, last), first, last)
        for chunk in fan_out.chunks():
            if len(later := chunk.after(after)):
                yield later


def stored_chunks_by_time(store: TableStore, after: int) -> Iterator[Chunk]:
    """Yields the same outputs in the order of t1, query, documents, nodes. Their answers are in memory together."""
    batches = answers.batches_after(store, after)["batch"].to_pylist()
    found: Iterator[Chunk] = iter(())
    if batches:
        rows = answers.answers_by_time(store, batches[0], batches[-1])
        fan_out = _fan_out(store, rows, batches[0], batches[-1], by_time=True)
        found = (later for chunk in fan_out.chunks() if len(later := chunk.after(after)))
    if after >= store.highest("earlier_outputs", "seq"):
        yield from found
        return
    earlier = outputs_in(answers.earlier_outputs_by_time(store, after))
    groups = (sorted_outputs(group) for _, group in groupby(earlier, key=lambda o: (o.t1, o.query, o.documents)))
    newer = (output for chunk in found for output in chunk.outputs())
    both = merge((output for group in groups for output in group), newer, key=output_order)
    for some in in_batches(both, EARLIER_AT_A_TIME, EARLIER_AT_A_TIME, lambda output: 1):
        yield Given(some)


class Given:
    """Some outputs that exist."""

    def __init__(self, given: list[Output]) -> None:
        self._given = given

    def __len__(self) -> int:
        return len(self._given)

    def outputs(self) -> Iterator[Output]:
        """Yields the outputs."""
        return iter(self._given)

    def lines(self) -> OutputLines:
        """Returns the output lines."""
        text = b"".join(output.to_line() for output in self._given)
        return OutputLines(text, len(self._given), max((output.seq for output in self._given), default=-1))


def outputs_in(rows: pa.Table) -> Iterator[Output]:
    """Yields the outputs that rows of the table `earlier_outputs` hold."""
    for chunk in rows.to_batches(max_chunksize=EARLIER_AT_A_TIME):
        columns = (chunk[name].to_pylist() for name in _COLUMNS)
        for query, t0, t1, documents, streams, nodes, xml, id, seq in zip(*columns, strict=True):
            yield Output(query, t0, t1, tuple(documents), tuple(streams), read_nodes(nodes), xml, id, seq)


_COLUMNS = ("query", "t0", "t1", "documents", "streams", "nodes", "xml", "id", "seq")


def _first_earlier(store: TableStore) -> int:
    first = answers.lowest(store, "earlier_outputs", "seq")
    return 0 if first is None else first


def _fan_out(store: TableStore, rows: pa.Table, first: int, last: int, *, by_time: bool = False) -> FanOut:
    members = _by_form(answers.members_of_batches(store, first, last))
    withheld = by_answer(answers.withheld_of_batches(store, first, last))
    return FanOut(rows, members, withheld, by_time=by_time)


def _by_form(rows: pa.Table) -> dict[str, Members]:
    """Returns rows of the view `members`, in the order of form, name, qid, by form."""
    forms = rows["form"].to_pylist()
    names, identities = rows["name"].to_pylist(), [Identity(text) for text in rows["identity"].to_pylist()]
    columns = [rows[name].to_numpy() for name in ("qid", "widest", "since", "begun", "ended", "ended_at")]
    found = {}
    start = 0
    for form, group in groupby(forms):
        end = start + sum(1 for _ in group)
        found[form] = Members(names[start:end], identities[start:end], *(column[start:end] for column in columns))
        start = end
    return found
