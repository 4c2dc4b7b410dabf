"""What the body of an answer is, and what it says about fetching."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from feeds.fetch.discovery import feeds_of_page
from feeds.fetch.hints import Hints, body_hints
from feeds.sniff import BodyKind, kind_of_body


@dataclass(frozen=True, slots=True)
class Look:
    """What a body is: the feeds that a page names, or the hash of a feed and how often it wants to be asked."""

    kind: BodyKind
    feeds: list[str] = field(default_factory=list)
    sha256: str = ""
    hints: Hints = field(default_factory=Hints)


def look(body: bytes, url: str) -> Look:
    """Looks at the body that an address gave. It may be written to take long: see `feeds.confined`."""
    kind = kind_of_body(body)
    if kind == "page":
        return Look(kind, feeds_of_page(body, url))
    return Look(kind, [], hashlib.sha256(body).hexdigest(), body_hints(body)) if kind == "feed" else Look(kind)
