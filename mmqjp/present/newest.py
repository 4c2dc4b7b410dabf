"""Reads a query's newest outputs, or outputs by number, as matches with items and reasons. Works in any thread, and
builds an answer once for all queries of its form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import pyarrow as pa

from common.tools import LruCache, in_batches
from mmqjp.answers.output import Body, Output, read_nodes
from mmqjp.documents.record import Record
from mmqjp.engine import Session
from mmqjp.explain.automaton import is_pattern
from mmqjp.explain.reasons import Reason
from mmqjp.explain.terms import MOST_QUERIES
from mmqjp.present.item import PAGE, PAGE_CHARACTERS, ShownMatch, selected_values
from mmqjp.present.output_why import (
    MOST_MATCHES,
    block_documents,
    named_reason,
    output_reason,
    selects_values,
    source_items,
)
from mmqjp.present.recent import RecentAnswers, RememberedDocuments
from mmqjp.present.recipients import OutputOrder, StoredOutput
from mmqjp.queries.model import is_event_form
from mmqjp.tables.lookup import SelectFn, span_of_outputs, texts_by_form

KEPT_CHARACTERS = 32 << 20
"""Maximum size of cached answers, in characters; the oldest are evicted."""


@dataclass(frozen=True, slots=True)
class NewestPage:
    """The newest matches of a name, newest first, their positions, and the next page's cursor (None: the end)."""

    matches: tuple[ShownMatch, ...]
    places: tuple[OutputOrder, ...]
    next: OutputOrder | None


class NewestMatches:
    """Matches of a store. Each answer is built once. Thread-safe; methods raise what reading the store raises."""

    def __init__(self, recent: RecentAnswers) -> None:
        self.recent = recent
        self._drops = 0
        self._kept = LruCache[tuple[int, int], ShownMatch](KEPT_CHARACTERS, _size)

    def newest(self, name: str, before: OutputOrder | None, most: int, *, numbered: bool = False) -> NewestPage:
        """Returns the newest outputs of a name before a position. Unless `numbered`, `seq` may be -1, and `xml` is
        empty."""
        self.forget_what_was_dropped()
        told = self.recent.newest(name, before, most + 1)
        shown = told[:most]
        if numbered:
            groups = {one.answer.first_seq for one in shown if one.seq < 0}
            numbers = {key: seq for group in groups for key, seq in self.recent.numbers(name, group).items()}
            shown = [one._replace(seq=numbers.get(one.key[:2], one.seq)) for one in shown]
        places = tuple(one.place for one in shown)
        bodies = self.recent.bodies(_later(shown)) if numbered else {}
        return NewestPage(self._matches(shown, bodies), places, places[-1] if places and len(told) > most else None)

    def between(self, after: int, until: int, name: str | None = None, *, whole: bool = True) -> tuple[ShownMatch, ...]:
        """Returns the outputs, of all names or one, numbered `after` < seq <= `until`, in order, with their XML if
        `whole`."""
        self.forget_what_was_dropped()
        found = self.recent.between(after, until, name)
        return self._matches(found, self.recent.bodies(_later(found), whole=True) if whole else {})

    def version(self) -> object:
        return self.recent.version()

    def span(self) -> tuple[int, int]:
        return span_of_outputs(self.recent.select)

    def forget_what_was_dropped(self) -> int:
        """Clears the caches if rows were deleted since. Returns the number of deletions so far."""
        drops = self.recent.drops()
        if drops != self._drops:
            self._kept.clear()
            self._drops = drops
        return drops

    def _matches(self, outputs: Sequence[StoredOutput], bodies: Mapping[int, Body]) -> tuple[ShownMatch, ...]:
        keys = [_shared(one) for one in outputs]
        found = self._kept.found(keys)
        new = {key: one for key, one in zip(keys, outputs, strict=True) if key not in found}
        for key, match in zip(new, shown_matches(self.recent, list(new.values())), strict=True):
            found[key] = match = replace(match, output=replace(match.output, xml=""))  # which may be long
            if all(item.is_kept for item in match.items):
                self._kept.put(key, match)
        return tuple(_of_output(found[key], one, bodies) for key, one in zip(keys, outputs, strict=True))


def _later(outputs: Iterable[StoredOutput]) -> set[int]:
    """The numbers of answers that are not of earlier formats."""
    return {one.answer.answer for one in outputs if one.xml is None}


def _shared(one: StoredOutput) -> tuple[int, int]:
    """Identifies what all outputs of an answer share."""
    return one.answer.answer, one.key[2]


