"""The protocols between the service, sinks and receivers. Has messages and their JSON (the same bytes in every
attempt), groups of outputs, results of attempts, file sinks, and the jobs of the deliverer with their events."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from operator import itemgetter
from typing import Any, Literal

from common.dates import iso_utc
from mmqjp.answers.fan_out import Position
from mmqjp.answers.output import BodyForm, Output, output_json
from mmqjp.present.item import ShownItem, ShownMatch, number_of, read_story
from mmqjp.process import json_line
from mmqjp.tables.schema import Owed

ID_PREFIX = "msg_"


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a sink, identical in every attempt. Covers the wanted outputs numbered `first` to `last`: `matches`
    has the first of them, `more` counts the others. `committed_at` is the first one's commit time in microseconds. The
    id is made of the output's id if there is one output, else it is a digest of all ids covered. A test of the receiver
    has no matches."""

    id: str
    sink: str
    first: int
    last: int
    matches: tuple[ShownMatch, ...]
    more: int
    committed_at: int


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The result of an attempt. `acknowledged`: the receiver has the message; if it went to several, `reason` says who
    refused it. `refused`: it rejects this message for the `reason`, but maybe not the next one. `down`: it takes no
    messages now; `retry_after` is its wait in microseconds, if given. `gone`: it wants no more messages, ever."""

    kind: Literal["acknowledged", "refused", "down", "gone"]
    reason: str = ""
    retry_after: int | None = None


ACKNOWLEDGED = DeliveryResult("acknowledged")


def refused(reason: str) -> DeliveryResult:
    return DeliveryResult("refused", reason)


def down(reason: str, retry_after: int | None = None) -> DeliveryResult:
    return DeliveryResult("down", reason, retry_after)


class Receiver(ABC):
    """The destination of a push sink's messages."""

    @abstractmethod
    async def send(self, message: Message) -> DeliveryResult:
        """Makes one attempt. May be cancelled. An exception means that the receiver is down."""

    async def close(self) -> None:  # noqa: B027  # optional
        """Closes what is open, by default nothing."""


MOST_CHARACTERS = 4 << 20  # maximum size of a group's outputs in characters of XML, unless the first alone exceeds it


class DeliveryGroup:
    """Outputs that share a message of a sink: it shows the first of them, or those with the greatest numbers, in order
    of these, and counts the rest. A digest shows a story once, as it was told last. `first` and `last` are numbers of
    outputs, `opened` and `newest` the first and latest commit times, `t0` the least t0, and `size` the characters of
    XML in memory. `is_fixed`: no output can join any more."""

    __slots__ = (
        "_by", "_first_id", "_hidden", "_ids", "_is_full", "_is_large", "_most", "_ranked", "_spare", "_stories",
        "closes", "count", "first", "is_digest", "is_fixed", "last", "newest", "opened", "size", "t0",
    )  # fmt: skip

    def __init__(self, output: Output, opened: int, closes: int, most: int, by: str | None) -> None:
        """The group is a digest unless `by` is None; "" is not a number."""
        self.first, self.t0 = output.seq, output.t0
        self.opened = self.newest = opened
        self.closes, self.count, self.size = closes, 0, 0
        self.is_fixed = closes <= opened
        self.is_digest, self._by, self._most = by is not None, by or "", most
        self._is_full, self._is_large = False, False
        # Entries in order: rank, the number of an output or of the first one of a story, and the output, or its number.
        self._ranked: list[tuple[float, int, Output]] = []
        self._stories: dict[tuple[str, str], tuple[float, int, int]] = {}  # those that are not in memory
        self._spare: list[tuple[float, int, int]] = []  # of `_hidden` others those that may be shown when stories merge
        self._hidden = 0
        self._ids, self._first_id = sha256(), output.id
        self.add(output, opened)

    def add(self, output: Output, committed_at: int) -> None:
        self._ids.update(f"{' ' if self.count else ''}{output.id}".encode())
        self.last, self.count = output.seq, self.count + 1
        self.newest, self.t0 = max(self.newest, committed_at), min(self.t0, output.t0)
        first, is_story = output.seq, self.is_digest and output.story != ""
        if is_story:
            first = min(first, *(self._forget(output.query, id) for id in (output.story, *merged_stories(output))))
        if self._is_full and not self._by and first == output.seq:
            self._hide(0, first, output)
            return
        insort(self._ranked, (-number_of(output.xml, self._by) if self._by else 0, first, output))
        self.size += len(output.xml)
        while len(self._ranked) > 1 and (len(self._ranked) > self._most or self.size > MOST_CHARACTERS):
            self._is_full, self._is_large = True, self._is_large or self.size > MOST_CHARACTERS
            rank, first, worst = self._ranked.pop()  # those that follow are counted, even if they are short
            self.size -= len(worst.xml)
            self._hide(rank, first, worst)

    def _hide(self, rank: float, first: int, output: Output) -> None:
        if self.is_digest and output.story:
            self._stories[output.query, output.story] = rank, first, output.seq
        else:
            self._hidden += 1
            if self.is_digest:
                insort(self._spare, (rank, first, output.seq))
                del self._spare[self._most :]

    def _forget(self, query: str, story: str) -> int:
        """Removes what a story told before, and returns the number of its first output here; if there is none, the
        last one's."""
        if (known := self._stories.pop((query, story), None)) is not None:
            return known[1]
        for place, (_, first, output) in enumerate(self._ranked):
            if (output.query, output.story) == (query, story):
                self.size -= len(output.xml)
                del self._ranked[place]
                return first
        return self.last

    @property
    def is_filled(self) -> bool:
        """Whether further outputs take no more memory."""
        return self._is_full or len(self._ranked) >= self._most or self.size >= MOST_CHARACTERS

    @property
    def kept(self) -> int:
        return len(self._ranked)

    @property
    def outputs(self) -> list[Output]:
        """Those in memory."""
        return [output for *_, output in self._ranked]

    @property
    def shown(self) -> list[Output | int]:
        """What the message shows; an output that is not in memory as its number."""
        every: list[tuple[float, int, Output | int]] = [*self._ranked]
        if not self._is_large:
            every = sorted((*every, *self._stories.values(), *self._spare), key=itemgetter(0, 1))
        return [output for *_, output in every[: self._most]]

    @property
    def owed(self) -> Owed:
        return Owed(self.t0, self.opened)

    @property
    def more(self) -> int:
        return self._hidden + len(self._ranked) + len(self._stories) - len(self.shown)

    @property
    def id(self) -> str:
        """The message's id: made of its only output's id, or a digest of all ids, separated by spaces."""
        return ID_PREFIX + (self._first_id if self.count == 1 else self._ids.hexdigest()[:32])


