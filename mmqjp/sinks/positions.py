"""The state of a sink, owned by the service's thread and stored as its position with a batch. Course is a state machine
without clock or I/O: where the sink is, what it waits for, and what comes next. Backlog groups the wanted, undelivered
outputs, oldest first, with a window in memory and the rest counted in the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Any, Literal

from common.dates import DAY, MINUTE
from common.errors import InputError
from common.tools import JsonRecord
from mmqjp.answers.fan_out import Position
from mmqjp.answers.output import Output
from mmqjp.sinks.definition import SinkDefinition
from mmqjp.sinks.retries import RetryAction, Tries
from mmqjp.sinks.sink import DeliveryGroup, DeliveryResult
from mmqjp.tables.schema import CommitMetadata, GapRow, Owed, UndeliveredRow

SinkStatus = Literal["running", "waiting", "paused", "stopped"]


class UnknownSink(InputError, KeyError):
    """There is no sink of this name."""

    def __str__(self) -> str:
        return f"no sink is named {self.args[0]}"


class SinkOfFile(InputError, ValueError):
    """A sink of the configuration file can only be changed there."""


class SinkExists(InputError, ValueError):
    """The name of a sink is taken or reserved."""


@dataclass(frozen=True, slots=True)
class SinkState(JsonRecord):
    """The state of a sink. Times are microseconds since 1970. `state` is "running"; "waiting" for the next attempt at
    `next`, as the receiver is down or refuses a message, after `tries` attempts; or "paused" or "stopped", until it is
    resumed. `reason` is the last failure. `acked` is the number up to which it has all outputs, `behind` counts wanted
    ones that are left, the oldest committed at `behind_since`. `delivered` and `given_up` count outputs, and `failed`
    attempts, since the service started. `in_file`: it is not live."""

    name: str
    kind: str
    state: SinkStatus
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


WINDOW_OUTPUTS, WINDOW_CHARACTERS = 1_000, 8 << 20
"""Size limits of a sink's window in memory: outputs, and characters of XML."""

BacklogEntry = tuple[Output, int]  # a wanted output and its commit time


