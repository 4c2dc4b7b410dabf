"""Reads files with care: in a fixed order, inside a directory, and never too much."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from common.errors import InputError

MAX_BYTES = 64 * 1024 * 1024
"""The most bytes of a document, a line or a feed."""

RAW_KEPT = 64 * 1024
"""The most bytes of bad input that a Reject keeps."""


class TooLargeError(InputError, ValueError):
    """More than MAX_BYTES. `head` is the beginning."""

    def __init__(self, head: bytes) -> None:
        self.head = head[:RAW_KEPT]
        super().__init__(self.head)

    def __str__(self) -> str:
        return f"larger than {MAX_BYTES // 1024 // 1024} MiB"


def read_file(path: Path) -> bytes:
    """The file's bytes. Raises TooLargeError if there are more than MAX_BYTES, and OSError."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise TooLargeError(data)
    return data


def modified_us(path: Path) -> int:
    """The file's modification time in microseconds."""
    return path.stat().st_mtime_ns // 1000


def none_known(name: str) -> bool:
    """The default of `files_below`: no file is known already."""
    return False


def files_below(
    directory: Path, is_wanted: Callable[[str], bool], is_known: Callable[[str], bool] = none_known
) -> Iterator[tuple[Path, str]]:
    """The regular files that are wanted by their names, depth first in order of names, with their names below the
    directory.

    A file that `is_known` by its name below the directory is left out, at little cost: there may be many of them.
    A symbolic link to a file counts if it leads to a place inside `directory`. Links to directories are not followed:
    what they hold inside is met anyway. A directory that cannot be listed, and a file that cannot be looked at, are
    among the paths, so that whoever reads them says so.
    """
    return _below(str(directory), "", is_wanted, is_known, directory.resolve())


def _below(
    directory: str, prefix: str, is_wanted: Callable[[str], bool], is_known: Callable[[str], bool], root: Path
) -> Iterator[tuple[Path, str]]:
    try:
        with os.scandir(directory) as children:
            left = [
                child
                for child in children
                if child.is_dir(follow_symlinks=False)
                or (not is_known(printable(prefix + child.name)) and is_wanted(child.name))
            ]
    except OSError:
        path = Path(directory)
        yield path, printable(prefix.rstrip("/") or path.name)
        return
    left.sort(key=lambda child: child.name)
    for child in left:
        name = prefix + child.name
        if child.is_dir(follow_symlinks=False):
            yield from _below(child.path, f"{name}/", is_wanted, is_known, root)
        elif _is_file_inside(child, root):
            yield Path(child.path), printable(name)


def _is_file_inside(child: os.DirEntry[str], root: Path) -> bool:
    try:
        if not child.is_symlink():  # costs nothing: the listing of the directory has told it
            return child.is_file()
        path = Path(child.path)
        return path.is_file() and path.resolve().is_relative_to(root)
    except OSError:
        return True


def name_below(path: Path, directory: Path) -> str:
    """The path relative to the directory, with `/`."""
    return printable(path.relative_to(directory).as_posix())


def printable(name: str) -> str:
    """A name as text that can be written anywhere, with lone surrogates (undecodable bytes) replaced."""
    return name if name.isascii() else name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
