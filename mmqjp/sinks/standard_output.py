"""Standard output as bytes, and standard files that are closed or go away."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import BinaryIO


class _Closed(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise OSError(errno.EBADF, "closed", "standard output")


def reserve_standard_files() -> None:
    """Opens closed standard files, so that no other file gets their numbers. Printing to a closed standard output is an
    error; to a closed standard error it is not."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", write_through=True)
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Closed()), "utf-8", write_through=True)


def standard_output() -> BinaryIO:
    """Returns standard output as a binary file. Raises OSError if it is closed."""
    raw = getattr(sys.stdout.buffer, "raw", None)
    if isinstance(raw, _Closed):
        raw.write(b"")
    return sys.stdout.buffer


def flush_standard_output() -> None:
    """Flushes it. On failure, raises OSError and replaces the stream, so that Python does not fail again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")
        raise
