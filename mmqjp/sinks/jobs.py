"""What the deliverer does for a sink, and what it tells about it: the protocol between it and the service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.present.match import Match
from mmqjp.sinks.message import Message, Receiver, Verdict
from mmqjp.sinks.sink import Sink

Read = Callable[[int, int], list[Output] | None]
"""Returns the next outputs that the sink of a job wants, after a number. The job's number comes first. None if the job
no longer counts."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job.

    - `acknowledged`: all messages up to `last` are. The `verdict`, if there is one, says who did not want the last one.
    - `written`: all outputs up to `last` are, and the sink of files has the `position` now.
    - `prepared`: nothing is written before the `position` is stored.
    - `failed`: the next message got the `verdict`.
    - `ended`: nothing more comes of the job.
    """

    job: int
    kind: Literal["acknowledged", "written", "prepared", "failed", "ended"]
    last: int = -1
    verdict: Verdict | None = None
    position: Position | None = None


class Jobs(Protocol):
    """Does jobs, of which a sink has one at a time. Nothing here waits for a receiver, and `job` is a new number."""

    def send(self, job: int, receiver: Receiver, messages: Sequence[Message]) -> None:
        """Sends messages in their order, until one is not acknowledged."""

    def write(self, job: int, sink: Sink, matches: Sequence[Match]) -> None:
        """Writes outputs to a sink of files."""

    def cancel(self, job: int) -> None:
        """Ends a job early, if it can be. It ends with an event all the same."""

    def events(self, read: Read) -> list[Event]:
        """Returns what happened since the last call. `read` answers what sinks of files ask for meanwhile."""

    def close_receiver(self, receiver: Receiver | Sink) -> None:
        """Closes a receiver or sink whose jobs have ended."""

    def wait(self, seconds: float) -> None:
        """Waits until something happens, or so long."""

    def close(self, seconds: float, receivers: Sequence[Receiver | Sink] = ()) -> None:
        """Ends all jobs, closes receivers and sinks, and waits for that for so long. Events may be left."""
