"""The `signature` plan on any engine: postings in memory and on disk, rebuilt from the stored join state when lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from join_stage import protocol
from join_stage.near_candidates import NearTexts
from join_stage.plans import JoinPlan
from join_stage.signature.disk import BY_INDEX, BY_KEYS, Merger, StoredRuns, evicted, values_of_texts
from join_stage.signature.join import SignatureJoin
from join_stage.store.protocol import DamagedRun, StoreError, TableStore, writing
from templates.catalog import StepEdge, TemplateRow
from templates.witness import R_GROUP, Witnesses

READ_DOCUMENTS = 50_000  # number of docids whose join state is read at a time


class SignaturePlan(JoinPlan):
    """Joins with postings, derived from `store`, with runs in a `directory`; `merger` defaults to this process. Unless
    `is_indexed`, postings have keys of texts."""

    in_sql = False

    def __init__(
        self, store: TableStore, directory: Path | None, merger: Merger | None = None, *, is_indexed: bool = True
    ) -> None:
        self._store = store
        self._near = NearTexts(lambda docids: store.find("r_doc", "docid", docids), is_indexed=is_indexed)
        self._join = SignatureJoin(StoredRuns(directory, merger), self._near)
        self.costs = self._join.costs
        self._loaded = False
        self._restore: Callable[[], bool] | None = None
        self._end = 0  # one past the greatest docid with postings
        self._was_loaded = self._write_all = False

    def _between(self, first: int, end: int) -> Witnesses:
        """The stored witnesses of documents with `first` <= docid < `end`. `r_group` needs what `groups` lacks."""
        raise NotImplementedError

    def put_rows(self, template: protocol.TemplateTable, rows: Sequence[TemplateRow]) -> None:
        for row in rows:
            self._join.rows.put(template.shape, row)

    def drop_rows(self, template: protocol.TemplateTable, rows: Sequence[TemplateRow]) -> None:
        for row in rows:
            self._join.rows.drop(row.id)

    def load(self, end: int) -> None:
        self._note()  # before loading: a batch that was rolled back may have run without some rows
        if not self._loaded:
            self._load(end)

    def join(self, batch: protocol.Batch) -> protocol.Matches:
        self.load(batch.first_docid if batch.older else 0)
        docids = batch.witnesses.r_docts["docid"]
        if len(docids):
            self._end = pc.max(docids).as_py() + 1
        return self._matches(batch.witnesses, batch.scope)

    def _matches(self, batch: Witnesses, scope: protocol.JoinScope) -> protocol.Matches:
        return self._join.join(batch, scope)

    def _load(self, end: int) -> None:
        """Opens the runs on disk, and builds the other postings before docid `end`. Requires all rows of R_T."""
        try:
            manifest = protocol.runs_manifest(self._store)
            has_texts = manifest is not None and bool(protocol.latest_texts(self._store, 1))
            if manifest is not None and has_texts:
                values = values_of_texts(manifest)
                self._near.is_indexed = self._near.is_indexed and values != BY_KEYS
                if (values == BY_INDEX) != self._near.is_indexed:
                    manifest = None  # it is from an earlier version, or from a batch that was rolled back
            self._near.begin(protocol.newest(self._store, "word_order"))
            self._join.stored.texts = BY_INDEX if self._near.is_indexed else BY_KEYS
            first = self._join.restart(self._store.read("groups", R_GROUP.names), manifest)
            if has_texts and self._near.is_indexed:
                for start in range(0, first, READ_DOCUMENTS):
                    rows = protocol.dated_texts(self._store, start, min(start + READ_DOCUMENTS, first))
                    self._near.add(rows, rows["t0"].to_numpy())
            for start in range(first, end, READ_DOCUMENTS):
                self._join.load(self._between(start, min(start + READ_DOCUMENTS, end)))
                self._settle(min(start + READ_DOCUMENTS, end))
        except BaseException:
            self._join.close()
            raise
        self._loaded, self._end = True, end

    def evicted(self, docids: Callable[[], pa.ChunkedArray], before: int) -> None:
        self._note()  # even if they are not loaded: this batch may load them, and be rolled back
        if self._loaded:
            self._join.evict(before)
        elif (manifest := protocol.runs_manifest(self._store)) is not None:
            protocol.save_runs_manifest(self._store, evicted(manifest, before))

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        """Adds witnesses before they enter the join state; unless `whole`, postings are rebuilt for the next batch."""
        if not whole:
            self.forget()
        elif len(docids := witnesses.r_docts["docid"]):
            self._note()
            if not self._loaded:
                self._load(self._store.highest("r_docts", "docid") + 1)
            self._join.load(witnesses)
            self._end = max(self._end, pc.max(docids).as_py() + 1)
            self._write_all = True  # a restart would expect them among the documents that the runs lack

    def forget(self) -> None:
        """Discards the postings; they are rebuilt for the next batch."""
        self._note()
        self._loaded = False
        if (manifest := self._join.forget()) is not None:
            protocol.save_runs_manifest(self._store, manifest)  # now, since this batch may load them

    def regrouped(self, kept: Collection[int], edges: Collection[StepEdge]) -> None:
        if self._loaded:
            self._note()
            self._join.keep_groups(kept, edges)

    def _note(self) -> None:
        if self._restore is None:
            self._restore, self._was_loaded = self._join.mark(), self._loaded

    def settle(self) -> None:
        if self._loaded and (frequent := self._near.learnt(partial(protocol.latest_texts, self._store))) is not None:
            protocol.save_word_order(self._store, frequent)
            self.forget()  # all keys change
        if self._loaded and self._near.is_full:
            self._near.is_indexed, self._join.stored.texts = False, BY_KEYS
            self.forget()
        if self._loaded:
            try:
                self._settle(self._end, wholly=self._write_all)
            except DamagedRun as error:  # a merge found the damage
                self._join.stored.distrust(error)
                self.forget()

    def _settle(self, end: int, *, wholly: bool = False) -> None:
        with writing(OSError):
            manifest = self._join.settle(end - 1, wholly=wholly)
        if manifest is not None:
            protocol.save_runs_manifest(self._store, manifest)

    def committed(self) -> None:
        self._restore, self._write_all = None, False
        self._join.stored.committed()

    def rolled_back(self, *, whole: bool) -> None:
        if self._restore is not None:
            self._loaded = whole and self._was_loaded and self._restore()
            if not self._loaded:
                self._join.close()
        self._near.sets.forget()
        self._restore, self._write_all = None, False

    def mends(self, error: StoreError) -> bool:
        if not isinstance(error, DamagedRun):
            return False
        self._join.stored.distrust(error)
        self._join.close()
        self._loaded = False
        return True

    def close(self) -> None:
        self._join.close()
        self._loaded = False

    def counters(self) -> dict[str, int]:
        return self._join.counters()
