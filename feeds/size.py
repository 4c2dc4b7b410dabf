"""The size of the documents behind the paths of a command line, before any of them is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from feeds.kinds import is_compressed
from feeds.listing import Listing

EXPANDED = 5
"""How many times its size a compressed file counts: feeds and crawls of them are compressed to about a fifth."""


def input_bytes(paths: Iterable[str | Path], enough: int, *, feeds: bool) -> int:
    """The bytes of all files that are read from the paths, with or without `feeds`; compressed ones count EXPANDED
    times. Stops past `enough`."""
    size = 0
    for path in _files(paths, feeds=feeds):
        with suppress(OSError):  # whoever reads the file says what is wrong with it
            size += path.stat().st_size * (EXPANDED if is_compressed(path.name) else 1)
        if size > enough:
            break
    return size


def _files(paths: Iterable[str | Path], *, feeds: bool) -> Iterator[Path]:
    for path in map(Path, paths):
        yield from (file.path for file in Listing(path, feeds=feeds).files() if file.kind is not None)
