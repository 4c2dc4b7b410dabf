"""Asks whoever holds a store, or, where nobody does, opens it and does what is waiting itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from join_stage.store.protocol import DUCKDB_FILE, SPARK_MANIFESTS, Outdated, StoreError
from mmqjp.service.commands import QUESTIONS, CommandQueue, done
from mmqjp.service.log import Silence
from mmqjp.service.questions import QUERY
from mmqjp.service.spool import Answer, Command, Spool
from mmqjp.session import Session
from mmqjp.state.ownership import InUse, ReadLock, is_held

PAUSE = 0.05
"""Seconds between looks for the answer."""

READS = frozenset((*QUESTIONS, QUERY))
"""The commands that change nothing."""


class CommandError(InputError, ValueError):
    """A command was refused; the message says why."""


class NoAnswer(StoreError):
    """Whoever holds the store has not answered in time."""


@dataclass(frozen=True, slots=True)
class Client:
    """Hands in commands for the store of a state directory, and waits for the answers up to `wait` seconds.

    `open_store` opens it where nobody holds it, and `look_at` opens it to be read only, for questions; without that
    they too are handed in. `clock` is in seconds, `sleep` lets some pass.
    """

    state: Path
    open_store: Callable[[], Session]
    wait: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    look_at: Callable[[], Session] | None = None

    def ask(self, do: str, arguments: Mapping[str, Any]) -> Any:
        """What came of a command. Raises CommandError if it was refused, NoAnswer, StoreError, OSError."""
        answer = self._seen(do, arguments) or self._handed_in(do, arguments)
        if answer.error is not None:
            raise CommandError(answer.error)
        return answer.result

    def _seen(self, do: str, arguments: Mapping[str, Any]) -> Answer | None:
        """The answer to a question that this process can look up itself. None where whoever holds the store is to be
        asked, or something is waiting that has to be done first: by those who can, which are those who may write."""
        if do not in READS or self.look_at is None:
            return None
        writes = os.access(self.state, os.W_OK)
        if writes and (is_held(self.state) or not Spool(self.state).is_empty()):
            return None
        try:
            with self.look_at() as engine:
                return done(engine, Command("", do, arguments))
        except (InUse, Outdated):
            if not writes:
                raise
            return None

    def _handed_in(self, do: str, arguments: Mapping[str, Any]) -> Answer:
        """The answer to a command that is left for whoever holds the store, or to what was done here."""
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
            if do in READS or not isinstance(error, NoAnswer):
                spool.withdraw(command)
            raise
        return answer

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
            ReadLock(self.state).release()
            holder = f"the store in {self.state} is free by now"
        except InUse as error:
            holder = str(error)
        later = "ask again later" if do in READS else "the command is kept, and done as soon as it can be"
        return NoAnswer(f"no answer within {self.wait:g} s: {holder}; {later}")


def stored_engine(state: Path) -> str | None:
    """The engine whose store a directory holds; None if it holds none."""
    if (state / DUCKDB_FILE).exists():
        return "duckdb"
    return "spark" if (state / SPARK_MANIFESTS).exists() else None
