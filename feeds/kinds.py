"""The kinds of files that documents come in, told by the ends of their names."""

from __future__ import annotations

from enum import Enum

FEED_SUFFIX = ".xml"
SIDECAR_SUFFIX = ".json"
FEED_SUFFIXES = frozenset({FEED_SUFFIX, ".rss", ".atom", ".rdf", ".feed", SIDECAR_SUFFIX})
"""The suffixes of files with feeds. A JSON Feed has the suffix of a sidecar."""

WARC_SUFFIX = ".warc.gz"
"""The suffix of the archives that a fetch writes."""

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
"""The suffixes of compressed files, as log rotation makes them. Only files with the first can be read."""

_UNFINISHED_SUFFIXES = (".tmp", ".part")


class FileKind(Enum):
    """What a file holds."""

    JSON_LINES = "JSON lines"
    """One document per line. Lines may be appended at any time."""
    COMPRESSED_JSON_LINES = "compressed JSON lines"
    WARC = "warc"
    FEED = "feed"
    XML = "xml"
    """One document."""


_KINDS = {
    ".jsonl": FileKind.JSON_LINES,
    ".jsonl.gz": FileKind.COMPRESSED_JSON_LINES,
    ".warc": FileKind.WARC,
    WARC_SUFFIX: FileKind.WARC,
    ".xml": FileKind.XML,
}

EXPECTED = "documents are .jsonl, .jsonl.gz, .xml, .warc or .warc.gz files, directories of them, or feeds with --feeds"
"""The kinds in words, for error messages."""


def kind_of_file(name: str, *, feeds: bool) -> FileKind | None:
    """The kind of a file with this name; None if it is of no known kind. With `feeds`, an `.xml` holds a feed.

    >>> kind_of_file("a.WARC.gz", feeds=True), kind_of_file("a.xml", feeds=True), kind_of_file("a.rss", feeds=False)
    (<FileKind.WARC: 'warc'>, <FileKind.FEED: 'feed'>, None)
    """
    lower = name.lower()
    if feeds and is_named_as_feed(lower):
        return FileKind.FEED
    return next((kind for suffix, kind in _KINDS.items() if lower.endswith(suffix)), None)


def is_compressed(name: str) -> bool:
    """Whether a file with this name is read through gzip.

    >>> is_compressed("a.jsonl.gz"), is_compressed("a.jsonl")
    (True, False)
    """
    return name.lower().endswith(COMPRESSED_SUFFIXES[0])


def is_named_as_feed(name: str) -> bool:
    """Whether a file with this name may hold a feed."""
    return name.lower().endswith(tuple(FEED_SUFFIXES))


def is_unfinished(name: str) -> bool:
    """Whether a name is that of a file which is still being written. It is renamed when it is whole."""
    return name.startswith(".") or name.endswith(_UNFINISHED_SUFFIXES)
