"""The size of the documents behind the paths of a command line, before any of them is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from feeds.files import files_below
from feeds.kinds import is_compressed, is_unfinished

EXPANDED = 5
"""How many times its size a compressed file counts: feeds and crawls of them are compressed to about a fifth."""


def input_bytes(paths: Iterable[str | Path], enough: int) -> int:
    """The bytes of all files that the paths name; compressed ones count EXPANDED times. Stops past `enough`."""
    size = 0
    for path in _files(paths):
        with suppress(OSError):  # whoever reads the file says what is wrong with it
            size += path.stat().st_size * (EXPANDED if is_compressed(path.name) else 1)
        if size > enough:
            break
    return size


def _files(paths: Iterable[str | Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_dir():
            yield from (file for file, _ in files_below(path, lambda name: not is_unfinished(name)))
        else:
            yield path
