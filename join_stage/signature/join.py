"""The join of a batch with the postings of earlier documents, which then takes in those of the batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from common.distinct import distinct
from join_stage.costs import Costs
from join_stage.joiner import RESULT, Scope
from join_stage.signature.arrays import dictionary_encode
from join_stage.signature.build_postings import groups_of, postings
from join_stage.signature.matches import FactorisedMatches
from join_stage.signature.pairing import PairedRuns, Pairing
from join_stage.signature.path_classes import PathClasses
from join_stage.signature.postings import PostingRun, Values, merged, reclassed, renumbered, since
from join_stage.signature.row_index import RowIndex
from join_stage.signature.satisfied_rows import SatisfiedRowsCache
from templates.catalog import Edge, Row
from templates.template import Shape
from templates.witness import Witnesses

SHORT_RUN = 1_024
"""A run with fewer postings is merged with the next one, because to look into a run costs more than that."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The postings at some time, to go back to."""

    runs: tuple[PostingRun, ...]
    values_version: int
    classes: PathClasses


class SignatureJoin:
    """The rows of R_T, and the postings of the documents that were joined."""

    def __init__(self) -> None:
        self.rows = RowIndex()
        self.costs = Costs()
        self._classes = PathClasses(self.rows)
        self._sets = SatisfiedRowsCache(self.rows, self._classes)
        self._values = Values()
        self._runs: tuple[PostingRun, ...] = ()

    # ------------------------------------------------------------ rows

    def put_rows(self, shape: Shape, rows: Sequence[Row]) -> None:
        for row in rows:
            self.rows.put(shape, row)

    def drop_rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.rows.drop(row.id)

    # ------------------------------------------------------------ batches

    def join(self, batch: Witnesses, scope: Scope) -> FactorisedMatches:
        """The matches among the documents of a batch, and between them and earlier ones. Then adds their postings."""
        self._classes.learn(groups_of(batch.r_group))
        self._classes.renew()
        run = postings(batch, self._classes, self._values)
        found: list[PairedRuns] = []
        if len(run):
            pairing = Pairing(self.rows, self._classes, self._sets, scope.streams)
            if len(run.docid) > 1:
                found += pairing.paired(run, run, [False])
            for other in self._runs:
                found += pairing.paired(run, other, [False, True])
        self._keep(run)
        return FactorisedMatches(self.rows, self.costs, found, self._filtered(batch))

    def evict(self, before: int) -> None:
        """Drops the documents that begin before a time, in microseconds."""
        runs = (since(run, before) for run in self._runs)
        self._runs = tuple(run for run in runs if len(run))
        used = [run.value for run in self._runs]
        if len(self._values) > 2 * sum(map(len, used)) + 1000:
            new = self._values.keep(distinct(np.concatenate([np.zeros(0, np.int64), *used])))
            self._runs = tuple(renumbered(run, new) for run in self._runs)

    def mark(self) -> Mark:
        """The postings as they are now."""
        return Mark(self._runs, self._values.version, self._classes)

    def back_to(self, mark: Mark) -> bool:
        """Restores the postings of an earlier time; False if that is not possible any more. Groups that were new since
        then may be added again: they are the same."""
        if self._values.version != mark.values_version or self._classes is not mark.classes:
            return False
        self._runs = mark.runs
        return True

    def restart(self, groups: pa.Table) -> None:
        """Drops all documents, and starts with the groups in a table of R_GROUP."""
        self._classes = PathClasses(self.rows)
        self._sets = SatisfiedRowsCache(self.rows, self._classes)
        self._runs, self._values = (), Values()
        self._classes.learn(groups_of(groups))

    def keep_groups(self, kept: Collection[int], edges: Collection[Edge]) -> None:
        """Drops the groups that are neither in `kept` nor in postings, and those with none of `edges`, with their
        postings."""
        used = distinct(np.concatenate([np.zeros(0, np.int64), *(run.path_class for run in self._runs)]))
        self._classes, new = self._classes.only(used, kept, edges)
        self._sets = SatisfiedRowsCache(self.rows, self._classes)
        runs = (reclassed(run, new) for run in self._runs)
        self._runs = tuple(run for run in runs if len(run))

    def counters(self) -> dict[str, int]:
        """The numbers of `documents` with postings, of `postings`, of their bytes (`posting_bytes`), of distinct
        `values`, and of known `groups` of edges."""
        return {
            "documents": sum(len(run.docid) for run in self._runs),
            "postings": sum(map(len, self._runs)),
            "posting_bytes": sum(run.nbytes for run in self._runs),
            "values": len(self._values),
            "groups": len(self._classes),
        }

    def load(self, state: Witnesses) -> None:
        """Adds the postings of the stored join state, after `restart`."""
        self._classes.learn(groups_of(state.r_group))
        self._classes.renew()
        self._keep(postings(state, self._classes, self._values))

    def _keep(self, run: PostingRun) -> None:
        """Adds postings. Runs are merged so that each is at least twice as long as the next, and none but the last is
        shorter than SHORT_RUN. So a batch meets few runs, and a posting is moved few times."""
        if not len(run):
            return
        runs = [*self._runs, run]
        while len(runs) > 1 and len(runs[-2]) < max(2 * len(runs[-1]), SHORT_RUN):
            runs[-2:] = [merged(runs[-2], runs[-1])]
        self._runs = tuple(runs)

    def _filtered(self, batch: Witnesses) -> Iterator[pa.RecordBatch]:
        """The matches of rows without a join, in batches of RESULT."""
        if not any(self.rows.filters.values()):
            return
        node1, node2 = (batch.r_bin[name].to_numpy() for name in ("node1", "node2"))
        same = np.flatnonzero(node1 == node2)
        group = batch.r_bin["grp"].to_numpy()[same]
        code, groups = dictionary_encode(group.astype(np.int64))
        for place, number in enumerate(groups.tolist()):
            at = same[code == place]
            for row in self._classes.filters(number):
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array(np.full(len(at), row)),
                        batch.r_bin["docid"].combine_chunks().take(pa.array(at)),
                        pa.nulls(len(at), pa.int64()),
                        pa.ListArray.from_arrays(pa.array(np.arange(len(at) + 1, dtype=np.int32)), pa.array(node1[at])),
                    ],
                    schema=RESULT,
                )
