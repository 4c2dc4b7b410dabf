"""Which feeds to fetch: from OPML files, text files with an address a line, and addresses themselves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from common.errors import InvalidValue
from feeds.bad_input import SourceError
from feeds.credentials import refused, without_credentials
from feeds.fetch.exchange import web_address
from feeds.fetch.failures import FetchError
from feeds.fetch.feed_state import FeedState, source_name
from feeds.fetch.opml import ListedFeed, read_opml
from feeds.files import TooLargeError, printable, read_file
from feeds.item import MOST_FOLDERS

_HINT = "a list of feeds is an OPML file, a text file with an address a line, or an http(s) address"


def read_feed_lists(lists: Iterable[str]) -> tuple[list[FeedState], list[str]]:
    """The feeds of lists, each once, in their state before the first fetch; and for each bad address the reason.

    A feed that is listed repeatedly has the first title, and is in all the folders.
    Raises SourceError if a list cannot be read.
    """
    return _feeds((name, listed) for name in lists for listed in _listed(name))


def read_feed_list(data: bytes, name: str) -> tuple[list[FeedState], list[str]]:
    """The same of the content of one list. Raises SourceError."""
    return _feeds((name, listed) for listed in _parsed(data, name))


def _feeds(lists: Iterable[tuple[str, ListedFeed]]) -> tuple[list[FeedState], list[str]]:
    titles: dict[str, str] = {}
    folders: dict[str, dict[str, None]] = {}
    complaints = []
    for name, listed in lists:
        try:
            url = _address(listed.url)
        except FetchError as error:
            place = f"{name}:{listed.line}: " if listed.line else ""
            complaints.append(without_credentials(f"{place}{error}; it is left out"))
            continue
        # Some writers of lists repeat the address where there is no title, and so does ours.
        titles[url] = titles.get(url) or (listed.title if listed.title != listed.url else "")
        inside = folders.setdefault(url, {})
        if listed.folder and len(inside) < MOST_FOLDERS:
            inside[listed.folder] = None
    feeds = [FeedState(url, source_name(url), title, "\n".join(folders[url])) for url, title in titles.items()]
    return feeds, complaints


def feed_of_address(address: str) -> FeedState:
    """The feed of an address, in its state before the first fetch. Raises FetchError if it is no web address."""
    url = _address(address)
    return FeedState(url, source_name(url))


def _address(text: str) -> str:
    """The address as it is requested. Raises FetchError if it is no web address."""
    return str(web_address(_without_feed_scheme(text)))


def _listed(name: str) -> list[ListedFeed]:
    path = Path(name)
    if "://" in name and not path.exists():
        return [ListedFeed(name)]
    shown = printable(refused(name) if ":" in name else name)  # it may be an address that went wrong
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise SourceError(shown, "no such file", _HINT) from None
    except OSError as error:
        raise SourceError(shown, f"cannot be read: {error.strerror or error}", _HINT) from None
    except TooLargeError as error:
        raise SourceError(shown, str(error), _HINT) from None
    return _parsed(data, shown)


def _parsed(data: bytes, shown: str) -> list[ListedFeed]:
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
