"""How far a service is behind: files waiting to be read, the age of the newest document, and the size of the state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feeds.tail import WaitingFile
from mmqjp.session import Session


class Backlog:
    """The number of files waiting to be read, of those last listed. None if it is not known."""

    def __init__(self) -> None:
        self.waiting_files: int | None = None

    def counting(self, waiting: Sequence[WaitingFile]) -> Iterator[WaitingFile]:
        """Yields the files one by one, and counts down."""
        for number, file in enumerate(waiting, 1):
            self.waiting_files = len(waiting) - number
            yield file


def progress(engine: Session, backlog: Backlog) -> dict[str, object]:
    """The fields that are logged with each batch, as far as they are known.

    `waiting_files` is a count, `lag_seconds` the age of the newest document, and `state_bytes` the size of the state.
    """
    found: dict[str, object] = {}
    if backlog.waiting_files is not None:
        found["waiting_files"] = backlog.waiting_files
    if (lag := engine.lag()) is not None:
        found["lag_seconds"] = round(lag / 1e6, 3)
    if (size := engine.state_bytes()) is not None:
        found["state_bytes"] = size
    return found
