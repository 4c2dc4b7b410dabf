"""Caches the newest answers of a store with their recipients, XML and documents, so that pages need no queries. A new
batch is read once, from what the store reports as committed or else by SELECTs; committed rows never change, but
deletions clear the cache. Older answers are cached per form on demand; rows stay in Arrow until they are read."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from threading import Lock, RLock
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.bounds import INFINITE
from common.tools import LruCache
from join_stage.store.protocol import Committed, QuestionRefused
from mmqjp.answers.output import Body
from mmqjp.documents.record import Record, record_of
from mmqjp.explain.terms import MOST_QUERIES
from mmqjp.present import recipients
from mmqjp.present.item import ShownItem, item_of
from mmqjp.queries.model import Identity, is_hidden_form
from mmqjp.tables import lookup, schema
from mmqjp.tables.lookup import ANSWER_COLUMNS, LONGEST_XML, Row, SelectFn, documents_by_docid

AT_ONCE = 1_000  # rows are evicted in blocks of this size

MOST_CHANGES = 10_000  # maximum number of cached rows of added and removed queries


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows in order of their numbers, and their size in bytes."""

    numbers: NDArray[np.int64]
    columns: dict[str, pa.Array]
    size: int


def sort_into_blocks(rows: pa.Table, column: str) -> list[RowBlock]:
    numbers = rows[column].to_numpy()
    order = np.argsort(numbers)
    made: list[RowBlock] = []
    for begin in range(0, len(order), AT_ONCE):
        some = order[begin : begin + AT_ONCE]
        taken = rows.take(pa.array(some))  # a slice would keep all of the memory
        columns = {name: taken[name].combine_chunks() for name in taken.column_names}
        made.append(RowBlock(numbers[some], columns, taken.nbytes))
    return made


class RecentRows:
    """Rows by number; later ones have greater numbers. Not thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes = most_bytes, 0
        self._blocks = deque[RowBlock]()

    def add(self, rows: Iterable[RowBlock]) -> None:
        for block in rows:
            self._blocks.append(block)
            self._bytes += block.size
        while self._bytes > self._most and len(self._blocks) > 1:
            self._bytes -= self._blocks.popleft().size

    def rows(self, wanted: Iterable[int]) -> dict[int, Row]:
        """Returns those of the rows that are cached, by number."""
        found: dict[int, Row] = {}
        for number in wanted:
            after = bisect_right(self._blocks, number, key=lambda block: int(block.numbers[0]))
            if after:
                block = self._blocks[after - 1]
                place = int(np.searchsorted(block.numbers, number))
                if place < len(block.numbers) and block.numbers[place] == number:
                    found[number] = {name: column[place].as_py() for name, column in block.columns.items()}
        return found

    def clear(self) -> None:
        self._blocks.clear()
        self._bytes = 0


MOST_NEW, MOST_NEW_ROWS = 20_000, 20_000
"""If there are more new answers, or some were deleted, this number of the newest is read instead; and the maximum
number of newest documents, and of newest answers' XML, that are cached."""

CHANGED = ("memberships", "removed_queries", "pauses", "query_sources")
"""The tables that get a row when queries are registered, retyped or paused."""


class StoreCursor(NamedTuple):
    """The position up to which a store is known: its newest batch, the greatest numbers of a document, an answer, an
    output and a query, and the counts of answers and documents. `registered` counts the rows of members and queries,
    `changed` those of CHANGED; both are -1 if changes of queries were followed since the store was queried. Members are
    known up to the batch `joined`. `changes` grows when queries are registered, retyped, removed or paused. `numbers`
    is from the ledger. `earlier` counts outputs of earlier formats; `are_withheld`: some outputs are withheld. `mark`
    is the position in the store's commits."""

    batch: int = -1
    docid: int = -1
    answer: int = -1
    seq: int = -1
    answers: int = 0
    documents: int = 0
    registered: int = -1
    joined: int = -1
    qid: int | None = None
    changed: int = -1
    changes: int = -1
    numbers: str | None = None
    earlier: int = 0
    are_withheld: bool = False
    mark: int = -1


QueryRows = tuple[pa.Table, pa.Table]  # of `added_queries` and `removed_queries`


