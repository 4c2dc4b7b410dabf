"""The `signature` plan on any engine: postings in memory and on disk, rebuilt from the stored join state when lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from join_stage.near import NearTexts
from join_stage.protocol import Batch, Cost, JoinScope, Matches, TemplateTable
from join_stage.signature.disk import Merger, StoredRuns, evicted
from join_stage.signature.join import Savepoint, SignatureJoin
from join_stage.store.protocol import DamagedRun, StoreError, TableStore
from join_stage.tables import latest_texts, runs_manifest, save_runs_manifest, save_word_order, word_order
from templates.catalog import StepEdge, TemplateRow
from templates.witness import Witnesses

READ_DOCUMENTS = 50_000
"""Number of docids whose join state is read at a time."""


@contextmanager
def telling_no_room() -> Iterator[None]:
    """Translates OSError to StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"the store cannot be written: {error}; make room, and run it again") from error


class StoredState(ABC):
    """The stored join state, from which postings are built."""

    def __init__(self, store: TableStore) -> None:
        self._store = store

    @abstractmethod
    def groups(self) -> pa.Table:
        """The groups of edges, as rows of R_GROUP."""

    @abstractmethod
    def between(self, first: int, end: int) -> Witnesses:
        """The witnesses of documents with `first` <= docid < `end`. `r_group` need only have what `groups` lacks."""

    def end(self) -> int:
        """The docid after the greatest of the join state."""
        return self._store.highest("r_docts", "docid") + 1

    def manifest(self) -> str | None:
        """The manifest saved last."""
        return runs_manifest(self._store)

    def save_manifest(self, manifest: str) -> None:
        """Stores the names of the runs on disk with the running batch."""
        save_runs_manifest(self._store, manifest)

    def texts(self, docids: pa.Array) -> pa.Table:
        """The rows of R_doc of some documents."""
        return self._store.find("r_doc", "docid", docids)

    def latest_texts(self, most: int) -> list[str]:
        """At most `most` word-joined texts, the latest ones, as in R_doc."""
        return latest_texts(self._store, most)

    def word_order(self) -> list[int] | None:
        """The order saved by `save_word_order`."""
        return word_order(self._store)

    def save_word_order(self, frequent: list[int]) -> None:
        """Stores the words that come last in the key order of texts."""
        save_word_order(self._store, frequent)


class SignaturePlan:
    """Joins with postings, which derive from the stored tables. Runs are stored in `directory`; without one, all
    postings are in memory. `merger` defaults to this process."""

    in_sql: ClassVar[bool] = False

    def __init__(self, state: StoredState, directory: Path | None, merger: Merger | None = None) -> None:
        self._state, self._near = state, NearTexts(state.texts)
        self._join = SignatureJoin(None if directory is None else StoredRuns(directory, merger), self._near)
        self._loaded = False
        self._before: Savepoint | None = None
        self._end = 0
        """One past the greatest docid with postings."""
        self._was_loaded = self._write_all = False

    def put_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        self._join.put_rows(template.shape, rows)

    def drop_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        self._join.drop_rows(rows)

    def answer(self, batch: Batch) -> Matches:
        self._note()  # before it loads: a batch that is rolled back may have run without some rows
        if not self._loaded:
            self._load(batch.first_docid if batch.older else 0)
        docids = batch.witnesses.r_docts["docid"]
        if len(docids):
            self._end = pc.max(docids).as_py() + 1
        return self._matches(batch.witnesses, batch.scope)

    def _matches(self, batch: Witnesses, scope: JoinScope) -> Matches:
        return self._join.join(batch, scope)

    def _load(self, end: int) -> None:
        """Opens the runs on disk, and builds the postings of the other documents before docid `end`. Requires all rows
        of R_T: they determine the postings."""
        try:
            self._near.begin(self._state.word_order())
            first = self._join.restart(self._state.groups(), self._state.manifest())
            for start in range(first, end, READ_DOCUMENTS):
                self._join.load(self._state.between(start, min(start + READ_DOCUMENTS, end)))
                self._settle(min(start + READ_DOCUMENTS, end))
        except BaseException:
            self._join.close()
            raise
        self._loaded, self._end = True, end

    def evict(self, before: int) -> None:
        self._note()  # also if they are not loaded: this batch may do it, and be rolled back
        if self._loaded:
            self._join.evict(before)
        elif (manifest := self._state.manifest()) is not None:
            self._state.save_manifest(evicted(manifest, before))

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        """Adds witnesses before they enter the join state; unless `whole`, postings are rebuilt for the next batch."""
        if not whole:
            self.forget()
        elif len(docids := witnesses.r_docts["docid"]):
            self._note()
            if not self._loaded:
                self._load(self._state.end())
            self._join.load(witnesses)
            self._end = max(self._end, pc.max(docids).as_py() + 1)
            self._write_all = True  # a restart would look for them among the documents that the runs do not have

    def forget(self) -> None:
        """Discards the postings; they are rebuilt for the next batch."""
        self._note()
        self._loaded = False
        if (manifest := self._join.forget()) is not None:
            self._state.save_manifest(manifest)  # at once: this batch may load them

    def regrouped(self, kept: Collection[int], edges: Collection[StepEdge]) -> None:
        if self._loaded:
            self._note()
            self._join.keep_groups(kept, edges)

    def _note(self) -> None:
        if self._before is None:
            self._before, self._was_loaded = self._join.mark(), self._loaded

    def settle(self) -> None:
        if self._loaded and (frequent := self._near.learnt(self._state.latest_texts)) is not None:
            self._state.save_word_order(frequent)
            self.forget()  # all keys change
        if self._loaded:
            try:
                self._settle(self._end, wholly=self._write_all)
            except DamagedRun as error:  # found by a merge
                self._join.distrust(error)
                self.forget()

    def _settle(self, end: int, *, wholly: bool = False) -> None:
        with telling_no_room():
            manifest = self._join.settle(end - 1, wholly=wholly)
        if manifest is not None:
            self._state.save_manifest(manifest)

    def committed(self) -> None:
        self._before, self._write_all = None, False
        self._join.committed()

    def rolled_back(self, *, whole: bool) -> None:
        if self._before is not None:
            self._loaded = whole and self._was_loaded and self._join.back_to(self._before)
            if not self._loaded:
                self._join.close()
        self._near.sets.forget()
        self._before, self._write_all = None, False

    def mends(self, error: StoreError) -> bool:
        if not isinstance(error, DamagedRun):
            return False
        self._join.distrust(error)
        self._join.close()
        self._loaded = False
        return True

    def close(self) -> None:
        self._join.close()
        self._loaded = False

    def counters(self) -> dict[str, int]:
        return self._join.counters()

    def costs(self) -> dict[int, Cost]:
        return self._join.costs.of_templates()
