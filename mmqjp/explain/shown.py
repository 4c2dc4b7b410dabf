"""What explanations consist of, however they are found: stages, operands, conditions, timings, the events that filled
the parts of a query, and time spans as texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from itertools import pairwise
from typing import Any, Literal

from common.bounds import INFINITE
from xscl.algebra.joins import JoinOp
from xscl.algebra.values import derive
from xscl.printer import to_xscl
from xscl.syntax import Window

StageKind = Literal[
    "stream", "pattern", "asked", "equality", "together", "different", "order", "window", "residual", "mirror",
    "event", "late", "unseen", "filtered", "condition", "consumed", "ended", "group",
    "equal", "strategy", "absent", "letters", "maximal", "run", "alone", "decided",
]  # fmt: skip
"""The requirement of a stage. Queries: documents of a stream; a name or condition of a block; what predicates and
SELECT need of it; an equality; all equalities of a join in one binding; another document on the other side; order;
window; other join conditions; and that an output is not mirrored (JOIN UNORDERED).

Event queries: an event exists, was not late, and came after registration; conditions of FILTER, NEXT and FOLD; no
earlier right event was taken by NEXT; a run of FOLD continues; events are in one group of AGGREGATE. PATTERN: bracketed
values are equal; no event blocks the strategy; no negated event occurs; the letters missing are within the limit; no
match is better (EARLIEST MAXIMAL); "run" counts the first events of matches that get this far.

Absences: there is no partner, and the watermark rules out later ones.
"""


StageUnit = Literal["documents", "values", "pairs", "events"]


@dataclass(frozen=True, slots=True)
class FunnelStage:
    """A stage. `part` is its part of the query. `found` counts what passes: documents, values shared by both sides of
    an equality, or pairs of inputs; with `at_least`, it is a lower bound. `left` and `right` are an equality's distinct
    values. `block` numbers blocks from 1; 0 is a join. If nothing passes, `message` says what there is instead, and
    `hint` what may be meant."""

    kind: StageKind
    part: str
    found: int
    unit: StageUnit = "documents"
    block: int = 0
    left: int = 0
    right: int = 0
    at_least: bool = False
    message: str = ""
    hint: str = ""

    def told(self, message: str, hint: str = "") -> FunnelStage:
        return replace(self, message=message, hint=hint)

    @property
    def count_text(self) -> str:
        if self.unit == "values":
            return f"{self.left:,} and {self.right:,} values, {self.found:,} common"
        more = " or more" if self.at_least else ""
        return f"{self.found:,}{more} {self.unit if self.found != 1 else self.unit[:-1]}"


@dataclass(frozen=True, slots=True)
class Operand:
    """A node that took part: the name of its element or of an attribute like "link/@href", its text, and the functions
    applied, the innermost first. `document` is the index of its document in the output's `documents`; None for a node
    of another query's output. `node` is its id in output lines."""

    name: str
    text: str
    functions: tuple[str, ...] = ()
    document: int | None = None
    node: int | str | None = field(default=None, compare=False)

    @property
    def value(self) -> str:
        return apply_functions(self.text, self.functions)


def apply_functions(text: str, functions: Sequence[str]) -> str:
    for name in functions:
        text = derive(name, text)
    return text


@dataclass(frozen=True, slots=True)
class JoinedValue:
    """A value join that held: its operands, whose values are equal."""

    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class ShownCondition:
    """Another condition that held: its text in parts, with nodes in place of variables."""

    parts: tuple[str | Operand, ...]

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.name for part in self.parts)


@dataclass(frozen=True, slots=True)
class JoinTiming:
    """The intervals of a join's inputs, in microseconds, left start to right end. `op` and `window` (None: INF) allow
    them. A chain has one for each join."""

    op: JoinOp
    window: int | None
    left: tuple[int, int]
    right: tuple[int, int]

    @property
    def distance(self) -> int:
        """From the earlier start to the later end; bounded by the window."""
        return max(self.left[1], self.right[1]) - min(self.left[0], self.right[0])

    @property
    def gap(self) -> int:
        """From the end of the left input to the start of the right one; may be negative."""
        return self.right[0] - self.left[1]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an output exists: value joins, inner joins first, and other join conditions; for absences, the conditions
    without a partner. On request also the joins' timings and the conditions in the `filters` of blocks."""

    joined: tuple[JoinedValue, ...] = ()
    conditions: tuple[ShownCondition, ...] = ()
    timings: tuple[JoinTiming, ...] = ()
    filters: tuple[ShownCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownEvent:
    """An event: attributes, interval in microseconds, and the indexes of its documents in the output. If another query
    published it, `output` is the id of that output, and `query` the query."""

    attributes: tuple[tuple[str, str | float | None], ...]
    t0: int
    t1: int
    documents: tuple[int, ...] = ()
    output: str = ""
    query: str = ""


@dataclass(frozen=True, slots=True)
class FilledPart:
    """A part of a query, and the events that filled it: `count`, the first one and the last ones."""

    name: str
    count: int
    events: tuple[ShownEvent, ...]


@dataclass(frozen=True, slots=True)
class PartDuration:
    """How long a part took: DUR, GAP if any, and the limit (None: any time), in microseconds."""

    part: str
    duration: int
    gap: int | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class Filling:
    """The events that filled the parts of an event query for an output, and the durations."""

    parts: tuple[FilledPart, ...]
    spans: tuple[PartDuration, ...]

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self)
        for part in found["parts"]:
            for event in part["events"]:
                event["attributes"] = dict(event["attributes"])
        return found


def format_window(microseconds: int | None) -> str:
    """Formats a window with the largest unit that divides it. None and INFINITE are INF."""
    return to_xscl(Window(None if microseconds == INFINITE else microseconds))


_DURATIONS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000))


def duration_text(microseconds: int) -> str:
    """Formats a time span with its two largest units; less than a minute as exact seconds.

    >>> duration_text(250_200_000_000), duration_text(60_000_000), duration_text(57_448_571), duration_text(-7)
    ('2 d 21 h', '1 min', '57.448571 s', '-7 µs')
    """
    if microseconds < 0:
        return f"-{duration_text(-microseconds)}"
    for (unit, size), (below, part) in pairwise(_DURATIONS):
        if microseconds >= size:
            rest = microseconds % size // part
            return f"{microseconds // size:,} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{microseconds} µs" if microseconds < 1_000 else f"{Decimal(microseconds) / 1_000_000:f} s"
