"""The SQL of what is remembered of answers: what is new since a batch, and the newest answers of a form."""

from __future__ import annotations

from mmqjp.tables.feed_sql import NUMBERS
from mmqjp.tables.page_sql import quoted

_COLUMNS = """answer, form, t0, t1, documents, streams, nodes, choice, width, appeared, first_qid, arrival, batch,
first_seq, last_seq, place"""

MEMBERS = """SELECT m.qid, m.name, m.form, m.identity, m.widest, m.since, m.begun, m.ended, m.ended_at,
q.text, q.added_at FROM members m JOIN added_queries q ON q.qid = m.qid ORDER BY m.name, m.qid, m.begun"""
"""Who gets the answers of which form, and since when: also those that have ended."""

ADDED = "SELECT name, min(added_at) AS added_at FROM added_queries GROUP BY name"
"""When the first query of each name was added."""


def heading(batch: int, docid: int) -> str:
    """Returns SQL for one row: how many answers and documents there are up to a batch and a docid, `answers` and
    `documents`; the newest `batch` and `docid`, the greatest `seq` of an output, and the `numbers` of the ledger; how
    many answers are `new`, and documents have `arrived`, since; what is another number when other queries are
    `registered`; how many outputs are `earlier`, of former formats, and how many are `withheld`."""
    return f"""SELECT a.*, d.*, {NUMBERS}, (SELECT count(*) FROM earlier_outputs) AS earlier,
(SELECT count(*) FROM withheld) AS withheld,
(SELECT count(*) FROM memberships) + (SELECT count(*) FROM added_queries) AS registered FROM (
  SELECT count(*) FILTER (WHERE batch <= {batch}) AS answers, count(*) FILTER (WHERE batch > {batch}) AS new,
  max(batch) AS batch, max(last_seq) AS seq FROM answers
) AS a, (
  SELECT count(*) FILTER (WHERE docid <= {docid}) AS documents, count(*) FILTER (WHERE docid > {docid}) AS arrived,
  max(docid) AS docid FROM documents
) AS d"""


def answers_between(after: int, until: int) -> str:
    """Returns SQL for the answers of the batches after one, up to another, the oldest first."""
    return f"SELECT {_COLUMNS} FROM answers WHERE batch > {after} AND batch <= {until} ORDER BY first_seq, place"


def newest_answers(until: int, most: int) -> str:
    """Returns SQL for the newest answers up to a batch, the oldest first: at most so many."""
    return f"""SELECT {_COLUMNS} FROM answers WHERE batch <= {until}
AND answer > (SELECT max(answer) FROM answers) - {most} ORDER BY first_seq, place"""


def answers_of_form(form: str, until: int, most: int) -> str:
    """Returns SQL for the newest answers of a form up to a batch, the newest first."""
    return f"""SELECT {_COLUMNS} FROM answers WHERE form = {quoted(form)} AND batch <= {until}
ORDER BY first_seq DESC, place DESC LIMIT {most}"""


def answers_of_group(first_seq: int) -> str:
    """Returns SQL for the answers of a group, with `head` and `tail`."""
    return f"SELECT {_COLUMNS}, head, tail FROM answers WHERE first_seq = {first_seq} ORDER BY place"


def withheld_from(numbers: str) -> str:
    """Returns SQL for `answer` and `qid` of members that do not get some answers, which are listed."""
    return f"SELECT answer, qid FROM withheld WHERE answer IN ({numbers})"


def withheld_since(answer: int) -> str:
    """Returns SQL for the same of an answer and all later ones."""
    return f"SELECT answer, qid FROM withheld WHERE answer >= {answer}"


def matches_since(answer: int) -> str:
    """Returns SQL for the matches behind an answer and all later ones: `answer`, `docid1`, `docid2`."""
    return f"""SELECT l.answer, m.docid1, m.docid2 FROM match_rows m JOIN answer_matches l ON m.match = l.match
WHERE l.answer >= {answer} ORDER BY m.match"""
