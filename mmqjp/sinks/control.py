"""What can be asked of the sinks of a service, in its thread: the protocol that commands and pages use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from common.errors import InputError
from mmqjp.sinks.definition import SinkDefinition, Start

State = Literal["running", "waiting", "paused", "stopped"]

NO_ANSWERS: Mapping[str, str] = {}
"""No answers to commands."""


class UnknownSink(InputError, KeyError):
    """There is no sink of this name."""

    def __str__(self) -> str:
        return f"no sink is named {self.args[0]}"


class SinkOfFile(InputError, ValueError):
    """A sink of the configuration file can be changed there alone."""


class SinkExists(InputError, ValueError):
    """A sink of this name exists already, or the name is not free for another reason."""


@dataclass(frozen=True, slots=True)
class SinkState:
    """The state of a sink. Times are microseconds since 1970.

    `state` is "running"; "waiting" for the next attempt at `next`, as the receiver is down or refuses a message, after
    `tries` attempts; or "paused" or "stopped", both until somebody resumes it. `reason` is the last failure. `acked` is
    the number up to which it has all outputs, `behind` how many wanted ones are left, and `behind_since` when the
    oldest of them was committed. `delivered` and `given_up` count outputs, and `failed` attempts, since the service
    began. `in_file` says that it is defined in the configuration file.
    """

    name: str
    kind: str
    state: State
    reason: str
    acked: int
    behind: int
    behind_since: int | None
    tries: int
    next: int | None
    delivered: int
    failed: int
    given_up: int
    in_file: bool

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return asdict(self)


class SinkControl(Protocol):
    """The sinks of a service. Only its thread may call this. Methods raise UnknownSink, SinkOfFile and SinkExists, and
    commit what they change before they return, together with the `answers` to commands, by their ids."""

    def list(self) -> list[SinkState]:
        """Returns the states of all sinks, by name."""

    def add(self, definition: SinkDefinition, answers: Mapping[str, str] = NO_ANSWERS) -> None:
        """Adds a sink, which begins where its definition says."""

    def set(self, definition: SinkDefinition, answers: Mapping[str, str] = NO_ANSWERS) -> None:
        """Replaces the definition of a sink of the same name and kind, which goes on from where it is."""

    def pause(self, name: str, answers: Mapping[str, str] = NO_ANSWERS) -> None:
        """Pauses a sink."""

    def resume(self, name: str, answers: Mapping[str, str] = NO_ANSWERS) -> None:
        """Lets a sink that is paused, stopped or waiting try again at once."""

    def test(self, name: str) -> None:
        """Begins to send a message `mmqjp.test` without outputs. `tested` has its result some time later."""

    def tested(self, name: str) -> str | None:
        """Returns what came of the last test, or None as long as it is not known: "" if it was acknowledged, else the
        reason."""

    def replay(self, name: str, start: Start, answers: Mapping[str, str] = NO_ANSWERS) -> None:
        """Delivers again, from an output or a time on."""

    def remove(self, name: str, answers: Mapping[str, str] = NO_ANSWERS) -> None:
        """Removes a sink and its position."""

    def reload(self, definitions: Iterable[SinkDefinition], answers: Mapping[str, str] = NO_ANSWERS) -> None:
        """Takes over the definitions of the configuration file, which was read anew."""

    def close(self) -> None:
        """Stops delivering, and notes the positions."""
