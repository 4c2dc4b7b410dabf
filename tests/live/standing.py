"""What the model keeps: the documents that queries may read, and the registered queries in the order of evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tests.oracle.bindings import Answer, Stored
from tests.oracle.once import Telling
from tests.oracle.query_answers import QueryAnswers, absences_in, without_brackets
from xscl.check_expressions import blocks
from xscl.syntax import Input, Join, Query, Script, SubQuery


@dataclass(frozen=True, eq=False)
class Kept:
    """A document that queries may read: an external one, or an output of a query for the readers of its name.

    `identity` is its id, or what distinguishes it from the other outputs of its name. `arrived` is the step of its
    arrival.
    """

    stored: Stored
    stream: str
    identity: object
    outside: bool
    arrived: int


@dataclass(eq=False)
class Standing:
    """A query registered at a step. It sees the documents that arrived after the step `since`, except in its `gaps`,
    when it was paused: after the first step of a gap, and up to the second."""

    name: str
    query: Query
    namespaces: tuple[tuple[str, str], ...]
    occurrence: int
    step: int
    since: int
    answers: QueryAnswers
    paused: int | None = None
    gaps: list[tuple[int, int]] = field(default_factory=list)
    given: set[object] = field(default_factory=set)
    telling: Telling = field(default_factory=lambda: Telling(None))

    @property
    def key(self) -> object:
        """What two equal queries have in common."""
        return self.query.publish, self.query.source, self.query.select, self.namespaces, self.query.once

    @cached_property
    def inner_absences(self) -> set[object]:
        """What tells apart its absences that more is made of."""
        return self.answers.inner_absences()

    @property
    def sees_after(self) -> int:
        """The step after which it sees all documents."""
        return max([self.since, *(high for _, high in self.gaps)])

    def sees(self, document: Kept) -> bool:
        """Whether the query is answered for a document."""
        at = document.arrived
        resting = self.paused is not None and at > self.paused
        return at > self.since and not resting and not any(low < at <= high for low, high in self.gaps)


class Refused(Exception):
    """An operation is refused with an error of this kind, and changes nothing."""

    def __init__(self, kind: type[Exception]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


def parts_of(answer: Answer, by_stored: Mapping[Stored, Kept]) -> tuple[object, ...]:
    """The stream and the identity of each document that an answer was made from."""
    documents = [by_stored[stored] for stored in answer.inputs]
    return tuple((document.stream, document.identity) for document in documents)


def streams_of(source: Input) -> set[str]:
    """The streams of an input's blocks."""
    return {block.stream for block in blocks(source)}


def windows_of(source: Input) -> Iterator[int | None]:
    """The windows of an input's joins; None for an infinite one. What waits for a window, with partners as much
    earlier, counts twice."""
    match source:
        case Join():
            us = source.window.us
            yield 2 * us if us is not None and source.op == "NOT JOIN" else us
            yield from windows_of(source.left)
            yield from windows_of(source.right)
        case SubQuery():
            yield from windows_of(source.source)


def has_absence(source: Input) -> bool:
    return any(True for _ in absences_in(source))


def has_inner_absence(source: Input) -> bool:
    """Whether an input has an absence that more is made of."""
    return any(join is not without_brackets(source) for join in absences_in(source))


def in_order(queries: list[Standing]) -> list[Standing]:
    """The queries, each after those whose outputs it reads. Raises Refused if there is no such order."""
    ordered: list[Standing] = []
    waiting = list(queries)
    while waiting:
        made = {query.query.publish for query in waiting} - {None}
        ready = [query for query in waiting if not streams_of(query.query.source) & made]
        if not ready:
            raise Refused(ValueError)
        ordered += ready
        waiting = [query for query in waiting if query not in ready]
    return ordered


def kept_texts(queries: Iterable[Standing]) -> Counter[tuple[str, Script]]:
    """The registered queries by name, each as a script of its own."""
    return Counter((query.name, Script((query.query,), query.namespaces)) for query in queries)
