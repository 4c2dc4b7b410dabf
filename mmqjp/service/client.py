"""Asks whoever holds a store, or, where nobody does, opens it and does what is waiting itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from join_stage.engine import DUCKDB_FILE, SPARK_MANIFESTS, StoreError
from mmqjp.engine import Engine
from mmqjp.ownership import InUse, Ownership, is_held
from mmqjp.service.commands import QUESTIONS, CommandQueue
from mmqjp.service.log import Silence
from mmqjp.service.spool import Spool

PAUSE = 0.05
"""Seconds between looks for the answer."""


class CommandError(ValueError):
    """A command was refused; the message says why."""


class NoAnswer(StoreError):
    """Whoever holds the store has not answered in time."""


@dataclass(frozen=True, slots=True)
class Client:
    """Hands in commands for the store of a state directory, and waits for the answers up to `wait` seconds.

    `open_store` opens it where nobody holds it. `clock` is in seconds, `sleep` lets some pass.
    """

    state: Path
    open_store: Callable[[], Engine]
    wait: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep

    def ask(self, do: str, arguments: Mapping[str, Any]) -> Any:
        """What came of a command. Raises CommandError if it was refused, NoAnswer, StoreError, OSError."""
        spool = Spool(self.state)
        command = spool.submit(do, arguments)
        deadline = self.clock() + self.wait
        try:
            while (answer := spool.take_answer(command)) is None:
                if not is_held(self.state) and self._done_here(spool):
                    if (answer := spool.take_answer(command)) is not None:
                        break
                    raise StoreError(f"the command was taken out of {self.state} by others; give it again")
                if self.clock() >= deadline:
                    raise self._no_answer(do)
                self.sleep(PAUSE)
        except BaseException as error:
            # A change that was handed in is made, unless nobody could.
            if do in QUESTIONS or not isinstance(error, NoAnswer):
                spool.withdraw(command)
            raise
        if answer.error is not None:
            raise CommandError(answer.error)
        return answer.result

    def _done_here(self, spool: Spool) -> bool:
        """Does all that is waiting, unless somebody else holds the store by now."""
        try:
            engine = self.open_store()
        except InUse:
            return False
        with engine:
            CommandQueue(spool).apply(engine, Silence())
        return True

    def _no_answer(self, do: str) -> NoAnswer:
        try:
            Ownership(self.state).release()
            holder = f"the store in {self.state} is free by now"
        except InUse as error:
            holder = str(error)
        later = "ask again later" if do in QUESTIONS else "the command is kept, and done as soon as it can be"
        return NoAnswer(f"no answer within {self.wait:g} s: {holder}; {later}")


def stored_engine(state: Path) -> str | None:
    """The engine whose store a directory holds; None if it holds none."""
    if (state / DUCKDB_FILE).exists():
        return "duckdb"
    return "spark" if (state / SPARK_MANIFESTS).exists() else None
