"""The drop directory of a crawl: `SOURCE/<fetched-at>-<sha256>.xml`, each with a sidecar `.json` about the fetch.

Both are written under other names and then renamed, the `.json` before the `.xml`: whoever sees a feed's file sees all
of it, and its sidecar. Names sort by the time of the fetch. A JSON Feed is kept in an `.xml` too, because readers look
at the content.
"""

from __future__ import annotations

import errno
import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from common.errors import InvalidValue
from feeds.credentials import without_credentials
from feeds.dates import EPOCH, from_datetime, iso_utc, parse_iso
from feeds.files import read_file
from feeds.item import bounded_folders
from feeds.json_feed import is_json_feed
from feeds.kinds import SIDECAR_SUFFIX
from feeds.text import LONGEST_TITLE, one_line

_STEM = re.compile(r"(\d{8}T\d{6})(\d{6})?Z-([0-9a-f]{12,64})")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The notes on a fetch: `url` is the feed's address in the subscription, which stays when the feed moves, or its
    name in the crawl; `final_url` is the address that answered; `fetched` is in microseconds. `title` and `folders` are
    what the reader calls the feed, and where it is in the reader's list. "", () and None: not noted.
    """

    url: str = ""
    fetched: int | None = None
    final_url: str = ""
    status: int = 200
    etag: str = ""
    last_modified: str = ""
    content_type: str = ""
    sha256: str = ""
    title: str = ""
    folders: tuple[str, ...] = ()


def drop_stem(fetched: int, sha256: str) -> str:
    """The name, without suffix, of a version that was fetched at a time (microseconds) and has a hash (hexadecimal).

    >>> drop_stem(1778068800000001, "5bac81b4bd80")
    '20260506T120000000001Z-5bac81b4bd80'
    """
    return f"{EPOCH + timedelta(microseconds=fetched):%Y%m%dT%H%M%S%f}Z-{sha256}"


def read_stem(stem: str) -> tuple[int, str] | None:
    """The time and the hash in such a name; None for any other. Older crawls give the time to the second."""
    match = _STEM.fullmatch(stem)
    if match is None:
        return None
    try:
        moment = datetime.strptime(f"{match[1]}{match[2] or '000000'}", "%Y%m%dT%H%M%S%f")
    except ValueError:
        return None
    return from_datetime(moment), match[3]


def sidecar_json(sidecar: Sidecar) -> bytes:
    """The content of a sidecar."""
    notes = {
        "url": sidecar.url,
        "final_url": sidecar.final_url,
        "status": sidecar.status,
        "fetched_at": None if sidecar.fetched is None else iso_utc(sidecar.fetched),
        "etag": sidecar.etag,
        "last_modified": sidecar.last_modified,
        "content_type": sidecar.content_type,
        "sha256": sidecar.sha256,
        "title": sidecar.title,
        "folders": list(sidecar.folders),
    }
    return json.dumps(notes, ensure_ascii=False, indent=1).encode("utf-8", "replace") + b"\n"


def read_sidecar(path: Path) -> Sidecar | None:
    """The notes in a JSON file; None if it is a feed itself. Raises InvalidValue and OSError if it cannot be read."""
    try:
        notes = json.loads(read_file(path))
    except RecursionError:
        raise InvalidValue("JSON nested too deeply") from None
    except ValueError as error:
        raise InvalidValue(str(error)) from None
    if is_json_feed(notes):
        return None
    if not isinstance(notes, dict):
        raise InvalidValue("a sidecar is a JSON object")
    fetched, status, folders = notes.get("fetched_at"), notes.get("status"), notes.get("folders")
    told = folders if isinstance(folders, list) else []
    return Sidecar(
        url=without_credentials(next(filter(None, (_text(notes, key) for key in ("url", "feed_url", "source"))), "")),
        fetched=parse_iso(fetched) if isinstance(fetched, str) else None,
        final_url=without_credentials(_text(notes, "final_url")),
        status=status if isinstance(status, int) else 200,
        etag=_text(notes, "etag"),
        last_modified=_text(notes, "last_modified"),
        content_type=_text(notes, "content_type"),
        sha256=_text(notes, "sha256"),
        title=_text(notes, "title")[:LONGEST_TITLE].strip(),
        folders=bounded_folders(one_line(one) for one in told if isinstance(one, str)),
    )


def sidecar_of(path: Path) -> Sidecar | None:
    """The notes beside a feed's file; None if there are none. Raises InvalidValue or OSError if they are unreadable."""
    beside = sidecar_path(path)
    return None if beside is None else read_sidecar(beside)


def sidecar_path(path: Path) -> Path | None:
    """The path of the sidecar beside a feed's file; None if there is none. Raises OSError if that cannot be seen."""
    beside = path.with_suffix(SIDECAR_SUFFIX)
    try:
        return beside if beside != path and beside.is_file() else None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # no file can have this name
            return None
        raise


def _text(notes: dict[str, Any], key: str) -> str:
    value = notes.get(key)
    return one_line(value) if isinstance(value, str) else ""
