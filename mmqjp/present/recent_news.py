"""Reads what is new in a store since a batch, to remember it: answers, who gets them, their XML, and documents."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute

from join_stage.store.following import Committed
from join_stage.store.reading import QuestionRefused
from mmqjp.present.answer_table import AnswerTable
from mmqjp.present.committed_news import committed_news
from mmqjp.present.news import CHANGED, MOST_NEW, MOST_NEW_DOCUMENTS, MOST_NEW_TEXTS, Known, News
from mmqjp.present.recent_rows import blocks
from mmqjp.present.recipients import Members
from mmqjp.tables import page_sql, recent_sql
from mmqjp.tables.lookup import Select

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

    def __init__(self, select: Select, since: Since | None = None) -> None:
        """Without `since`, the store tells nothing."""
        self._select, self._since = select, since

    def read(self, before: Known, *, is_first: bool, are_many: bool) -> News:
        """Returns what is new since what was known `before`. The newest answers are to be read if it `is_first`;
        members are not remembered if they `are_many`."""
        if self._since is not None and (committed := self._since(before.mark)) is not None:
            if not is_first and (told := committed_news(before, committed, are_many=are_many)) is not None:
                return told
            before = before._replace(mark=committed.mark)
        return self._asked(before, is_first=is_first, are_many=are_many)

    def _asked(self, before: Known, *, is_first: bool, are_many: bool) -> News:
        heading = self._select(recent_sql.heading(before.batch, before.docid)).to_pylist()
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
            news.answers = self.table_of(rows, are_withheld=news.known.are_withheld)

    def _read_rows(self, news: News, before: Known) -> None:
        """Reads new documents, and the XML of new answers: as they are, for nobody may want to see them."""
        known = news.known
        after = max(before.docid, known.docid - (DOCUMENTS_AT_FIRST if before.docid < 0 else MOST_NEW_DOCUMENTS))
        if known.docid > after:
            with suppress(QuestionRefused):
                news.documents = blocks(self._select(recent_sql.documents_between(after, known.docid)), "docid")
        after = max(before.answer, known.answer - MOST_NEW_TEXTS)
        if known.answer > after and news.answers is not None:
            with suppress(QuestionRefused):
                news.texts = blocks(self._select(recent_sql.texts_between(after, known.answer)), "answer")
