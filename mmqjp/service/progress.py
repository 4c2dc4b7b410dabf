"""How far a service is behind: files that wait, the age of the newest document, and how much is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feeds.tail import WaitingFile
from mmqjp.session import Session


class Backlog:
    """Counts the files that are still to be read, of those that were found last; None: it is not known."""

    def __init__(self) -> None:
        self.left: int | None = None

    def over(self, waiting: Sequence[WaitingFile]) -> Iterator[WaitingFile]:
        """The files one by one."""
        for place, file in enumerate(waiting, 1):
            self.left = len(waiting) - place
            yield file


def progress(engine: Session, backlog: Backlog) -> dict[str, object]:
    """What is told with a batch: seconds by which the newest document is older than the clock, files that wait, and
    the size of the state; of these what is known."""
    found: dict[str, object] = {}
    if backlog.left is not None:
        found["waiting_files"] = backlog.left
    if (lag := engine.lag()) is not None:
        found["lag_seconds"] = round(lag / 1e6, 3)
    if (size := engine.state_bytes()) is not None:
        found["state_bytes"] = size
    return found
