"""Reads what is new in a store since a batch, to remember it: answers, who gets them, their XML, and documents."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute

from join_stage.store.reading import QuestionRefused
from mmqjp.present.answer_table import AnswerTable
from mmqjp.present.recipients import Members
from mmqjp.tables import page_sql, recent_sql
from mmqjp.tables.lookup import Select

AT_FIRST = 100_000
"""So many of the newest answers are read at first, of whatever form: that takes no longer than to read some forms."""

MOST_NEW = 20_000
"""If there are more new answers, or some were dropped, so many of the newest are read instead."""

DOCUMENTS_AT_FIRST, MOST_NEW_DOCUMENTS = 50_000, 20_000
"""So many of the newest documents are read at first, and later; the others when they are shown."""

MOST_NEW_TEXTS = 20_000
"""The XML of so many of the newest answers is read."""

MOST_MEMBERS = 50_000
"""The most members that are remembered; if there were ever more, none is, and pages ask instead."""

CHANGED = ("memberships", "removed_queries", "pauses")
"""The tables that get a row when queries are registered or paused."""

FEW = 200
"""What is behind so many answers is asked for by their numbers."""


class Known(NamedTuple):
    """Up to where a store is known: its newest batch, and the greatest numbers of a document, an answer and an output;
    how many answers and documents there were; and what is another value when there are other members, and when other
    queries are registered or paused."""

    batch: int = -1
    docid: int = -1
    answer: int = -1
    seq: int = -1
    answers: int = 0
    documents: int = 0
    registered: int = -1
    changes: tuple[int, int | None] = (-1, None)


@dataclass(slots=True)
class News:
    """What is new, and up to where the store is `known` with it.

    - Something `is_dropped` of what was known.
    - `members` are there if they are others than before, and have names that were first `added` at some time. None of
      them are remembered if they `are_many`.
    - `answers` are the new ones; None if there are none, or if they are too large together. With `is_first`, they are
      the newest, of which the first batch may be there in part unless they are all: `is_all`.
    - `documents` and `texts` are rows of new documents, and the XML of new answers; None if they are too large.
    - `numbers` is what the ledger notes. There are outputs of former formats if it `has_earlier`, and some are withheld
      if `are_withheld`.
    """

    known: Known
    is_dropped: bool
    numbers: str | None
    has_earlier: bool
    are_withheld: bool
    is_first: bool
    are_many: bool = False
    members: Members | None = None
    added: dict[str, int] = field(default_factory=dict)
    answers: AnswerTable | None = None
    is_all: bool = False
    documents: pa.Table | None = None
    texts: pa.Table | None = None


class NewsReader:
    """Asks what is new. Raises what `select` raises."""

    def __init__(self, select: Select) -> None:
        self._select = select

    def read(self, before: Known, *, is_first: bool, are_many: bool) -> News:
        """Returns what is new since what was known `before`. The newest answers are to be read if it `is_first`;
        members are not remembered if they `are_many`."""
        heading = self._select(recent_sql.heading(before.batch, before.docid)).to_pylist()
        told = {row["what"]: row for row in heading}
        rows = {what: row["n"] for what, row in told.items()}
        new, arrived = told["new answers"], told["new documents"]
        known = before._replace(
            answers=rows["answers"],
            documents=rows["documents"],
            registered=rows["memberships"] + rows["added_queries"],
            changes=(sum(rows[table] for table in CHANGED), told["added_queries"]["qid"]),
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
            told["numbers"]["text"],
            has_earlier=rows["earlier_outputs"] > 0,
            are_withheld=rows["withheld"] > 0,
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
            (page_sql.matches_behind(numbers), recent_sql.withheld_from(numbers))
            if numbers is not None
            else (recent_sql.matches_since(least), recent_sql.withheld_since(least))
        )
        none = pa.table({name: pa.array([], pa.int64()) for name in ("answer", "qid")})
        return AnswerTable(rows, self._select(behind), self._select(withheld) if are_withheld else none)

    def _read_members(self, news: News) -> None:
        """Reads the members, unless they are too many, or their texts too long."""
        news.are_many = True
        if news.known.registered <= 2 * MOST_MEMBERS:  # a query and its membership
            with suppress(QuestionRefused):
                news.members = Members(self._select(recent_sql.MEMBERS).to_pylist())
                news.added = {row["name"]: row["added_at"] for row in self._select(recent_sql.ADDED).to_pylist()}
                news.are_many = False

    def _read_answers(self, news: News, before: Known) -> None:
        batch = news.known.batch
        if news.is_first:
            sql = recent_sql.newest_answers(batch, AT_FIRST if before.batch < 0 else MOST_NEW)
        elif batch > before.batch:
            sql = recent_sql.answers_between(before.batch, batch)
        else:
            return
        with suppress(QuestionRefused):  # they are too large together
            rows = self._select(sql)
            news.is_all = len(rows) == news.known.answers
            news.answers = self.table_of(rows, are_withheld=news.are_withheld)

    def _read_rows(self, news: News, before: Known) -> None:
        """Reads new documents, and the XML of new answers: as they are, for nobody may want to see them."""
        known = news.known
        after = max(before.docid, known.docid - (DOCUMENTS_AT_FIRST if before.docid < 0 else MOST_NEW_DOCUMENTS))
        if known.docid > after:
            with suppress(QuestionRefused):
                news.documents = self._select(recent_sql.documents_between(after, known.docid))
        after = max(before.answer, known.answer - MOST_NEW_TEXTS)
        if known.answer > after and news.answers is not None:
            with suppress(QuestionRefused):
                news.texts = self._select(recent_sql.texts_between(after, known.answer))
