"""Makes news of what a store tells that it has committed, so that nothing need be asked.

What is new in a store, to be remembered, and up to where a store is known.

Remembers the newest answers, and who gets them, so that pages need not ask; of forms that are looked at, older ones.

What was committed never changes, but it may be dropped. So a new batch is read once, for all forms; and when something
was dropped, all is forgotten.

Reads what is new in a store since a batch, to remember it: answers, who gets them, their XML, and documents.

Keeps the newest rows of a table in Arrow: cheap to add, and read only when somebody wants them.

Remembers documents that pages show, so that each is read once while it is shown, and the newest documents.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock, RLock
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.compute as pc
from numpy.typing import NDArray

from join_stage.store.protocol import Committed, QuestionRefused
from mmqjp.documents.record import Record, record_of
from mmqjp.explain.funnel import MOST_QUERIES
from mmqjp.present.item import ShownItem, item_of
from mmqjp.present.recipients import (
    AnswerRow,
    AnswerTable,
    Got,
    Member,
    MemberHistory,
    NewestAnswers,
    Numbered,
    OutputOrder,
    OutputRow,
    number_group_outputs,
)
from mmqjp.tables import lookup
from mmqjp.tables import schema as answer_tables
from mmqjp.tables.lookup import ANSWER_COLUMNS, LONGEST_XML, Row, SelectFn, documents_by_docid

AT_ONCE = 1_000
"""So many rows go together when there are too many."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Some rows in the order of their numbers, and the number of their bytes."""

    numbers: NDArray[np.int64]
    columns: dict[str, pa.Array]
    size: int

    @property
    def first(self) -> int:
        """The least number."""
        return int(self.numbers[0])

    def row(self, number: int) -> Row | None:
        place = int(np.searchsorted(self.numbers, number))
        if place == len(self.numbers) or self.numbers[place] != number:
            return None
        return {name: column[place].as_py() for name, column in self.columns.items()}


def sort_into_blocks(rows: pa.Table, column: str) -> list[RowBlock]:
    """Returns rows, in any order, in blocks: in the order of the numbers in a column."""
    numbers = rows[column].to_numpy()
    order = np.argsort(numbers)
    made: list[RowBlock] = []
    for begin in range(0, len(order), AT_ONCE):
        some = order[begin : begin + AT_ONCE]
        taken = rows.take(pa.array(some))  # a slice would hold all of the memory
        columns = {name: taken[name].combine_chunks() for name in taken.column_names}
        made.append(RowBlock(numbers[some], columns, taken.nbytes))
    return made


class RecentRows:
    """Rows by their numbers. Those that are added later have greater numbers. Not for several threads at once."""

    def __init__(self, most_bytes: int) -> None:
        """Keeps so many bytes, and the rows that were added last."""
        self._most, self._bytes = most_bytes, 0
        self._blocks = deque[RowBlock]()

    def add(self, rows: Iterable[RowBlock]) -> None:
        """Adds rows in order."""
        for block in rows:
            self._blocks.append(block)
            self._bytes += block.size
        while self._bytes > self._most and len(self._blocks) > 1:
            self._bytes -= self._blocks.popleft().size

    def rows(self, wanted: Iterable[int]) -> dict[int, Row]:
        """Returns those of some rows that are kept, by number."""
        found: dict[int, Row] = {}
        for number in wanted:
            place = bisect_right(self._blocks, number, key=lambda block: block.first) - 1
            if place >= 0 and (row := self._blocks[place].row(number)) is not None:
                found[number] = row
        return found

    def clear(self) -> None:
        """Forgets all."""
        self._blocks.clear()
        self._bytes = 0


MOST_NEW = 20_000
"""If there are more new answers, or some were dropped, so many of the newest are read instead."""

MOST_NEW_DOCUMENTS, MOST_NEW_TEXTS = 20_000, 20_000
"""So many of the newest documents are remembered, and of the XML of the newest answers."""

CHANGED = ("memberships", "removed_queries", "pauses")
"""The tables that get a row when queries are registered or paused."""


