"""Makes news of what a store tells that it has committed, so that nothing need be asked."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from join_stage.store.following import Committed
from mmqjp.present.answer_table import AnswerTable
from mmqjp.present.news import CHANGED, MOST_NEW, MOST_NEW_DOCUMENTS, MOST_NEW_TEXTS, Known, News
from mmqjp.present.recent_rows import blocks
from mmqjp.tables import answers as answer_tables
from mmqjp.tables.feed_sql import LONGEST_XML
from mmqjp.tables.recent_sql import ANSWER_COLUMNS

ASKED = (*CHANGED, "added_queries", "earlier_outputs")
"""When these tables get rows, the store is asked."""

FOLLOWED = ("answers", "answer_matches", "batches", "documents", "match_rows", "withheld", *ASKED)
"""The tables whose rows are to be told. Of settings only what the ledger notes matters, which is news only when outputs
are dropped."""


def committed_news(before: Known, committed: Committed, *, are_many: bool) -> News | None:
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
        news.documents = blocks(short.slice(max(len(short) - MOST_NEW_DOCUMENTS, 0)), "docid")
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
        news.texts = blocks(texts.slice(max(len(texts) - MOST_NEW_TEXTS, 0)), "answer")
    return True


def _rows(rows: Mapping[str, pa.Table], table: str) -> pa.Table:
    """The rows of one of the tables of answers; empty if there is none."""
    return rows[table] if table in rows else answer_tables.TABLES[table].empty_table()


def _after(rows: Mapping[str, pa.Table], table: str, column: str, number: int) -> pa.Table | None:
    """The rows of a table with greater numbers in a column; None if there is none."""
    if table not in rows:
        return None
    found = rows[table]
    later = found.filter(pc.greater(found[column], number))
    return later if len(later) else None


def _committed_at(rows: Mapping[str, pa.Table], wanted: pa.ChunkedArray) -> pa.Array:
    """When each of some batches was committed."""
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
