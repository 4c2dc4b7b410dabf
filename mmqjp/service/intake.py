"""What sources have to read, batch by batch, and what is to be committed with each batch so that it is read once."""

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
"""Begins the keys of the settings with what is known of the entries of each feed."""


@dataclass(slots=True)
class Taken:
    """A batch as it was read: its documents, the offsets behind them, and what was found in them elsewhere, in so many
    `seconds`."""

    items: list[Document | Reject] = field(default_factory=list)
    offsets: dict[tuple[str, str], Offset] = field(default_factory=dict)
    found: EvaluatedBatch | None = None
    seconds: float = 0.0

    @classmethod
    def of(cls, batch: Sequence[ReadItem[Document | Reject]]) -> Taken:
        """The batch as it was read."""
        items = [read.item for read in batch if read.item is not None]
        return cls(items, {(read.offset.source, read.offset.file): read.offset for read in batch})


def _size(read: ReadItem[Document | Reject]) -> int | None:
    return None if read.item is None else size_of(read.item)


class Intake:
    """The sources of an engine, which go on where its store says. `history` is that of all of them; it is loaded here.

    A batch must be committed with its `metadata` before the next is taken.
    """

    def __init__(
        self,
        engine: Session,
        sources: Sequence[Tail],
        history: History,
        batch_size: int,
        batch_bytes: int,
        told: Callable[[str, str], object],
    ) -> None:
        """`told` hears once of each file that cannot be read now, and why; "" when it is read again."""
        self._told, self._failed = told, dict[tuple[str, str], str]()
        self._engine, self._sources, self._history = engine, sources, history
        self._most, self._most_bytes = batch_size, batch_bytes
        self._positions = engine.offsets()
        self.backlog = Backlog()
        history.load(engine.settings(HISTORY))

    def batches(self) -> Iterator[Taken]:
        """What there is to read now."""
        found = waiting_files(self._sources, self._positions)
        self._forget({(waiting.source, waiting.file) for waiting in found})

        def told(waiting: WaitingFile, cause: str) -> None:
            self.fail((waiting.source, waiting.file), cause)

        return self.in_batches(self.judged(read_waiting(self.backlog.over(found), told)))

    def fail(self, file: tuple[str, str], cause: str) -> None:
        """A file cannot be read now, or not further."""
        if file not in self._failed:
            self._failed[file] = cause
            self._told(file[1], cause)

    def _forget(self, there: Container[tuple[str, str]]) -> None:
        """Forgets of files that could not be read those that are gone."""
        self._failed = {file: cause for file, cause in self._failed.items() if file in there}

    def in_batches(self, items: Iterable[ReadItem[Document | Reject]]) -> Iterator[Taken]:
        """Batches of items, each read no further than it goes."""
        return map(Taken.of, in_batches(items, self._most, self._most_bytes, _size))

    def judged(self, items: Iterable[ReadItem[Item]]) -> Iterator[ReadItem[Document | Reject]]:
        """Items as the history judges them."""
        return judged(items, self._history)

    @property
    def positions(self) -> Positions:
        """How far each file is read."""
        return self._positions

    def position(self, source: str, file: str) -> int:
        offset = self._positions.get((source, file))
        return 0 if offset is None else offset.position

    def metadata(self, taken: Taken, settings: Mapping[str, str]) -> CommitMetadata:
        """What is committed with a batch that was just taken, `settings` among it."""
        known = {HISTORY + feed: text for feed, text in self._history.changed().items()}
        return CommitMetadata(tuple(taken.offsets.values()), {**settings, **known})

    def committed(self, taken: Taken) -> None:
        """The batch is committed."""
        self._positions.update(taken.offsets)
        for file in self._failed.keys() & taken.offsets.keys():
            del self._failed[file]
            self._told(file[1], "")

    def there(self) -> tuple[list[str], set[tuple[str, str]]]:
        """What the sources are called in offsets that can be listed, and the files that are there, each with its
        source's name."""
        names = {source.name: source.names() for source in self._sources}
        files = {(source, file) for source, found in names.items() for file in found or ()}
        if None not in names.values():
            self._forget(files)
        return [source for source, found in names.items() if found is not None], files

    def refresh(self) -> None:
        """Takes over the offsets of the store, from which some were dropped."""
        self._positions = self._engine.offsets()
