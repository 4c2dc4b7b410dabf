"""The join of a batch with the postings of earlier documents, which then takes in those of the batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa

from common.distinct import distinct
from join_stage.arrays import dictionary_encode
from join_stage.costs import Costs
from join_stage.joiner import RESULT, Scope
from join_stage.near.near_texts import NearTexts
from join_stage.near.word_order import WordOrder
from join_stage.signature.build_postings import groups_of, postings
from join_stage.signature.disk.disk_run import DiskRun
from join_stage.signature.disk.run_file import EdgeClass
from join_stage.signature.disk.stored_runs import Runs, StoredRuns
from join_stage.signature.matches import FactorisedMatches
from join_stage.signature.pairing import PairedRuns, Pairing
from join_stage.signature.path_classes import DROPPED, PathClasses
from join_stage.signature.postings import NOTHING, PostingRun, merged, reclassed, renumbered, since
from join_stage.signature.row_index import RowIndex
from join_stage.signature.run import AskedValues, Run
from join_stage.signature.satisfied_rows import SatisfiedRowsCache
from join_stage.signature.values import Values
from templates.catalog import Edge, Row
from templates.template import Shape
from templates.witness import Witnesses

MOST_IN_MEMORY = 250_000
"""With more postings in memory than this, they are written to disk, if that is where the state is."""

SHORT_RUN = 1_024
"""A run with fewer postings is merged with the next one, because to look into a run costs more than that."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The postings at some time, to go back to."""

    runs: tuple[PostingRun, ...]
    values: Values
    values_version: int
    classes: PathClasses
    on_disk: Runs
    order: WordOrder


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """A batch on disk: the run of its postings, None if it has none, and those of earlier documents. And its matches
    of rows without a join, in batches of RESULT."""

    run: DiskRun | None
    others: tuple[DiskRun, ...]
    filtered: Iterator[pa.RecordBatch]


