"""The answers of one query over streams that change: for repeated use in a model of live use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from tests.oracle.bindings import Answer, Match, Stored
from tests.oracle.evaluation import Evaluation, Watermark, at_the_end, mentioned
from xscl.algebra.joins import NEGATED
from xscl.printer import to_xscl
from xscl.syntax import Block, Input, Join, Query, Script, SubQuery


class Inner(Protocol):
    """Absences that more is made of, as several queries have them: each is decided once for all of them."""

    def decided(self, absence: object) -> dict[object, bool]:
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
        self._alone: dict[int, dict[object, bool]] = {}
        self._inner: Inner | None = None
        self._found: dict[tuple[int, frozenset[str], Stored], list[Match]] = {}

    def _occurrence(self, index: int) -> int:
        return self._before

    def over(
        self, streams: Mapping[str, Sequence[Stored]], watermark: Watermark = at_the_end, inner: Inner | None = None
    ) -> list[Answer]:
        """Every answer over these documents, when external streams, and streams of publishers, have come to these
        watermarks. What was alone or not when its time was over stays so. Absences that more is made of are decided
        as `inner` says, which other queries may have, too."""
        self._streams, self._watermark, self._inner = streams, watermark, inner
        self._outputs.clear()
        return self.outputs(0)

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

    def _decided(self, join: Join) -> dict[object, bool]:
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

    def _is_over(self, join: Join, left: Match) -> bool:
        return _place(left) in self._decided(join) or super()._is_over(join, left)

    def _is_alone(self, join: Join, left: Match, rights: Sequence[Match]) -> bool:
        place, decided = _place(left), self._decided(join)
        if place not in decided:
            decided[place] = super()._is_alone(join, left, rights)
        return decided[place]

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
