"""The SQL of feeds: questions about the outputs of one query, in DuckDB's dialect, that read no more than they show.

The view `outputs` numbers all outputs to read one. These look at the answers of one form, number those of a few groups
(the outputs of a batch with the same t1), and read long columns for some rows only.
"""

from __future__ import annotations

from collections.abc import Iterable

from mmqjp.tables.answers import RECEIVES

LONGEST_XML = 100_000
"""Longer outputs are not read, and of longer documents the beginning, in characters."""

_RECIPIENTS = f"""FROM answers a JOIN members m ON {RECEIVES}
LEFT JOIN withheld w ON w.answer = a.answer AND w.qid = m.qid WHERE w.qid IS NULL"""


def quoted(text: str) -> str:
    """Returns a text without control characters as a literal.

    >>> quoted("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def heading(counted: int) -> str:
    """Returns SQL for one row: the greatest `seq` of an output that is stored, of answers and of `earlier` ones; the
    `numbers` of the ledger; how many answers and earlier outputs are `stored`, and how many of these are `known`, that
    is, of outputs up to the number `counted`."""
    return f"""SELECT a.seq, e.seq AS earlier, a.stored + e.stored AS stored, a.known + e.known AS known,
(SELECT value FROM settings WHERE key = 'numbers' ORDER BY batch DESC LIMIT 1) AS numbers FROM (
  SELECT max(last_seq) AS seq, count(*) AS stored, count(*) FILTER (WHERE last_seq <= {counted}) AS known FROM answers
) AS a, (
  SELECT max(seq) AS seq, count(*) AS stored, count(*) FILTER (WHERE seq <= {counted}) AS known FROM earlier_outputs
) AS e"""


def since(name: str) -> str:
    """Returns SQL for when the first query of a name was added, `added_at`; null if there never was one."""
    return f"SELECT min(added_at) AS added_at FROM added_queries WHERE name = {quoted(name)}"


def settings(prefix: str) -> str:
    """Returns SQL for the current settings with a prefix: `key` and `value`."""
    return f"""SELECT key, value FROM (
  SELECT key, value, row_number() OVER (PARTITION BY key ORDER BY batch DESC) AS newest FROM settings
  WHERE starts_with(key, {quoted(prefix)})
) AS found WHERE newest = 1"""


def newest(name: str, after: int, before: int, most: int) -> str:
    """Returns SQL for the newest outputs of a name, the newest first, in groups that begin after one number and before
    another: `answer` and `qid`, and the numbers of the `first` and the `last` output of its group. Outputs of earlier
    formats have the answer -1, and are groups of their own."""
    return f"""SELECT answer, qid, first_seq AS first, last_seq AS last FROM (
  SELECT * FROM (
    SELECT a.answer, m.qid, a.first_seq, a.last_seq, a.place {_RECIPIENTS}
    AND m.name = {quoted(name)} AND a.first_seq > {after} AND a.first_seq < {before}
    ORDER BY a.first_seq DESC, a.place DESC, m.qid DESC LIMIT {most}
  ) AS later
  UNION ALL SELECT * FROM (
    SELECT -1 AS answer, -1 AS qid, seq AS first_seq, seq AS last_seq, 0 AS place FROM earlier_outputs
    WHERE query = {quoted(name)} AND seq > {after} AND seq < {before} ORDER BY seq DESC LIMIT {most}
  ) AS earlier
) AS found ORDER BY first_seq DESC, place DESC, qid DESC LIMIT {most}"""


def between(name: str, low: int, high: int) -> str:
    """Returns SQL for the outputs of a name with `low` <= `seq` < `high`, the newest first: `answer` and `qid`,
    and the number as `first` and as `last`."""
    return f"""SELECT answer, qid, seq AS first, seq AS last FROM (
  SELECT a.answer, m.qid, m.name,
  a.first_seq + row_number() OVER (PARTITION BY a.first_seq ORDER BY m.name, a.place, m.qid) - 1 AS seq
  {_RECIPIENTS} AND a.last_seq >= {low} AND a.first_seq < {high}
) AS numbered WHERE name = {quoted(name)} AND seq >= {low} AND seq < {high}
UNION ALL SELECT -1, -1, seq, seq FROM earlier_outputs WHERE query = {quoted(name)} AND seq >= {low} AND seq < {high}
ORDER BY first DESC"""


def kept(low: int, high: int) -> str:
    """Returns SQL for the number of outputs, of all queries, with `low` <= seq < `high` that are stored."""
    return f"""SELECT (
  SELECT coalesce(sum(least(last_seq, {high - 1}) - greatest(first_seq, {low}) + 1), 0) FROM (
    SELECT DISTINCT first_seq, last_seq FROM answers WHERE last_seq >= {low} AND first_seq < {high}
  ) AS groups
) + (SELECT count(*) FROM earlier_outputs WHERE seq >= {low} AND seq < {high}) AS kept"""


def last_in_group(name: str, first: int, before: int) -> str:
    """Returns SQL for the greatest `seq` below a number of an output of a name in the group that begins at `first`;
    null if there is none."""
    return f"""SELECT max(seq) AS seq FROM (
  SELECT m.name, a.first_seq + row_number() OVER (PARTITION BY a.first_seq ORDER BY m.name, a.place, m.qid) - 1 AS seq
  {_RECIPIENTS} AND a.first_seq = {first}
) AS numbered WHERE name = {quoted(name)} AND seq < {before}"""


def texts(qids: Iterable[int]) -> str:
    """Returns SQL for the `text` and the `form` of some queries, by `qid`."""
    return f"SELECT qid, text, form FROM added_queries WHERE qid IN ({_listed(qids)})"


def outputs_of(pairs: Iterable[tuple[int, int]], selecting: Iterable[int]) -> str:
    """Returns SQL for outputs that are given as answer and qid, with when they were committed. The XML is null but for
    the queries `selecting`."""
    asked = ", ".join(f"({answer}, {qid})" for answer, qid in pairs)
    wanted = f"x.qid IN ({_listed(selecting)}) AND length(a.head) + length(a.tail) <= {LONGEST_XML}"
    return f"""SELECT x.answer, x.qid, q.name AS query, q.identity, a.choice, a.t0, a.t1, a.documents, a.streams,
