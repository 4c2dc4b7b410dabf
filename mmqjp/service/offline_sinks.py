"""Commands about sinks for a store that no service holds: they change what is stored, and nothing is delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from mmqjp.present.match import Match
from mmqjp.service.log import NullLog
from mmqjp.service.sink_commands import SINK_LOOKUPS, SinkCommands, read_live
from mmqjp.service.spool import Command
from mmqjp.session import Session
from mmqjp.sinks.jobs import Event, Read
from mmqjp.sinks.kinds import Kinds
from mmqjp.sinks.manager import SinkManager
from mmqjp.sinks.message import Message, Receiver
from mmqjp.sinks.secrets import Secrets
from mmqjp.sinks.sink import Sink
from mmqjp.sinks.tables import SinkTables


class NoJobs:
    """Does nothing for any sink."""

    def send(self, job: int, receiver: Receiver, messages: Sequence[Message]) -> None:
        """Sends nothing."""

    def write(self, job: int, sink: Sink, matches: Sequence[Match]) -> None:
        """Writes nothing."""

    def cancel(self, job: int) -> None:
        """Does nothing: there are no jobs."""

    def events(self, read: Read) -> list[Event]:
        """Returns nothing."""
        return []

    def close_receiver(self, receiver: Receiver | Sink) -> None:
        """Does nothing: none was opened."""

    def wait(self, seconds: float) -> None:
        """Returns at once."""

    def close(self, seconds: float, receivers: Sequence[Receiver | Sink] = ()) -> None:
        """Does nothing."""


def run_offline(state: Path, read_tables: Callable[[], SinkTables], engine: Session, command: Command) -> object:
    """Runs a command about the sinks of a store that this process holds, or only reads if that changes nothing.
    `read_tables` reads the configuration. Raises InputError."""
    tables = read_tables()
    secrets = Secrets(tables.secrets, state)
    read = partial(read_live, state)
    manager = SinkManager(
        engine, tables.sinks.values(), Kinds(secrets), NoJobs(), NullLog(), read,
        read_only=command.do in SINK_LOOKUPS,
    )  # fmt: skip
    return SinkCommands(engine, manager, secrets, state, read_tables).run(command)