@dataclass(slots=True)
class News:
    """What is new, and the cursor `known` after it. `is_dropped`: cached rows were deleted. `members` are set if they
    changed; if they `are_many`, none is cached. `answers` are the new ones; None if there are none, or they are too
    large. With `is_first` they are the newest, with a partial first batch unless `is_all`. `documents` and `texts` are
    rows of new documents and the XML of new answers; None if too large. `queries` are set if changes of queries were
    followed."""

    known: StoreCursor
    is_dropped: bool = False
    is_first: bool = False
    are_many: bool = False
    members: recipients.MemberHistory | None = None
    answers: recipients.AnswerTable | None = None
    is_all: bool = False
    documents: list[RowBlock] | None = None
    texts: list[RowBlock] | None = None
    queries: QueryRows | None = None


ASKED = ("pauses", "earlier_outputs")  # rows in these tables make the reader query the store

OF_QUERIES = (*CHANGED, "added_queries")

FOLLOWED = ("answers", "answer_matches", "batches", "documents", "match_rows", "withheld", *ASKED, *OF_QUERIES)
"""The tables whose commits are followed. Of the settings, only the ledger's records of deletions matter."""


def committed_news(before: StoreCursor, committed: Committed, members: recipients.MemberHistory | None) -> News | None:
    """Returns the news since `before`, or None if the store has to be queried: commits are incomplete, pause queries,
    or have too many answers or members. May repeat what was committed while the store was queried."""
    rows, are_many = committed.rows, members is None
    if rows is None or any(table in rows for table in ASKED):
        return None
    known, news = before._replace(mark=committed.mark), News(before, are_many=are_many)
    if not rows.keys().isdisjoint(OF_QUERIES):
        if before.qid is None:
            return None
        added = _later(_rows(rows, "added_queries"), "qid", before.qid)
        news.queries = added.select(["qid", "name"]), _rows(rows, "removed_queries")
        batches = _rows(rows, "memberships")["batch"]
        known = known._replace(
            registered=-1, changed=-1, changes=before.changes + 1,
            qid=max([before.qid, *added["qid"].to_pylist()]),
            joined=max([before.joined, *batches.to_pylist()]),
        )  # fmt: skip
        if members is not None:
            if members.count + len(added) > MOST_MEMBERS:
                return None
            news.members = members.followed(added.to_pylist(), _rows(rows, "memberships").to_pylist())
    answers = _later(_rows(rows, "answers"), "answer", before.answer)
    documents = _later(_rows(rows, "documents"), "docid", before.docid)
    if len(answers):
        behind = _behind(rows, answers["answer"])
        if len(answers) > MOST_NEW or behind is None:
            return None
        known = known._replace(
            batch=pc.max(answers["batch"]).as_py(),
            answer=pc.max(answers["answer"]).as_py(),
            seq=pc.max(answers["last_seq"]).as_py(),
            answers=before.answers + len(answers),
            are_withheld=before.are_withheld or "withheld" in rows,
        )
        if not are_many:
            batches = _rows(rows, "batches")
            times = dict(zip(batches["batch"].to_pylist(), batches["committed_at"].to_pylist(), strict=True))
            committed_at = pa.array(map(times.get, answers["batch"].to_pylist()), pa.int64())
            columns = answers.append_column("committed_at", committed_at).select(ANSWER_COLUMNS)
            news.answers = recipients.AnswerTable(columns, behind, _rows(rows, "withheld"))
            length = pc.add(pc.utf8_length(answers["head"]), pc.utf8_length(answers["tail"]))
            texts = answers.select(["answer", "head", "tail"]).filter(pc.less_equal(length, LONGEST_XML))
            news.texts = sort_into_blocks(texts.slice(max(len(texts) - MOST_NEW_ROWS, 0)), "answer")
    if len(documents):
        known = known._replace(docid=pc.max(documents["docid"]).as_py(), documents=before.documents + len(documents))
        short = documents.filter(pc.less_equal(pc.utf8_length(documents["xml"]), LONGEST_XML))
        news.documents = sort_into_blocks(short.slice(max(len(short) - MOST_NEW_ROWS, 0)), "docid")
    news.known = known
    return news


def _rows(rows: Mapping[str, pa.Table], table: str) -> pa.Table:
    return rows[table] if table in rows else schema.TABLES[table].empty_table()


def _later(rows: pa.Table, column: str, number: int) -> pa.Table:
    return rows.filter(pc.greater(rows[column], number))