a.head, CASE WHEN {wanted} THEN a.tail END AS tail, b.committed_at
FROM (VALUES {asked}) AS x(answer, qid) JOIN answers a ON a.answer = x.answer
JOIN added_queries q ON q.qid = x.qid LEFT JOIN batches b ON b.batch = a.batch"""


def earlier_outputs_of(numbers: Iterable[int]) -> str:
    """Returns SQL for outputs of earlier formats by `seq`, with when they were committed."""
    asked = ", ".join(f"({seq})" for seq in numbers)
    return f"""SELECT o.seq, o.id, o.query, o.t0, o.t1, o.documents, o.streams, b.committed_at
FROM (VALUES {asked}) AS x(seq) JOIN earlier_outputs o ON o.seq = x.seq LEFT JOIN batches b ON b.batch = o.batch"""


def documents_of(ids: Iterable[str], first: int, last: int) -> str:
    """Returns SQL for the external documents with some ids that begin in a time: `stream`, `id`, `t0`, and the `xml`;
    if it `is_cut`, its beginning."""
    asked = ", ".join(map(quoted, ids))
    return f"""SELECT d.stream, d.id, d.t0, substr(d.xml, 1, {LONGEST_XML}) AS xml,
length(d.xml) > {LONGEST_XML} AS is_cut FROM (
  SELECT docid FROM documents WHERE kind = 'external' AND t0 >= {first} AND t0 <= {last} AND id IN ({asked})
) AS x JOIN documents d ON d.docid = x.docid"""


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "-1"