class StoreCursor(NamedTuple):
    """Up to where a store is known: its newest batch, and the greatest numbers of a document, an answer and an output;
    how many answers and documents there were.

    There are other members when `registered` is another number, and other queries are registered or paused when
    `changes` has another value. `numbers` is what the ledger notes. There are outputs of former formats if it
    `has_earlier`, and some are withheld if `are_withheld`. The store tells what it commits after the `mark`.
    """

    batch: int = -1
    docid: int = -1
    answer: int = -1
    seq: int = -1
    answers: int = 0
    documents: int = 0
    registered: int = -1
    changes: tuple[int, int | None] = (-1, None)
    numbers: str | None = None
    has_earlier: bool = False
    are_withheld: bool = False
    mark: int = -1


@dataclass(slots=True)
class News:
    """What is new, and up to where the store is `known` with it.

    - Something `is_dropped` of what was known.
    - `members` are there if they are others than before, and have names that were first `added` at some time. None of
      them are remembered if they `are_many`.
    - `answers` are the new ones; None if there are none, or if they are too large together. With `is_first`, they are
      the newest, of which the first batch may be there in part unless they are all: `is_all`.
    - `documents` and `texts` are rows of new documents, and the XML of new answers; None if they are too large.
    """

    known: StoreCursor
    is_dropped: bool = False
    is_first: bool = False
    are_many: bool = False
    members: MemberHistory | None = None
    added: dict[str, int] = field(default_factory=dict)
    answers: AnswerTable | None = None
    is_all: bool = False
    documents: list[RowBlock] | None = None
    texts: list[RowBlock] | None = None


ASKED = (*CHANGED, "added_queries", "earlier_outputs")
"""When these tables get rows, the store is asked."""

FOLLOWED = ("answers", "answer_matches", "batches", "documents", "match_rows", "withheld", *ASKED)
"""The tables whose rows are to be told. Of settings only what the ledger notes matters, which is news only when outputs
are dropped."""


def committed_news(before: StoreCursor, committed: Committed, *, are_many: bool) -> News | None:
    """Returns what is new since what was known `before`. None if the store is to be asked: if it does not tell all, or
    tells of other queries or of very many answers. What is told may in part be known: what was committed while the
    store was asked."""
    rows = committed.rows
    if rows is None or any(table in rows for table in ASKED):
        return None
    news = News(before._replace(mark=committed.mark), are_many=are_many)
    if (answers := _after(rows, "answers", "answer", before.answer)) is not None and not _add(news, rows, answers):
        return None
    if (documents := _after(rows, "documents", "docid", before.docid)) is not None:
        news.known = news.known._replace(
            docid=pc.max(documents["docid"]).as_py(), documents=before.documents + len(documents)
        )
        short = documents.filter(pc.less_equal(pc.utf8_length(documents["xml"]), LONGEST_XML))
        news.documents = sort_into_blocks(short.slice(max(len(short) - MOST_NEW_DOCUMENTS, 0)), "docid")
    return news


def _add(news: News, rows: Mapping[str, pa.Table], answers: pa.Table) -> bool:
    """Adds new answers. Returns False if the store is to be asked instead."""
    behind = _behind(rows, answers["answer"])
    if len(answers) > MOST_NEW or behind is None:
        return False
    before = news.known
    news.known = before._replace(
        batch=pc.max(answers["batch"]).as_py(),
        answer=pc.max(answers["answer"]).as_py(),
        seq=pc.max(answers["last_seq"]).as_py(),
        answers=before.answers + len(answers),
        are_withheld=before.are_withheld or "withheld" in rows,
    )
    if not news.are_many:
        told = answers.append_column("committed_at", _committed_at(rows, answers["batch"])).select(ANSWER_COLUMNS)
        news.answers = AnswerTable(told, behind, _rows(rows, "withheld"))
        length = pc.add(pc.utf8_length(answers["head"]), pc.utf8_length(answers["tail"]))
        texts = answers.select(["answer", "head", "tail"]).filter(pc.less_equal(length, LONGEST_XML))
        news.texts = sort_into_blocks(texts.slice(max(len(texts) - MOST_NEW_TEXTS, 0)), "answer")
    return True