def _behind(rows: Mapping[str, pa.Table], answers: pa.ChunkedArray) -> pa.Table | None:
    """The docids of the matches behind answers, in match order. None if some matches are missing."""
    links = _rows(rows, "answer_matches")
    links = links.filter(pc.is_in(links["answer"], answers.combine_chunks()))
    matches = _rows(rows, "match_rows").select(["match", "docid1", "docid2"])
    found = links.join(matches, "match", join_type="inner").sort_by("match")
    return found if len(found) == len(links) else None


AT_FIRST, DOCUMENTS_AT_FIRST = 100_000, 50_000
"""Newest answers, of any form (no slower than of some), and newest documents read at first."""

MOST_MEMBERS, FEW = 50_000, 200
"""Maximum number of members cached (if ever more, none is), and of answers behind which rows are selected by number."""


Since = Callable[[int], Committed | None]  # returns what a store has committed since a mark; None if unknown


class NewsReader:
    """Reads what is new from the store's commits, else by queries. Raises what `select` raises."""

    def __init__(self, select: SelectFn, since: Since | None = None) -> None:
        self._select, self._since = select, since

    def read(self, before: StoreCursor, members: recipients.MemberHistory | None, *, is_first: bool) -> News:
        """Returns the news since `before`. `is_first` reads the newest answers; without `members` they are many."""
        if self._since is not None and (committed := self._since(before.mark)) is not None:
            if not is_first and (news := committed_news(before, committed, members)) is not None:
                return news
            before = before._replace(mark=committed.mark)
        return self._asked(before, members, is_first=is_first)

    def _asked(self, before: StoreCursor, members: recipients.MemberHistory | None, *, is_first: bool) -> News:
        heading = self._select(lookup.recent_counts_sql(before.batch, before.docid)).to_pylist()
        by_name = {row["what"]: row for row in heading}
        rows = {what: row["n"] for what, row in by_name.items()}
        new, arrived = by_name["new answers"], by_name["new documents"]
        known = before._replace(
            answers=rows["answers"],
            documents=rows["documents"],
            registered=rows["memberships"] + rows["added_queries"],
            changed=sum(rows[table] for table in CHANGED),
            qid=by_name["added_queries"]["qid"],
            numbers=by_name["numbers"]["text"],
            seq=max(before.seq, -1 if (earlier := by_name["earlier_outputs"]["seq"]) is None else earlier),
            earlier=rows["earlier_outputs"],
            are_withheld=rows["withheld"] > 0,
        )
        if (known.changed, known.qid) != (before.changed, before.qid):
            known = known._replace(changes=before.changes + 1)
        if new["n"]:
            known = known._replace(batch=new["batch"], answer=new["answer"], seq=max(known.seq, new["seq"]))
        if arrived["n"]:
            known = known._replace(docid=arrived["docid"])
        there = rows["answers"] - new["n"], rows["documents"] - arrived["n"]
        is_dropped = there != (before.answers, before.documents) or known.earlier < before.earlier
        is_first = is_first or is_dropped or new["n"] > MOST_NEW
        news = News(known, is_dropped, is_first=is_first, are_many=members is None)
        if known.registered != before.registered:
            self._read_members(news, before, members)
        if not news.are_many:
            self._read_answers(news, before)
        self._read_rows(news, before)
        return news

    def table_of(self, rows: pa.Table, *, are_withheld: bool) -> recipients.AnswerTable:
        """Returns rows of `answers` with the docids behind them and the withheld recipients."""
        which = f"IN ({lookup.number_list(rows['answer'].to_pylist())})"
        if len(rows) > FEW:
            which = f">= {pc.min(rows['answer']).as_py()}"
        sql = f"SELECT answer, qid FROM withheld WHERE answer {which}"
        withheld = self._select(sql) if are_withheld else _rows({}, "withheld")
        return recipients.AnswerTable(rows, self._select(lookup.answer_matches_sql(which)), withheld)

    def _read_members(self, news: News, before: StoreCursor, members: recipients.MemberHistory | None) -> None:
        """Reads the members that changed, unless they are too many or their texts too long."""
        news.are_many = True
        if news.known.registered > 2 * MOST_MEMBERS:  # a query and its membership
            return
        since, after = before.joined, before.qid
        if members is None or after is None or news.known.registered < before.registered:
            members, since, after = recipients.MemberHistory(), -1, -1
        with suppress(QuestionRefused):
            rows = self._select(lookup.changed_members(since)).to_pylist()
            named = self._select(lookup.first_added(after)).to_pylist()
            first = {row["name"]: row["added_at"] for row in named}
            news.members = members.changed(list(map(recipients.member_of, rows)), first)
            batches = (batch for row in rows for batch in (row["begun"], row["ended"]) if batch != INFINITE)
            news.known = news.known._replace(joined=max([since, *batches]))
            news.are_many = False

    def _read_answers(self, news: News, before: StoreCursor) -> None:
        batch = news.known.batch
        if news.is_first:
            most = AT_FIRST if before.batch < 0 else MOST_NEW
            among = f"a.batch <= {batch} AND a.answer > (SELECT max(answer) FROM answers) - {most}"
        elif batch > before.batch:
            among = f"a.batch > {before.batch} AND a.batch <= {batch}"
        else:
            return
        with suppress(QuestionRefused):  # together they are too large
            rows = self._select(lookup.answers_where(among))
            news.is_all = len(rows) == news.known.answers
            news.answers = self.table_of(rows, are_withheld=news.known.are_withheld)

    def _read_rows(self, news: News, before: StoreCursor) -> None:
        known = news.known
        after = max(before.docid, known.docid - (DOCUMENTS_AT_FIRST if before.docid < 0 else MOST_NEW_ROWS))
        if known.docid > after:
            with suppress(QuestionRefused):
                among = f"docid > {after} AND docid <= {known.docid} AND length(xml) <= {lookup.LONGEST_XML}"
                news.documents = sort_into_blocks(self._select(f"SELECT * FROM documents WHERE {among}"), "docid")
        after = max(before.answer, known.answer - MOST_NEW_ROWS)
        if known.answer > after and news.answers is not None:
            with suppress(QuestionRefused):
                among = f"answer > {after} AND answer <= {known.answer}"
                news.texts = sort_into_blocks(self._select(lookup.texts_where(among, lookup.LONGEST_XML)), "answer")