def _size(match: ShownMatch) -> int:
    return 2_000 + sum(len(text) for _, text in match.selected)


def _of_output(match: ShownMatch, one: StoredOutput, bodies: Mapping[int, Body]) -> ShownMatch:
    output = replace(match.output, query=one.name, id=one.id, seq=one.seq, xml=_xml(one, bodies))
    return replace(match, output=output)


def _xml(one: StoredOutput, bodies: Mapping[int, Body]) -> str:
    if one.xml is not None:
        return one.xml
    return "" if (body := bodies.get(one.answer.answer)) is None else body.xml(one.name)


def shown_matches(
    recent: RecentAnswers, outputs: Sequence[StoredOutput], *, reasons: bool = True
) -> Iterator[ShownMatch]:
    """Yields outputs as matches, whose XML was read only where it has values."""
    bodies = recent.bodies(_later(one for one in outputs if any(selects_values(text, one.form) for text in one.texts)))
    told = []
    for one in outputs:
        answer = one.answer
        output = Output(
            one.name, answer.t0, answer.t1, answer.documents, answer.streams, read_nodes(answer.nodes),
            _xml(one, bodies), one.id, one.seq,
        )  # fmt: skip
        told.append(UnexplainedOutput(output, answer.behind[:MOST_MATCHES], one.texts, one.form))
    return matches_of_told(recent.select, told, recent.documents, reasons=reasons)


@dataclass(frozen=True, slots=True)
class UnexplainedOutput:
    """An output without a reason: the docids of its matches, the texts of the queries it may be of, and the id of their
    form (None in earlier formats)."""

    output: Output
    behind: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    form: str | None


def matches_of_told(
    select: SelectFn,
    told: Sequence[UnexplainedOutput],
    documents: RememberedDocuments | None = None,
    *,
    reasons: bool = True,
) -> Iterator[ShownMatch]:
    docids = {docid for one in told for docids in one.behind for docid in docids}
    documents = documents or RememberedDocuments(select)
    records = documents.with_parts(docids)
    wanted = (source for one in told for source in zip(one.output.documents, one.output.streams, strict=True))
    items = source_items(select, wanted, records, documents)
    for one in told:
        sources = list(zip(one.output.documents, one.output.streams, strict=True))
        xml = one.output.xml
        selects = xml and any(selects_values(text, one.form) for text in one.texts)
        reason = _reason(one, sources, records) if reasons else None
        yield ShownMatch(
            one.output, tuple(items[source] for source in sources), reason, selected_values(xml) if selects else ()
        )


def _reason(one: UnexplainedOutput, sources: Sequence[tuple[str, str]], records: Mapping[int, Record]) -> Reason | None:
    if any(map(is_pattern, one.texts)):
        return named_reason(one.output.nodes)
    behind = [block_documents(ids, records) for ids in one.behind]
    return output_reason(one.output, behind, sources, one.texts, whole=False)[0]


class OutputPresenter:
    """Shows the outputs of a session, optionally without the `reasons`, which take longest."""

    def __init__(self, engine: Session, *, reasons: bool = True) -> None:
        self._engine, self._reasons = engine, reasons

    def matches(self, outputs: Iterable[Output]) -> Iterator[ShownMatch]:
        """Yields stored outputs as matches, in order. Raises StoreError."""

        def select(sql: str) -> pa.Table:
            return self._engine.sql(sql, trusted=True)

        for page in in_batches(outputs, PAGE, PAGE_CHARACTERS, lambda output: len(output.xml)):
            behind = self._engine.matches_behind(page) if self._reasons else {}
            texts = texts_by_form(select, {output.query for output in page})
            told = [_unexplained(one, behind.get(one.seq, ()), texts.get(one.query, {})) for one in page]
            yield from matches_of_told(select, told, reasons=self._reasons)


def _unexplained(
    output: Output, behind: Sequence[tuple[str | None, tuple[int, ...]]], texts: Mapping[str, str]
) -> UnexplainedOutput:
    """`behind` are candidates of any query, `texts` those of the query's name, by form."""
    form = next((form for form, _ in behind if form in texts), None)
    docids = tuple(some for own, some in behind if own == form)
    if form is not None:
        return UnexplainedOutput(output, docids, (texts[form],), form)
    form = next(filter(is_event_form, texts), None)
    return UnexplainedOutput(output, docids, tuple(islice(texts.values(), MOST_QUERIES)), form)
