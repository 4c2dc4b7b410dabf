"""What a run remembers of its events: the values V that conditions still need, each in a register.

A register is of one variable. It is set with the variable's first event, updated with each further one, and goes when
no later condition reads it. Its code is Python over V, the registers before an event, and E, the event's values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pattern_stage.columns import NULL_TEXT
from pattern_stage.matching.scalar import finite
from pattern_stage.values import Texts
from xscl.algebra.events import Kind

RegisterKind = Literal["first", "last", "count", "known", "sum", "min", "max", "argmax", "every", "each"]


@dataclass(frozen=True, slots=True)
class Part:
    """A value that a set of tuples has of each event: of the event itself at `slot`, or read from a register before
    the event."""

    kind: Kind
    slot: int = -1
    read: Read | None = None


@dataclass(frozen=True, slots=True)
class Register:
    """A register. `slots` are the event's values that it takes, `kinds` of what kind they are; a set (`every`, `each`)
    has tuples of `parts` instead, of each event, or of each but the first."""

    kind: RegisterKind
    variable: int
    slots: tuple[int, ...] = ()
    kinds: tuple[Kind, ...] = ()
    parts: tuple[Part, ...] = ()

    def needs(self) -> Iterable[Register]:
        """Returns the registers that its update reads."""
        return [part.read.register for part in self.parts if part.read is not None]


@dataclass(frozen=True, slots=True)
class Read:
    """What is read from a register: its value, or of a sum the average."""

    register: Register
    average: bool = False

    def code(self, place: Callable[[Register], str]) -> str:
        """Returns Python for it; `place` says where a register is."""
        at = place(self.register)
        match self.register.kind:
            case "sum":
                return f"{'average' if self.average else 'total'}({at})"
            case "argmax":
                return f"{at}[1]"
        return at


def functions(texts: Texts) -> dict[str, Callable[..., Any]]:
    """Returns what the code of registers calls."""
    return {
        "grown": grown,
        "total": total,
        "average": average,
        "least": lambda one, other: other if one != one or other < one else one,
        "most": lambda one, other: other if one != one or other > one else one,
        "better": _better(texts),
    }


def begin_code(register: Register, place: Callable[[Register], str]) -> str:
    """Returns Python for a register as its variable gets its first event."""
    slots = [f"E[{slot}]" for slot in register.slots]
    match register.kind:
        case "first" | "last" | "min" | "max":
            return slots[0]
        case "count":
            return "1.0"
        case "known":
            return f"({_known(slots[0], register.kinds[0])})"
        case "sum":
            return f"grown((0,), {slots[0]})"
        case "argmax":
            return f"better(None, {register.kinds[0] == 'string'}, {', '.join(slots)})"
        case "every":
            return f"frozenset(({_tuple(register, place)},))"
        case "each":
            return "frozenset()"


def take_code(register: Register, place: Callable[[Register], str]) -> str:
    """Returns Python for a register as its variable gets a further event."""
    at, slots = place(register), [f"E[{slot}]" for slot in register.slots]
    match register.kind:
        case "first":
            return at
        case "last":
            return slots[0]
        case "count":
            return f"{at} + 1.0"
        case "known":
            return f"{at} + ({_known(slots[0], register.kinds[0])})"
        case "sum":
            return f"grown({at}, {slots[0]})"
        case "min":
            return f"least({at}, {slots[0]})"
        case "max":
            return f"most({at}, {slots[0]})"
        case "argmax":
            return f"better({at}, {register.kinds[0] == 'string'}, {', '.join(slots)})"
        case "every" | "each":
            return f"{at} | {{{_tuple(register, place)}}}"


def _known(slot: str, kind: Kind) -> str:
    return f"1.0 if {slot} != {NULL_TEXT} else 0.0" if kind == "string" else f"1.0 if {slot} == {slot} else 0.0"


def _tuple(register: Register, place: Callable[[Register], str]) -> str:
    codes = [f"E[{part.slot}]" if part.read is None else part.read.code(place) for part in register.parts]
    return f"({', '.join(codes)},)"


# ---------------------------------------------------------------- sums


def grown(sum_: tuple[float, ...], number: float) -> tuple[float, ...]:
    """Returns a sum with one number more: how many numbers there are, and numbers whose exact sum is theirs, few of
    them (Shewchuk's partials, as in `math.fsum`). NULL is passed over."""
    if number != number:
        return sum_
    partials: list[float] = []
    for partial in sum_[1:]:
        if abs(number) < abs(partial):
            number, partial = partial, number
        high = number + partial
        low = partial - (high - number)
        if low:
            partials.append(low)
        number = high
    return (sum_[0] + 1, *partials, number)


def total(sum_: tuple[float, ...]) -> float:
    """Returns what a sum is, NaN if it is of nothing."""
    return _rounded(sum_) if sum_[0] else math.nan


def average(sum_: tuple[float, ...]) -> float:
    """Returns the average, NaN if it is of nothing."""
    return finite(_rounded(sum_) / sum_[0]) if sum_[0] else math.nan


def _rounded(sum_: tuple[float, ...]) -> float:
    if len(sum_) == 2:
        return finite(sum_[1])
    try:
        return finite(math.fsum(sum_[1:]))
    except (OverflowError, ValueError):
        return math.nan


def _better(texts: Texts) -> Callable[..., tuple[float, Any]]:
    """The greatest y so far with its x: of several the least x. Without any, NaN and NULL."""

    def better(best: tuple[float, Any] | None, is_text: bool, x: Any, y: float) -> tuple[float, Any]:
        known = y == y and (x != NULL_TEXT if is_text else x == x)
        if best is None:
            return (y, x) if known else (math.nan, NULL_TEXT if is_text else math.nan)
        if not known or y < best[0]:
            return best
        if best[0] != best[0] or y > best[0]:
            return y, x
        less = (texts.text(x) or "") < (texts.text(best[1]) or "") if is_text else x < best[1]
        return (y, x) if less else best

    return better
