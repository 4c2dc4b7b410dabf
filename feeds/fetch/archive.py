"""The interface of archives of fetched feeds: the drop directory and WARC files are two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Capture:
    """A feed as it was fetched: `url` is the address in the subscription, `source` the feed's name in archives,
    `final_url` the address that answered. `fetched` is in microseconds; `headers` are the answer's, and `body` is
    decoded. `title` and `folders` are what the reader calls the feed, and where it is in the reader's list."""

    url: str
    source: str
    final_url: str
    status: int
    headers: Sequence[tuple[str, str]]
    fetched: int
    sha256: str
    body: bytes = field(repr=False)
    title: str = ""
    folders: tuple[str, ...] = ()

    def header(self, name: str) -> str:
        """The first header with a name, "" if there is none."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")


class Archive(Protocol):
    """Keeps each version of a feed once. What `keep` has taken survives a kill once the store has committed `mark`.
    After a kill before that, an archive either finds the version again (`newest`) or has taken it back when it is
    opened."""

    def newest(self, source: str) -> str | None:
        """The hash of the last kept version of a feed; None if the store has to know it."""
        ...

    def keep(self, capture: Capture) -> None:
        """Writes a version. After a kill, readers see all of it or nothing."""
        ...

    def met_again(self, capture: Capture, since: int) -> None:
        """Notes that a feed is unchanged `since` (microseconds) its last version was kept."""
        ...

    @property
    def mark(self) -> str | None:
        """How far the archive is whole, for the store to commit with the feed's new state; None if it needs no mark."""
        ...

    def finish(self) -> None:
        """Makes all that was kept readable, since it is committed."""
        ...

    def close(self) -> None: ...
