"""The answers of one query over streams that change: for repeated use in a model of live use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from feeds.documents import Visit
from tests.oracle.bindings import Answer, Match, OutputRow, Stored
from tests.oracle.course import ENDED, Course
from tests.oracle.evaluation import Doc, Evaluation, external, mentioned
from xscl.algebra.joins import NEGATED
from xscl.check_expressions import blocks
from xscl.printer import to_xscl
from xscl.syntax import Block, Input, Join, Once, Query, Script, SubQuery

Decisions = dict[object, tuple[float, bool]]
"""The arrival that decided each match of a left side, and whether it is alone."""


class Inner(Protocol):
    """Absences that more is made of, as several queries have them: each is decided once for all of them."""

    def decided(self, absence: object) -> Decisions:
        """What is alone or not, as far as it is decided."""

    def seen(self, absence: object) -> Mapping[str, Sequence[Stored]]:
        """The documents among which partners are, by stream."""


class QueryAnswers(Evaluation):
    """The answers of one query over streams whose documents the caller chooses, for repeated use as these change."""

    def __init__(self, query: Query, name: str, namespaces: tuple[tuple[str, str], ...], occurrence: int = 0) -> None:
        """`occurrence` counts the equal queries before this one."""
        super().__init__(Script((query,), namespaces), ())
        self._names = (name,)
        self._before = occurrence
        self._streams: Mapping[str, Sequence[Stored]] = {}
        self._whole = without_brackets(query.source)
        self._alone: dict[int, Decisions] = {}
        self._inner: Inner | None = None
        self._watermarks: dict[tuple[int, tuple[Stored, ...]], float | None] = {}
        self._behind_stream: Callable[[str], Collection[str]] = super()._sources_of
        self._found: dict[tuple[int, frozenset[str], Stored], list[Match]] = {}

    def _occurrence(self, index: int) -> int:
        return self._before

    def over(
        self,
        streams: Mapping[str, Sequence[Stored]],
        course: Course = ENDED,
        sources_of: Callable[[str], Collection[str]] | None = None,
        inner: Inner | None = None,
        *,
        backfill: bool = False,
    ) -> list[Answer]:
        """Every answer over these documents, when external streams have come as far as in `course`; `sources_of` has
        those behind a stream. What was alone or not when its time was over stays so. Absences that more is made of are
        decided as `inner` says, which other queries may have, too."""
        self._streams, self._course, self._inner, self._is_backfill = streams, course, inner, backfill
        self._behind_stream = sources_of or super()._sources_of
        self._outputs.clear()
        return self.outputs(0)

    def _sources_of(self, stream: str) -> set[str]:
        return set(self._behind_stream(stream))

    def _watermark(self, source: Input, match: Match) -> float | None:
        """What a match was when it came, whatever has been subscribed since."""
        key = id(source), match.inputs
        if key not in self._watermarks:
            self._watermarks[key] = super()._watermark(source, match)
        return self._watermarks[key]

    def _stream(self, name: str) -> list[Stored]:
        return list(self._streams.get(name, ()))

    def inner_absences(self) -> set[object]:
        """What tells apart the absences that more is made of: those that are equal are decided together."""
        query = self._script.queries[0]
        return {self._shared(join) for join in absences_in(query.source) if join is not self._whole}

    def _shared(self, join: Join) -> object:
        query = self._script.queries[0]
        text = to_xscl(Script((replace(query, select=None, source=join, publish=None, once=None),), ()))
        return text, self._script.namespaces, frozenset(mentioned(query))

    def _decided(self, join: Join) -> Decisions:
        if self._inner is None or join is self._whole:
            return self._alone.setdefault(id(join), {})
        return self._inner.decided(self._shared(join))

    def _rights(self, join: Join, needed: frozenset[str]) -> list[Match]:
        if self._inner is None or join is self._whole:
            return super()._rights(join, needed)
        own, self._streams = self._streams, self._inner.seen(self._shared(join))
        found = super()._rights(join, needed)
        self._streams = own
        return found

    def _decided_by(self, join: Join, left: Match) -> float | None:
        if (found := self._decided(join).get(_place(left))) is not None:
            return found[0]
        decided = super()._decided_by(join, left)
        return left.arrival if decided is not None and self._is_backfill else decided

    def _is_alone(self, join: Join, left: Match, decided: float, rights: Callable[[], Sequence[Match]]) -> bool:
        place, known = _place(left), self._decided(join)
        if place not in known:
            known[place] = decided, super()._is_alone(join, left, decided, rights)
        return known[place][1]

    def _in_document(self, block: Block, needed: frozenset[str], document: Stored) -> Iterator[Match]:
        key = id(block), needed, document
        if key not in self._found:
            self._found[key] = list(super()._in_document(block, needed, document))
        return iter(self._found[key])


def _place(left: Match) -> object:
    return left.inputs, tuple((name, value) for name, value in left.visible.items())


def without_brackets(source: Input) -> Input:
    return without_brackets(source.source) if isinstance(source, SubQuery) else source


def absences_in(source: Input) -> Iterator[Join]:
    match source:
        case Join():
            if source.op in NEGATED:
                yield source
            yield from absences_in(source.left)
            yield from absences_in(source.right)
        case SubQuery():
            yield from absences_in(source.source)


class Telling:
    """What one query has told: for each key the ends of the outputs that had it."""

    def __init__(self, once: Once | None) -> None:
        self._once = once
        self._ends: dict[tuple[str, ...], list[int]] = {}

    def told(self, answers: Iterable[Answer]) -> list[Answer]:
        """Those of the new outputs of a step that are told, in the order in which they are."""
        found = []
        for answer in sorted(answers, key=lambda one: one.order):
            if self._once is None or not all(self._was_told(key, answer.row.t1) for key in answer.keys):
                found.append(answer)
                for key in answer.keys:
                    self._ends.setdefault(key, []).append(answer.row.t1)
        return found

    def _was_told(self, key: tuple[str, ...], t1: int) -> bool:
        assert self._once is not None
        window = self._once.window
        return any(window is None or window.us is None or abs(t1 - end) <= window.us for end in self._ends.get(key, ()))

    def forget(self, before: int) -> None:
        """Forgets what no output can repeat that ends at this time or later."""
        if self._once is None or self._once.window is None or self._once.window.us is None:
            return
        for key, ends in self._ends.items():
            self._ends[key] = [end for end in ends if end + self._once.window.us >= before]


def evaluate_in_steps(
    script: Script, batches: Iterable[Sequence[Doc | Visit]], course: Course | None = None, *, finish: bool = False
) -> list[OutputRow]:
    """The outputs of all queries over documents that arrive in these batches, in no particular order. Without a
    `course` all is decided at once. With `finish` the run ends."""
    rows: list[OutputRow] = []
    documents: dict[str, list[Stored]] = {}
    known: set[tuple[str, str]] = set()
    queries, sources_of = script.queries, Evaluation(script, ())._sources_of
    answers = [
        QueryAnswers(query, name, script.namespaces, queries[:index].count(query))
        for index, (query, name) in enumerate(zip(queries, script.names(), strict=True))
    ]
    telling, given = [Telling(query.once) for query in queries], [set[object]() for _ in queries]
    for batch in [*batches, *([None] if finish else [])]:
        if batch is None and course is not None:
            course.finish()
        for doc in batch or ():
            if isinstance(doc, Visit):
                assert course is not None
                course.visit(doc)
            elif (doc.stream, doc.id) not in known:
                if course is not None:
                    if course.drops(doc, sources := sources_of(doc.stream)):
                        continue
                    course.take(doc, sources)
                known.add((doc.stream, doc.id))
                documents.setdefault(doc.stream, []).append(external(doc, course or ENDED))
        for index in _in_order(script):
            every = answers[index].over(documents, course or ENDED, sources_of)
            new = [one for one in every if (one.inputs, one.nodes) not in given[index]]
            given[index] |= {(one.inputs, one.nodes) for one in new}
            for answer in telling[index].told(new):
                rows.append(answer.row)
                if name := queries[index].publish:
                    documents.setdefault(name, []).append(answer.stored)
    return rows


def _in_order(script: Script) -> list[int]:
    """The places of the queries, each after those whose outputs it reads."""
    waiting, ordered = list(range(len(script.queries))), list[int]()
    while waiting:
        made = {script.queries[index].publish for index in waiting}
        ready = [i for i in waiting if not any(block.stream in made for block in blocks(script.queries[i].source))]
        ordered += ready
        waiting = [index for index in waiting if index not in ready]
    return ordered
