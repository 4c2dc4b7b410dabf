"""What an archive of fetched feeds does; the drop directory and WARC files are two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Capture:
    """A feed's body as it was fetched: `url` is what is subscribed to, `source` its name in layouts, `final_url` what
    answered. `fetched` is in microseconds; `headers` are the answer's, and `body` is decoded."""

    url: str
    source: str
    final_url: str
    status: int
    headers: Sequence[tuple[str, str]]
    fetched: int
    sha256: str
    body: bytes = field(repr=False)

    def header(self, name: str) -> str:
        """The first header of a name, "" without one."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")


class Archive(Protocol):
    """Keeps each version of a feed once. What `keep` has taken survives a kill as soon as the store has committed
    `mark`; one that was killed before that finds it again (`newest`), or has taken it back when it is opened."""

    def newest(self, source: str) -> str | None:
        """The hash of the last version kept of a feed; None where the archive does not tell and the store must."""
        ...

    def keep(self, capture: Capture) -> None:
        """Writes a version, all of it or, after a kill, nothing that is seen."""
        ...

    def met_again(self, capture: Capture, since: int) -> None:
        """Notes that a feed has not changed `since` (microseconds) its last version was kept."""
        ...

    @property
    def mark(self) -> str | None:
        """How far the archive is whole, for the store to commit with the feed's new state; None where it needs none."""
        ...

    def finish(self) -> None:
        """Makes all that was kept readable: it is committed."""
        ...

    def close(self) -> None: ...
