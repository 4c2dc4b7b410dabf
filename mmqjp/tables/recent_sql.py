"""The SQL of what is remembered of answers: what is new since a batch, and the newest answers of a form."""

from __future__ import annotations

from collections.abc import Iterable

from mmqjp.tables.feed_sql import LONGEST_XML
from mmqjp.tables.page_sql import listed, quoted

ANSWER_COLUMNS = (
    *("answer", "form", "t0", "t1", "documents", "streams", "nodes", "choice", "width", "appeared", "first_qid"),
    *("arrival", "batch", "first_seq", "last_seq", "place", "committed_at"),
)
"""What is read of answers: columns of `answers`, and when their batch was committed."""

_COLUMNS = ", ".join(f"{'b' if name == 'committed_at' else 'a'}.{name}" for name in ANSWER_COLUMNS)

COUNTED = ("answers", "documents", "earlier_outputs", "withheld", "memberships", "removed_queries", "pauses")
"""The tables whose rows a heading counts."""

_COUNTS = " ".join(
    f"UNION ALL SELECT '{table}', count(*), NULL, NULL, NULL, NULL, NULL, NULL FROM {table}" for table in COUNTED
)

_ANSWERS = "answers a LEFT JOIN batches b ON b.batch = a.batch"

MEMBERS = """SELECT m.qid, m.name, m.form, m.identity, m.widest, m.since, m.begun, m.ended, m.ended_at,
q.text, q.added_at FROM members m JOIN added_queries q ON q.qid = m.qid ORDER BY m.name, m.qid, m.begun"""
"""Who gets the answers of which form, and since when: also those that have ended."""

ADDED = "SELECT name, min(added_at) AS added_at FROM added_queries GROUP BY name"
"""When the first query of each name was added."""


def heading(batch: int, docid: int) -> str:
    """Returns SQL for rows with a name, `what`. Those of the tables COUNTED have the number of their rows, `n`, and so
    has `added_queries`, with the greatest `qid`. `new answers` are those since a batch, with the newest `batch` and
    `answer`, and the greatest number of an output, `seq`; `new documents` are those since a docid, with the newest
    `docid`. `numbers` has what the ledger notes as `text`.

    As a single row, DuckDB takes longer to plan it than to answer it.
    """
    return f"""SELECT 'added_queries' AS what, count(*) AS n, max(qid) AS qid,
NULL AS batch, NULL AS answer, NULL AS seq, NULL AS docid, NULL AS text FROM added_queries
UNION ALL SELECT 'new answers', count(*), NULL, max(batch), max(answer), max(last_seq), NULL, NULL FROM answers
WHERE batch > {batch}
UNION ALL SELECT 'new documents', count(*), NULL, NULL, NULL, NULL, max(docid), NULL FROM documents
WHERE docid > {docid}
UNION ALL SELECT 'numbers', 0, NULL, NULL, NULL, NULL, NULL, arg_max(value, batch) FROM settings WHERE key = 'numbers'
{_COUNTS}"""


def answers_between(after: int, until: int) -> str:
    """Returns SQL for the answers of the batches after one, up to another, the oldest first."""
    return f"""SELECT {_COLUMNS} FROM {_ANSWERS} WHERE a.batch > {after} AND a.batch <= {until}
ORDER BY a.first_seq, a.place"""


def newest_answers(until: int, most: int) -> str:
    """Returns SQL for the newest answers up to a batch, the oldest first: at most so many."""
    return f"""SELECT {_COLUMNS} FROM {_ANSWERS} WHERE a.batch <= {until}
AND a.answer > (SELECT max(answer) FROM answers) - {most} ORDER BY a.first_seq, a.place"""


def texts_between(after: int, until: int) -> str:
    """Returns SQL for `head` and `tail` of the answers after one, up to another, in no order; without the long ones."""
    return f"""SELECT answer, head, tail FROM answers WHERE answer > {after} AND answer <= {until}
AND length(head) + length(tail) <= {LONGEST_XML}"""


def documents_between(after: int, until: int) -> str:
    """Returns SQL for the documents after one, up to another, in no order; without the long ones."""
    return f"SELECT * FROM documents WHERE docid > {after} AND docid <= {until} AND length(xml) <= {LONGEST_XML}"


def answers_of_form(form: str, until: int, most: int) -> str:
    """Returns SQL for the newest answers of a form up to a batch, the newest first."""
    return f"""SELECT {_COLUMNS} FROM {_ANSWERS} WHERE a.form = {quoted(form)} AND a.batch <= {until}
ORDER BY a.first_seq DESC, a.place DESC LIMIT {most}"""


def answers_of_group(first_seq: int) -> str:
    """Returns SQL for the answers of a group, with `head` and `tail`."""
    return f"""SELECT {_COLUMNS}, a.head, a.tail FROM {_ANSWERS} WHERE a.first_seq = {first_seq} ORDER BY a.place"""


def withheld_from(numbers: Iterable[int]) -> str:
    """Returns SQL for `answer` and `qid` of members that do not get some answers."""
    return f"SELECT answer, qid FROM withheld WHERE answer IN ({listed(numbers)})"


def withheld_since(answer: int) -> str:
    """Returns SQL for the same of an answer and all later ones."""
    return f"SELECT answer, qid FROM withheld WHERE answer >= {answer}"


def matches_since(answer: int) -> str:
    """Returns SQL for the matches behind an answer and all later ones: `answer`, `docid1`, `docid2`."""
    return f"""SELECT l.answer, m.docid1, m.docid2 FROM match_rows m JOIN answer_matches l ON m.match = l.match
WHERE l.answer >= {answer} ORDER BY m.match"""
