"""The order in which files are read: that of their fetches."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from feeds.drop_directory import read_stem, sidecar_of
from feeds.files import modified_us
from feeds.kinds import FileKind, kind_of_file
from feeds.warc import first_date


def fetch_time(path: Path) -> int:
    """When the content of a file was fetched, in microseconds: its name tells, else the first record of an archive or
    the sidecar, else the file's time; 0 if the file has gone."""
    named = read_stem(path.name.partition(".")[0])
    if named is not None:
        return named[0]
    with suppress(ValueError, OSError):  # whoever reads the file says what is wrong with it
        if kind_of_file(path.name, feeds=False) is FileKind.WARC and (first := first_date(path)) is not None:
            return first
        if (sidecar := sidecar_of(path)) is not None and sidecar.fetched is not None:
            return sidecar.fetched
    with suppress(OSError):
        return modified_us(path)
    return 0


def feed_address(path: Path) -> str:
    """The address of the feed that a file is a version of, from its sidecar; "" if it is not known."""
    with suppress(ValueError, OSError):
        if (sidecar := sidecar_of(path)) is not None:
            return sidecar.url
    return ""