def _rows(rows: Mapping[str, pa.Table], table: str) -> pa.Table:
    return rows[table] if table in rows else answer_tables.ANSWER_TABLES[table].empty_table()


def _after(rows: Mapping[str, pa.Table], table: str, column: str, number: int) -> pa.Table | None:
    if table not in rows:
        return None
    found = rows[table]
    later = found.filter(pc.greater(found[column], number))
    return later if len(later) else None


def _committed_at(rows: Mapping[str, pa.Table], wanted: pa.ChunkedArray) -> pa.Array:
    told = rows["batches"].select(["batch", "committed_at"]) if "batches" in rows else None
    known = {} if told is None else dict(zip(*(column.to_pylist() for column in told.columns), strict=True))
    return pa.array([known.get(batch) for batch in wanted.to_pylist()], pa.int64())


def _behind(rows: Mapping[str, pa.Table], answers: pa.ChunkedArray) -> pa.Table | None:
    """The docids of the matches behind answers, in the order of the matches. None if some matches are not told."""
    links = _rows(rows, "answer_matches")
    links = links.filter(pc.is_in(links["answer"], answers.combine_chunks())).sort_by("match")
    matches = _rows(rows, "match_rows").select(["match", "docid1", "docid2"]).sort_by("match")
    known, wanted = (table["match"].to_numpy() for table in (matches, links))
    places = np.searchsorted(known, wanted)
    if len(wanted) and (not len(known) or places[-1] == len(known) or (known[places] != wanted).any()):
        return None
    return matches.select(["docid1", "docid2"]).take(pa.array(places)).append_column("answer", links["answer"])


AT_FIRST = 100_000
"""So many of the newest answers are read at first, of whatever form: that takes no longer than to read some forms."""

DOCUMENTS_AT_FIRST = 50_000
"""So many of the newest documents are read at first; the others when they are shown."""

MOST_MEMBERS = 50_000
"""The most members that are remembered; if there were ever more, none is, and pages ask instead."""

FEW = 200
"""What is behind so many answers is asked for by their numbers."""


Since = Callable[[int], Committed | None]
"""Returns what a store has committed since a look that returned a mark. None if it cannot tell."""


