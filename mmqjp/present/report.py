"""What the formats for people show: matches in groups, and how many there are in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mmqjp.present.groups import Group
from mmqjp.present.item import Item
from mmqjp.present.times import Clock


@dataclass(frozen=True, slots=True)
class Report:
    """Matches to show. `total` is how many there are, which may be more than are shown."""

    groups: list[Group]
    total: int
    clock: Clock
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The texts of the queries of each name, as far as they are known."""
    which: Literal["newest", "first"] = "newest"
    """Which of them are shown, if they are not all."""

    @property
    def shown(self) -> int:
        """How many are shown."""
        return sum(map(len, self.groups))

    @property
    def newest(self) -> int | None:
        """The t1 of the newest match, if there is any."""
        return max((next(group.matches).output.t1 for group in self.groups), default=None)

    @property
    def summary(self) -> str:
        """How many there are and are shown, in words."""
        if self.shown < self.total:
            return f"the {self.which} {self.shown:,} of {counted(self.total)}"
        return counted(self.total)


def counted(matches: int) -> str:
    """`1 match`, `2,000 matches`."""
    return f"{matches:,} match{'' if matches == 1 else 'es'}"


def source(item: Item) -> str:
    """Where a document is from: the title of its feed and its site, or what it is and its stream."""
    if item.feed and item.site:
        return f"{item.feed}, {item.site}"
    if item.feed or item.site:
        return item.feed or item.site
    return f"{item.kind} of {item.stream}" if item.is_kept else f"of {item.stream}, no longer stored"
