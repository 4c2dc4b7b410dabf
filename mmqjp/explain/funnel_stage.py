"""A stage of a query: one thing that it asks of documents, and how much of what was looked at gets past it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Kind = Literal[
    "stream", "pattern", "asked", "equality", "together", "different", "order", "window", "residual", "mirror",
    "event", "late", "unseen", "filtered", "condition", "consumed", "ended", "group",
    "equal", "strategy", "absent", "letters", "maximal", "run", "alone", "decided",
]  # fmt: skip
"""What is asked: documents of a stream; a name or condition of a block, and what predicates and SELECT ask of it; an
equality, all of a join in one binding, another document on the other side, their order, how far apart they may be,
other conditions of a join; and that it is not told the other way round (JOIN UNORDERED).

Of event queries: that there is an event, that it was not too late, and came while the query was there; the conditions
of FILTER, and of NEXT and FOLD; that no earlier right event was taken by NEXT, that a run of FOLD goes on, and that
events are in one group of AGGREGATE. Of PATTERN: that events are equal in what stands in brackets, that none comes
that its strategy does not pass over, that none comes that must not, that not too many letters are missing, and that no
match is better (EARLIEST MAXIMAL); "run" counts the events at which a match begins that gets so far.

Of absences, that there is no partner, and that the watermark says that none comes."""

Unit = Literal["documents", "values", "pairs", "events"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage. `part` is the part of the query that asks. `found` counts what gets past it: documents, values that both
    sides of an equality have, or pairs of inputs; with `at_least`, there may be more. Of an equality, `left` and
    `right` are the distinct values of the sides. `block` numbers blocks from 1; it is 0 for stages of joins.

    If nothing gets past it, `message` says what there is instead, and `hint` what might be meant.
    """

    kind: Kind
    part: str
    found: int
    unit: Unit = "documents"
    block: int = 0
    left: int = 0
    right: int = 0
    at_least: bool = False
    message: str = ""
    hint: str = ""

    def told(self, message: str, hint: str = "") -> Stage:
        """Returns the stage with what there is instead."""
        return replace(self, message=message, hint=hint)

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Stage:
        """Returns the stage of such an object."""
        return Stage(**found)
