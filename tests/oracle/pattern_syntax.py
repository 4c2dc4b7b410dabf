"""The oracle's own syntax of PATTERN statements, and the text of each in the language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.oracle.event_syntax import Cel, Cond, Item, Window
from tests.oracle.walk import walk

Strategy = Literal["strict_contiguity", "partition_contiguity", "skip_till_next_match", "skip_till_any_match"]
STRATEGIES: tuple[Strategy, ...] = (
    "strict_contiguity",
    "partition_contiguity",
    "skip_till_next_match",
    "skip_till_any_match",
)


@dataclass(frozen=True, slots=True)
class One:
    stream: str
    variable: str

    def text(self) -> str:
        return f"{self.stream} {self.variable}"


@dataclass(frozen=True, slots=True)
class Many:
    stream: str
    variable: str

    def text(self) -> str:
        return f"{self.stream}+ {self.variable}[]"


@dataclass(frozen=True, slots=True)
class Absent:
    stream: str
    variable: str

    def text(self) -> str:
        return f"~({self.stream} {self.variable})"


@dataclass(frozen=True, slots=True)
class AnyOrder:
    members: tuple[One | Many, ...]

    def text(self) -> str:
        return f"SET({', '.join(member.text() for member in self.members)})"


Component = One | Many | Absent | AnyOrder


@dataclass(frozen=True, slots=True)
class Pattern:
    """A PATTERN without ERRORS. `within` is None for INF, `select` for what RETURN is not written in."""

    components: tuple[Component, ...]
    within: Window | None
    strategy: Strategy | None = None
    keys: tuple[str, ...] = ()
    cond: Cond | None = None
    having: Cond | None = None
    select: tuple[Item, ...] | None = None
    maximal: bool = False
    apart: bool = False
    publish: str | None = None
    together: bool = False

    def text(self) -> str:
        where = _braces(self.keys, self.cond)
        if self.strategy:
            where = f"{self.strategy} {where or '{}'}"
        having = f" HAVING {self.having.text()}" if self.having else ""
        return (
            f"PATTERN SEQ({', '.join(component.text() for component in self.components)})"
            + (f" WHERE {where}" if where else "")
            + f" WITHIN {self.within.text() if self.within else 'INF'}{having}"
            + _ending(self.select, self.publish, maximal=self.maximal, apart=self.apart, together=self.together)
        )

    @property
    def sets(self) -> tuple[tuple[One | Many, ...], ...]:
        return tuple(
            one.members if isinstance(one, AnyOrder) else (one,)
            for one in self.components
            if not isinstance(one, Absent)
        )

    @property
    def positive(self) -> tuple[One | Many, ...]:
        return tuple(one for some in self.sets for one in some)

    @property
    def absent(self) -> tuple[tuple[int, Absent], ...]:
        """The negated components, each with the number of sets in front of it."""
        found: list[tuple[int, Absent]] = []
        before = 0
        for one in self.components:
            if isinstance(one, Absent):
                found.append((before, one))
            else:
                before += 1
        return tuple(found)

    @property
    def streams(self) -> frozenset[str]:
        return frozenset(one.stream for one in self.positive) | {one.stream for _, one in self.absent}


# ---------------------------------------------------------------- ERRORS


@dataclass(frozen=True, slots=True)
class Letter:
    """An event of a stream, which, if it is `needed`, cannot be left out."""

    stream: str
    needed: bool = False

    def text(self) -> str:
        return self.stream + ("!" if self.needed else "")


@dataclass(frozen=True, slots=True)
class OneOf:
    words: tuple[tuple[Letters, ...], ...]

    def text(self) -> str:
        return f"({' | '.join(_word(word) for word in self.words)})"


@dataclass(frozen=True, slots=True)
class Times:
    """A letter, or words in parentheses, at least `least` times: 0, 1, 2, ..."""

    part: Letter | OneOf
    least: int

    def text(self) -> str:
        return self.part.text() + {0: "*", 1: "+"}.get(self.least, f"{{{self.least},}}")


Letters = Letter | OneOf | Times


@dataclass(frozen=True, slots=True)
class Near:
    """A PATTERN with ERRORS."""

    word: tuple[Letters, ...]
    errors: int
    within: Window | None
    keys: tuple[str, ...] = ()
    budget: int | None = None
    select: tuple[Item, ...] | None = None
    apart: bool = False
    publish: str | None = None

    def text(self) -> str:
        where = _braces(self.keys, None)
        budget = "" if self.budget is None else f" BUDGET {self.budget}"
        return (
            f"PATTERN SEQ({_word(self.word)})"
            + (f" WHERE {where}" if where else "")
            + f" ERRORS <= {self.errors}{budget} WITHIN {self.within.text() if self.within else 'INF'}"
            + _ending(self.select, self.publish, maximal=False, apart=self.apart)
        )

    @property
    def streams(self) -> frozenset[str]:
        return frozenset(letter.stream for letter in walk(self.word) if isinstance(letter, Letter))


Statement = Cel | Pattern | Near


def _word(word: tuple[Letters, ...]) -> str:
    return ", ".join(part.text() for part in word)


def _braces(keys: tuple[str, ...], cond: Cond | None) -> str:
    conds = [f"[{', '.join(keys)}]"] if keys else []
    if cond is not None:
        conds.append(f"({cond.text()})" if conds else cond.text())
    return f"{{{' AND '.join(conds)}}}" if conds else ""


def _ending(
    select: tuple[Item, ...] | None, publish: str | None, *, maximal: bool, apart: bool, together: bool = False
) -> str:
    return (
        ("" if select is None else f" RETURN {', '.join(item.text() for item in select)}")
        + (" ALL MATCHES TOGETHER" if together else "")
        + (" EARLIEST MAXIMAL" if maximal else "")
        + (" NON OVERLAPPING" if apart else "")
        + ("" if publish is None else f" PUBLISH {publish}")
    )
