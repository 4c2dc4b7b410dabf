"""What of the files that wait goes into one batch that others read: parts of files, found without reading documents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from feeds.jsonl import line_ends
from feeds.kinds import is_compressed
from feeds.offsets import ALL_READ, Offset, Positions
from feeds.tail import Waiting
from feeds.unreadable import ReplacedError

GRAIN = 64 << 10
"""So many bytes are worth a task of their own."""

UNREADABLE = -2
"""The end of a part of a file that cannot be opened now."""

NOTED = -3
"""The end of a part of which nothing is read: there is something to note of a file that was moved."""

COMPRESSION = 8
"""How many times more than its bytes a compressed file is taken to hold."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file of a source: the JSON lines that begin from byte `start` on and before byte `end`, else what
    comes behind its first `start` items, where `end` is ALL_READ.

    `known` is how far the file had been read when the part was made, and `before` the mark there, of whatever file had
    its name then; `mark` is the one at `start`, and `seal` the one at the end of JSON lines: another file that has the
    name when the part is read, or read again, is not taken for this one. It counts for so many `documents`, a line for
    one and any other file too, and `weight` is about how many bytes there are.
    """

    source: str
    file: str
    path: str
    known: int
    start: int
    end: int
    documents: int
    weight: int
    mark: str = ""
    before: str = ""
    seal: str = ""


def parts_of(waiting: Waiting, positions: Positions, most: int, most_bytes: int, grain: int = GRAIN) -> Iterator[Part]:
    """The parts of a file that are read next: of JSON lines at most `most`, and no more once they have `most_bytes`, in
    parts of about `grain` bytes; else all that there is of it. None of a file that was replaced since it was found."""
    waiting = waiting.resumed(positions)
    known, start = waiting.known or Offset(waiting.source, waiting.file, 0), waiting.start

    def part(begin: int, end: int, mark: str, documents: int, weight: int, seal: str = "") -> Part:
        place = waiting.source, waiting.file, str(waiting.path)
        return Part(*place, known.position, begin, end, documents, weight, mark, known.mark, seal)

    if not waiting.reads:
        yield part(start.position, NOTED, start.mark, 0, 0)
        return
    try:
        if not waiting.lines:
            can_be_read(waiting.path)
            yield part(start.position, ALL_READ, "", 1, _weight(waiting))
            return
        ends = line_ends(waiting.path, start.position, most, most_bytes, mark=start.mark)
    except ReplacedError:
        return
    except OSError:  # whoever reads it says so
        yield part(start.position, UNREADABLE, start.mark, 1, 0)
        return
    begin, mark, lines = start.position, start.mark, 0
    for end, there in ends:
        lines += 1
        if end - begin >= grain or end == ends[-1][0]:
            yield part(begin, end, mark, lines, end - begin, there)
            begin, mark, lines = end, there, 0


def can_be_read(path: Path) -> None:
    """Raises OSError where a file cannot be read, or a directory cannot be listed."""
    if path.is_dir():
        os.scandir(path).close()
        raise ReplacedError(f"{path} can be listed again")
    with path.open("rb") as file:
        file.read(1)


def _weight(waiting: Waiting) -> int:
    try:
        size = waiting.path.stat().st_size
    except OSError:
        return 0
    return size * COMPRESSION if is_compressed(waiting.path.name) else size