class SignatureJoin:
    """The rows of R_T, and the postings of the documents that were joined: in memory and, if there are `stored` runs,
    on disk when they become many. `near` has the texts that are joined by their words."""

    def __init__(self, stored: StoredRuns | None = None, near: NearTexts | None = None) -> None:
        self.rows = RowIndex()
        self.costs = Costs()
        self._classes = PathClasses(self.rows)
        self._sets = SatisfiedRowsCache(self.rows, self._classes)
        self._values = Values()
        self._runs: tuple[PostingRun, ...] = ()
        self._stored = stored
        self._near = NearTexts() if near is None else near
        self._window = 0

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
        run = self._postings(batch)
        found: list[PairedRuns] = []
        if len(run):
            pairing = Pairing(self.rows, self._classes, self._sets, scope.streams)
            asked = AskedValues(run.value, self._values)
            if len(run.docid) > 1:
                found += pairing.paired(run, asked, run, [False])
            for other in self._others():
                if run.span.is_within(scope.window, other.span):
                    found += pairing.paired(run, asked, other, [False, True])
        self._keep(run)
        self._window = scope.window
        return FactorisedMatches(self.rows, self.costs, found, self._filtered(batch), self._near.sets)

    def write(self, batch: Witnesses, scope: Scope, upto: int) -> WrittenBatch:
        """Takes in a batch whose matches somebody else finds: writes its postings, and all that are in memory, to disk.
        `upto` is the greatest docid by now. Raises OSError."""
        assert self._stored is not None, "there is a place for runs"
        self._classes.learn(groups_of(batch.r_group))
        self._classes.renew()
        self._window = scope.window
        self._write_all(upto)
        others = self._stored.now.runs
        run = self._postings(batch)
        self._runs = (run,) if len(run) else ()
        self._write_all(upto)
        written = self._stored.now.runs[len(others) :]
        return WrittenBatch(written[0] if written else None, others, self._filtered(batch))

    @property
    def on_disk(self) -> tuple[DiskRun, ...]:
        """The runs on disk."""
        return () if self._stored is None else self._stored.now.runs

    def evict(self, before: int) -> None:
        """Drops the documents that begin before a time, in microseconds."""
        if self._stored is not None:
            self._stored.evict(before)
        runs = (since(run, before) for run in self._runs)
        self._runs = tuple(run for run in runs if len(run))
        used = [run.value for run in self._runs]
        if len(self._values) > 2 * sum(map(len, used)) + 1000:
            new = self._values.keep(distinct(np.concatenate([np.zeros(0, np.int64), *used])))
            self._runs = tuple(renumbered(run, new) for run in self._runs)

    def mark(self) -> Mark:
        """The postings as they are now."""
        on_disk = Runs() if self._stored is None else self._stored.now
        return Mark(self._runs, self._values, self._values.version, self._classes, on_disk, self._near.order)

    def close(self) -> None:
        """Drops all documents, whatever is committed of them. Only `restart` and `forget` may follow."""
        self._runs, self._values = (), Values()
        if self._stored is not None:
            self._stored.close()

    def back_to(self, mark: Mark) -> bool:
        """Restores the postings of an earlier time; False if that is not possible any more. Groups that were new since
        then may be added again: they are the same."""
        if mark.values.version != mark.values_version or self._classes is not mark.classes:
            return False
        self._runs, self._values, self._near.order = mark.runs, mark.values, mark.order
        if self._stored is not None:
            self._stored.rolled_back(mark.on_disk)
        return True

    def restart(self, groups: pa.Table, manifest: str | None = None) -> int:
        """Starts with the groups in a table of R_GROUP, and with the documents of the runs on disk that a manifest
        names. Returns the first docid that they do not have."""
        self._classes = PathClasses(self.rows)
        self._sets = SatisfiedRowsCache(self.rows, self._classes)
        self._runs, self._values = (), Values()
        self._classes.learn(groups_of(groups))
        if self._stored is None or not self._stored.open(manifest, self._number_of):
            return 0
        return self._stored.now.upto + 1

    def forget(self) -> str | None:
        """Drops all documents. Only `restart` may follow. Returns the manifest without runs, if they are kept."""
        self._runs, self._values = (), Values()
        if self._stored is None:
            return None
        self._stored.clear()
        return self._stored.manifest()

    def settle(self, upto: int, *, wholly: bool = False) -> str | None:
        """Ends a batch: writes postings to disk when they are many, or `wholly`, and merges runs. `upto` is the
        greatest docid by now. Returns the manifest to commit if it has changed. Raises OSError."""
        if self._stored is None:
            return None
        kept = sum(map(len, self._runs))
        if kept > MOST_IN_MEMORY or wholly:
            self._write_all(upto)
        if self._stored.now.runs:
            self._stored.merge(self._window, self._number_of)
        return self._stored.manifest() if self._stored.is_changed else None

    def _write_all(self, upto: int) -> None:
        """Writes all postings in memory to disk."""
        assert self._stored is not None, "there is a place for runs"
        self._stored.add(_one(self._runs), self._values, self._classes, upto)
        self._runs, self._values = (), Values()

    def committed(self) -> None:
        """The manifest is committed, if there was one."""
        if self._stored is not None:
            self._stored.committed()

    def _number_of(self, one: EdgeClass) -> int:
        return self._classes.number_of_edges(one.groups, one.same, one.stream)

    def _others(self) -> Iterator[Run]:
        """All runs."""
        yield from self._runs
        yield from self.on_disk

    def keep_groups(self, kept: Collection[int], edges: Collection[Edge]) -> None:
        """Drops the groups that are neither in `kept` nor in postings, and those with none of `edges`, with their
        postings."""
        classes = [*(run.path_class for run in self._runs), *(run.classes for run in self.on_disk)]
        used = distinct(np.concatenate([np.zeros(0, np.int64), *classes]))
        self._classes, new = self._classes.only(used, kept, edges)
        self._sets = SatisfiedRowsCache(self.rows, self._classes)
        runs = (reclassed(run, new) for run in self._runs)
        self._runs = tuple(run for run in runs if len(run))
        if self._stored is not None:
            self._stored.renumber({old: number for old, number in enumerate(new.tolist()) if number > DROPPED})

    def counters(self) -> dict[str, int]:
        """The numbers of `documents` with postings, of `postings`, of their bytes in memory (`posting_bytes`), of
        distinct `values` in memory, and of known `groups` of edges; and the `runs` on disk, their bytes
        (`run_bytes`), and the `merges` of them under way. Evicted documents count as long as their run is there."""
        on_disk = self.on_disk
        return {
            "documents": sum(len(run.docid) for run in self._runs) + sum(run.file.head.documents for run in on_disk),
            "postings": sum(map(len, self._runs)) + sum(map(len, on_disk)),
            "posting_bytes": sum(run.nbytes for run in self._runs),
            "values": len(self._values),
            "groups": len(self._classes),
            "runs": len(on_disk),
            "run_bytes": sum(run.file.size for run in on_disk),
            "merges": 0 if self._stored is None else self._stored.merges,
        }

    def load(self, state: Witnesses) -> None:
        """Adds the postings of documents that were joined before."""
        self._classes.learn(groups_of(state.r_group))
        self._classes.renew()
        self._keep(self._postings(state))

    def _postings(self, batch: Witnesses) -> PostingRun:
        return postings(self._near.keyed(batch), self._classes, self._values)

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


def _one(runs: tuple[PostingRun, ...]) -> PostingRun:
    """All postings of some runs."""
    return reduce(merged, runs) if runs else NOTHING
