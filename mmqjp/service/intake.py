"""Reads the sources batch by batch, and says what to commit with each batch so that everything is read once."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from common.batches import in_batches
from feeds.document import Document, Reject
from feeds.history import History
from feeds.offsets import Offset, Positions
from feeds.sightings import Item, size_of
from feeds.tail import ReadItem, Tail, WaitingFile, waiting_files
from feeds.waiting import judged, read_waiting
from mmqjp.documents.admission import EvaluatedBatch
from mmqjp.service.progress import Backlog
from mmqjp.session import Session
from mmqjp.tables.commit_metadata import CommitMetadata

HISTORY = "history "
"""Prefix of the settings that store what is known of the entries of each feed."""


@dataclass(slots=True)
class ReadBatch:
    """A batch as it was read: its documents, and the offsets to commit with them.

    If executors have evaluated the documents already, `evaluated` is their result and `seconds` the time that took.
    """

    items: list[Document | Reject] = field(default_factory=list)
    offsets: dict[tuple[str, str], Offset] = field(default_factory=dict)
    evaluated: EvaluatedBatch | None = None
    seconds: float = 0.0

    @classmethod
    def of(cls, batch: Sequence[ReadItem[Document | Reject]]) -> ReadBatch:
        """The batch made of these items."""
        items = [read.item for read in batch if read.item is not None]
        return cls(items, {(read.offset.source, read.offset.file): read.offset for read in batch})


def _size(read: ReadItem[Document | Reject]) -> int | None:
    return None if read.item is None else size_of(read.item)


class Intake:
    """The sources of an engine. Reading resumes at the offsets that the store has committed.

    `history` is shared by all sources and is loaded here. Each batch must be committed with its `metadata` before
    the next one is read.
    """

    def __init__(
        self,
        engine: Session,
        sources: Sequence[Tail],
        history: History,
        batch_size: int,
        batch_bytes: int,
        report: Callable[[str, str], object],
    ) -> None:
        """`report` is called once with each file that cannot be read now and the reason, and with "" as the reason when
        the file is read again."""
        self._report, self._failed = report, dict[tuple[str, str], str]()
        self._engine, self._sources, self._history = engine, sources, history
        self._batch_size, self._batch_bytes = batch_size, batch_bytes
        self._positions = engine.offsets()
        self.backlog = Backlog()
        history.load(engine.settings(HISTORY))

    def batches(self) -> Iterator[ReadBatch]:
        """Batches of everything that can be read now."""
        found = waiting_files(self._sources, self._positions)
        self._forget_missing({(waiting.source, waiting.file) for waiting in found})

        def report(waiting: WaitingFile, cause: str) -> None:
            self.fail((waiting.source, waiting.file), cause)

        return self.in_batches(self.judged(read_waiting(self.backlog.counting(found), report)))

    def fail(self, file: tuple[str, str], cause: str) -> None:
        """Notes that a file, given as (source, file), cannot be read now, or not to its end."""
        if file not in self._failed:
            self._failed[file] = cause
            self._report(file[1], cause)

    def _forget_missing(self, present: Container[tuple[str, str]]) -> None:
        """Forgets unreadable files that no longer exist."""
        self._failed = {file: cause for file, cause in self._failed.items() if file in present}

    def in_batches(self, items: Iterable[ReadItem[Document | Reject]]) -> Iterator[ReadBatch]:
        """Items in batches. Nothing is read ahead of the batch that is taken."""
        return map(ReadBatch.of, in_batches(items, self._batch_size, self._batch_bytes, _size))

    def judged(self, items: Iterable[ReadItem[Item]]) -> Iterator[ReadItem[Document | Reject]]:
        """Items after the history has judged them: which are new documents, and which are rejected."""
        return judged(items, self._history)

    @property
    def positions(self) -> Positions:
        """How far each file has been read, by (source, file)."""
        return self._positions

    def position(self, source: str, file: str) -> int:
        """How far a file has been read; 0 if nothing has been."""
        offset = self._positions.get((source, file))
        return 0 if offset is None else offset.position

    def metadata(self, batch: ReadBatch, settings: Mapping[str, str]) -> CommitMetadata:
        """What to commit with the batch that was just read, including `settings`."""
        known = {HISTORY + feed: text for feed, text in self._history.changed().items()}
        return CommitMetadata(tuple(batch.offsets.values()), {**settings, **known})

    def committed(self, batch: ReadBatch) -> None:
        """Must be called once the batch is committed."""
        self._positions.update(batch.offsets)
        for file in self._failed.keys() & batch.offsets.keys():
            del self._failed[file]
            self._report(file[1], "")

    def listing(self) -> tuple[list[str], set[tuple[str, str]]]:
        """The names of the sources that can be listed now, and the files that exist in them, as (source, file)."""
        names = {source.name: source.names() for source in self._sources}
        files = {(source, file) for source, found in names.items() for file in found or ()}
        if None not in names.values():
            self._forget_missing(files)
        return [source for source, found in names.items() if found is not None], files

    def refresh(self) -> None:
        """Reloads the offsets from the store, after some were dropped there."""
        self._positions = self._engine.offsets()
