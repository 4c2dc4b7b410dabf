"""Rotated files: how far a JSON lines file was read that was moved, copied or written anew.

A name does not identify a file. Log rotation moves a log aside and makes a new one, or copies it and truncates it. The
fingerprint of what was read identifies the file, so reading goes on where it was under any name, also at lines that
were appended after the move. A file without a known fingerprint is new.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from feeds.files import name_below
from feeds.fingerprints import HEAD, Fingerprint, digest_of, has_fingerprint, parse_fingerprint, with_inode
from feeds.kinds import COMPRESSED_SUFFIXES
from feeds.offsets import Offset

RACY = 2_000_000_000
"""For this many nanoseconds after a change, a file's times may not show another change."""

UNKNOWN = "0 1 none 0 0"
"""A fingerprint that no file has."""


@dataclass(frozen=True, slots=True)
class LinesFile:
    """A JSON lines file. It was read up to `at`; `moved` says that it had another name then."""

    name: str
    path: Path
    at: Offset
    moved: bool = False


class Rotation:
    """Recognises the JSON lines files of a source. Each look costs one system call per file; only files that have
    changed are opened."""

    def __init__(self, source: str, directory: Path) -> None:
        """Names are relative to a directory."""
        self._source, self._directory = source, directory
        self._unchanged: dict[str, tuple[object, ...]] = {}
        self._searched: dict[Path, tuple[tuple[object, ...], list[Path]]] = {}
        self._strange: dict[Path, tuple[int, ...]] = {}

    def found(self, present: Mapping[str, Path], known: Mapping[str, Offset]) -> list[LinesFile]:
        """How far the files that are there were read. `known` has the offsets so far, by name. A file whose name the
        source does not take is among them if it was read under another name."""
        paths = dict(present)
        for name, offset in known.items():
            if name not in paths and offset.fingerprint and _is_file(path := self._directory / name):
                paths[name] = path
        fresh: dict[str, Path] = {}
        kept: dict[str, LinesFile] = {}
        for name, path in paths.items():
            noted = known.get(name)
            if noted is not None and self._is_same(name, path, noted):
                kept[name] = LinesFile(name, path, noted)
            else:
                fresh[name] = path
        self._unchanged = {name: state for name, state in self._unchanged.items() if name in kept}
        lost = [
            offset for name, offset in known.items() if name not in kept and offset.position > 0 and offset.fingerprint
        ]
        beside = {path: (name, state) for name, path, state in self._beside(lost, paths)}
        unjudged = [(name, path) for path, (name, state) in beside.items() if self._strange.get(path) != state]
        moved, unreadable = self._moved([*fresh.items(), *unjudged], known.values())
        strange = ((path, state) for path, (name, state) in beside.items() if name not in moved)
        self._strange = {path: state for path, state in strange if path not in unreadable}
        for name, path in fresh.items():
            if name in present:
                kept[name] = LinesFile(name, path, self._beginning(name, path))
        return list((kept | moved).values())

    def _is_same(self, name: str, path: Path, offset: Offset) -> bool:
        """Whether the file under a name is the one that was read. If it cannot be opened, the inode decides."""
        try:
            found = path.stat()
            state = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, offset)
            if self._unchanged.get(name) == state:
                return True
        except OSError:
            return False
        try:
            with path.open("rb") as file:
                same = has_fingerprint(file, offset.position, offset.fingerprint)
        except OSError:
            fingerprint = parse_fingerprint(offset.fingerprint)
            return fingerprint is None or fingerprint.inode == found.st_ino
        if same and found.st_ctime_ns < time.time_ns() - RACY:
            self._unchanged[name] = state
        return same

    def _beginning(self, name: str, path: Path) -> Offset:
        """Where a new file is read from. A file that cannot be opened may not be new: it is not read until that is
        known."""
        try:
            path.open("rb").close()
        except OSError:
            return Offset(self._source, name, 1, UNKNOWN)
        return Offset(self._source, name, 0)

    def _moved(
        self, paths: Sequence[tuple[str, Path]], known: Iterable[Offset]
    ) -> tuple[dict[str, LinesFile], Container[Path]]:
        """The files that were read under other names, and those that could not be opened."""
        moved: dict[str, LinesFile] = {}
        index = _Index(known if paths else ())
        for name, path in paths:
            if (offset := index.of(path)) is not None:
                at = Offset(self._source, name, offset.position, with_inode(offset.fingerprint, path))
                moved[name] = LinesFile(name, path, at, moved=True)
        return moved, index.unreadable

    def _beside(self, lost: Iterable[Offset], paths: Container[str]) -> Iterator[tuple[str, Path, tuple[int, ...]]]:
        """The files in the directories of lost ones that may be those, or copies, each with the state that shows
        whether it has changed."""
        wanted: dict[Path, list[Offset]] = {}
        for offset in lost:
            wanted.setdefault((self._directory / offset.file).parent, []).append(offset)
        self._searched = {directory: seen for directory, seen in self._searched.items() if directory in wanted}
        for directory, offsets in wanted.items():
            for path in self._candidates(directory, offsets):
                name = name_below(path, self._directory)
                if name not in paths and (state := _state(path)) is not None:
                    yield name, path, state

    def _candidates(self, directory: Path, offsets: Sequence[Offset]) -> list[Path]:
        """The files of a directory that have the inode of a lost one, or whose names begin with its name. The directory
        is listed when it or the set of lost files has changed."""
        try:
            found = directory.stat()
            seen, candidates = self._searched.get(directory, ((), []))
            if seen == (now := (found.st_mtime_ns, *offsets)):
                return candidates
            entries = list(os.scandir(directory))
        except OSError:
            return []  # it has gone, or its listing reports it
        known = (parse_fingerprint(offset.fingerprint) for offset in offsets)
        inodes = {fingerprint.inode for fingerprint in known if fingerprint is not None}
        stems = tuple(Path(offset.file).name for offset in offsets)
        alike = (entry for entry in entries if entry.inode() in inodes or entry.name.startswith(stems))
        candidates = [Path(entry.path) for entry in alike if entry.is_file(follow_symlinks=False)]
        candidates = [path for path in candidates if path.suffix not in COMPRESSED_SUFFIXES]
        if found.st_mtime_ns < time.time_ns() - RACY:
            self._searched[directory] = now, candidates
        return candidates


