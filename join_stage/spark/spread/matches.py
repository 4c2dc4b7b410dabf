"""The matches of a large batch: found by tasks, and read where they are found or in the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark import RDD, Broadcast, SparkContext

from join_stage.costs import Cost, Costs
from join_stage.signature.matches import CHUNK, FactorisedMatches
from join_stage.signature.row_index import RowIndex
from join_stage.spark.spread.tasks import Shuffled, SpreadBatch, as_stream, locate, pair

T = TypeVar("T")

Answer = Callable[[int, FactorisedMatches], Iterator[T]]
"""What a task does with the matches of a slice: gets the slice's number and the matches, which it must read."""


class SpreadMatches:
    """The matches of a batch of which each task has those of a slice of its documents. They must be read before the
    rows change. Reading raises Spark's errors."""

    def __init__(
        self,
        context: SparkContext,
        told: SpreadBatch,
        rows: Broadcast[RowIndex],
        filtered: Sequence[Shuffled],
        costs: Costs,
    ) -> None:
        self._context, self._told, self._rows, self._filtered, self._costs = context, told, rows, filtered, costs

    @property
    def slices(self) -> Sequence[int]:
        """The first docids of the slices of the batch."""
        return self._told.slices

    def answered(self, answer: Answer[T]) -> RDD[T]:
        """What each task makes of its slice, a partition each. It is worked out when it is asked for."""
        located = self._context.parallelize(range(self._told.buckets), self._told.buckets).flatMap(
            partial(locate, self._told)
        )
        if self._filtered:
            located = located.union(self._context.parallelize(self._filtered, 1))
        shuffled = located.partitionBy(len(self._told.slices), _same)
        return shuffled.mapPartitionsWithIndex(partial(_answered, self._told, self._rows, answer))

    def note(self, costs: Iterable[Cost]) -> None:
        """Adds what it cost to read matches."""
        of_templates: dict[tuple[int, ...], Cost] = {}
        for cost in costs:
            known = of_templates.get(cost.templates, Cost(0, 0, cost.templates))
            both = Cost(known.seconds + cost.seconds, known.matches + cost.matches, cost.templates)
            of_templates[cost.templates] = both
        for cost in of_templates.values():
            self._costs.add(cost)

    @property
    def num_rows(self) -> int:
        return self.answered(_count).sum()

    def to_batches(self, max_chunksize: int = CHUNK) -> Iterator[pa.RecordBatch]:
        """The matches as record batches of RESULT, of at most `max_chunksize` rows, brought to the driver a slice at a
        time."""
        found = self.answered(_as_streams).persist()
        try:
            for stream in found.toLocalIterator():
                for batch in pa.ipc.open_stream(stream):
                    for start in range(0, batch.num_rows, max_chunksize):
                        yield batch.slice(start, max_chunksize)
        finally:
            found.unpersist()


def _same(number: int) -> int:
    return number


def _answered(
    told: SpreadBatch, rows: Broadcast[RowIndex], answer: Answer[T], number: int, shuffled: Iterator[Shuffled]
) -> Iterator[T]:
    return answer(number, pair(told, rows.value, number, shuffled))


def _count(_: int, matches: FactorisedMatches) -> Iterator[int]:
    yield matches.num_rows


def _as_streams(_: int, matches: FactorisedMatches) -> Iterator[bytes]:
    return (as_stream([batch]) for batch in matches.to_batches())
