"""Reads a query's newest outputs, or all outputs by number, as matches with items and reasons. Runs SELECTs in any
thread and builds an answer once for all queries of its form."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from threading import Lock
from typing import Any

import pyarrow as pa

from common.tools import in_batches
from mmqjp.answers.output import Body, Output, read_nodes
from mmqjp.engine import Session
from mmqjp.explain.automaton import is_pattern, named_reason
from mmqjp.explain.funnel import MOST_QUERIES
from mmqjp.present.item import PAGE, PAGE_CHARACTERS, ShownMatch, selected_values
from mmqjp.present.output_why import (
    MOST_MATCHES,
    block_documents,
    compile_stored_query,
    output_reason,
    selects_values,
    source_items,
)
from mmqjp.present.recent import RecentAnswers, RememberedDocuments, Since, VersionFn
from mmqjp.present.recipients import AnswerRow, Member, OutputOrder
from mmqjp.queries.compile import CompiledQuery, is_event_form
from mmqjp.queries.model import Identity
from mmqjp.tables import lookup
from mmqjp.tables.lookup import SelectFn, matches_of_all, outputs_between, query_texts, texts_by_form, texts_by_qid

KEPT_QUERIES = 2_000
"""Maximum number of compiled queries cached."""

KEPT_CHARACTERS = 32 << 20
"""Maximum size of cached answers, in characters of their outputs; the oldest are evicted."""

_RowMapping = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NewestPage:
    """The newest matches of a name, newest first, their positions, and the next page's cursor (None: the end)."""

    matches: tuple[ShownMatch, ...]
    places: tuple[OutputOrder, ...]
    next: OutputOrder | None


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer shared by all queries of its form: its match for one of them, the parts of its XML (None: too long),
    and the components of ids. `has_xml`: its XML was read."""

    match: ShownMatch
    body: Body | None
    choice: bytes
    has_xml: bool = True

    @property
    def is_whole(self) -> bool:
        return all(item.is_kept for item in self.match.items)

    @property
    def size(self) -> int:
        return 2_000 + 2 * len(self.match.output.xml)


class NewestMatches:
    """Matches of a store. An answer is built once for all its queries. Thread-safe; methods raise what `select`
    raises."""

    def __init__(self, select: SelectFn, version: VersionFn, since: Since | None = None) -> None:
        """`version` changes with each batch, and `since` returns what was committed."""
        self._select = select
        self.recent = RecentAnswers(select, version, since)
        self.documents = self.recent.documents
        self._drops = 0
        self._lock = Lock()
        self._kept: OrderedDict[int, _Answer] = OrderedDict()
        self._size = 0

    def newest(self, name: str, before: OutputOrder | None, most: int, *, numbered: bool = False) -> NewestPage:
        """Returns the newest outputs of a name before a position. `seq` may be -1 unless `numbered`, which also reads
        the outputs of other queries in the same groups."""
        self.forget_what_was_dropped()
        if not numbered and (told := self._told_recently(name, before, most + 1)) is not None:
            return self._newest_recent(name, told, most)
        told = self._select(lookup.newest_outputs(name, before, most + 1)).to_pylist()
        shown = told[:most]
        later = [row for row in shown if row["answer"] >= 0]
        queries = {row["qid"]: row for row in self._queries(later)}
        answers = self._answers(later, queries)
        earlier = self._earlier(name, [row["first_seq"] for row in shown if row["answer"] < 0])
        numbers = self._numbers(later) if numbered else {}
        matches, places = [], []
        for row in shown:
            place = row["first_seq"], row["place"], row["qid"]
            if row["answer"] < 0:
                match = earlier.get(row["first_seq"])
            elif (answer := answers.get(row["answer"])) is not None:
                known = row["first_seq"] if row["first_seq"] == row["last_seq"] else -1
                seq = numbers.get((row["answer"], row["qid"]), known)
                match = _of_query(answer, name, Identity(queries[row["qid"]]["identity"]), seq)
            else:
                match = None
            if match is not None:  # else it was dropped between two questions
                matches.append(match)
                places.append(place)
        return NewestPage(tuple(matches), tuple(places), places[-1] if places and len(told) > most else None)

    def latest(self, most: int) -> tuple[ShownMatch, ...] | None:
        """Returns the newest outputs of all queries, numbered, newest first; None if some are not cached."""
        self.forget_what_was_dropped()
        told = self.recent.latest(most)
        if told is None or not _are_whole(one.member for one in told):
            return None
        answers = self._of_recent([(one.answer, one.member) for one in told])
        return tuple(
            _of_query(answers[one.answer.answer], one.member.name, one.member.identity, one.seq) for one in told
        )

    def forget_what_was_dropped(self) -> int:
        """Clears the caches if rows were deleted since. Returns the number of deletions so far."""
        drops = self.recent.drops()
        with self._lock:
            if drops != self._drops:
                self._drops, self._size = drops, 0
                self._kept.clear()
        return drops

    def _told_recently(self, name: str, before: OutputOrder | None, most: int) -> list[tuple[AnswerRow, Member]] | None:
        """The newest outputs, if cached and their XML is not needed: only for queries that select whole documents."""
        told = self.recent.newest(name, before, most)
        return told if told is not None and _are_whole(member for _, member in told) else None

    def _newest_recent(self, name: str, told: list[tuple[AnswerRow, Member]], most: int) -> NewestPage:
        shown = told[:most]
        found = self._of_recent(shown)
        places = tuple((one.first_seq, one.place, member.qid) for one, member in shown)
        matches = tuple(
            _of_query(found[one.answer], name, member.identity, one.first_seq if one.first_seq == one.last_seq else -1)
            for one, member in shown
        )
        return NewestPage(matches, places, places[-1] if places and len(told) > most else None)

    def _of_recent(self, shown: Sequence[tuple[AnswerRow, Member]]) -> dict[int, _Answer]:
        with self._lock:
            found = {one.answer: self._kept[one.answer] for one, _ in shown if one.answer in self._kept}
            for number in found:
                self._kept.move_to_end(number)
        missing = {one.answer: (one, member) for one, member in shown if one.answer not in found}
        outputs = [
            UnexplainedOutput(_output(one._asdict()), one.behind[:MOST_MATCHES], (member.text,), member.form)
            for one, member in missing.values()
        ]
        made = matches_of_told(self._select, outputs, self.documents)
        for (one, _), match in zip(missing.values(), made, strict=True):
            found[one.answer] = _Answer(match, None, one.choice.encode(), has_xml=False)
        self._keep({number: found[number] for number in missing})
        return found

    def _queries(self, told: Sequence[_RowMapping]) -> list[_RowMapping]:
        return self._select(lookup.identities(row["qid"] for row in told)).to_pylist() if told else []

    def _numbers(self, told: Sequence[_RowMapping]) -> dict[tuple[int, int], int]:
        some = [row for row in told if row["first_seq"] != row["last_seq"]]
        if not some:
            return {}
        sql = lookup.output_numbers_sql(
            {row["first_seq"] for row in some}, {(row["answer"], row["qid"]) for row in some}
        )
        return {(row["answer"], row["qid"]): row["seq"] for row in self._select(sql).to_pylist()}

    def _answers(self, told: Sequence[_RowMapping], queries: Mapping[int, _RowMapping]) -> dict[int, _Answer]:
        """The answers of outputs by number; deleted ones are omitted."""
        texts = {row["answer"]: (queries[row["qid"]]["text"], queries[row["qid"]]["form"]) for row in told}
        with self._lock:
            found = {number: kept for number in texts if (kept := self._kept.get(number)) is not None and kept.has_xml}
            for number in found:
                self._kept.move_to_end(number)
        missing = texts.keys() - found.keys()
        if not missing:
            return found
        rows = self._select(lookup.answers(missing)).to_pylist()
        behind: dict[int, list[tuple[int, ...]]] = {}
        for row in self._select(lookup.answer_matches_sql(missing)).to_pylist():
            behind.setdefault(row["answer"], []).append(_docids(row))
        untold = [
            UnexplainedOutput(
                _output(row),
                tuple(behind.get(row["answer"], ()))[:MOST_MATCHES],
                texts[row["answer"]][:1],
                texts[row["answer"]][1],
            )
            for row in rows
        ]
        for row, match in zip(rows, matches_of_told(self._select, untold, self.documents), strict=True):
            body = None if row["tail"] is None else Body(row["head"], row["tail"])
            found[row["answer"]] = _Answer(match, body, row["choice"].encode())
        self._keep({number: found[number] for number in missing if number in found})
        return found

    def _keep(self, answers: Mapping[int, _Answer]) -> None:
        with self._lock:
            for number, answer in answers.items():
                known = self._kept.get(number)
                if answer.is_whole and (known is None or not known.has_xml):
                    self._kept[number] = answer
                    self._size += answer.size - (0 if known is None else known.size)
            while self._size > KEPT_CHARACTERS:
                self._size -= self._kept.popitem(last=False)[1].size

    def _earlier(self, name: str, numbers: Sequence[int]) -> dict[int, ShownMatch]:
        if not numbers:
            return {}
        texts = tuple(query_texts(self._select, name, None, MOST_MATCHES))
        rows = self._select(lookup.earlier_outputs(numbers)).to_pylist()
        told = []
        for row in rows:
            output = replace(_output(row), query=name, xml=row["xml"], id=row["id"], seq=row["seq"])
            pairs = ({"docid1": one, "docid2": two} for one, two in row["matches"] or ())
            told.append(UnexplainedOutput(output, tuple(map(_docids, pairs))[:MOST_MATCHES], texts, None))
        return {match.output.seq: match for match in matches_of_told(self._select, told, self.documents)}


@dataclass(frozen=True, slots=True)
class UnexplainedOutput:
    """An output without a reason: the docids of its matches, the texts of the queries it may be of, and the id of their
    form (None in earlier formats)."""

    output: Output
    behind: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    form: str | None


def matches_of_told(
    select: SelectFn, told: Sequence[UnexplainedOutput], documents: RememberedDocuments | None = None
) -> Iterator[ShownMatch]:
    docids = {docid for one in told for docids in one.behind for docid in docids}
    documents = documents or RememberedDocuments(select)
    records = documents.with_parts(docids)
    wanted = (source for one in told for source in zip(one.output.documents, one.output.streams, strict=True))
    items = source_items(select, wanted, records, documents)
    for one in told:
        queries = {text: query for text in one.texts if (query := _query(text)) is not None}
        sources = list(zip(one.output.documents, one.output.streams, strict=True))
        behind = [block_documents(ids, records) for ids in one.behind]
        reason, _ = output_reason(one.output, behind, sources, queries, whole=False)
        if any(map(is_pattern, one.texts)):
            reason = named_reason(one.output.nodes)
        values = (
            selected_values(one.output.xml)
            if one.output.xml and any(selects_values(text, one.form) for text in one.texts)
            else ()
        )
        yield ShownMatch(one.output, tuple(items[source] for source in sources), reason, values)


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
            for match in matches_of_told(select, told):
                yield match if self._reasons else replace(match, reason=None)


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


def _are_whole(members: Iterable[Member]) -> bool:
    return not any(selects_values(*query) for query in {(one.text, one.form) for one in members})


def _of_query(answer: _Answer, name: str, identity: Identity, seq: int) -> ShownMatch:
    xml = "" if answer.body is None else answer.body.xml(name)
    output = replace(answer.match.output, query=name, xml=xml, id=identity.id(answer.choice), seq=seq)
    return replace(answer.match, output=output)


def _output(row: _RowMapping) -> Output:
    documents, streams = tuple(row["documents"]), tuple(row["streams"])
    xml = "" if row.get("tail") is None else Body(row["head"], row["tail"]).xml("")
    return Output("", row["t0"], row["t1"], documents, streams, read_nodes(row["nodes"]), xml)


def _docids(row: _RowMapping) -> tuple[int, ...]:
    return (row["docid1"],) if row["docid2"] is None else (row["docid1"], row["docid2"])


@lru_cache(KEPT_QUERIES)
def _query(text: str) -> CompiledQuery | None:
    return compile_stored_query(text)


def matches_between(select: SelectFn, after: int, until: int) -> list[ShownMatch]:
    """Returns the outputs numbered `after` < seq <= `until`, in order. Raises what `select` raises."""
    rows = outputs_between(select, after, until)
    behind = matches_of_all(select, rows)
    texts = texts_by_qid(select, (row["qid"] for row in rows if row["qid"] is not None))
    told = [
        UnexplainedOutput(
            Output(
                row["query"], row["t0"], row["t1"], tuple(row["documents"]), tuple(row["streams"]),
                read_nodes(row["nodes"]), row["xml"], row["id"], row["seq"],
            ),
            tuple(behind[row["seq"]][:MOST_MATCHES]),
            (texts[row["qid"]],)
            if row["qid"] in texts
            else tuple(query_texts(select, row["query"], None, MOST_QUERIES)),
            row["form"],
        )
        for row in rows
    ]  # fmt: skip
    return list(matches_of_told(select, told))
