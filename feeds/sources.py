"""Where documents come from: the paths of a command line, each read in its own way, lazily and in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from feeds.bad_input import SourceError
from feeds.crawl import read_feed_file
from feeds.document import DEFAULT_STREAM, Clock, Document, Reject, now_us
from feeds.entries import EntryForm, Item
from feeds.files import printable
from feeds.history import History
from feeds.jsonl import read_jsonl
from feeds.layout import FEED_SUFFIXES
from feeds.order import WARC_SUFFIXES
from feeds.tail import Tail
from feeds.unreadable import or_reject
from feeds.warc import read_warc
from feeds.xml_files import TimeReader, read_xml_file, time_reader

Items = Iterator[Document | Reject]

_KINDS = "documents are .jsonl, .jsonl.gz, .xml, .warc or .warc.gz files, directories of them, or feeds with --feeds"


def read_documents(
    paths: Iterable[str | Path],
    *,
    feeds: EntryForm | None = None,
    time_xpath: str | None = None,
    now: Clock = now_us,
    history: History | None = None,
) -> Items:
    """The documents of all paths, path by path, and a Reject for each thing that could not be made one.

    `feeds` makes each entry of a feed file a document ("item": normalised, "raw": as it stands). `time_xpath` says
    where an XML file holds its time. `now` times JSON lines that give no time. `history` is what is known of entries
    before, and says whether those that have changed are documents again; without it they are.
    All paths are looked at before the first document is read.

    Raises SourceError for a path that is missing, empty or of a kind that is not known, and for a `time_xpath` that is
    not XPath. What is read raises nothing: a file that cannot be read is a Reject.
    """
    time = time_reader(time_xpath) if time_xpath is not None else None
    history = history or History()

    def read(path: Path) -> Iterator[Item]:
        if _is_directory(path):
            tail = Tail(path, feeds=feeds, time_xpath=time_xpath, history=history, now=now)
            return _read_directory(tail, printable(str(path)), feeds)
        return or_reject(_read_file(path, feeds, time, now, history), printable(path.name))

    found = chain.from_iterable([read(Path(path)) for path in paths])
    return (item for item in found if item is not None)


def _is_directory(path: Path) -> bool:
    """Whether a path is a directory; it can be read, or SourceError says why not."""
    name = printable(str(path))
    try:
        if path.is_dir():
            os.scandir(path).close()
            return True
        path.open("rb").close()
    except FileNotFoundError:
        raise SourceError(name, "no such file or directory", "check the path given with --documents") from None
    except OSError as error:
        raise SourceError(name, f"cannot be read: {error.strerror or error}", "check its permissions") from None
    return False


def _read_file(
    path: Path, feeds: EntryForm | None, time: TimeReader | None, now: Clock, history: History
) -> Iterator[Item]:
    name = printable(str(path))
    if path.name.lower().endswith((".jsonl", ".jsonl.gz")):
        return read_jsonl(path, now)
    if path.name.lower().endswith(WARC_SUFFIXES):
        return read_warc(path, feeds, history=history)
    suffix = path.suffix.lower()
    if feeds and suffix in FEED_SUFFIXES:
        return read_feed_file(path, printable(path.name), feeds, history)
    if suffix == ".xml":
        return (read_xml_file(file, printable(file.name), DEFAULT_STREAM, time) for file in [path])
    if suffix in FEED_SUFFIXES:
        raise SourceError(name, "a feed file, and feeds were not asked for", "add --feeds")
    raise SourceError(name, f"the kind of file is not known from its name ({path.suffix or 'no suffix'})", _KINDS)


def _read_directory(tail: Tail, name: str, feeds: EntryForm | None) -> Iterator[Item]:
    """The documents of all files of a directory, in the order in which a service reads them."""
    if tail.names() == set():
        wanted = ", ".join(f"*{suffix}" for suffix in sorted(FEED_SUFFIXES)) if feeds else "*.xml"
        hint = "give a directory with feed files" if feeds else "feeds need --feeds"
        raise SourceError(name, f"the directory holds no {wanted} file, nor *.jsonl[.gz] or *.warc[.gz]", hint)
    return chain.from_iterable(or_reject(items, file) for file, items in tail.whole())
