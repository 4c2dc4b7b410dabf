"""How far the files of sources are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ALL_READ = -1
"""The position of a file that is read to its end and not looked at again."""


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a file of a source was read: bytes of JSON lines, else its first so many items; ALL_READ. `mark` tells
    which file of lines that was (see `feeds.marks`), whatever it is called by now; "" where that is not known."""

    source: str
    file: str
    position: int
    mark: str = ""


Positions = Mapping[tuple[str, str], Offset]
"""How far files were read, by source and name."""
