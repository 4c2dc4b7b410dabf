"""Names new files, and removes those that did not become part of a batch, or that newer ones superseded."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from secrets import token_hex


class Drafts:
    """The files that are written in the running batch. There are never two of one name, in any process, so whoever has
    read one need not look again."""

    def __init__(self) -> None:
        self._numbers, self._own = count(), token_hex(4)
        self._paths: list[Path] = []
        self._others: dict[Path, str] = {}
        """The folders in which others may have written files, and how their names begin."""

    def new(self, folder: Path, batch: int) -> Path:
        """The path of a new file."""
        path = folder / f"{batch}-{next(self._numbers)}-{self._own}.parquet"
        self._paths.append(path)
        return path

    def prefix(self, folders: Iterable[Path], batch: int) -> str:
        """What the names of files begin with that others write."""
        prefix = f"{batch}-{self._own}-"
        self._others |= dict.fromkeys(folders, prefix)
        return prefix

    def end(self, named: Container[Path]) -> None:
        """Ends the batch: removes the files that are not `named`."""
        for folder, prefix in self._others.items():
            self._paths += folder.glob(f"{prefix}*")
        for path in self._paths:
            if path not in named:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
        self._paths.clear()
        self._others.clear()


class Superseded:
    """Files that newer ones superseded, oldest first. They are kept for `grace` microseconds, for readers that use
    them, and the last ones as long as they are the last."""

    def __init__(self, grace: int) -> None:
        self._grace = grace
        self._waiting: deque[tuple[int, list[Path]]] = deque()

    def add(self, time: int, paths: list[Path]) -> None:
        """Adds files that were superseded at a time, in the order in which they are to be removed."""
        self._waiting.append((time, paths))

    def sweep(self, now: int) -> None:
        """Removes what has been superseded long enough. Raises OSError."""
        while len(self._waiting) > 1 and self._waiting[0][0] <= now - self._grace:
            for path in self._waiting[0][1]:
                path.unlink(missing_ok=True)
            self._waiting.popleft()
