"""The files of a source: those below a directory that hold documents, or the one that was named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from feeds.drop_directory import read_sidecar, read_stem
from feeds.files import files_below, none_known, printable
from feeds.kinds import SIDECAR_SUFFIX, FileKind, is_unfinished, kind_of_file
from feeds.order import fetch_time


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a source, by its name there, and its kind; None for a directory that cannot be listed."""

    path: Path
    name: str
    kind: FileKind | None

    def fetched(self) -> int:
        """When its content was fetched (see `feeds.order`); 0 for a directory, so that it is reported first."""
        return 0 if self.kind is None else fetch_time(self.path)


class Listing:
    """Lists the files of a source. In a directory, unfinished files and sidecars are passed over. A single file is
    listed whatever it is."""

    def __init__(self, path: Path, *, feeds: bool) -> None:
        self._path = path
        self._kind = partial(kind_of_file, feeds=feeds)
        self._sidecars: set[str] = set()

    def files(self, is_known: Callable[[str], bool] = none_known) -> Iterator[SourceFile]:
        """The files that are there now, in no particular order. In a directory, those that are known by their names are
        left out."""
        if not self._path.is_dir():
            yield SourceFile(self._path, printable(self._path.name), self._kind(self._path.name))
            return
        sidecars: set[str] = set()

        def is_passed_over(name: str) -> bool:
            if name in self._sidecars:
                sidecars.add(name)
                return True
            return is_known(name)

        for path, name in files_below(self._path, self.is_wanted, is_passed_over):
            if _is_sidecar(path):
                sidecars.add(name)
            else:
                yield SourceFile(path, name, self._kind(path.name) if self.is_wanted(path.name) else None)
        self._sidecars = sidecars

    def is_wanted(self, name: str) -> bool:
        """Whether a file of the directory is listed if it has this name, unless it is a sidecar."""
        return not is_unfinished(name) and self._kind(name) is not None


def _is_sidecar(path: Path) -> bool:
    """Whether a file only has notes on another, which may come later."""
    if path.suffix.lower() != SIDECAR_SUFFIX:
        return False
    if read_stem(path.stem) is not None:
        return True
    try:
        return read_sidecar(path) is not None
    except (ValueError, OSError):
        return False


def in_order(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Files in the order in which they are read: that of their fetches, and then of their names."""
    return sorted(files, key=lambda file: (file.fetched(), file.name))