class Backlog:
    """The backlog of a sink. Wanted outputs up to the number `taken` are in `groups` or delivered; `beyond` counts
    those after it. `pending` is the last number of a group that an earlier process began to send."""

    def __init__(self, definition: SinkDefinition, taken: int, pending: int | None) -> None:
        self.definition, self.taken = definition, taken
        self.groups: deque[DeliveryGroup] = deque()
        self.beyond = 0
        self._pending = -1 if pending is None else pending
        self._kept = self._size = self._counted = 0
        self._owed_beyond = Owed(0, 0)

    @property
    def count(self) -> int:
        return self._counted + self.beyond

    def owed(self) -> Iterator[Owed]:
        """Yields the least t0, and the oldest commit time, of parts."""
        yield from (group.owed for group in self.groups)
        if self.beyond:
            yield self._owed_beyond

    # ------------------------------------------------------------ more outputs

    def offer(self, output: Output, committed_at: int) -> None:
        if self.beyond or not self._take((output, committed_at)):
            self.count_beyond(1, output.t0, committed_at)

    def count_beyond(self, count: int, t0: int, since: int) -> None:
        if count:
            before = self._owed_beyond if self.beyond else Owed(t0, since)
            self._owed_beyond = Owed(min(t0, before.t0), min(since, before.committed_at))
            self.beyond += count

    def pass_over(self, last: int) -> None:
        if not self.beyond:
            self.taken = max(self.taken, last)

    def has_room(self) -> bool:
        if not self.beyond:
            return False
        last = self.groups[-1] if self.groups else None
        joins = last is not None and not last.is_fixed and last.is_filled
        return joins or (2 * self._kept < WINDOW_OUTPUTS and 2 * self._size < WINDOW_CHARACTERS)

    def refill(self, entries: Iterable[BacklogEntry]) -> list[BacklogEntry]:
        """Adds ordered wanted outputs from the store. Returns those without room."""
        left: list[BacklogEntry] = []
        for entry in entries:
            if left or not self._take(entry):
                left.append(entry)
            else:
                self.beyond = max(self.beyond - 1, 0)
        return left

    def read_up_to(self, last: int, *, is_all: bool) -> None:
        self.taken = max(self.taken, last)
        self.beyond = 0 if is_all else self.beyond  # there were fewer than were counted

    def _take(self, entry: BacklogEntry) -> bool:
        output, committed_at = entry
        last = self.groups[-1] if self.groups and self._joins(self.groups[-1], output.seq, committed_at) else None
        is_full = self._kept >= WINDOW_OUTPUTS or self._size >= WINDOW_CHARACTERS
        if is_full and (last is None or not last.is_filled):
            return False
        if last is not None:
            kept, size = last.kept, last.size
            last.add(output, committed_at)
            self._kept, self._size = self._kept + last.kept - kept, self._size + last.size - size
        else:
            closes, definition = self.definition.closes(committed_at), self.definition
            closes = committed_at if closes is None else closes
            self.groups.append(last := DeliveryGroup(output, committed_at, closes, definition.most, definition.by))
            self._kept, self._size = self._kept + last.kept, self._size + last.size
        self._counted += 1
        self.taken = output.seq
        return True

    def _joins(self, last: DeliveryGroup, seq: int, committed_at: int) -> bool:
        if last.first <= self._pending:
            return seq <= self._pending
        return not last.is_fixed and committed_at <= last.closes

    # ------------------------------------------------------------ fewer outputs

    def pop(self) -> DeliveryGroup:
        group = self.groups.popleft()
        self._counted -= group.count
        self._kept -= group.kept
        self._size -= group.size
        return group

    def fix(self, now: int) -> DeliveryGroup | None:
        """Returns the oldest group if closed, and fixes it. None if it is open, or the store may have more of it."""
        if not self.groups:
            return None
        group = self.groups[0]
        if group.is_fixed and group.last > self._pending:
            return group
        if self.beyond and len(self.groups) == 1:
            return None
        if group.first > self._pending and now < group.closes and len(self.groups) == 1:
            return None
        group.is_fixed = True
        return group

    def give_up(self, may: Callable[[DeliveryGroup, int], bool]) -> list[DeliveryGroup]:
        """Removes and returns the oldest groups while `may` allows it, given a group and the outputs after it."""
        gone, left = list[DeliveryGroup](), self.count
        while self.groups and may(self.groups[0], left - self.groups[0].count):
            left -= self.groups[0].count
            gone.append(self.pop())
        return gone


AT_A_TIME = 100  # messages handed to a job
GRACE = MINUTE  # minimum wait before an output is given up, however large the backlog: a burst is no reason
LONGEST_WAIT = 2 * DAY  # maximum wait of a sink, even if the clock changes

TOO_OLD, TOO_MANY = "older than the backlog may be", "more outputs than the backlog may have"


@dataclass(frozen=True, slots=True)
class _Written:
    """Outputs up to `last` that a file sink could still lose: their number, and what is owed."""

    last: int
    count: int
    owed: Owed


