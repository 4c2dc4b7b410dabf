"""How far the files of sources are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ALL_READ = -1
"""The position of a file that is read to its end and not looked at again."""


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a file of a source was read: a byte of a JSON lines file, else a number of items, or ALL_READ.

    `fingerprint` tells which JSON lines file that was (see `feeds.fingerprints`); "" if it is not known.
    """

    source: str
    file: str
    position: int
    fingerprint: str = ""


Positions = Mapping[tuple[str, str], Offset]
"""How far files were read, by source and file name."""
