"""Documents from the paths of a command line: each is a tail that is drained once, lazily and in a fixed order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from feeds.bad_input import SourceError
from feeds.document import Document, Reject
from feeds.entries import EntryForm
from feeds.files import printable
from feeds.history import History
from feeds.kinds import FEED_SUFFIXES
from feeds.tail import Tail
from feeds.times import Now, now_us, time_reader
from feeds.unreadable import or_reject


def read_documents(
    paths: Iterable[str | Path],
    *,
    feeds: EntryForm | None = None,
    time_xpath: str | None = None,
    now: Now = now_us,
    history: History | None = None,
) -> Iterator[Document | Reject]:
    """The documents of all paths, path by path, and a Reject for each thing that could not be made one.

    `history` is what is known of entries before, and says whether those that have changed are documents again; without
    it they are. For the rest see `tails_of`. What is read raises nothing: a file that cannot be read is a Reject.
    """
    return settled(tails_of(paths, feeds=feeds, time_xpath=time_xpath, now=now), history or History())


def settled(tails: Iterable[Tail], history: History) -> Iterator[Document | Reject]:
    """The documents and rejects that a history finds in all files of some tails."""
    files = chain.from_iterable(tail.drain() for tail in tails)
    return history.settle(chain.from_iterable(or_reject(items, file) for file, items in files))


def tails_of(
    paths: Iterable[str | Path],
    *,
    feeds: EntryForm | None = None,
    time_xpath: str | None = None,
    now: Now = now_us,
    prefix: str = "",
) -> list[Tail]:
    """A tail for each path. `prefix` is put before their names.

    `feeds` makes each entry of a feed file a document ("item": normalised, "raw": as it stands). `time_xpath` says
    where an XML file holds its time. `now` times JSON lines that give no time. All paths are looked at.

    Raises SourceError for a path that is missing, empty or of a kind that is not known, and for a `time_xpath` that is
    not XPath.
    """
    if time_xpath is not None:
        time_reader(time_xpath)  # which is told also if there is no path to read
    return [_tail(Path(path), feeds, time_xpath, now, prefix) for path in paths]


def _tail(path: Path, feeds: EntryForm | None, time_xpath: str | None, now: Now, prefix: str) -> Tail:
    is_directory = _is_directory(path)
    name = prefix + printable(str(path.absolute()))
    tail = Tail(path, feeds=feeds, time_xpath=time_xpath, name=name, relative=not is_directory, now=now)
    if is_directory and tail.names() == set():
        raise _empty(path, feeds)
    return tail


def _is_directory(path: Path) -> bool:
    """Whether a path is a directory; it can be read, or SourceError says why not."""
    name = printable(str(path))
    try:
        if path.is_dir():
            os.scandir(path).close()
            return True
        path.open("rb").close()
    except FileNotFoundError:
        raise SourceError(name, "no such file or directory", "check the path") from None
    except OSError as error:
        raise SourceError(name, f"cannot be read: {error.strerror or error}", "check its permissions") from None
    return False


def _empty(directory: Path, feeds: EntryForm | None) -> SourceError:
    wanted = ", ".join(f"*{suffix}" for suffix in sorted(FEED_SUFFIXES)) if feeds else "*.xml"
    cause = f"the directory holds no {wanted} file, nor *.jsonl[.gz] or *.warc[.gz]"
    hint = "give a directory with feed files" if feeds else "feeds need --feeds"
    return SourceError(printable(str(directory)), cause, hint)
