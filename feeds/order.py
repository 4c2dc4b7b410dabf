"""In which order files are read, whoever reads them: that of their fetches."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from feeds.files import modified_us
from feeds.layout import SIDECAR_SUFFIX, read_sidecar, read_stem
from feeds.warc import first_date

WARC_SUFFIXES = (".warc", ".warc.gz")


def fetch_time(path: Path) -> int:
    """When what a file holds was fetched, in microseconds: as its name says, else the first record of an archive or a
    sidecar, else when it was written; 0 for a file that has gone."""
    named = read_stem(path.name.partition(".")[0])
    if named is not None:
        return named[0]
    with suppress(ValueError, OSError):  # whoever reads the file says what is wrong with it
        if path.name.lower().endswith(WARC_SUFFIXES) and (first := first_date(path)) is not None:
            return first
        if (noted := _sidecar_time(path)) is not None:
            return noted
    with suppress(OSError):
        return modified_us(path)
    return 0


def _sidecar_time(path: Path) -> int | None:
    beside = path.with_suffix(SIDECAR_SUFFIX)
    sidecar = read_sidecar(beside) if beside != path and beside.is_file() else None
    return None if sidecar is None else sidecar.fetched


def feed_address(path: Path) -> str:
    """The address of the feed that a file is a version of, as its sidecar notes it; "" where it is not known."""
    beside = path.with_suffix(SIDECAR_SUFFIX)
    with suppress(ValueError, OSError):
        if beside != path and (sidecar := read_sidecar(beside)) is not None:
            return sidecar.url
    return ""
