"""The SQL of what is remembered of answers: what is new since a batch, and the newest answers of a form."""

from __future__ import annotations

from collections.abc import Iterable

from mmqjp.tables.feed_sql import LONGEST_XML, NUMBERS
from mmqjp.tables.page_sql import listed, quoted

_COLUMNS = """a.answer, a.form, a.t0, a.t1, a.documents, a.streams, a.nodes, a.choice, a.width, a.appeared, a.first_qid,
a.arrival, a.batch, a.first_seq, a.last_seq, a.place, b.committed_at"""

_ANSWERS = "answers a LEFT JOIN batches b ON b.batch = a.batch"

MEMBERS = """SELECT m.qid, m.name, m.form, m.identity, m.widest, m.since, m.begun, m.ended, m.ended_at,
q.text, q.added_at FROM members m JOIN added_queries q ON q.qid = m.qid ORDER BY m.name, m.qid, m.begun"""
"""Who gets the answers of which form, and since when: also those that have ended."""

ADDED = "SELECT name, min(added_at) AS added_at FROM added_queries GROUP BY name"
"""When the first query of each name was added."""


def heading(batch: int, docid: int) -> str:
    """Returns SQL for one row: how many answers and documents there are up to a batch and a docid, `answers` and
    `documents`; the newest `batch`, `docid` and `answer`, the greatest `seq` of an output, and the `numbers` of the
    ledger; how many answers are `new`, and documents have `arrived`, since; what is another number when other queries
    are `registered`; how many outputs are `earlier`, of former formats, and how many are `withheld`."""
    return f"""SELECT a.*, d.*, {NUMBERS}, (SELECT count(*) FROM earlier_outputs) AS earlier,
(SELECT count(*) FROM withheld) AS withheld,
(SELECT count(*) FROM memberships) + (SELECT count(*) FROM added_queries) AS registered FROM (
  SELECT count(*) FILTER (WHERE batch <= {batch}) AS answers, count(*) FILTER (WHERE batch > {batch}) AS new,
  max(batch) AS batch, max(last_seq) AS seq, max(answer) AS answer FROM answers
) AS a, (
  SELECT count(*) FILTER (WHERE docid <= {docid}) AS documents, count(*) FILTER (WHERE docid > {docid}) AS arrived,
  max(docid) AS docid FROM documents
) AS d"""


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
