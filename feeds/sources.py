"""Where documents come from: the paths of a command line, each read in its own way, lazily and in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from feeds.crawl import read_feed_file
from feeds.document import DEFAULT_STREAM, Clock, Document, Reject, now_us
from feeds.entries import EntryForm, Item
from feeds.errors import SourceError
from feeds.files import files_below, name_below, printable
from feeds.history import History
from feeds.jsonl import read_jsonl
from feeds.layout import FEED_SUFFIXES, fetch_time
from feeds.warc import read_warc
from feeds.xml_files import TimeReader, read_xml_file, time_reader

Items = Iterator[Document | Reject]

_XML = frozenset({".xml"})
_WARC = (".warc", ".warc.gz")
_KINDS = (
    "documents are .jsonl, .jsonl.gz, .xml, .warc or .warc.gz files, directories of .xml files, or feeds with --feeds"
)


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
    All paths are looked at before the first document is read: SourceError for one that is missing, empty or of a
    kind that is not known, and for a `time_xpath` that is not XPath.
    """
    time = time_reader(time_xpath) if time_xpath is not None else None
    history = history or History()
    found = chain.from_iterable([_read(Path(path), feeds, time, now, history) for path in paths])
    return (item for item in found if item is not None)


def _read(path: Path, feeds: EntryForm | None, time: TimeReader | None, now: Clock, history: History) -> Iterator[Item]:
    name = printable(str(path))
    try:
        if path.is_dir():
            os.scandir(path).close()
            return _read_crawl(path, feeds, history) if feeds else _read_directory(path, time)
        with path.open("rb"):
            pass
    except FileNotFoundError:
        raise SourceError(name, "no such file or directory", "check the path given with --documents") from None
    except OSError as error:
        raise SourceError(name, f"cannot be read: {error.strerror or error}", "check its permissions") from None
    if path.name.lower().endswith((".jsonl", ".jsonl.gz")):
        return read_jsonl(path, now)
    if path.name.lower().endswith(_WARC):
        return read_warc(path, feeds, history=history)
    suffix = path.suffix.lower()
    if feeds and suffix in FEED_SUFFIXES:
        return read_feed_file(path, printable(path.name), feeds, history)
    if suffix in _XML:
        return (read_xml_file(file, printable(file.name), DEFAULT_STREAM, time) for file in [path])
    if suffix in FEED_SUFFIXES:
        raise SourceError(name, "a feed file, and feeds were not asked for", "add --feeds")
    raise SourceError(name, f"the kind of file is not known from its name ({path.suffix or 'no suffix'})", _KINDS)


def _read_directory(directory: Path, time: TimeReader | None) -> Iterator[Item]:
    if next(files_below(directory, _XML), None) is None:
        hint = "name .jsonl files one by one; feeds need --feeds"
        raise SourceError(printable(str(directory)), "the directory holds no *.xml file", hint)
    return (_read_below(path, directory, time) for path in files_below(directory, _XML))


def _read_crawl(directory: Path, feeds: EntryForm, history: History) -> Iterator[Item]:
    """The feeds and archives of a directory, in order of their fetches; what was fetched at once, in that of names."""
    found = files_below(directory, FEED_SUFFIXES | {".warc", ".gz"})
    paths = [path for path in found if path.suffix.lower() != ".gz" or path.name.lower().endswith(_WARC)]
    if not paths:
        wanted = ", ".join(f"*{suffix}" for suffix in sorted({*FEED_SUFFIXES, *_WARC}))
        cause = f"the directory holds no {wanted} file"
        raise SourceError(printable(str(directory)), cause, "give a directory with feed files")
    paths.sort(key=fetch_time)
    return chain.from_iterable(
        read_warc(path, feeds, history=history)
        if path.name.lower().endswith(_WARC)
        else read_feed_file(path, name_below(path, directory), feeds, history)
        for path in paths
    )


def _read_below(path: Path, directory: Path, time: TimeReader | None) -> Document | Reject:
    name = name_below(path, directory)
    stream = name.partition("/")[0] if "/" in name else DEFAULT_STREAM
    return read_xml_file(path, name, stream, time)