def merged_stories(output: Output) -> tuple[str, ...]:
    """Returns the stories that an output's story has taken up."""
    return read_story(output.xml)[0].merged if output.change == "merged" else ()


Pending = Callable[[], Iterable[Output]]
"""Returns the outputs after a sink's stored position, in order of `seq`."""

Warn = Callable[[str], object]  # called with a sentence about others' changes to a sink's file


class Sink(ABC):
    """Writes outputs. Its position is stored with the state before the first write, and whenever `prepare` requests it.
    After a crash, outputs past the stored position are undone or written again."""

    shows_items = False  # whether `write_matches` needs the items of documents
    _acked: int  # the number of the last output that is written

    @property
    def closes_at(self) -> int | None:
        """When `write` must be called, with or without outputs, in microseconds; None if never."""
        return None

    def prepare(self, pending: Pending) -> bool:
        """Prepares for writing. Returns whether the position must be stored first, as it changed. Raises OSError."""
        return False

    @abstractmethod
    def write(self, outputs: Iterable[Output]) -> int:
        """Writes outputs durably and returns their number. Raises OSError."""

    def write_matches(self, matches: Iterable[ShownMatch]) -> int:
        return self.write(match.output for match in matches)

    def position(self) -> Position:
        """Returns the position to resume from."""
        return Position(self._acked)

    def close(self) -> None:  # noqa: B027  # optional
        """Closes what is open, by default nothing."""


ReadOutputs = Callable[[int, int], list[Output] | None]
"""Returns the next wanted outputs for a job's number, after an output's number. None if the job was dropped."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a job. `acknowledged`: all messages up to `last`; a `verdict` says who refused the last one.
    `written`: all outputs up to `last`; the file sink is at `position`. `prepared`: nothing is written before
    `position` is stored. `failed`: the next message got the `verdict`. `ended`: no more events."""

    job: int
    kind: Literal["acknowledged", "written", "prepared", "failed", "ended"]
    last: int = -1
    verdict: DeliveryResult = ACKNOWLEDGED
    position: Position = Position()


OUTPUTS, TEST = "mmqjp.outputs", "mmqjp.test"  # the types of messages
MOST_BYTES = 20 << 10  # outputs omit their XML once a message would exceed this, about what receivers accept


def payload(message: Message, body: BodyForm = "xml") -> bytes:
    """Returns a JSON object in UTF-8, on one line. Its `outputs` are output lines with `items`; one that would exceed
    MOST_BYTES has `xml_bytes`, the size of its XML, instead of its `body`. A message without outputs is a test."""
    size, outputs = 200, list[str]()
    for match in message.matches:
        shown: dict[str, Any] = match.output.to_dict() | {"items": list(map(_item, match.items))}
        size += len(json_line(shown)) + 1
        if size > MOST_BYTES and "xml" in shown:
            xml = shown.pop("xml").encode()
            size -= len(xml)
            shown["xml_bytes"] = len(xml)
        outputs.append(output_json(shown, body))
    found = {
        "type": OUTPUTS if message.matches else TEST,
        "timestamp": iso_utc(message.committed_at),
        "sink": message.sink,
        "more": message.more,
    }
    return f'{json.dumps(found, ensure_ascii=False)[:-1]}, "outputs": [{", ".join(outputs)}]}}\n'.encode()


def _item(item: ShownItem) -> dict[str, Any]:
    time = None if item.time is None else iso_utc(item.time)
    feed = item.feed or item.site
    return {"id": item.id, "stream": item.stream, "time": time, "title": item.title, "url": item.link, "feed": feed}
