"""What of the files that wait goes into one batch that others read: parts of files, found without reading documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from feeds.jsonl import line_ends
from feeds.tail import ALL_READ, Positions, Waiting

GRAIN = 64 << 10
"""So many bytes are worth a task of their own."""

UNREADABLE = -2
"""The end of a part of a file that cannot be opened now."""

PACKED = 8
"""How many times more than its bytes a compressed file is taken to hold."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file of a source: the JSON lines that begin from byte `start` on and before byte `end`, else what
    comes behind its first `start` items, where `end` is ALL_READ.

    `known` is how far the file had been read when the part was made. It counts for so many `documents`, a line for one
    and any other file too, and `weight` is about how many bytes there are.
    """

    source: str
    file: str
    path: str
    known: int
    start: int
    end: int
    documents: int
    weight: int


def parts_of(waiting: Waiting, positions: Positions, most: int, most_bytes: int, grain: int = GRAIN) -> Iterator[Part]:
    """The parts of a file that are read next: of JSON lines at most `most`, and no more once they have `most_bytes`, in
    parts of about `grain` bytes; else all that there is of it."""
    known = positions.get((waiting.source, waiting.file), 0)
    place = (waiting.source, waiting.file, str(waiting.path), known)
    if not grows(waiting.path):
        yield Part(*place, known, ALL_READ, 1, _weight(waiting))
        return
    try:
        start, ends = line_ends(waiting.path, known, most, most_bytes)
    except OSError:  # whoever reads it says so
        yield Part(*place, known, UNREADABLE, 1, 0)
        return
    begin, lines = start, 0
    for end in ends:
        lines += 1
        if end - begin >= grain or end == ends[-1]:
            yield Part(*place, begin, end, lines, end - begin)
            begin, lines = end, 0


def grows(path: Path) -> bool:
    """Whether a file is of JSON lines, to which others may be appended."""
    return path.suffix.lower() == ".jsonl"


def _weight(waiting: Waiting) -> int:
    try:
        size = waiting.path.stat().st_size
    except OSError:
        return 0
    return size * PACKED if waiting.path.suffix.lower() == ".gz" else size
