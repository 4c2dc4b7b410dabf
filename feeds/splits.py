"""Splits: the parts of waiting files that one micro-batch reads, found without reading documents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from feeds.files import content_bytes
from feeds.readers import ALL_READ, Offset, Positions, ReplacedError, line_ends
from feeds.tail import WaitingFile

GRAIN = 64 << 10  # bytes that justify a separate task
UNREADABLE = -2  # the end of a split of a file that cannot be opened now
NOTED = -3  # the end of an empty split that only records the offset of a moved file


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a source's file: of JSON lines, the lines that begin between bytes `start` and `end`; of any other
    file, everything after its first `start` items, with `end` ALL_READ.

    `known` is the offset under that name when the split was made. Fingerprints at the three positions prevent reading
    another file that takes the name later. `documents` counts lines, or is 1; `weight` is in bytes.
    """

    source: str
    file: str
    path: str
    known: int
    start: int
    end: int
    documents: int
    weight: int
    start_fingerprint: str = ""
    known_fingerprint: str = ""
    end_fingerprint: str = ""


def splits_of(waiting: WaitingFile, positions: Positions, most: int, most_bytes: int, grain: int) -> Iterator[Split]:
    """The file's next splits. JSON lines: at most `most` lines, fewer once they reach `most_bytes`, in splits of about
    `grain` bytes; any other file: all that is left. None if the file was replaced since it was found."""
    waiting = waiting.updated(positions)
    known, start = waiting.known or Offset(waiting.source, waiting.file, 0), waiting.start

    def split(begin: int, end: int, fingerprint: str, documents: int, weight: int, end_fingerprint: str = "") -> Split:
        file = waiting.source, waiting.file, str(waiting.path)
        fingerprints = fingerprint, known.fingerprint, end_fingerprint
        return Split(*file, known.position, begin, end, documents, weight, *fingerprints)

    if not waiting.reads:
        yield split(start.position, NOTED, start.fingerprint, 0, 0)
        return
    try:
        if not waiting.lines:
            can_be_read(waiting.path)
            yield split(start.position, ALL_READ, "", 1, content_bytes(waiting.path))
            return
        ends = line_ends(waiting.path, start, most, most_bytes, waiting.tail.read_line)
    except ReplacedError:
        return
    except OSError:  # its reader reports the error
        yield split(start.position, UNREADABLE, start.fingerprint, 1, 0)
        return
    begin, fingerprint, lines = start.position, start.fingerprint, 0
    for end in ends:
        lines += 1
        size = end.position - begin
        if size >= grain or end is ends[-1]:
            yield split(begin, end.position, fingerprint, lines, size, end.fingerprint)
            begin, fingerprint, lines = end.position, end.fingerprint, 0


def can_be_read(path: Path) -> None:
    """Raises OSError if a file cannot be read, or a directory cannot be listed."""
    if path.is_dir():
        os.scandir(path).close()
        raise ReplacedError(f"{path} can be listed again")
    with path.open("rb") as file:
        file.read(1)
