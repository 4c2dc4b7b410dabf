"""The `signature` plan on any engine: postings in memory and on disk, rebuilt from the stored join state if need be."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from join_stage.near import NearTexts
from join_stage.protocol import Batch, Cost, JoinScope, Matches, TemplateTable
from join_stage.signature.disk import Merger, StoredRuns, evicted
from join_stage.signature.join import Savepoint, SignatureJoin
from join_stage.store.protocol import StoreError
from templates.catalog import StepEdge, TemplateRow
from templates.witness import Witnesses

READ_DOCUMENTS = 50_000
"""The number of docids whose join state is read at a time."""


@contextmanager
def telling_no_room() -> Iterator[None]:
    """Raises a StoreError for an OSError."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"the store cannot be written: {error}; make room, and run it again") from error


class StoredState(Protocol):
    """The join state of a store, from which postings are built."""

    def groups(self) -> pa.Table:
        """The groups of edges, as rows of R_GROUP."""

    def end(self) -> int:
        """The docid after the greatest of the join state."""

    def between(self, first: int, end: int) -> Witnesses:
        """The witnesses of the documents from docid `first` on and before `end`. `r_group` need only have what `groups`
        lacks."""

    def manifest(self) -> str | None:
        """What `save_manifest` got last."""

    def save_manifest(self, manifest: str) -> None:
        """Stores the names of the runs on disk with the running batch."""

    def texts(self, docids: pa.Array) -> pa.Table:
        """The rows of R_doc of some documents."""

    def latest_texts(self, most: int) -> list[str]:
        """At most so many texts that are joined by their words, the latest ones, as R_doc has them."""

    def word_order(self) -> list[int] | None:
        """What `save_word_order` got."""

    def save_word_order(self, frequent: list[int]) -> None:
        """Stores the words that come last in the order by which texts get their keys."""


class SignaturePlan:
    """Joins with postings. The tables of the store are what lasts; postings follow from them.

    `directory` is where runs are kept on disk; without one, all postings are in memory. `merger` merges runs; by
    default this process does.
    """

    in_sql: ClassVar[bool] = False

    def __init__(self, state: StoredState, directory: Path | None, merger: Merger | None = None) -> None:
        self._state, self._near = state, NearTexts(state.texts)
        self._join = SignatureJoin(None if directory is None else StoredRuns(directory, merger), self._near)
        self._loaded = False
        self._before: Savepoint | None = None
        self._end = 0
        """The docid after the greatest whose postings are there."""
        self._was_loaded = self._write_all = False

    def put_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        self._join.put_rows(template.shape, rows)

    def drop_rows(self, template: TemplateTable, rows: Sequence[TemplateRow]) -> None:
        self._join.drop_rows(rows)

    def answer(self, batch: Batch) -> Matches:
        """Answers all templates for a batch."""
        if not self._loaded:
            self._load(batch.first_docid if batch.older else 0)
        self._note()
        docids = batch.witnesses.r_docts["docid"]
        if len(docids):
            self._end = pc.max(docids).as_py() + 1
        return self._matches(batch.witnesses, batch.scope)

    def _matches(self, batch: Witnesses, scope: JoinScope) -> Matches:
        return self._join.join(batch, scope)

    def _load(self, end: int) -> None:
        """Opens the runs on disk, and builds the postings of the other documents before docid `end`. All rows of R_T
        must be there: postings are made of what they ask for."""
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
        """Drops the postings of documents that begin before a time, in microseconds."""
        self._note()  # also if they are not loaded: this batch may do it, and be rolled back
        if self._loaded:
            self._join.evict(before)
        elif (manifest := self._state.manifest()) is not None:
            self._state.save_manifest(evicted(manifest, before))

    def extend(self, witnesses: Witnesses, *, whole: bool) -> None:
        """Takes in witnesses that are about to be added to the join state. If they are not those of `whole` documents,
        the postings are built anew for the next batch."""
        if not whole:
            self.forget()
        elif len(docids := witnesses.r_docts["docid"]):
            if not self._loaded:
                self._load(self._state.end())
            self._note()
            self._join.load(witnesses)
            self._end = max(self._end, pc.max(docids).as_py() + 1)
            self._write_all = True  # a restart would look for them among the documents that the runs do not have

    def forget(self) -> None:
        """Has the postings built anew for the next batch: they are not those of the join state any more."""
        self._note()
        self._loaded = False
        if (manifest := self._join.forget()) is not None:
            self._state.save_manifest(manifest)  # at once: this batch may load them

    def regrouped(self, kept: Collection[int], edges: Collection[StepEdge]) -> None:
        if self._loaded:
            self._note()
            self._join.keep_groups(kept, edges)

    def _note(self) -> None:
        """Notes the postings before a batch changes them."""
        if self._before is None:
            self._before, self._was_loaded = self._join.mark(), self._loaded

    def settle(self) -> None:
        """Is told that the batch is about to be committed."""
        if self._loaded and (frequent := self._near.learnt(self._state.latest_texts)) is not None:
            self._state.save_word_order(frequent)
            self.forget()  # all keys change
        if self._loaded:
            self._settle(self._end, wholly=self._write_all)

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

    def close(self) -> None:
        self._join.close()
        self._loaded = False

    def counters(self) -> dict[str, int]:
        return self._join.counters()

    def costs(self) -> dict[int, Cost]:
        return self._join.costs.of_templates()
