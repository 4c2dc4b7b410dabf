"""What a push sink sends in one attempt, what its receiver makes of it, and the protocol of receivers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from mmqjp.present.match import Match

ID_PREFIX = "msg_"


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a sink. It is the same in every attempt.

    It covers the wanted outputs with numbers from `first` to `last`. `matches` has the first of them, and `more` counts
    the others. `committed_at` is when the first one was committed, in microseconds. The message of one output has an
    id made of that output's id, others have a digest of all ids that they cover.
    """

    id: str
    sink: str
    first: int
    last: int
    matches: tuple[Match, ...]
    more: int
    committed_at: int

    @property
    def is_test(self) -> bool:
        """Whether it only tries out the receiver: it has no outputs then, and stands outside of positions."""
        return not self.matches


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of an attempt.

    - `acknowledged`: the receiver has the message. If it went to several, a `reason` says who refused it.
    - `refused`: it does not want this message, for the `reason`. It may want the next one.
    - `down`: it cannot take any message now. `retry_after` is for how many microseconds, if it said so.
    - `gone`: it wants no more messages, ever.
    """

    kind: Literal["acknowledged", "refused", "down", "gone"]
    reason: str = ""
    retry_after: int | None = None


def acknowledged() -> Verdict:
    """The receiver has the message."""
    return Verdict("acknowledged")


def refused(reason: str) -> Verdict:
    """The receiver does not want this message."""
    return Verdict("refused", reason)


def down(reason: str, retry_after: int | None = None) -> Verdict:
    """The receiver cannot take any message now. `retry_after` is in microseconds."""
    return Verdict("down", reason, retry_after)


def gone(reason: str) -> Verdict:
    """The receiver wants no more messages."""
    return Verdict("gone", reason)


class Receiver(Protocol):
    """Where the messages of a push sink go."""

    async def send(self, message: Message) -> Verdict:
        """Makes one attempt. May be cancelled. An error that it raises means that the receiver is down."""

    async def close(self) -> None:
        """Closes what is open."""
