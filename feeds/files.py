"""Reads files in a fixed order, within a directory and a size limit, and detects their kinds by name or content."""

from __future__ import annotations

import codecs
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Literal

from common.errors import InputError

MAX_BYTES = 64 * 1024 * 1024  # maximum size of a document, a line or a feed
RAW_KEPT = 64 * 1024  # maximum number of bytes of bad input in a Reject


class TooLargeError(InputError, ValueError):
    """More than MAX_BYTES. `head` is the beginning."""

    def __init__(self, head: bytes) -> None:
        self.head = head[:RAW_KEPT]
        super().__init__(self.head)

    def __str__(self) -> str:
        return f"larger than {MAX_BYTES // 1024 // 1024} MiB"


USUAL_BYTES = 64 << 10  # most files have fewer: to make room for MAX_BYTES takes longer than to read these


def read_file(path: Path) -> bytes:
    """Raises TooLargeError for more than MAX_BYTES, and OSError."""
    with path.open("rb") as file:
        data = file.read(USUAL_BYTES)
        if len(data) == USUAL_BYTES:
            data += file.read(MAX_BYTES + 1 - USUAL_BYTES)
    if len(data) > MAX_BYTES:
        raise TooLargeError(data)
    return data


def modified_us(path: Path) -> int:
    return path.stat().st_mtime_ns // 1000


RACY = 2_000_000_000  # nanoseconds after a change within which a file's times may not reveal another change


@dataclass(frozen=True, slots=True)
class FileState:
    """Compares unequal once a file has changed, if it `is_settled`. Times are nanoseconds."""

    inode: int
    size: int
    modified: int
    changed: int
    is_settled: bool = field(compare=False)


def file_state(path: Path) -> FileState | None:
    """None if the file is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    is_settled = found.st_ctime_ns < time.time_ns() - RACY
    return FileState(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, is_settled)


def files_below(
    directory: Path, is_wanted: Callable[[str], bool], is_known: Callable[[str], bool] = lambda name: False
) -> Iterator[tuple[Path, str]]:
    """Yields regular files with their names below the directory, depth first in order of names.

    A file that `is_known` by that name is skipped cheaply. A symbolic link to a file counts if its target is inside
    `directory`; links to directories are not followed. Inaccessible files are yielded too, for the reader to report.
    """
    root = directory.resolve()

    def below(directory: str, prefix: str) -> Iterator[tuple[Path, str]]:
        try:
            with os.scandir(directory) as children:
                left = []
                for child in children:  # there may be very many, most of them known
                    name = prefix + child.name if prefix else child.name
                    if is_known(name if name.isascii() else printable(name)):
                        if child.is_dir(follow_symlinks=False):
                            left.append(child)
                    elif is_wanted(child.name) or child.is_dir(follow_symlinks=False):
                        left.append(child)
        except OSError:
            yield Path(directory), printable(prefix.rstrip("/") or Path(directory).name)
            return
        for child in sorted(left, key=lambda child: child.name):
            if child.is_dir(follow_symlinks=False):
                yield from below(child.path, f"{prefix}{child.name}/")
            elif _is_file_inside(child, root):
                yield Path(child.path), printable(prefix + child.name)

    return below(str(directory), "")


def _is_file_inside(child: os.DirEntry[str], root: Path) -> bool:
    try:
        if not child.is_symlink():  # free of charge: the directory listing has it
            return child.is_file()
        path = Path(child.path)
        return path.is_file() and path.resolve().is_relative_to(root)
    except OSError:
        return True


def name_below(path: Path, directory: Path) -> str:
    return printable(path.relative_to(directory).as_posix())


def printable(name: str) -> str:
    """A name with lone surrogates (undecodable bytes) replaced, so that it can be written anywhere."""
    return name if name.isascii() else name.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


FEED_SUFFIX = ".xml"
SIDECAR_SUFFIX = ".json"
FEED_SUFFIXES = frozenset({FEED_SUFFIX, ".rss", ".atom", ".rdf", ".feed", SIDECAR_SUFFIX})
"""Suffixes of feed files. A JSON Feed has the suffix of a sidecar."""

WARC_SUFFIX = ".warc.gz"  # the suffix of archives that a fetch writes

VISITS_SUFFIX = ".visits"  # the suffix of files that record visits without a new version

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of compressed files, as by log rotation. Only the first can be read."""

_UNFINISHED_SUFFIXES = (".tmp", ".part")