KEPT_CHARACTERS, LARGEST, KEPT_ITEMS, NEWEST_BYTES = 64 << 20, 1 << 20, 50_000, 64 << 20
"""Maximum size of cached documents, and of one (larger ones are not cached), in characters; maximum number of documents
cached as shown items; maximum size of the newest ones before first use, and of the newest answers' XML, in bytes."""

OVERHEAD, TREE = 500, 6  # cost of a cached document: characters added, and the factor for its tree


class RememberedDocuments:
    """Documents by docid. Thread-safe; methods raise what `select` raises."""

    def __init__(self, select: SelectFn, most: int = KEPT_CHARACTERS) -> None:
        self.select = select
        self._lock = Lock()
        self._kept = LruCache[int, Record](most, lambda record: OVERHEAD + TREE * len(record.xml))
        self._items = LruCache[int, ShownItem](KEPT_ITEMS)
        self._newest = RecentRows(NEWEST_BYTES)

    def add(self, rows: Iterable[RowBlock]) -> None:
        with self._lock:
            self._newest.add(rows)

    def records(self, docids: Iterable[int]) -> dict[int, Record]:
        """Returns those of the documents that are stored, by docid."""
        wanted = set(docids)
        found = self._kept.found(wanted)
        with self._lock:
            newest = self._newest.rows(wanted - found.keys())
        rows = list(newest.values())
        if missing := wanted - found.keys() - newest.keys():
            rows += documents_by_docid(self.select, missing)
        for record in map(record_of, rows):
            found[record.docid] = record
            if TREE * len(record.xml) <= LARGEST and record.docid not in self._kept:
                self._kept.put(record.docid, record)
        return found

    def with_parts(self, docids: Iterable[int]) -> dict[int, Record]:
        """Like `records`, with the documents they are composed of."""
        found = self.records(docids)
        parts = {part for record in found.values() for part in record.parts} - found.keys()
        return found | self.records(parts) if parts else found

    def item(self, record: Record) -> ShownItem:
        if (known := self._items.get(record.docid)) is None:
            known = item_of(record.id, record.stream, record.t0, record.xml)
            self._items.put(record.docid, known)
        return known

    def forget(self) -> None:
        self._kept.clear()
        self._items.clear()
        with self._lock:
            self._newest.clear()


OF_FORM, MAX_CACHED_FORM_ANSWERS = 200, 60_000
"""Newest answers of a form to read if the newest batches have too few, and maximum number cached that way."""

VersionFn = Callable[[], object]  # returns a value that changes with each batch


