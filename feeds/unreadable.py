"""Files that cannot be read now, which may be read later: told from those whose content is at fault."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from feeds.document import DEFAULT_STREAM, Reject
from feeds.sightings import Item


class ReplacedError(OSError):
    """A file is not, or no longer, the one that was to be read: whoever looks again finds out what it is."""


def is_unreadable(error: BaseException) -> bool:
    """Whether it is the system that refuses (permissions, a bad disk, a file that has gone), not a library that does
    not understand what it reads: such errors, of which some are OSErrors too, have no number."""
    return isinstance(error, OSError) and (error.errno is not None or isinstance(error, ReplacedError))


def cause(error: OSError) -> str:
    """Why a file cannot be read."""
    return f"cannot be read: {error.strerror or error}"


def or_reject(items: Iterable[Item], name: str) -> Iterator[Item]:
    """The items of a file, and a Reject where it cannot be read further: for those who read it only once."""
    try:
        yield from items
    except OSError as error:
        if not is_unreadable(error):
            raise
        yield Reject(name, DEFAULT_STREAM, None, f"{name}: {cause(error)}", b"")
