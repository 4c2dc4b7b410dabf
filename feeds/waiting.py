"""Reads waiting files one after the other, and passes over those that cannot be read now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from feeds.document import Document, Reject
from feeds.history import History
from feeds.sightings import Item
from feeds.tail import ReadItem, WaitingFile
from feeds.unreadable import ReplacedError, cause, is_unreadable

Told = Callable[[WaitingFile, str], object]


def read_waiting(files: Iterable[WaitingFile], told: Told) -> Iterator[ReadItem[Item]]:
    """What the files hold. `told` hears which file cannot be read, or not further, and why: it stays waiting.

    Later versions of the same feed stay waiting too, because what is new in them depends on it.
    """
    blocked = BlockedFeeds()
    for waiting in files:
        if blocked.has(waiting):
            continue
        try:
            yield from waiting.read()
        except ReplacedError:
            pass  # the next look tells what it is
        except OSError as error:
            if not is_unreadable(error):
                raise
            blocked.add(waiting)
            told(waiting, cause(error))


def judged(items: Iterable[ReadItem[Item]], history: History) -> Iterator[ReadItem[Document | Reject]]:
    """Items as a history judges them, in the order in which they were read."""
    for read in items:
        yield ReadItem(None if read.item is None else history.judge(read.item), read.offset)


class BlockedFeeds:
    """The feeds of which a version cannot be read."""

    def __init__(self) -> None:
        self._feeds: set[str] = set()

    def add(self, waiting: WaitingFile) -> None:
        """Blocks the feed of a file, if it is known."""
        self._feeds |= {waiting.feed()} - {""}

    def has(self, waiting: WaitingFile) -> bool:
        """Whether a file is of a blocked feed."""
        return bool(self._feeds) and waiting.feed() in self._feeds
