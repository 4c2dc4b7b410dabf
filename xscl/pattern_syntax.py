"""The syntax tree of what PATTERN statements look for: the components of SEQ, and the clauses behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from common.quick import quick
from xscl.algebra.expressions import Span, nowhere
from xscl.event_expressions import EventExpr, StreamName

# ---------------------------------------------------------------- components


@quick
@dataclass(frozen=True, slots=True)
class OneEvent:
    """`stream variable`, or, `many`, `stream+ variable[]`."""

    stream: StreamName
    variable: str
    many: bool = False
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class NoEvent:
    """`~(component)`."""

    component: Component
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class AnyOrder:
    """`SET(components)`."""

    components: tuple[Component, ...]
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class LetterOf:
    """`stream`, or, `needed`, `stream!`: a component of a pattern with ERRORS."""

    stream: StreamName
    needed: bool = False
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Alternatives:
    """`(a, b | c)`: some words, any one of which may stand there."""

    words: tuple[tuple[Component, ...], ...]
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Repetition:
    """`part*`, `part+` or `part{least,}`."""

    part: LetterOf | Alternatives
    least: int
    span: Span = nowhere()


Component = OneEvent | NoEvent | AnyOrder | LetterOf | Alternatives | Repetition

# ---------------------------------------------------------------- clauses


@quick
@dataclass(frozen=True, slots=True)
class ListedVariable:
    """A variable that stands behind a strategy in parentheses: `v`, or, `many`, `v[]`."""

    name: str
    many: bool = False
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class StrategyName:
    """`skip_till_next_match(a, b[])`: a name, and variables, which may be left out."""

    name: str
    variables: tuple[ListedVariable, ...] = ()
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Errors:
    """`ERRORS <= most BUDGET budget`."""

    most: int
    budget: int | None = None
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Mode:
    """`EARLIEST MAXIMAL` and `NON OVERLAPPING`; neither is ALL MATCHES."""

    maximal: bool = False
    apart: bool = False
    span: Span = nowhere()


@quick
@dataclass(frozen=True, slots=True)
class Sequenced:
    """What a PATTERN statement looks for. Its WITHIN, RETURN and PUBLISH are those of the query that it is of. The span
    is that of `PATTERN SEQ(...)`."""

    components: tuple[Component, ...]
    strategy: StrategyName | None = None
    where: EventExpr | None = None
    errors: Errors | None = None
    having: EventExpr | None = None
    mode: Mode = Mode()
    span: Span = nowhere()


def streams_of(components: tuple[Component, ...]) -> Iterator[StreamName]:
    """The names of the streams of components, from left to right."""
    waiting: list[Component] = list(reversed(components))
    while waiting:
        node = waiting.pop()
        match node:
            case OneEvent() | LetterOf():
                yield node.stream
            case NoEvent():
                waiting.append(node.component)
            case AnyOrder():
                waiting += reversed(node.components)
            case Alternatives():
                waiting += reversed([part for word in node.words for part in word])
            case Repetition():
                waiting.append(node.part)