class NewsReader:
    """Reads what is new: what the store tells that it has committed, else by questions. Raises what `select` raises."""

    def __init__(self, select: SelectFn, since: Since | None = None) -> None:
        """Without `since`, the store tells nothing."""
        self._select, self._since = select, since

    def read(self, before: StoreCursor, *, is_first: bool, are_many: bool) -> News:
        """Returns what is new since what was known `before`. The newest answers are to be read if it `is_first`;
        members are not remembered if they `are_many`."""
        if self._since is not None and (committed := self._since(before.mark)) is not None:
            if not is_first and (told := committed_news(before, committed, are_many=are_many)) is not None:
                return told
            before = before._replace(mark=committed.mark)
        return self._asked(before, is_first=is_first, are_many=are_many)

    def _asked(self, before: StoreCursor, *, is_first: bool, are_many: bool) -> News:
        heading = self._select(lookup.recent_counts_sql(before.batch, before.docid)).to_pylist()
        told = {row["what"]: row for row in heading}
        rows = {what: row["n"] for what, row in told.items()}
        new, arrived = told["new answers"], told["new documents"]
        known = before._replace(
            answers=rows["answers"],
            documents=rows["documents"],
            registered=rows["memberships"] + rows["added_queries"],
            changes=(sum(rows[table] for table in CHANGED), told["added_queries"]["qid"]),
            numbers=told["numbers"]["text"],
            has_earlier=rows["earlier_outputs"] > 0,
            are_withheld=rows["withheld"] > 0,
        )
        if new["n"]:
            known = known._replace(batch=new["batch"], answer=new["answer"], seq=new["seq"])
        if arrived["n"]:
            known = known._replace(docid=arrived["docid"])
        there = rows["answers"] - new["n"], rows["documents"] - arrived["n"]
        is_dropped = there != (before.answers, before.documents)
        news = News(
            known,
            is_dropped,
            is_first=is_first or is_dropped or new["n"] > MOST_NEW,
            are_many=are_many,
        )
        if known.registered != before.registered:
            self._read_members(news)
        if not news.are_many:
            self._read_answers(news, before)
        self._read_rows(news, before)
        return news

    def table_of(self, rows: pa.Table, *, are_withheld: bool) -> AnswerTable:
        """Returns rows of `answers` with what is behind them, and who does not get them."""
        numbers = rows["answer"].to_pylist() if len(rows) <= FEW else None
        least = pa.compute.min(rows["answer"]).as_py()
        behind, withheld = (
            (lookup.answer_matches_sql(numbers), lookup.withheld_from(numbers))
            if numbers is not None
            else (lookup.matches_since(least), lookup.withheld_since(least))
        )
        none = pa.table({name: pa.array([], pa.int64()) for name in ("answer", "qid")})
        return AnswerTable(rows, self._select(behind), self._select(withheld) if are_withheld else none)

    def _read_members(self, news: News) -> None:
        """Reads the members, unless they are too many, or their texts too long."""
        news.are_many = True
        if news.known.registered <= 2 * MOST_MEMBERS:  # a query and its membership
            with suppress(QuestionRefused):
                news.members = MemberHistory(self._select(lookup.MEMBERS).to_pylist())
                news.added = {row["name"]: row["added_at"] for row in self._select(lookup.ADDED).to_pylist()}
                news.are_many = False

    def _read_answers(self, news: News, before: StoreCursor) -> None:
        batch = news.known.batch
        if news.is_first:
            sql = lookup.newest_answers(batch, AT_FIRST if before.batch < 0 else MOST_NEW)
        elif batch > before.batch:
            sql = lookup.answers_between(before.batch, batch)
        else:
            return
        with suppress(QuestionRefused):  # they are too large together
            rows = self._select(sql)
            news.is_all = len(rows) == news.known.answers
            news.answers = self.table_of(rows, are_withheld=news.known.are_withheld)

    def _read_rows(self, news: News, before: StoreCursor) -> None:
        """Reads new documents, and the XML of new answers: as they are, for nobody may want to see them."""
        known = news.known
        after = max(before.docid, known.docid - (DOCUMENTS_AT_FIRST if before.docid < 0 else MOST_NEW_DOCUMENTS))
        if known.docid > after:
            with suppress(QuestionRefused):
                news.documents = sort_into_blocks(self._select(lookup.new_documents_sql(after, known.docid)), "docid")
        after = max(before.answer, known.answer - MOST_NEW_TEXTS)
        if known.answer > after and news.answers is not None:
            with suppress(QuestionRefused):
                news.texts = sort_into_blocks(self._select(lookup.texts_between(after, known.answer)), "answer")


KEPT_CHARACTERS = 64 << 20
"""Documents are remembered until they have so many characters; then the oldest ones go."""

NEWEST_BYTES = 64 << 20
"""So much is kept of the newest documents before anybody wants to see them."""

LARGEST = 1 << 20
"""Larger documents are not remembered, in characters."""

OVERHEAD, TREE = 500, 6
"""A document counts as so many characters more, and as so many times its XML: its tree is kept, too."""