def _state(path: Path) -> tuple[int, ...] | None:
    """What changes when a file does, and always if it has just changed; None if it has gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    now = time.time_ns()
    racy = 0 if found.st_ctime_ns < now - RACY else now
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, racy


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # its directory cannot be listed, which is reported there
        return False


class _Index:
    """Finds the offset of a file by its content."""

    def __init__(self, known: Iterable[Offset]) -> None:
        self._by_head: dict[int, dict[str, list[tuple[Fingerprint, Offset]]]] = {}
        self.unreadable: set[Path] = set()
        """The files that could not be opened."""
        for offset in known:
            fingerprint = parse_fingerprint(offset.fingerprint)
            if fingerprint is not None and offset.position > 0:
                digests = self._by_head.setdefault(fingerprint.head, {})
                digests.setdefault(fingerprint.digest, []).append((fingerprint, offset))

    def of(self, path: Path) -> Offset | None:
        """The furthest of the offsets whose fingerprint a file has; None if it has none."""
        if not self._by_head:
            return None
        best: Offset | None = None
        try:
            with path.open("rb") as file:
                head = file.read(HEAD)
                size = os.fstat(file.fileno()).st_size
                for length, digests in self._by_head.items():
                    found = digests.get(digest_of(head[:length]), ()) if length <= len(head) else ()
                    for fingerprint, offset in found:
                        further = best is None or offset.position > best.position
                        if further and offset.position <= size and fingerprint.fits(head, file, offset.position):
                            best = offset
        except FileNotFoundError:
            return None
        except OSError:  # its inode has to do until it can be opened
            self.unreadable.add(path)
            return self._by_inode(path)
        return best

    def _by_inode(self, path: Path) -> Offset | None:
        with suppress(OSError):
            inode = path.stat().st_ino
            return max(self._with_inode(inode), key=lambda offset: offset.position, default=None)
        return None

    def _with_inode(self, inode: int) -> Iterator[Offset]:
        for digests in self._by_head.values():
            for offsets in digests.values():
                yield from (offset for fingerprint, offset in offsets if fingerprint.inode == inode)