class FileKind(Enum):
    JSON_LINES = "JSON lines"
    """One document per line. Lines may be appended at any time."""
    COMPRESSED_JSON_LINES = "compressed JSON lines"
    WARC = "warc"
    FEED = "feed"
    VISITS = "visits"
    XML = "xml"


_KINDS = {
    ".jsonl": FileKind.JSON_LINES,
    ".ndjson": FileKind.JSON_LINES,
    ".jsonl.gz": FileKind.COMPRESSED_JSON_LINES,
    ".ndjson.gz": FileKind.COMPRESSED_JSON_LINES,
    ".warc": FileKind.WARC,
    WARC_SUFFIX: FileKind.WARC,
    ".xml": FileKind.XML,
}

EXPECTED = (
    "documents are .jsonl, .ndjson (also .gz), .xml, .warc or .warc.gz files, directories of them, or feeds with"
    " --feeds"
)
"""The kinds in words, for error messages."""


@lru_cache(1024)  # each name is judged several times
def kind_of_file(name: str, *, feeds: bool) -> FileKind | None:
    """The kind of a file by its name; None if unknown. With `feeds`, an `.xml` holds a feed.

    >>> kind_of_file("a.WARC.gz", feeds=True), kind_of_file("a.xml", feeds=True), kind_of_file("a.rss", feeds=False)
    (<FileKind.WARC: 'warc'>, <FileKind.FEED: 'feed'>, None)
    """
    lower = name.lower()
    if feeds and is_named_as_feed(lower):
        return FileKind.FEED
    if feeds and lower.endswith(VISITS_SUFFIX):
        return FileKind.VISITS
    return next((kind for suffix, kind in _KINDS.items() if lower.endswith(suffix)), None)


EXPANDED = 5  # assumed compression factor of feeds and crawls


def content_bytes(path: Path) -> int:
    """The size of a file, that of a compressed one times EXPANDED; 0 if it is gone."""
    try:
        return path.stat().st_size * (EXPANDED if is_compressed(path.name) else 1)
    except OSError:  # the reader of the file reports the error
        return 0


def is_compressed(name: str) -> bool:
    """Whether a file with this name is read through gzip.

    >>> is_compressed("a.jsonl.gz"), is_compressed("a.jsonl")
    (True, False)
    """
    return name.lower().endswith(COMPRESSED_SUFFIXES[0])


def is_named_as_feed(name: str) -> bool:
    return name.lower().endswith(tuple(FEED_SUFFIXES))


def is_unfinished(name: str) -> bool:
    """Whether the name marks a file still being written, which is renamed once complete."""
    return name.startswith(".") or name.endswith(_UNFINISHED_SUFFIXES)


BodyKind = Literal["feed", "page", "other"]

_HEAD = 64 * 1024
# What may precede the first element, and that element's name. It never backtracks; the possessive group has an empty
# alternative because Python before 3.11.5 loses its place when one fails.
_START = re.compile(
    rb"(?:\s++|<\?[^>]*+>|<!--.*?-->|<!DOCTYPE\s++[^\s>\[]++[^>\[]*+(?:\[.*?\]\s*+)?>|)*+<(?>[\w.-]++:|)([\w.-]++)",
    re.DOTALL | re.IGNORECASE,
)
_FEED = re.compile(rb"<(?:[\w.-]+:)?(?:rss|feed|rdf)[\s>]|https?:\\?/\\?/jsonfeed\.org\\?/version\\?/", re.IGNORECASE)
# Some feeds are wrapped in a page; in a page about feeds, such a tag would be escaped.
_WRAPPED = re.compile(rb"""<(?:feed|rss)\s[^<>]*(?:xmlns|version)\s*+=""")
_PAGE = frozenset({b"html", b"head", b"body", b"title", b"meta", b"link", b"script", b"div", b"p"})
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def kind_of_body(body: bytes) -> BodyKind:
    """The kind of a body or its beginning: the first element decides, else the first sign of a feed.

    >>> kind_of_body(b"<?xml version='1.0'?><!-- made --><rss version='2.0'/>")
    'feed'
    >>> kind_of_body(b"<!DOCTYPE html><title>Hi</title>")
    'page'
    """
    head = body[:_HEAD]
    if head.startswith(_WIDE):
        head = head.decode("utf-16", "ignore").encode()
    start = _START.match(head.removeprefix(codecs.BOM_UTF8))
    if start is not None and start[1].lower() in _PAGE and not _WRAPPED.search(head):
        return "page"
    return "feed" if _FEED.search(head) else "other"
