"""Files that wait, read one after the other, past those that cannot be read now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from feeds.document import Document, Reject
from feeds.history import History
from feeds.sightings import Item
from feeds.tail import Piece, Waiting
from feeds.unreadable import ReplacedError, cause, is_unreadable

Told = Callable[[Waiting, str], object]


def read_waiting(files: Iterable[Waiting], told: Told) -> Iterator[Piece[Item]]:
    """What the files hold. `told` hears which cannot be read, or not further, and why: they wait on.

    So do other versions of a feed behind one that cannot be read, since what is new in them depends on it.
    """
    held = Held()
    for waiting in files:
        if held.holds(waiting):
            continue
        try:
            yield from waiting.read()
        except ReplacedError:
            pass  # the next look tells what it is
        except OSError as error:
            if not is_unreadable(error):
                raise
            held.add(waiting)
            told(waiting, cause(error))


def judged(pieces: Iterable[Piece[Item]], history: History) -> Iterator[Piece[Document | Reject]]:
    """Pieces as a history judges their items, in the order in which they were read."""
    for piece in pieces:
        yield Piece(None if piece.item is None else history.judge(piece.item), piece.offset)


class Held:
    """The feeds of which a version cannot be read."""

    def __init__(self) -> None:
        self._feeds: set[str] = set()

    def add(self, waiting: Waiting) -> None:
        """A file cannot be read."""
        self._feeds |= {waiting.feed()} - {""}

    def holds(self, waiting: Waiting) -> bool:
        """Whether a file has to wait for another."""
        return bool(self._feeds) and waiting.feed() in self._feeds
