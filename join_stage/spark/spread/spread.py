"""Decides where a batch is joined, and has the tasks of a large one told what they need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import Broadcast, SparkContext

from join_stage.costs import Costs
from join_stage.joiner import Scope
from join_stage.signature.disk.disk_run import DiskRun
from join_stage.signature.disk.run_file import BLOCK, FENCE, FINGERPRINTS
from join_stage.signature.row_index import RowIndex
from join_stage.spark.spread.matches import SpreadMatches
from join_stage.spark.spread.tasks import SpreadBatch, StoredRun, by_slice, slices_of

LEAST_DOCUMENTS = 2_000
"""With fewer documents, the driver joins a batch alone: tasks would take longer to start than it takes."""

MOST_INDEX = 64 << 20
"""The driver joins nothing alone if that needs a larger index of the runs on disk in its memory, in bytes."""


class Spread:
    """Joins batches on the executors of a session. Tells them the rows of R_T when these have changed."""

    def __init__(self, context: SparkContext, rows: RowIndex, costs: Costs) -> None:
        self._context, self._rows, self._costs = context, rows, costs
        self._told: tuple[int, Broadcast[RowIndex]] | None = None

    def takes(self, documents: int, others: Iterable[DiskRun]) -> bool:
        """Whether a batch of so many documents is joined with runs on disk by tasks."""
        if documents >= LEAST_DOCUMENTS:
            return True
        size = (FENCE.itemsize + FINGERPRINTS.itemsize) / BLOCK
        return documents > 0 and sum(run.file.head.groups for run in others) * size > MOST_INDEX

    def matches(
        self,
        docids: Sequence[int],
        batch: DiskRun | None,
        others: Sequence[DiskRun],
        filtered: Iterable[pa.RecordBatch],
        scope: Scope,
        texts: Sequence[str] = (),
    ) -> SpreadMatches:
        """The matches of a batch, whose postings are in a run, with itself and the others. `docids` are those of its
        documents, in ascending order. `texts` are the files of R_doc, if texts are joined by their words."""
        slices = slices_of(docids, self._context.defaultParallelism)
        told = SpreadBatch(
            None if batch is None else batch.file.path,
            tuple(
                StoredRun(run.file.path, run.low)
                for run in others
                if batch is None or batch.span.is_within(scope.window, run.span)
            ),
            slices,
            self._context.defaultParallelism,
            scope.streams,
            tuple(texts),
        )
        return SpreadMatches(self._context, told, self._shipped(), list(by_slice(filtered, slices)), self._costs)

    def _shipped(self) -> Broadcast[RowIndex]:
        if self._told is None or self._told[0] != self._rows.version:
            self.close()
            self._told = self._rows.version, self._context.broadcast(self._rows)
        return self._told[1]

    def close(self) -> None:
        """Has the executors forget the rows."""
        told, self._told = self._told, None
        if told is not None:
            with suppress(Py4JError, ConnectionError):  # if Spark has ended, they have forgotten them
                told[1].destroy()
