"""Sends commands to the process that holds a store. If no process does, it opens the store and runs them itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError
from join_stage.store.protocol import Outdated, StoreError
from mmqjp.service.commands import LOOKUPS, CommandQueue, RunSinks, no_sinks, run_command
from mmqjp.service.log import NullLog
from mmqjp.service.question_runner import RUN_BESIDE
from mmqjp.service.sink_commands import SINK_LOOKUPS
from mmqjp.service.spool import Command, CommandResult, Spool
from mmqjp.session import Session
from mmqjp.state.ownership import InUse, ReadLock, is_held

POLL = 0.05
"""Seconds between two looks for the answer."""

IDLE = frozenset((*LOOKUPS, *RUN_BESIDE, *SINK_LOOKUPS))
"""The commands that change nothing, and that a store which is only read can answer. Nobody needs their results once the
wait is over."""


class CommandError(InputError, ValueError):
    """A command was refused. The message says why."""


class NoAnswer(StoreError):
    """The process that holds the store has not answered in time."""


@dataclass(frozen=True, slots=True)
class Client:
    """Submits commands for the store of a state directory, and waits up to `wait` seconds for each answer.

    `open_store` opens the store when no process holds it. `open_read_only` opens it for commands that change nothing;
    without it, these are submitted too. If it `reads_beside`, it may be opened while another process holds it. `clock`
    returns seconds, and `sleep` waits for some. `run_sinks` runs commands about sinks when no process holds the store.
    """

    state: Path
    open_store: Callable[[], Session]
    wait: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    open_read_only: Callable[[], Session] | None = None
    reads_beside: bool = False
    run_sinks: RunSinks = no_sinks

    def ask(self, do: str, arguments: Mapping[str, Any]) -> Any:
        """The result of a command. Raises CommandError if it was refused; NoAnswer, StoreError, OSError."""
        answer = self._looked_up(do, arguments) or self._submitted(do, arguments)
        if answer.error is not None:
            raise CommandError(answer.error)
        return answer.result

    def _looked_up(self, do: str, arguments: Mapping[str, Any]) -> CommandResult | None:
        """The result of a read-only command that this process can run itself; None if it cannot. How sinks are is known
        to the process that serves them."""
        if do not in IDLE or (do in SINK_LOOKUPS and is_held(self.state)):
            return None
        with self.reading(beside=do in RUN_BESIDE) as engine:
            return None if engine is None else run_command(engine, Command("", do, arguments), self.run_sinks)

    @contextmanager
    def reading(self, *, beside: bool = True) -> Iterator[Session | None]:
        """The store, only to be read.

        None if another process holds the store and nobody may read beside it, or if commands wait that must be run
        first. Only a process that may write to the store can run those, so one that may not does not wait for them. Who
        may read `beside` another process does not wait for them either: that process may answer another dialect of SQL.
        """
        engine = self._opened_read_only(beside=beside)
        if engine is None:
            yield None
        else:
            with engine:
                yield engine

    def _opened_read_only(self, *, beside: bool) -> Session | None:
        if self.open_read_only is None:
            return None
        writes = os.access(self.state, os.W_OK)
        waits = not self.reads_beside and is_held(self.state)
        if writes and (waits or not ((self.reads_beside and beside) or Spool(self.state).is_empty())):
            return None
        try:
            return self.open_read_only()
        except (InUse, Outdated) as error:
            if not writes:
                raise
            if not self.reads_beside or isinstance(error, InUse):
                return None
        self.open_store().close()  # which brings it up to date
        return self.open_read_only()

    def _submitted(self, do: str, arguments: Mapping[str, Any]) -> CommandResult:
        """The result of a command in the spool. The process that holds the store runs it, or this one if none does."""
        spool = Spool(self.state)
        command = spool.submit(do, arguments)
        deadline = self.clock() + self.wait
        try:
            while (answer := spool.take_result(command)) is None:
                if not is_held(self.state) and self._run_here(spool):
                    if (answer := spool.take_result(command)) is not None:
                        break
                    raise StoreError(f"the command was removed from {self.state} by another process; give it again")
                if self.clock() >= deadline:
                    raise self._no_answer(do)
                self.sleep(POLL)
        except BaseException as error:
            # A change that nobody has run yet stays in the spool when the wait is over: it will be made.
            if do in IDLE or not isinstance(error, NoAnswer):
                spool.withdraw(command)
            raise
        return answer

    def _run_here(self, spool: Spool) -> bool:
        """Runs all waiting commands. Returns False if another process holds the store by now."""
        try:
            engine = self.open_store()
        except InUse:
            return False
        with engine:
            CommandQueue(spool, run_sinks=self.run_sinks).apply(engine, NullLog())
        return True

    def _no_answer(self, do: str) -> NoAnswer:
        try:
            ReadLock(self.state).release()
            holder = f"the store in {self.state} is free now"
        except InUse as error:
            holder = str(error)
        later = "ask again later" if do in IDLE else "the command is kept and will run as soon as possible"
        return NoAnswer(f"no answer within {self.wait:g} s: {holder}; {later}")
