"""The files of a source: those below a directory that hold documents, or the one that was named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from feeds.drop_directory import read_sidecar, read_stem
from feeds.files import files_below, name_below, printable
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
        self._sidecars: set[Path] = set()

    def files(self) -> Iterator[SourceFile]:
        """The files that are there now, in no particular order."""
        if not self._path.is_dir():
            yield SourceFile(self._path, printable(self._path.name), self._kind(self._path.name))
            return
        for path in files_below(self._path, self._is_wanted):
            if not self._is_sidecar(path):
                kind = self._kind(path.name) if self._is_wanted(path.name) else None
                name = printable(path.name) if path == self._path else name_below(path, self._path)
                yield SourceFile(path, name, kind)

    def _is_wanted(self, name: str) -> bool:
        return not is_unfinished(name) and self._kind(name) is not None

    def _is_sidecar(self, path: Path) -> bool:
        """Whether a file only has notes on another, which may come later."""
        if path.suffix.lower() != SIDECAR_SUFFIX:
            return False
        if read_stem(path.stem) is not None:
            return True
        if path not in self._sidecars:
            try:
                if read_sidecar(path) is None:
                    return False
            except (ValueError, OSError):
                return False
            self._sidecars.add(path)
        return True


def in_order(files: Iterable[SourceFile]) -> list[SourceFile]:
    """Files in the order in which they are read: that of their fetches, and then of their names."""
    return sorted(files, key=lambda file: (file.fetched(), file.name))