class RememberedDocuments:
    """Documents by docid. Methods may be called in any thread, and raise what `select` raises."""

    def __init__(self, select: SelectFn, most: int = KEPT_CHARACTERS) -> None:
        self._select, self._most = select, most
        self._lock = Lock()
        self._kept: OrderedDict[int, Record] = OrderedDict()
        self._items: dict[int, ShownItem] = {}
        self._size = 0
        self._newest = RecentRows(NEWEST_BYTES)

    def add(self, rows: Iterable[RowBlock]) -> None:
        """Adds rows of newer documents, which need not be asked for then."""
        with self._lock:
            self._newest.add(rows)

    def records(self, docids: Iterable[int]) -> dict[int, Record]:
        """Returns those of some documents that are stored, by docid."""
        wanted = set(docids)
        with self._lock:
            found = {docid: self._kept[docid] for docid in wanted if docid in self._kept}
            for docid in found:
                self._kept.move_to_end(docid)
            read = {docid: record_of(row) for docid, row in self._newest.rows(wanted - found.keys()).items()}
        self._keep(read.values())
        found |= read
        if missing := wanted - found.keys():
            read = {record.docid: record for record in map(record_of, documents_by_docid(self._select, missing))}
            self._keep(read.values())
            found |= read
        return found

    def with_parts(self, docids: Iterable[int]) -> dict[int, Record]:
        """Returns the same, with the documents that they are made of."""
        found = self.records(docids)
        parts = {part for record in found.values() for part in record.parts} - found.keys()
        return found | self.records(parts) if parts else found

    def item(self, record: Record) -> ShownItem:
        """Returns what is shown of a document. It is made once while the document is remembered."""
        with self._lock:
            if (known := self._items.get(record.docid)) is not None:
                return known
        made = item_of(record.id, record.stream, record.t0, record.xml)
        with self._lock:
            if record.docid in self._kept:
                self._items[record.docid] = made
        return made

    def forget(self) -> None:
        """Forgets all: some may have been dropped."""
        with self._lock:
            self._kept.clear()
            self._items.clear()
            self._size = 0
            self._newest.clear()

    def _keep(self, records: Iterable[Record]) -> None:
        with self._lock:
            for record in records:
                if record.docid not in self._kept and _size(record) <= LARGEST:
                    self._kept[record.docid] = record
                    self._size += _size(record)
            while self._size > self._most:
                docid, record = self._kept.popitem(last=False)
                self._items.pop(docid, None)
                self._size -= _size(record)


def _size(record: Record) -> int:
    return OVERHEAD + TREE * len(record.xml)


OF_FORM = 200
"""So many of the newest answers of a form are read, if those of the newest batches are too few."""

MAX_CACHED_FORM_ANSWERS = 60_000
"""The most answers that are so remembered; then the forms go that nobody has looked at for longest."""

TEXT_BYTES = 64 << 20
"""So much is kept of the XML of the newest answers."""

VersionFn = Callable[[], object]
"""Returns something that is another once there is a newer batch."""


@dataclass(frozen=True, slots=True)
class OfFeed:
    """What a feed shows as of a version: the newest outputs of a name, the newest first; the greatest number of an
    output of any name, -1 if there is none; the `numbers` that the ledger notes; how often something was dropped; and
    when the first query of the name was added, None if there never was one."""

    version: object
    told: list[tuple[AnswerRow, Member]]
    greatest: int
    numbers: str | None
    drops: int
    since: int | None


class NewOutputs(NamedTuple):
    """Who `got` the answers after a batch, up to another `batch`; how many `answers` there are in all; and `changes`,
    which has another value when other queries are registered or paused."""

    got: Got
    batch: int
    answers: int
    changes: tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class _Older:
    """The newest answers of a form up to a batch. `is_whole` says that there are no others."""

    answers: AnswerTable
    is_whole: bool
    batch: int