@dataclass(frozen=True, slots=True)
class OfFeed:
    """The contents of a feed as of a version: the newest outputs of a name, newest first; the greatest output number of
    all names, or -1; the ledger's `numbers`; the count of deletions; and when the name was first added."""

    version: object
    told: list[recipients.StoredOutput]
    greatest: int
    numbers: str | None
    drops: int
    since: int


@dataclass(frozen=True, slots=True)
class _Older:
    """The newest answers of a form up to a batch. `is_whole`: there are no others."""

    answers: recipients.AnswerTable
    is_whole: bool
    batch: int


class RecentAnswers:
    """The newest answers of a store, as of the last refresh. Thread-safe; methods raise what `select` raises."""

    def __init__(self, select: SelectFn, version: VersionFn, since: Since | None = None) -> None:
        """`since` returns what was committed, which saves queries."""
        self.select, self.version = select, version
        self.documents = RememberedDocuments(select)
        self._looking, self._lock = Lock(), RLock()  # a refresh does not block readers that need nothing newer
        self._news, self._known = NewsReader(select, since), StoreCursor()
        self._newest, self._texts = recipients.NewestAnswers(), RecentRows(NEWEST_BYTES)
        self._older = LruCache[str, _Older](MAX_CACHED_FORM_ANSWERS, lambda older: len(older.answers))
        self._changes = LruCache[int, QueryRows](MOST_CHANGES, lambda rows: 1 + sum(map(len, rows)))
        self._drops = 0
        self._members: recipients.MemberHistory | None = recipients.MemberHistory()
        self._made_for: object = object()

    def drops(self) -> int:
        """Returns the number of deletions. Rows read before the last one must no longer be shown."""
        self._look()
        return self._drops

    def newest(self, name: str, before: recipients.OutputOrder | None, most: int) -> list[recipients.StoredOutput]:
        """Returns the newest outputs of a name, newest first, before a position."""
        self._look()
        self._read_older(name, before, most)
        with self._lock:
            found = self._newest_of(name, before, most)
        return self._read(lookup.newest_outputs(name, before, most)) if found is None else found

    def of_feed(self, name: str, most: int) -> OfFeed | None:
        """Returns the newest outputs of a name, without hidden ones, with the numbers of the same batch. None if the
        name never existed, or all its queries were hidden."""
        self._look()
        if not name.isprintable():
            return None
        self._read_older(name, None, most)
        with self._lock:
            found, members = self._newest_of(name, None, most), self._members
            known, version, drops = self._known, self._made_for, self._drops
        since = None if members is None else members.added.get(name)
        if members is None:
            shown = f"name = {lookup.quote_literal(name)} AND NOT {schema.IN_HIDDEN_FORM}"
            (since,) = self.select(f"SELECT min(added_at) AS since FROM added_queries WHERE {shown}")[
                "since"
            ].to_pylist()
        elif (named := members.named(name)) and all(is_hidden_form(one.form) for one in named):
            since = None
        if since is None:
            return None
        if found is None:
            found = self._read(lookup.newest_outputs(name, (known.seq + 1, -1, -1), most))
        found = [one for one in found if not is_hidden_form(one.form)]
        return OfFeed(version, found, known.seq, known.numbers, drops, since)

    def between(self, after: int, until: int, name: str | None = None) -> list[recipients.StoredOutput]:
        """Returns the outputs, of all names or one, with `after` < `seq` <= `until`, in order, without hidden ones."""
        self._look()
        with self._lock:
            found = self._numbered_between(after, until)
        if found is None:
            found = self._read(lookup.outputs_between(after, until, name))
        return [one for one in found if name in (None, one.name) and not is_hidden_form(one.form)]

    def as_of(self) -> object:
        """Returns the version of what is cached now."""
        self._look()
        return self._made_for

    def greatest(self) -> int:
        """Returns the greatest number of an output, or -1."""
        self._look()
        return self._known.seq

    def bodies(self, answers: Iterable[int], *, whole: bool = False) -> dict[int, Body]:
        """Returns the XML of answers, that of long ones only if asked for the `whole`."""
        wanted = set(answers)
        with self._lock:
            found = self._texts.rows(wanted)
        if missing := wanted - found.keys():
            found |= {row["answer"]: row for row in self.select(lookup.texts_of(missing)).to_pylist()}
        for answer in wanted - found.keys() if whole else ():  # one by one: together they may be too large
            found |= {row["answer"]: row for row in self.select(lookup.texts_of([answer], INFINITE)).to_pylist()}
        return {number: Body(row["head"], row["tail"]) for number, row in found.items()}

    def outputs_after(self, batch: int) -> tuple[recipients.Got | None, StoreCursor]:
        """Returns who got the answers of later batches, and up to where. None if some are not cached, or too many."""
        self._look()
        with self._lock:
            if self._known.earlier or self._members is None:
                return None, self._known
            return self._newest.got_after(batch, self._members), self._known

    def query_changes(self, after: int, until: int) -> list[QueryRows] | None:
        """Returns the queries added and removed between two values of `StoreCursor.changes`. None if not cached."""
        found = self._changes.found(range(after + 1, until + 1))
        return list(found.values()) if len(found) == until - after else None

    def members(self, name: str) -> list[recipients.Member] | None:
        """Returns the members of a name, ended ones included. None if not cached."""
        self._look()
        with self._lock:
            return None if self._members is None else self._members.named(name)

    def output(self, id: str, group: int) -> Row | None:
        """Returns an output of a group like `mmqjp.tables.lookup.output_by_id`. None if it has to be queried there."""
        self._look()
        found = next((one for one in (self._group(group) or ()) if one.id == id), None)
        if found is None:
            return None
        answer, name = found.answer, found.name
        if (body := self.bodies([answer.answer], whole=True).get(answer.answer)) is None:
            return None
        about = {"id": id, "seq": found.seq, "qid": found.qid, "query": name, "texts": found.texts}
        return answer._asdict() | about | {"xml": body.xml(name)}

    def numbers(self, name: str, group: int) -> dict[tuple[int, int], int]:
        """Returns the numbers of a name's outputs in a group, in order, by answer and qid."""
        if (numbered := self._group(group)) is not None:
            return {one.key[:2]: one.seq for one in numbered.of_name(name)}
        rows = self.select(lookup.numbers_in_group(name, group)).to_pylist()
        return {(row["answer"], row["qid"]): row["seq"] for row in rows}

    # ------------------------------------------------------------ reading

    def _read(self, sql: str) -> list[recipients.StoredOutput]:
        """Returns the outputs that SQL selects as `answer`, `qid` and `seq`, without those dropped in the meantime."""
        found_rows = self.select(sql).to_pylist()
        later = [row for row in found_rows if row["answer"] >= 0]
        found: dict[tuple[int, int], recipients.StoredOutput] = {}
        if later:
            among = lookup.value_rows(row["answer"] for row in later)
            table = self._table(self.select(lookup.answers_where(f"a.answer IN ({among})")))
            answers = {answer.answer: answer for answer in table.all()}
            qids = lookup.number_list(row["qid"] for row in later)
            sql = f"SELECT qid, name, identity, form, text FROM added_queries WHERE qid IN ({qids})"
            queries = {row["qid"]: row for row in self.select(sql).to_pylist()}
            for row in later:
                if (answer := answers.get(row["answer"])) is not None:
                    query = queries[row["qid"]]
                    name, identity, texts = query["name"], Identity(query["identity"]), (query["text"],)
                    of_query = row["qid"], name, identity, query["form"]
                    found[row["answer"], row["qid"]] = recipients.StoredOutput(answer, *of_query, texts, row["seq"])
        found |= self._read_earlier([row["seq"] for row in found_rows if row["answer"] < 0])
        keys = ((row["answer"], row["qid"] if row["answer"] >= 0 else row["seq"]) for row in found_rows)
        return [found[key] for key in keys if key in found]

    def _read_earlier(self, numbers: Collection[int]) -> dict[tuple[int, int], recipients.StoredOutput]:
        """Returns outputs of earlier formats by -1 and number."""
        found: dict[tuple[int, int], recipients.StoredOutput] = {}
        texts: dict[str, tuple[str, ...]] = {}
        for row in self.select(lookup.earlier_outputs(numbers)).to_pylist() if numbers else ():
            name, seq = row["query"], row["seq"]
            if name not in texts:
                texts[name] = tuple(lookup.query_texts(self.select, name, None, MOST_QUERIES))
            behind = tuple((one,) if two is None else (one, two) for one, two in row["matches"] or ())
            answer = recipients.AnswerRow(
                -1, "", row["t0"], row["t1"], tuple(row["documents"]), tuple(row["streams"]), row["nodes"], "",
                row["batch"], seq, seq, 0, row["committed_at"], behind,
            )  # fmt: skip
            found[-1, seq] = recipients.StoredOutput(answer, -1, name, row["id"], None, texts[name], seq, row["xml"])
        return found

    def _group(self, first_seq: int) -> recipients.NumberedGroup | None:
        """The outputs of a group in order. None if they have to be numbered by SQL."""
        with self._lock:
            members, batch = self._members, self._known.batch
            numbered = None if members is None else self._newest.numbered(first_seq, members)
        if numbered is not None or members is None:
            return numbered
        rows = self.select(lookup.answers_where(f"a.first_seq = {first_seq}"))
        if any(other > batch for other in rows["batch"].to_pylist()):
            return None  # there may be unknown members
        return self._table(rows).group(first_seq, members)

    # ------------------------------------------------------------ caching

    def _newest_of(
        self, name: str, before: recipients.OutputOrder | None, most: int
    ) -> list[recipients.StoredOutput] | None:
        if self._known.earlier or self._members is None:
            return None
        found: list[recipients.StoredOutput] = []
        for members in self._members.named_by_form(name):
            got = list(islice(self._newest.newest(members, before), most))
            if len(got) < most and not self._newest.is_all:
                if (older := self._older_of(members.form)) is None:
                    return None
                got += islice(older.answers.newest(members, before, self._newest.first_batch), most - len(got))
                if len(got) < most and not older.is_whole:
                    return None
            found += got
        return sorted(found, key=lambda one: one.place, reverse=True)[:most]

    def _numbered_between(self, after: int, until: int) -> list[recipients.StoredOutput] | None:
        if self._known.earlier or self._members is None or until > self._known.seq:
            return None
        found: list[recipients.StoredOutput] = []
        for group in self._newest.groups(until):
            if (numbered := self._newest.numbered(group, self._members)) is None:
                return None
            found[:0] = numbered.between(after, until)
            if group <= after + 1:
                return found
        return found if self._newest.is_all else None

    def _older_of(self, form: str) -> _Older | None:
        known, first = self._older.get(form), self._newest.first_batch
        if known is None or known.batch < (self._known.batch if first is None else first - 1):
            return None
        return known

    def _read_older(self, name: str, before: recipients.OutputOrder | None, most: int) -> None:
        """Reads older answers of a name's forms if fewer than `most` outputs are cached, without blocking readers."""
        with self._lock:
            if self._known.earlier or self._members is None or self._newest.is_all:
                return
            batch, drops = self._known.batch, self._drops
            named = self._members.named_by_form(name)
            few = [one.form for one in named if len(list(islice(self._newest.newest(one, before), most))) < most]
            missing = [form for form in few if self._older_of(form) is None]
        for form in missing:
            newest, among = "a.first_seq DESC, a.place DESC", f"a.form = {lookup.quote_literal(form)}"
            rows = self.select(lookup.answers_where(f"{among} AND a.batch <= {batch}", f"{newest} LIMIT {OF_FORM}"))
            older = _Older(self._table(rows), len(rows) < OF_FORM, batch)
            with self._lock:
                if drops != self._drops:
                    return
                self._older.put(form, older)

    def _look(self) -> None:
        version = self.version()
        if not is_newer(version, self._made_for):
            return
        with self._looking:
            if is_newer(version, self._made_for):
                is_first = self._newest.is_empty and self._members is not None
                news = self._news.read(self._known, self._members, is_first=is_first)
                with self._lock:
                    self._take(news)
                    self._made_for = version

    def _take(self, news: News) -> None:
        if news.is_dropped:
            self._drops += 1
            self._texts.clear()
            self.documents.forget()
        if news.members is not None or news.are_many:
            self._members = news.members
            self._newest.forget_numbers()
        has_new = news.is_first or news.known.batch != self._known.batch
        if news.is_first or (has_new and news.answers is None):
            self._newest.clear()
            self._older.clear()
        if news.answers is not None:
            if news.is_first:
                self._newest.begin(news.answers, is_all=news.is_all)
            else:
                self._newest.add(news.answers)
        if news.documents is not None:
            self.documents.add(news.documents)
        if news.texts is not None:
            self._texts.add(news.texts)
        if news.queries is not None:
            self._changes.put(news.known.changes, news.queries)
        self._known = news.known

    def _table(self, rows: pa.Table) -> recipients.AnswerTable:
        return self._news.table_of(rows, are_withheld=self._known.are_withheld)


def is_newer(version: object, before: object) -> bool:
    return version > before if isinstance(version, int) and isinstance(before, int) else version != before
