"""Tells files that cannot be read now, but maybe later, from files with bad content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from common.errors import OperationalError
from feeds.document import DEFAULT_STREAM, Reject
from feeds.sightings import Item


class ReplacedError(OperationalError, OSError):
    """The file is not the one that was to be read, or no longer. The next look finds out what it is."""


def is_unreadable(error: BaseException) -> bool:
    """Whether the system refuses to read (permissions, a bad disk, a file that has gone), and not a library that does
    not understand the content: some of those errors are OSErrors too, but have no number."""
    return isinstance(error, OSError) and (error.errno is not None or isinstance(error, ReplacedError))


def cause(error: OSError) -> str:
    """Why a file cannot be read."""
    return f"cannot be read: {error.strerror or error}"


def or_reject(items: Iterable[Item], name: str) -> Iterator[Item]:
    """The items of a file, and a Reject if it cannot be read further: for readers that do not come back."""
    try:
        yield from items
    except OSError as error:
        if not is_unreadable(error):
            raise
        yield Reject(name, DEFAULT_STREAM, None, f"{name}: {cause(error)}", b"")
