"""The backlog of a sink: the outputs that it wants and has not got, in groups, the oldest first.

A window of them is in memory. The others are counted, and read from the store when there is room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from mmqjp.answers.output import Output
from mmqjp.sinks.definition import SinkDefinition
from mmqjp.sinks.group import Group

WINDOW_OUTPUTS, WINDOW_CHARACTERS = 1_000, 8 << 20
"""So many outputs of a sink are in memory, or so many characters of XML."""

Entry = tuple[Output, int]
"""A wanted output, and when it was committed."""


class Backlog:
    """The backlog of a sink. `taken` is the number up to which wanted outputs are in `groups` or were delivered, and
    `beyond` counts those after it. `pending` is the last number of a group that a former process had begun to send."""

    def __init__(self, definition: SinkDefinition, taken: int, pending: int | None) -> None:
        self.definition, self.taken = definition, taken
        self.groups: deque[Group] = deque()
        self.beyond = 0
        self._pending = -1 if pending is None else pending
        self._kept = self._size = self._counted = 0
        self._beyond_t0 = self._beyond_since = 0

    @property
    def count(self) -> int:
        """The number of outputs."""
        return self._counted + self.beyond

    @property
    def since(self) -> int | None:
        """When the oldest output was committed, or None if there is none."""
        if self.groups:
            return self.groups[0].opened
        return self._beyond_since if self.beyond else None

    @property
    def t0(self) -> int | None:
        """The least t0 of the outputs, or an earlier time. None if there are none."""
        found = [group.t0 for group in self.groups]
        return min([*found, self._beyond_t0] if self.beyond else found, default=None)

    # ------------------------------------------------------------ more outputs

    def offer(self, output: Output, committed_at: int) -> None:
        """Adds a wanted output that was committed after all others."""
        if self.beyond or not self._take((output, committed_at)):
            self.count_beyond(1, output.t0, committed_at)

    def count_beyond(self, count: int, t0: int, since: int) -> None:
        """Counts outputs that stay in the store for now."""
        if count:
            self._beyond_t0 = min(t0, self._beyond_t0) if self.beyond else t0
            self._beyond_since = self._beyond_since if self.beyond else since
            self.beyond += count

    def pass_over(self, last: int) -> None:
        """Notes that all outputs with numbers up to `last` were offered."""
        if not self.beyond:
            self.taken = max(self.taken, last)

    def has_room(self) -> bool:
        """Whether outputs should be read from the store."""
        if not self.beyond:
            return False
        last = self.groups[-1] if self.groups else None
        joins = last is not None and not last.is_fixed and last.is_filled(self.definition.most)
        return joins or (2 * self._kept < WINDOW_OUTPUTS and 2 * self._size < WINDOW_CHARACTERS)

    def refill(self, entries: Iterable[Entry]) -> list[Entry]:
        """Takes wanted outputs that were read from the store, in order. Returns those that there is no room for."""
        left: list[Entry] = []
        for entry in entries:
            if left or not self._take(entry):
                left.append(entry)
            else:
                self.beyond = max(self.beyond - 1, 0)
        return left

    def read_up_to(self, last: int, *, is_all: bool) -> None:
        """Notes that all wanted outputs with numbers up to `last` were taken, and whether there are no others."""
        self.taken = max(self.taken, last)
        self.beyond = 0 if is_all else self.beyond  # there were fewer than were counted

    def _take(self, entry: Entry) -> bool:
        """Puts an output into a group, unless there is no room."""
        output, committed_at = entry
        most = self.definition.most
        last = self.groups[-1] if self.groups else None
        joined = last is not None and self._joins(last, output.seq, committed_at)
        if (self._kept >= WINDOW_OUTPUTS or self._size >= WINDOW_CHARACTERS) and not (
            joined and last is not None and last.is_filled(most)
        ):
            return False
        if joined and last is not None:
            before = len(last.outputs)
            self._size += last.add(output, committed_at, most)
            self._kept += len(last.outputs) - before
        else:
            closes = self.definition.closes(committed_at)
            self.groups.append(Group(output, committed_at, committed_at if closes is None else closes))
            self._kept, self._size = self._kept + 1, self._size + len(output.xml)
        self._counted += 1
        self.taken = output.seq
        return True

    def _joins(self, last: Group, seq: int, committed_at: int) -> bool:
        if last.first <= self._pending:
            return seq <= self._pending
        return not last.is_fixed and committed_at <= last.closes

    # ------------------------------------------------------------ fewer outputs

    def pop(self) -> Group:
        """Removes the oldest group."""
        group = self.groups.popleft()
        self._counted -= group.count
        self._kept -= len(group.outputs)
        self._size -= sum(len(output.xml) for output in group.outputs)
        return group

    def fix(self, now: int) -> Group | None:
        """Returns the oldest group if it is closed, and lets no more outputs join it. None if it is still open, or if
        more of it may be in the store."""
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

    def give_up(self, may: Callable[[Group, int], bool]) -> list[Group]:
        """Removes and returns the oldest groups, as long as they may go: `may` is asked with a group and how many
        outputs follow it."""
        gone = []
        left = self.count
        while self.groups and may(self.groups[0], left - self.groups[0].count):
            left -= self.groups[0].count
            gone.append(self.pop())
        return gone
