"""Files of lines that were moved, copied or written anew: how far what is there now was read, whatever it is called.

A name is no file: a log is moved aside and a new one made in its place, or it is copied and cut. What was read of a
file is known by its mark, so reading goes on where it was under any name, also at the lines that came to the old file
after it was moved; what has no mark that is known is new.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from feeds.files import name_below
from feeds.kinds import COMPRESSED_SUFFIXES
from feeds.marks import HEAD, Mark, digest_of, is_where_it_was, read_mark, with_inode
from feeds.offsets import Offset

RACY = 2_000_000_000
"""For so many nanoseconds after a file has changed, its times may not show that it has again."""

NOWHERE = "0 1 none 0 0"
"""A mark that no file has."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A file of lines: how far it was read, by `at`, and, as `moved`, whether that was under another name."""

    name: str
    path: Path
    at: Offset
    moved: bool = False


class Moves:
    """Tells the files of lines of a source apart. Each look costs a call of the system for each file; what has changed
    is opened."""

    def __init__(self, source: str, directory: Path) -> None:
        """Names are those below a directory."""
        self._source, self._directory = source, directory
        self._fits: dict[str, tuple[object, ...]] = {}
        self._searched: dict[Path, tuple[tuple[object, ...], list[Path]]] = {}
        self._strange: dict[Path, tuple[int, ...]] = {}

    def found(self, present: Mapping[str, Path], known: Mapping[str, Offset]) -> list[Lines]:
        """How far the files of a source were read that are there. `known` is what was noted, by names. A file under a
        name that the source does not take is among them if it was read under another."""
        paths = dict(present)
        for name, offset in known.items():
            if name not in paths and offset.mark and _is_file(path := self._directory / name):
                paths[name] = path
        fresh: dict[str, Path] = {}
        kept: dict[str, Lines] = {}
        for name, path in paths.items():
            noted = known.get(name)
            if noted is not None and self._has(name, path, noted):
                kept[name] = Lines(name, path, noted)
            else:
                fresh[name] = path
        self._fits = {name: fits for name, fits in self._fits.items() if name in kept}
        lost = [offset for name, offset in known.items() if name not in kept and offset.position > 0 and offset.mark]
        beside = {path: (name, looks) for name, path, looks in self._beside(lost, paths)}
        unjudged = [(name, path) for path, (name, looks) in beside.items() if self._strange.get(path) != looks]
        moved, shut = self._moved([*fresh.items(), *unjudged], known.values())
        strange = ((path, looks) for path, (name, looks) in beside.items() if name not in moved)
        self._strange = {path: looks for path, looks in strange if path not in shut}
        for name, path in fresh.items():
            if name in present:
                kept[name] = Lines(name, path, self._beginning(name, path))
        return list((kept | moved).values())

    def _has(self, name: str, path: Path, offset: Offset) -> bool:
        """Whether the file under a name is the one that was read; of one that cannot be looked into its inode tells."""
        try:
            found = path.stat()
            fits = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, offset)
            if self._fits.get(name) == fits:
                return True
        except OSError:
            return False
        try:
            with path.open("rb") as file:
                has = is_where_it_was(file, offset.position, offset.mark)
        except OSError:
            mark = read_mark(offset.mark)
            return mark is None or mark.inode == found.st_ino
        if has and found.st_ctime_ns < time.time_ns() - RACY:
            self._fits[name] = fits
        return has

    def _beginning(self, name: str, path: Path) -> Offset:
        """Where a new file is read from; one that cannot be looked into may not be new, and is not read at all until
        that is known."""
        try:
            path.open("rb").close()
        except OSError:
            return Offset(self._source, name, 1, NOWHERE)
        return Offset(self._source, name, 0)

    def _moved(
        self, paths: Sequence[tuple[str, Path]], known: Iterable[Offset]
    ) -> tuple[dict[str, Lines], Container[Path]]:
        """Those of some files that were read under other names, and those that could not be looked into."""
        moved: dict[str, Lines] = {}
        marks = _Marks(known if paths else ())
        for name, path in paths:
            if (offset := marks.of(path)) is not None:
                at = Offset(self._source, name, offset.position, with_inode(offset.mark, path))
                moved[name] = Lines(name, path, at, moved=True)
        return moved, marks.shut

    def _beside(self, lost: Iterable[Offset], paths: Container[str]) -> Iterator[tuple[str, Path, tuple[int, ...]]]:
        """The files in the directories of those that are lost which may be those, or copies, each with what tells
        whether it has changed."""
        wanted: dict[Path, list[Offset]] = {}
        for offset in lost:
            wanted.setdefault((self._directory / offset.file).parent, []).append(offset)
        self._searched = {directory: seen for directory, seen in self._searched.items() if directory in wanted}
        for directory, offsets in wanted.items():
            for path in self._like(directory, offsets):
                name = name_below(path, self._directory)
                if name not in paths and (looks := _looks(path)) is not None:
                    yield name, path, looks

    def _like(self, directory: Path, offsets: Sequence[Offset]) -> list[Path]:
        """The files of a directory with the inode of a lost one, or that are called by more than its name. The
        directory is listed when it or what is lost has changed."""
        try:
            found = directory.stat()
            seen, like = self._searched.get(directory, ((), []))
            if seen == (now := (found.st_mtime_ns, *offsets)):
                return like
            entries = list(os.scandir(directory))
        except OSError:
            return []  # it has gone, or is told of where it is listed
        inodes = {mark.inode for offset in offsets if (mark := read_mark(offset.mark)) is not None}
        stems = tuple(Path(offset.file).name for offset in offsets)
        alike = (entry for entry in entries if entry.inode() in inodes or entry.name.startswith(stems))
        like = [Path(entry.path) for entry in alike if entry.is_file(follow_symlinks=False)]
        like = [path for path in like if path.suffix not in COMPRESSED_SUFFIXES]
        if found.st_mtime_ns < time.time_ns() - RACY:
            self._searched[directory] = now, like
        return like


def _looks(path: Path) -> tuple[int, ...] | None:
    """What changes when a file does, always if it has just changed; None if it has gone."""
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
    except OSError:  # its directory is shut, which is told where that is listed
        return False


class _Marks:
    """Finds what was noted of a file by what is in it."""

    def __init__(self, known: Iterable[Offset]) -> None:
        self._by_head: dict[int, dict[str, list[tuple[Mark, Offset]]]] = {}
        self.shut: set[Path] = set()
        """The files that could not be looked into."""
        for offset in known:
            mark = read_mark(offset.mark)
            if mark is not None and offset.position > 0:
                self._by_head.setdefault(mark.head, {}).setdefault(mark.digest, []).append((mark, offset))

    def of(self, path: Path) -> Offset | None:
        """The offset that goes furthest of those whose mark a file has; None where it has none."""
        if not self._by_head:
            return None
        best: Offset | None = None
        try:
            with path.open("rb") as file:
                head = file.read(HEAD)
                size = os.fstat(file.fileno()).st_size
                for length, digests in self._by_head.items():
                    for mark, offset in digests.get(digest_of(head[:length]), ()) if length <= len(head) else ():
                        further = best is None or offset.position > best.position
                        if further and offset.position <= size and mark.fits(head, file, offset.position):
                            best = offset
        except FileNotFoundError:
            return None
        except OSError:  # its inode has to do until it can be read
            self.shut.add(path)
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
                yield from (offset for mark, offset in offsets if mark.inode == inode)