class RecentAnswers:
    """The newest answers of a store, as of a batch that was the newest at the last look. Methods may be called in any
    thread, and raise what `select` raises."""

    def __init__(self, select: SelectFn, version: VersionFn, since: Since | None = None) -> None:
        """`since` tells what is committed, so that it need not be asked for."""
        self._select, self._version = select, version
        self.documents = RememberedDocuments(select)
        self._looking, self._lock = Lock(), RLock()  # whoever looks does not hold up those who need nothing newer
        self._news, self._known = NewsReader(select, since), StoreCursor()
        self._newest, self._texts = NewestAnswers(), RecentRows(TEXT_BYTES)
        self._older: OrderedDict[str, _Older] = OrderedDict()
        self._count = self._drops = 0
        self._members: MemberHistory | None = MemberHistory()
        self._added: dict[str, int] = {}
        self._made_for: object = object()

    def drops(self) -> int:
        """Returns how often something was dropped. What was read before must not be shown any more."""
        self._look()
        return self._drops

    def newest(self, name: str, before: OutputOrder | None, most: int) -> list[tuple[AnswerRow, Member]] | None:
        """Returns the newest outputs of a name, the newest first, before one that is given by the `first_seq` and the
        `place` of its answer, and its qid. None if they are not all remembered."""
        self._look()
        self._read_older(name, before, most)
        with self._lock:
            return self._newest_of(name, before, most)

    def of_feed(self, name: str, most: int) -> OfFeed | None:
        """Returns the newest outputs of a name with the numbers of the same batch. None if they are not all
        remembered."""
        self._look()
        self._read_older(name, None, most)
        with self._lock:
            told = self._newest_of(name, None, most)
            since = self._added.get(name)
            if told is None:
                return None
            return OfFeed(self._made_for, told, self._known.seq, self._known.numbers, self._drops, since)

    def outputs_after(self, batch: int) -> NewOutputs | None:
        """Returns the outputs of all batches after one. None if they are not all remembered, or too many."""
        self._look()
        with self._lock:
            if self._known.has_earlier or self._members is None:
                return None
            got, known = self._newest.got_after(batch, self._members), self._known
            return None if got is None else NewOutputs(got, known.batch, known.answers, known.changes)

    def members(self, name: str) -> list[Member] | None:
        """Returns the members of a name: also those that have ended. None if they are not remembered."""
        self._look()
        with self._lock:
            return None if self._members is None else self._members.named(name)

    def output(self, id: str, group: int) -> Row | None:
        """Returns the output with an id in a group, as `mmqjp.tables.lookup.output_by_id` does. None if it is to be
        asked for there."""
        self._look()
        with self._lock:
            known_members, batch = self._members, self._known.batch
            if known_members is None:
                return None
            numbered = self._newest.numbered(group, known_members)
        texts: dict[int, Row] = {}
        if numbered is None:
            rows = self._select(lookup.answers_of_group(group))
            if any(other > batch for other in rows["batch"].to_pylist()):
                return None  # there may be members that are not known yet
            texts = {row["answer"]: row for row in rows.select(["answer", "head", "tail"]).to_pylist()}
            numbered = (
                number_group_outputs(self._table(rows.drop_columns(["head", "tail"])), group, known_members) or []
            )
        found = next((one for one in numbered if one.member.identity.id(one.answer.choice.encode()) == id), None)
        if found is None:
            return None
        seq, answer, member = found
        with self._lock:
            row = (texts or self._texts.rows([answer.answer])).get(answer.answer)
        if row is None and (row := self._text(answer)) is None:
            return None
        name = member.name
        xml = row["tail"] if row["head"] == "" else row["head"] + name + row["tail"]
        of_name = sorted({one.text for one in known_members.named(name) if one.form == answer.form})
        told = {"id": id, "seq": seq, "qid": member.qid, "query": name, "xml": xml, "texts": of_name[:MOST_QUERIES]}
        known: Row = answer._asdict() | told
        return known

    def numbers(self, name: str, group: int) -> list[int] | None:
        """Returns the numbers of the outputs of a name in a group, in order. None if they are not remembered."""
        with self._lock:
            numbered = None if self._members is None else self._newest.numbered(group, self._members)
            return None if numbered is None else [one.seq for one in numbered if one.member.name == name]

    def latest(self, most: int) -> list[Numbered] | None:
        """Returns the newest outputs of all names, the newest first. None if they are not all remembered."""
        self._look()
        with self._lock:
            if self._known.has_earlier or self._members is None:
                return None
            found: list[Numbered] = []
            for group in self._newest.groups():
                if len(found) >= most:
                    return found[:most]
                if (numbered := self._newest.numbered(group, self._members)) is None:
                    return None
                found += reversed(numbered)
            return found[:most] if len(found) >= most else None

    # ------------------------------------------------------------ what is remembered

    def _newest_of(self, name: str, before: OutputOrder | None, most: int) -> list[tuple[AnswerRow, Member]] | None:
        if self._known.has_earlier or self._members is None:
            return None
        found: list[OutputRow] = []
        for members in self._members.named_by_form(name):
            got = list(islice(self._newest.newest(members, before), most))
            if len(got) < most and not self._newest.is_all:
                if (older := self._older_of(members.form)) is None:
                    return None
                got += islice(older.answers.newest(members, before, self._newest.first_batch), most - len(got))
                if len(got) < most and not older.is_whole:
                    return None
            found += got
        found.sort(key=lambda one: one[0], reverse=True)
        return [(answer, member) for _, answer, member in found[:most]]

    def _older_of(self, form: str) -> _Older | None:
        known, first = self._older.get(form), self._newest.first_batch
        if known is None or known.batch < (self._known.batch if first is None else first - 1):
            return None
        self._older.move_to_end(form)
        return known

    def _read_older(self, name: str, before: OutputOrder | None, most: int) -> None:
        """Reads older answers of the forms of a name if so many outputs are not remembered. Others may look at what is
        remembered meanwhile."""
        with self._lock:
            if self._known.has_earlier or self._members is None or self._newest.is_all:
                return
            batch, drops = self._known.batch, self._drops
            missing = [
                members.form
                for members in self._members.named_by_form(name)
                if len(list(islice(self._newest.newest(members, before), most))) < most
                and self._older_of(members.form) is None
            ]
        for form in missing:
            rows = self._select(lookup.answers_of_form(form, batch, OF_FORM))
            older = _Older(self._table(rows), len(rows) < OF_FORM, batch)
            with self._lock:
                if drops != self._drops:
                    return
                known = self._older.pop(form, None)
                self._older[form] = older
                self._count += len(older.answers) - (0 if known is None else len(known.answers))
                while self._count > MAX_CACHED_FORM_ANSWERS and len(self._older) > 1:
                    self._count -= len(self._older.popitem(last=False)[1].answers)

    def _look(self) -> None:
        """Reads what is new, unless there is no newer batch."""
        version = self._version()
        if not is_newer(version, self._made_for):
            return
        with self._looking:
            if is_newer(version, self._made_for):
                news = self._news.read(self._known, is_first=self._newest.is_empty, are_many=self._members is None)
                with self._lock:
                    self._take(news)
                    self._made_for = version

    def _take(self, news: News) -> None:
        if news.is_dropped:
            self._drops += 1
            self._texts.clear()
            self.documents.forget()
        if news.members is not None or news.are_many:
            self._members, self._added = news.members, news.added
            self._newest.forget_numbers()
        has_new = news.is_first or news.known.batch != self._known.batch
        if news.is_first or (has_new and news.answers is None):
            self._newest.clear()
            self._older.clear()
            self._count = 0
        if news.answers is not None:
            if news.is_first:
                self._newest.begin(news.answers, is_all=news.is_all)
            else:
                self._newest.add(news.answers)
        if news.documents is not None:
            self.documents.add(news.documents)
        if news.texts is not None:
            self._texts.add(news.texts)
        self._known = news.known

    def _table(self, rows: pa.Table) -> AnswerTable:
        return self._news.table_of(rows, are_withheld=self._known.are_withheld)

    def _text(self, answer: AnswerRow) -> Row | None:
        """Reads the XML of an answer. None if it is gone."""
        rows = self._select(lookup.answers_of_group(answer.first_seq)).to_pylist()
        return next((row for row in rows if row["answer"] == answer.answer), None)


def is_newer(version: object, before: object) -> bool:
    """Whether a version is newer than another one, or at least another: numbers grow."""
    return version > before if isinstance(version, int) and isinstance(before, int) else version != before
