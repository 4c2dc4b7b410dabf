"""The protocol of sinks.

Groups: the outputs of one message of a sink.

What the deliverer does for a sink, and what it tells about it: the protocol between it and the service.

What a push sink sends in one attempt, what its receiver makes of it, and the protocol of receivers.

The JSON of a message, as webhooks and commands get it: the same bytes in every attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, Protocol, runtime_checkable

from feeds.documents import iso_utc
from mmqjp.answers.outbox import Position
from mmqjp.answers.output import Output
from mmqjp.present.item import ShownItem, ShownMatch
from mmqjp.process import json_line

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
    matches: tuple[ShownMatch, ...]
    more: int
    committed_at: int

    @property
    def is_test(self) -> bool:
        """Whether it only tries out the receiver: it has no outputs then, and stands outside of positions."""
        return not self.matches


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What came of an attempt.

    - `acknowledged`: the receiver has the message. If it went to several, a `reason` says who refused it.
    - `refused`: it does not want this message, for the `reason`. It may want the next one.
    - `down`: it cannot take any message now. `retry_after` is for how many microseconds, if it said so.
    - `gone`: it wants no more messages, ever.
    """

    kind: Literal["acknowledged", "refused", "down", "gone"]
    reason: str = ""
    retry_after: int | None = None


def acknowledged() -> DeliveryResult:
    """The receiver has the message."""
    return DeliveryResult("acknowledged")


def refused(reason: str) -> DeliveryResult:
    """The receiver does not want this message."""
    return DeliveryResult("refused", reason)


def down(reason: str, retry_after: int | None = None) -> DeliveryResult:
    """The receiver cannot take any message now. `retry_after` is in microseconds."""
    return DeliveryResult("down", reason, retry_after)


def gone(reason: str) -> DeliveryResult:
    """The receiver wants no more messages."""
    return DeliveryResult("gone", reason)


class Receiver(Protocol):
    """Where the messages of a push sink go."""

    async def send(self, message: Message) -> DeliveryResult:
        """Makes one attempt. May be cancelled. An error that it raises means that the receiver is down."""

    async def close(self) -> None:
        """Closes what is open."""


MOST_CHARACTERS = 4 << 20
"""A group shows no more characters of XML than this, unless its first output alone has more."""


class DeliveryGroup:
    """Wanted outputs that are told together. It keeps the first `most` of them, and counts the others.

    `first` and `last` are the numbers of the first and the last one. `opened` is when the first one was committed, and
    `newest` the latest such time. `t0` is the least of theirs. `is_fixed` says that none can join any more.
    """

    __slots__ = ("_ids", "closes", "count", "first", "is_fixed", "last", "newest", "opened", "outputs", "size", "t0")

    def __init__(self, output: Output, opened: int, closes: int) -> None:
        self.first = self.last = output.seq
        self.opened = self.newest = opened
        self.closes, self.count, self.t0 = closes, 1, output.t0
        self.outputs, self.size = [output], len(output.xml)
        self.is_fixed = closes <= opened
        self._ids = sha256(output.id.encode())

    def add(self, output: Output, committed_at: int, most: int) -> int:
        """Adds an output, and returns how many characters are kept of it."""
        self.last, self.count = output.seq, self.count + 1
        self.newest, self.t0 = max(self.newest, committed_at), min(self.t0, output.t0)
        self._ids.update(b" " + output.id.encode())
        if self.is_filled(most) or self.size + len(output.xml) > MOST_CHARACTERS:
            self.size = max(self.size, MOST_CHARACTERS)  # those that follow are counted, even if they are short
            return 0
        self.outputs.append(output)
        self.size += len(output.xml)
        return len(output.xml)

    def is_filled(self, most: int) -> bool:
        """Whether what joins is only counted."""
        return len(self.outputs) >= most or self.size >= MOST_CHARACTERS

    @property
    def more(self) -> int:
        """How many outputs are only counted."""
        return self.count - len(self.outputs)

    @property
    def id(self) -> str:
        """The id of the message: made of that of its output, or a digest of the ids of all, with spaces between."""
        return ID_PREFIX + (self.outputs[0].id if self.count == 1 else self._ids.hexdigest()[:32])


