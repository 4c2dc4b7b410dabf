"""The course of a sink: where it is, what it waits for, and what comes next. It does nothing itself, and asks no clock.

The thread of the service owns it. What it knows is stored as the position of the sink.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Any, Literal

from mmqjp.answers.outbox import Position
from mmqjp.sinks.backlog import Backlog
from mmqjp.sinks.control import SinkState, State
from mmqjp.sinks.definition import SinkDefinition
from mmqjp.sinks.group import Group
from mmqjp.sinks.message import Verdict
from mmqjp.sinks.retries import DAY, MINUTE, Tries
from mmqjp.tables.deliveries import GapRow, Owed, UndeliveredRow

AT_A_TIME = 100
"""So many messages are handed over together."""

GRACE = MINUTE
"""An output is not given up before it has waited for this long, however many there are: many that come at once, in one
batch or in several, are no reason."""

LONGEST_WAIT = 2 * DAY
"""No sink waits longer, whatever the clock was when it began to."""

TOO_OLD, TOO_MANY = "older than the backlog may be", "more outputs than the backlog may have"


@dataclass(frozen=True, slots=True)
class _Written:
    """Outputs up to `last` that a file sink has written but could still lose: `count` of them, committed from `since`
    on."""

    last: int
    count: int
    t0: int
    since: int


class Course:
    """The course of a sink. Its outputs up to the number `acked` are done with.

    `job` is the number of what the deliverer is doing for it, or None. `unnoted` are the rows to store with the
    position.
    """

    def __init__(self, definition: SinkDefinition, position: Position) -> None:
        noted = dict(position.details)
        self.definition = definition
        self.acked = position.acked
        self.details: Mapping[str, Any] = noted.get("details", {})
        """What a sink of files needs to go on."""
        self.state: State = noted.get("state", "running")
        self.reason: str = noted.get("reason", "")
        self.next: int | None = noted.get("next")
        self.begun: int = noted.get("begun", 0)
        """When somebody asked for what comes from here on: at least since then outputs may wait."""
        self._tries = Tries(*noted.get("tries", (0, 0)))
        self._pending: int | None = noted.get("pending")
        self._noted_pending = self._pending
        self._written: deque[_Written] = deque()
        self._held = self.acked
        """The number up to which a sink of files cannot lose what it has written."""
        self.backlog = Backlog(definition, self.acked, self._pending)
        self.gaps: list[GapRow] = []
        self.undelivered: list[UndeliveredRow] = []
        self.job: int | None = None
        self.is_urgent = False
        self.delivered = self.failed = self.given_up = 0

    # ------------------------------------------------------------ what is known of it

    def position(self) -> Position:
        """Returns the position to store."""
        noted = {
            "pending": self._pending,
            "tries": [self._tries.down, self._tries.refused] if self._tries else None,
            "next": self.next,
            "state": None if self.state == "running" else self.state,
            "reason": self.reason or None,
            "begun": self.begun or None,
            "details": dict(self.details) or None,
        }
        return Position(self.acked, {key: value for key, value in noted.items() if value is not None})

    def was_noted(self, position: Position, gaps: int, undelivered: int) -> None:
        """Notes that a position is stored, with some rows."""
        self._noted_pending = position.details.get("pending")
        del self.gaps[:gaps], self.undelivered[:undelivered]
        self.is_urgent = False

    def shown(self) -> SinkState:
        """Returns what is shown of it."""
        backlog = self.backlog
        return SinkState(
            self.definition.name,
            self.definition.kind,
            self.state,
            self.reason,
            self.acked,
            backlog.count + sum(written.count for written in self._written),
            self._written[0].since if self._written else backlog.since,
            self._tries.down + self._tries.refused,
            self.next if self.state == "waiting" else None,
            self.delivered,
            self.failed,
            self.given_up,
            not self.definition.is_live,
        )

    def owed(self) -> Owed | None:
        """Returns what the sink is still owed."""
        found = [Owed(written.t0, written.since) for written in self._written]
        backlog = self.backlog
        if backlog.t0 is not None and backlog.since is not None:
            found.append(Owed(backlog.t0, backlog.since))
        if not found:
            return None
        return Owed(min(owed.t0 for owed in found), min(owed.committed_at for owed in found))

    # ------------------------------------------------------------ the next attempt

    def window(self, now: int) -> list[Group]:
        """Returns the groups to deliver now, if any. Then there must be a job."""
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
        head = self.backlog.fix(now)
        if head is None:
            return []
        if head.closes > head.opened or head.count > 1:
            if self._pending != head.last:
                self._pending, self.is_urgent = head.last, True
            return [head] if self._noted_pending == head.last else []
        most = 1 if self._tries else AT_A_TIME
        return list(takewhile(lambda group: group.closes <= group.opened, islice(self.backlog.groups, most)))

    # ------------------------------------------------------------ what came of it

    def acknowledged(self, last: int, refused: str, now: int) -> None:
        """Notes that the receiver has all messages up to the output with the number `last`. If some of those that the
        last one was for have `refused` it, that is noted: it is not sent again, as the others have it."""
        while self.backlog.groups and self.backlog.groups[0].last <= last:
            group = self.backlog.pop()
            self.delivered += group.count
            if refused and group.last == last:
                self._miss(group, 1, refused, now)
        self._go_on()
        self.reason = refused

    def written(self, last: int, position: Position) -> None:
        """Notes that a file sink has written all outputs up to the number `last`, and its position."""
        groups = []
        while self.backlog.groups and self.backlog.groups[0].last <= last:
            groups.append(self.backlog.pop())
        if groups:
            count = sum(group.count for group in groups)
            self.delivered += count
            t0, since = min(group.t0 for group in groups), min(group.opened for group in groups)
            self._written.append(_Written(groups[-1].last, count, t0, since))
        self._go_on(position)

    def prepared(self, position: Position) -> None:
        """Notes that a file sink must have its position stored before it writes."""
        self.details, self.is_urgent = position.details, True

    def _go_on(self, position: Position | None = None) -> None:
        self._tries, self.next, self.reason, self._pending = Tries(), None, "", None
        if self.state == "waiting":
            self.state = "running"
        if position is not None:
            self.details, self._held = position.details, position.acked
            while self._written and self._written[0].last <= position.acked:
                self._written.popleft()
        self.pass_on()

    def pass_on(self) -> None:
        """Moves the position over outputs that the sink does not want."""
        backlog = self.backlog
        reached = backlog.groups[0].first - 1 if backlog.groups else backlog.taken
        self.acked = max(self.acked, self._held if self._written else reached)

    def failure(self, verdict: Verdict, now: int, more: float) -> Literal["wait", "leave out", "stop"]:
        """Notes that the oldest group was not delivered, and returns what is to be done. `more` is a random number from
        0 to 1."""
        self.failed += 1
        self._tries, step, wait = self._tries.after(verdict, more)
        self.reason = verdict.reason
        if self.state == "paused":
            return step
        if step == "leave out":
            self._leave_out(now)
        else:
            self.state, self.next = ("waiting", now + wait) if step == "wait" else ("stopped", None)
        return step

    def _leave_out(self, now: int) -> None:
        """Makes dead letters of the oldest group, and goes on with the next."""
        reason = self.reason
        if self.backlog.groups:
            group = self.backlog.pop()
            self.given_up += group.count
            self._miss(group, self._tries.refused, reason, now)
        self._go_on()
        self.reason = reason

    def _miss(self, group: Group, tries: int, reason: str, now: int) -> None:
        """Makes dead letters of a group."""
        name = self.definition.name
        self.undelivered += [
            UndeliveredRow(name, output.seq, output.id, tries, reason, now) for output in group.outputs
        ]
        if group.more:
            first = group.outputs[-1].seq + 1
            self.gaps.append(GapRow(name, first, group.last, group.more, f"refused: {reason}", now))

    def give_up(self, now: int) -> int:
        """Gives up outputs that are too old or too many, and returns how many. None that a sink of files has written
        but could lose may come before them."""
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
        """Whether outputs should be given up, but a sink of files that does not get on has others before them open."""
        if self.job is not None or not self._written or self.state == "running" or not self.backlog.groups:
            return False
        head = self.backlog.groups[0]
        return any(self._may_give_up(reason, now, head, self.backlog.count) for reason in (TOO_OLD, TOO_MANY))

    def _may_give_up(self, reason: str, now: int, group: Group, others: int) -> bool:
        waited = now - max(group.newest, group.closes, self.begun)
        if reason == TOO_OLD:
            oldest = self.definition.backlog_us
            return oldest is not None and waited > oldest
        return others >= self.definition.backlog_outputs and waited > GRACE and group.opened >= self.begun

    # ------------------------------------------------------------ what people ask for

    def pause(self) -> None:
        """Stops delivering."""
        self.state, self.next = "paused", None

    def resume(self) -> None:
        """Delivers again, at once."""
        self.state, self.next, self.reason, self._tries = "running", None, "", Tries()

    def begin(self, acked: int, now: int) -> None:
        """Begins after another output. All that follows must be counted anew."""
        self.begun = now
        self._pending, self._tries = None, Tries()
        self.rewind(acked)
        if self.state == "waiting":
            self.state, self.next = "running", None

    def rewind(self, acked: int | None = None) -> None:
        """Forgets what is in memory. All that follows the position, or another output, must be counted anew."""
        self.acked = self.acked if acked is None else acked
        self._held = self.acked
        self._written.clear()
        self.backlog = Backlog(self.definition, self.acked, self._pending)
