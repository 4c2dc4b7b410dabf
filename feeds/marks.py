"""Marks: which file of lines it is that was read so far, whatever it is called by now.

A mark has the file's inode, a digest of how the file begins, and a check of what was read last. It is what was read
that tells a file, also from one in its place and when it was copied; an inode, which may be given again, only says
where to look.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

HEAD = 4096
"""So many bytes, at the most, of how a file begins are in its digest."""

LAST = 64
"""So many bytes, at the most, of what was read last are in the check."""


class Mark(NamedTuple):
    """The digest is of the first `head` bytes, the check of the `last` ones before the position."""

    inode: int
    head: int
    digest: str
    last: int
    check: int

    def fits(self, head: bytes, file: BinaryIO, position: int) -> bool:
        """Whether a file that begins with `head` has what was read, up to a position."""
        if digest_of(head[: self.head]) != self.digest or len(head) < self.head:
            return False
        file.seek(position - self.last)
        return crc32(file.read(self.last)) == self.check


def read_mark(text: str) -> Mark | None:
    """The mark that a text is, as a `Marker` writes it; None for "", which stands for none."""
    if not text:
        return None
    inode, head, digest, last, check = text.split()
    return Mark(int(inode), int(head), digest, int(last), int(check))


def with_inode(text: str, path: Path) -> str:
    """A mark as that of a file that has the same in it, such as a copy."""
    try:
        inode = path.stat().st_ino
    except OSError:
        return text
    return " ".join([str(inode), *text.split()[1:]])


def digest_of(head: bytes) -> str:
    """The digest of how a file begins."""
    return blake2b(head, digest_size=12).hexdigest()


def is_where_it_was(file: BinaryIO, position: int, mark: str) -> bool:
    """Whether a file has what was read up to a position; without a mark, as older stores have none, whether it is long
    enough."""
    if os.fstat(file.fileno()).st_size < position:
        return False
    found = read_mark(mark)
    if found is None or position == 0:
        return True
    file.seek(0)
    return found.fits(file.read(found.head), file, position)


class Marker:
    """Makes the marks of a file that is read line by line from a position on."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._inode = os.fstat(file.fileno()).st_ino
        file.seek(0)
        self._head = file.read(min(start, HEAD))
        self._begin()

    def _begin(self) -> None:
        self._prefix = f"{self._inode} {len(self._head)} {digest_of(self._head)}"

    def mark(self, line: bytes | None) -> str:
        """The mark behind the next line; None: behind one that is not at hand."""
        if line is None:
            return f"{self._prefix} 0 0"
        if len(self._head) < HEAD:
            self._head += line[: HEAD - len(self._head)]
            self._begin()
        last = line[-LAST:]
        return f"{self._prefix} {len(last)} {crc32(last)}"
