"""Standard output that was closed before the program started, or whose reader has gone."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import BinaryIO


class _Closed(io.RawIOBase):
    """What takes nothing."""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise OSError(errno.EBADF, "closed", "standard output")


def reserve_standard_files() -> None:
    """Opens what of the three standard files is closed, lest the next file that is opened take its number, and what
    libraries print end up there. What is printed to a closed standard output is an error, to standard error not."""
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
    """Standard output for bytes. Raises OSError if it is closed."""
    raw = getattr(sys.stdout.buffer, "raw", None)
    if isinstance(raw, _Closed):
        raw.write(b"")
    return sys.stdout.buffer


def flush_standard_output() -> None:
    """Writes what is printed. Raises OSError; then it is let go of, lest Python try again at its end and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")
        raise
