"""Archives of a feed by number. The archive `k` has the outputs with 100k <= `seq` < 100k + 100, once all of these are
committed. It never changes."""

from __future__ import annotations

SIZE = 100
"""So many numbers of outputs, of all queries, belong to an archive."""

NEWEST = 50
"""So many of the newest outputs stand in a feed, and all that are in no archive."""


def archive_of(seq: int) -> int:
    """Returns the number of the archive that an output belongs to."""
    return seq // SIZE


def numbers_of(archive: int) -> range:
    """Returns the numbers of the outputs that belong to an archive."""
    return range(archive * SIZE, (archive + 1) * SIZE)


def unarchived_from(last_seq: int) -> int:
    """Returns the first number that is in no archive yet, given the last one that is committed."""
    return archive_of(last_seq + 1) * SIZE