Pending = Callable[[], Iterable[Output]]
"""Returns the outputs after the stored position of a sink, in the order of `seq`."""

Warn = Callable[[str], object]
"""Is called with a sentence about what others did to a sink's file."""


@runtime_checkable
class Sink(Protocol):
    """Writes outputs.

    Its position is stored with the state before the first output is written, and again whenever `prepare` asks for it.
    After a crash, outputs after the stored position are undone or written again.
    """

    def prepare(self, pending: Pending) -> bool:
        """Prepares for writing. Returns whether the position must be stored first, because the destination has changed.
        Raises OSError."""

    def write(self, outputs: Iterable[Output]) -> int:
        """Writes outputs durably and returns how many. Raises OSError."""

    def position(self) -> Position:
        """Returns the position to resume from."""

    def close(self) -> None:
        """Closes what is open."""


@runtime_checkable
class TimedSink(Sink, Protocol):
    """A sink that has something to do when some time has passed, without new outputs too."""

    @property
    def closes_at(self) -> int | None:
        """When `write` must be called, with or without outputs, in microseconds; None if it need not be."""


@runtime_checkable
class MatchSink(Sink, Protocol):
    """A sink that shows the documents behind outputs, too. The deliverer calls `write_matches` instead of `write`."""

    def write_matches(self, matches: Iterable[ShownMatch]) -> int:
        """Writes outputs with their items durably and returns how many. Raises OSError."""


ReadOutputs = Callable[[int, int], list[Output] | None]
"""Returns the next outputs that the sink of a job wants, after a number. The job's number comes first. None if the job
no longer counts."""


@dataclass(frozen=True, slots=True)
class JobEvent:
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
    verdict: DeliveryResult | None = None
    position: Position | None = None


class Jobs(Protocol):
    """Does jobs, of which a sink has one at a time. Nothing here waits for a receiver, and `job` is a new number."""

    def send(self, job: int, receiver: Receiver, messages: Sequence[Message]) -> None:
        """Sends messages in their order, until one is not acknowledged."""

    def write(self, job: int, sink: Sink, matches: Sequence[ShownMatch]) -> None:
        """Writes outputs to a sink of files."""

    def cancel(self, job: int) -> None:
        """Ends a job early, if it can be. It ends with an event all the same."""

    def events(self, read: ReadOutputs) -> list[JobEvent]:
        """Returns what happened since the last call. `read` answers what sinks of files ask for meanwhile."""

    def close_receiver(self, receiver: Receiver | Sink) -> None:
        """Closes a receiver or sink whose jobs have ended."""

    def wait(self, seconds: float) -> None:
        """Waits until something happens, or so long."""

    def close(self, seconds: float, receivers: Sequence[Receiver | Sink] = ()) -> None:
        """Ends all jobs, closes receivers and sinks, and waits for that for so long. Events may be left."""


OUTPUTS, TEST = "mmqjp.outputs", "mmqjp.test"
"""The types of messages."""

MOST_BYTES = 20 << 10
"""Outputs leave out their XML once a message would be larger: receivers take about so much."""


def payload(message: Message) -> bytes:
    """Returns a JSON object in UTF-8, on one line.

    Its `outputs` are output lines with `items`. One that would make the object larger than MOST_BYTES has `xml_bytes`,
    the size of its XML, instead of `xml`. A message without outputs is a test.
    """
    size = 200
    outputs = []
    for match in message.matches:
        shown = _output(match)
        size += len(json_line(shown)) + 1
        if size > MOST_BYTES and "xml" in shown:
            xml = shown.pop("xml").encode()
            size -= len(xml)
            shown["xml_bytes"] = len(xml)
        outputs.append(shown)
    found = {
        "type": OUTPUTS if message.matches else TEST,
        "timestamp": iso_utc(message.committed_at),
        "sink": message.sink,
        "more": message.more,
        "outputs": outputs,
    }
    return json_line(found)


def _output(match: ShownMatch) -> dict[str, Any]:
    return match.output.to_dict() | {"items": [_item(item) for item in match.items]}


def _item(item: ShownItem) -> dict[str, Any]:
    time = None if item.time is None else iso_utc(item.time)
    feed = item.feed or item.site
    return {"id": item.id, "stream": item.stream, "time": time, "title": item.title, "url": item.link, "feed": feed}
