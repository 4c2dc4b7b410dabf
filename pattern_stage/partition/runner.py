"""Where the work of parts is done."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Protocol

from pattern_stage.partition.work import Done, Told, Work, Worker


class Runner(Protocol):
    """Does the work of parts, in any process."""

    @property
    def parts(self) -> int:
        """How many parts there are."""

    def run(self, told: Told, works: Sequence[Work]) -> list[Done]:
        """Does the work of some parts; returns it in any order."""

    def close(self) -> None:
        """Lets go of what was told."""


class HereRunner:
    """Does the work in this process, as other processes do it: from what can be sent to them."""

    def __init__(self, parts: int, workers: int = 1) -> None:
        self.parts = parts
        self._workers = [Worker() for _ in range(workers)]
        self._next = 0

    def run(self, told: Told, works: Sequence[Work]) -> list[Done]:
        """Does the work of some parts, each by the next worker."""
        found = []
        for work in pickle.loads(pickle.dumps(works)):
            self._next = (self._next + 1) % len(self._workers)
            found.append(self._workers[self._next].work(told, work))
        done: list[Done] = pickle.loads(pickle.dumps(found))
        return done

    def close(self) -> None:
        """Does nothing."""
