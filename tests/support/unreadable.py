"""Files that cannot be opened, or not read beyond some byte, even by root, whom permissions do not stop."""

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

_OPEN, _SCAN = Path.open, os.scandir


class Broken(io.BufferedReader):
    """A file with a bad sector after so many bytes."""

    def __init__(self, file: Any, after: int) -> None:
        super().__init__(file)
        self._after = after

    def read(self, size: int | None = -1) -> bytes:
        return self._checked(super().read(size))

    def readline(self, size: int | None = -1) -> bytes:
        return self._checked(super().readline(-1 if size is None else size))

    def _checked(self, data: bytes) -> bytes:
        if self.tell() > self._after:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return data


@contextmanager
def opened_by(how: Any) -> Iterator[None]:
    """Replaces what `Path.open` returns by the result of `how(path, file)`, which may also raise."""

    def opening(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if mode != "rb":
            return _OPEN(path, mode, *arguments, **options)
        return how(path, lambda: _OPEN(path, mode))

    with patch.object(Path, "open", opening):
        yield


@contextmanager
def shut(*paths: Path) -> Iterator[None]:
    """Makes files impossible to open, and directories impossible to list, within a block."""

    def opening(path: Path, otherwise: Any) -> Any:
        if path in paths:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return otherwise()

    def listing(path: Any = ".") -> Any:
        return opening(Path(path), lambda: _SCAN(path))

    with opened_by(opening), patch("os.scandir", listing):
        yield


@contextmanager
def failing(path: Path, after: int) -> Iterator[None]:
    """Makes a file impossible to read beyond so many bytes, within a block."""

    def opening(found: Path, otherwise: Any) -> Any:
        if found != path:
            return otherwise()
        return Broken(io.FileIO(path, "rb"), after)

    with opened_by(opening):
        yield
