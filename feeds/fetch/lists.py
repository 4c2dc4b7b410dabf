"""Which feeds to fetch: from OPML files, text files with an address a line, and addresses themselves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from common.errors import InvalidValue
from feeds.bad_input import SourceError
from feeds.credentials import without_credentials
from feeds.fetch.exchange import web_address
from feeds.fetch.failures import FetchError
from feeds.fetch.feed_state import FeedState, source_name
from feeds.fetch.opml import ListedFeed, read_opml
from feeds.files import TooLargeError, printable, read_file

_HINT = "--feeds takes an OPML file, a text file with an address a line, or an http(s) address"


def read_feed_lists(lists: Iterable[str]) -> tuple[list[FeedState], list[str]]:
    """The feeds of lists, each once, in their state before the first fetch; and for each bad address the reason.

    Raises SourceError if a list cannot be read.
    """
    feeds: dict[str, FeedState] = {}
    complaints = []
    for name in lists:
        for listed in _listed(name):
            try:
                url = str(web_address(_without_feed_scheme(listed.url)))
            except FetchError as error:
                place = f"{name}:{listed.line}" if listed.line else name
                complaints.append(without_credentials(f"{place}: {error}; it is left out"))
                continue
            feeds.setdefault(url, FeedState(url, source_name(url), listed.title, listed.folder))
    return list(feeds.values()), complaints


def _listed(name: str) -> list[ListedFeed]:
    path = Path(name)
    if "://" in name and not path.exists():
        return [ListedFeed(name)]
    shown = printable(name)
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise SourceError(shown, "no such file", _HINT) from None
    except OSError as error:
        raise SourceError(shown, f"cannot be read: {error.strerror or error}", _HINT) from None
    except TooLargeError as error:
        raise SourceError(shown, str(error), _HINT) from None
    try:
        if data.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<"):
            return read_opml(data)
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise SourceError(shown, f"not UTF-8 text ({error.reason})", _HINT) from None
    except InvalidValue as error:
        raise SourceError(shown, str(error), _HINT) from None
    stripped = ((number, line.strip()) for number, line in enumerate(lines, 1))
    return [ListedFeed(line, line=number) for number, line in stripped if line and not line.startswith("#")]


def _without_feed_scheme(url: str) -> str:
    """The http(s) address of `feed://host` or `feed:https://host`, as some pages write it."""
    if url.lower().startswith("feed://"):
        return f"http://{url[7:]}"
    return url[5:] if url.lower().startswith("feed:") else url