class Course:
    """The course of a sink, which is done with outputs up to the number `acked`. `job` is the number of its current
    job, or None. `unnoted` are the rows to store with the position."""

    def __init__(self, definition: SinkDefinition, position: Position) -> None:
        noted = dict(position.details)
        self.definition = definition
        self.acked = self._held = position.acked  # `_held`: up to where a file sink cannot lose outputs
        self.details: Mapping[str, Any] = noted.get("details", {})  # what a file sink needs to resume
        self.state: SinkStatus = noted.get("state", "running")
        self.reason: str = noted.get("reason", "")
        self.next: int | None = noted.get("next")
        # When delivery from here was requested: outputs count as waiting from then at the earliest.
        self.begun: int = noted.get("begun", 0)
        self._tries = Tries(*noted.get("tries", (0, 0)))
        self._pending: int | None = noted.get("pending")
        self._noted_pending = self._pending
        self._written: deque[_Written] = deque()
        self.backlog = Backlog(definition, self.acked, self._pending)
        self.gaps: list[GapRow] = []
        self.undelivered: list[UndeliveredRow] = []
        self.job: int | None = None
        self.is_urgent = False
        self.delivered = self.failed = self.given_up = 0

    # ------------------------------------------------------------ what is known of it

    def position(self) -> Position:
        noted = {
            "pending": self._pending,
            "tries": [self._tries.down, self._tries.refused] if self._tries != Tries() else None,
            "next": self.next,
            "state": None if self.state == "running" else self.state,
            "reason": self.reason or None,
            "begun": self.begun or None,
            "details": dict(self.details) or None,
        }
        return Position(self.acked, {key: value for key, value in noted.items() if value is not None})

    def was_noted(self, position: Position, notes: CommitMetadata) -> None:
        """Called once a position is stored, with the rows in `notes`."""
        self._noted_pending = position.details.get("pending")
        del self.gaps[: sum(row.sink == self.definition.name for row in notes.gaps)]
        del self.undelivered[: sum(row.sink == self.definition.name for row in notes.undelivered)]
        self.is_urgent = False

    def shown(self) -> SinkState:
        owed = self.owed()
        behind = self.backlog.count + sum(written.count for written in self._written)
        return SinkState(
            self.definition.name, self.definition.kind, self.state, self.reason, self.acked, behind,
            None if owed is None else owed.committed_at, self._tries.down + self._tries.refused,
            self.next if self.state == "waiting" else None, self.delivered, self.failed, self.given_up,
            not self.definition.is_live,
        )  # fmt: skip

    def owed(self) -> Owed | None:
        return least([*(written.owed for written in self._written), *self.backlog.owed()])

    # ------------------------------------------------------------ the next attempt

    def window(self, now: int) -> list[DeliveryGroup]:
        """Returns the groups to deliver now, if any; the caller must then start a job."""
        if self.job is not None or self.state not in ("running", "waiting"):
            return []
        if self.is_urgent and not self.definition.is_push:
            return []
        if self.state == "waiting" and self.next is not None:
            self.next = min(self.next, now + LONGEST_WAIT)
            if now < self.next:
                return []
        if not self.definition.is_push:
            return list(self.backlog.groups)
        if (head := self.backlog.fix(now)) is None:
            return []
        if head.closes > head.opened or head.count > 1:
            if self._pending != head.last:
                self._pending, self.is_urgent = head.last, True
            return [head] if self._noted_pending == head.last else []
        most = AT_A_TIME if self._tries == Tries() else 1
        return list(takewhile(lambda group: group.closes <= group.opened, islice(self.backlog.groups, most)))

    # ------------------------------------------------------------ what came of it

    def acknowledged(self, last: int, refused: str, now: int) -> None:
        """All messages up to `last` are received. `refused`: who rejected the last; as others have it, that is all."""
        while self.backlog.groups and self.backlog.groups[0].last <= last:
            group = self.backlog.pop()
            self.delivered += group.count
            if refused and group.last == last:
                self._miss(group, 1, refused, now)
        self._go_on(reason=refused)

    def written(self, last: int, position: Position) -> None:
        groups = []
        while self.backlog.groups and self.backlog.groups[0].last <= last:
            groups.append(self.backlog.pop())
        if (owed := least(group.owed for group in groups)) is not None:
            count = sum(group.count for group in groups)
            self.delivered += count
            self._written.append(_Written(groups[-1].last, count, owed))
        self._go_on(position)

    def prepared(self, position: Position) -> None:
        self.details, self.is_urgent = position.details, True

    def _go_on(self, position: Position | None = None, reason: str = "") -> None:
        self._tries, self.next, self.reason, self._pending = Tries(), None, reason, None
        if self.state == "waiting":
            self.state = "running"
        if position is not None:
            self.details, self._held = position.details, position.acked
            while self._written and self._written[0].last <= position.acked:
                self._written.popleft()
        self.pass_on()

    def pass_on(self) -> None:
        backlog = self.backlog
        reached = backlog.groups[0].first - 1 if backlog.groups else backlog.taken
        self.acked = max(self.acked, self._held if self._written else reached)

    def failure(self, verdict: DeliveryResult, now: int, more: float) -> RetryAction:
        """Records that the oldest group was not delivered; returns the action. `more` is random, from 0 to 1."""
        self.failed += 1
        self._tries, step, wait = self._tries.after(verdict, more)
        self.reason = verdict.reason
        if self.state == "paused":
            return step
        if step == "leave out":
            if self.backlog.groups:
                group = self.backlog.pop()
                self.given_up += group.count
                self._miss(group, self._tries.refused, verdict.reason, now)
            self._go_on(reason=verdict.reason)
        else:
            self.state, self.next = ("waiting", now + wait) if step == "wait" else ("stopped", None)
        return step

    def _miss(self, group: DeliveryGroup, tries: int, reason: str, now: int) -> None:
        name, shown, rest = self.definition.name, group.outputs, group.first
        if not group.is_digest or group.count == len(shown):  # else what is shown lies among the rest
            self.undelivered += [UndeliveredRow(name, one.seq, one.id, tries, reason, now) for one in shown]
            rest = shown[-1].seq + 1
        if group.count > len(shown):
            count = group.count if rest == group.first else group.count - len(shown)
            self.gaps.append(GapRow(name, rest, group.last, count, f"refused: {reason}", now))

    def give_up(self, now: int) -> int:
        """Gives up outputs that are too old or too many, unless a file sink could lose earlier ones. Counts them."""
        if self.job is not None or self._written:
            return 0
        gone = 0
        for reason in (TOO_OLD, TOO_MANY):
            groups = self.backlog.give_up(partial(self._may_give_up, reason, now))
            if not groups:
                continue
            count, last = sum(group.count for group in groups), groups[-1].last
            self.gaps.append(GapRow(self.definition.name, self.acked + 1, last, count, reason, now))
            self._pending, self._tries = None, Tries(self._tries.down)
            self.acked = max(self.acked, last)
            gone += count
        self.given_up += gone
        if gone:
            self.pass_on()
        return gone

    def is_held_up(self, now: int) -> bool:
        """Whether outputs are due to be given up but a stuck file sink has earlier ones open."""
        if self.job is not None or not self._written or self.state == "running" or not self.backlog.groups:
            return False
        head = self.backlog.groups[0]
        return any(self._may_give_up(reason, now, head, self.backlog.count) for reason in (TOO_OLD, TOO_MANY))

    def _may_give_up(self, reason: str, now: int, group: DeliveryGroup, others: int) -> bool:
        waited = now - max(group.newest, group.closes, self.begun)
        if reason == TOO_OLD:
            oldest = self.definition.backlog_us
            return oldest is not None and waited > oldest
        return others >= self.definition.backlog_outputs and waited > GRACE and group.opened >= self.begun

    # ------------------------------------------------------------ what people ask for

    def pause(self) -> None:
        self.state, self.next = "paused", None

    def resume(self) -> None:
        self.state, self.next, self.reason, self._tries = "running", None, "", Tries()

    def begin(self, acked: int, now: int) -> None:
        """Restarts after another output. The backlog must be recounted."""
        self.begun = now
        self._pending, self._tries = None, Tries()
        self.rewind(acked)
        if self.state == "waiting":
            self.state, self.next = "running", None

    def rewind(self, acked: int | None = None) -> None:
        """Drops the backlog in memory, which must be recounted after the position or another output."""
        self.acked = self.acked if acked is None else acked
        self._held = self.acked
        self._written.clear()
        self.backlog = Backlog(self.definition, self.acked, self._pending)


def least(owed: Iterable[Owed]) -> Owed | None:
    """What covers all of them; None for none."""
    found = list(owed)
    return Owed(*map(min, zip(*found, strict=True))) if found else None
