"""Fingerprints tell which JSON lines file was read so far, whatever it is called now.

A fingerprint has the file's inode, a digest of how the file begins, and a checksum of what was read last. The content
decides: it tells a copy of the file from another file that took its name. An inode may be given again, so it only says
where to look.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

HEAD = 4096
"""The digest covers at most this many bytes from the file's beginning."""

LAST = 64
"""The checksum covers at most this many of the bytes that were read last."""


class Fingerprint(NamedTuple):
    """The digest is of the first `head` bytes, the checksum of the `last` bytes before the position."""

    inode: int
    head: int
    digest: str
    last: int
    checksum: int

    def fits(self, head: bytes, file: BinaryIO, position: int) -> bool:
        """Whether a file that begins with `head` has the content that was read up to a position."""
        if digest_of(head[: self.head]) != self.digest or len(head) < self.head:
            return False
        file.seek(position - self.last)
        return crc32(file.read(self.last)) == self.checksum


def parse_fingerprint(text: str) -> Fingerprint | None:
    """The fingerprint in a text as `Fingerprinter` writes it; None for "", which stands for none."""
    if not text:
        return None
    inode, head, digest, last, checksum = text.split()
    return Fingerprint(int(inode), int(head), digest, int(last), int(checksum))


def with_inode(text: str, path: Path) -> str:
    """A fingerprint with the inode of a file that has the same content, such as a copy."""
    try:
        inode = path.stat().st_ino
    except OSError:
        return text
    return " ".join([str(inode), *text.split()[1:]])


def digest_of(head: bytes) -> str:
    """The digest of how a file begins."""
    return blake2b(head, digest_size=12).hexdigest()


def has_fingerprint(file: BinaryIO, position: int, fingerprint: str) -> bool:
    """Whether a file has the content that was read up to a position. Without a fingerprint, as in older stores, whether
    it is long enough."""
    if os.fstat(file.fileno()).st_size < position:
        return False
    found = parse_fingerprint(fingerprint)
    if found is None or position == 0:
        return True
    file.seek(0)
    return found.fits(file.read(found.head), file, position)


class Fingerprinter:
    """Makes the fingerprints of a file that is read line by line from a position on."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._inode = os.fstat(file.fileno()).st_ino
        file.seek(0)
        self._head = file.read(min(start, HEAD))
        self._begin()

    def _begin(self) -> None:
        self._prefix = f"{self._inode} {len(self._head)} {digest_of(self._head)}"

    def after(self, line: bytes | None) -> str:
        """The fingerprint behind the next line. None stands for a line that is not in memory."""
        if line is None:
            return f"{self._prefix} 0 0"
        if len(self._head) < HEAD:
            self._head += line[: HEAD - len(self._head)]
            self._begin()
        last = line[-LAST:]
        return f"{self._prefix} {len(last)} {crc32(last)}"
