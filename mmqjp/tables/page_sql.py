"""The SQL of pages: questions about queries and outputs that read no more than they show.

The view `outputs` numbers all outputs to read one. These read the answers of some batches, or of one query.
"""

from __future__ import annotations

from collections.abc import Iterable

from mmqjp.tables.answers import RECEIVES

HOUR = 3_600_000_000
"""The microseconds of an hour."""

DAY = 24 * HOUR
"""The microseconds of a day."""

LONGEST_XML = 200_000
"""Longer outputs are not read, in characters."""

QUERIES = """SELECT q.name, count(*) AS queries, count(p.reason) AS paused, min(p.reason) AS reason
FROM added_queries q LEFT JOIN (
  SELECT qid, reason, row_number() OVER (PARTITION BY qid ORDER BY batch DESC) AS newest FROM pauses
) p ON p.qid = q.qid AND p.newest = 1
WHERE q.qid NOT IN (SELECT qid FROM removed_queries) GROUP BY q.name ORDER BY q.name"""
"""The registered names: how many queries have each, how many of these are paused, and a reason."""


def quoted(text: str) -> str:
    """Returns a text as a literal of SQL.

    >>> quoted("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''").replace("\0", "") + "'"


_NUMBERS = """numbers AS (
  SELECT batch, first_seq AS seq FROM answers UNION ALL SELECT batch, seq FROM earlier_outputs
)"""


def next_batches(after: int, most: int) -> str:
    """Returns SQL for one row: a batch, up to which the ones after one have about `most` outputs, `until`, and the
    `newest`; both are null if there is none after it."""
    return f"""WITH {_NUMBERS}, new AS (SELECT batch, seq FROM numbers WHERE batch > {after})
SELECT max(batch) FILTER (WHERE seq < (SELECT min(seq) FROM new) + {most}) AS until, max(batch) AS newest FROM new"""


def tally(after: int, until: int, since_hour: int) -> str:
    """Returns SQL that counts the outputs of the batches after one up to another: by `qid`, or in earlier formats by
    `name`, and by `hour`, which is that of t1, or -1 if it is before `since_hour`, with the latest t1 as `last`.

    Three more rows have neither: with the hour -2 the number of answers and earlier outputs up to the first of these
    batches as `outputs`, and with the hour -3 up to the last one; and with the hour -4, what is another number when
    other queries are registered or paused.
    """
    hour = f"CASE WHEN t1 < {since_hour * HOUR} THEN -1 ELSE t1 // {HOUR} END"
    return f"""WITH {_NUMBERS}
SELECT m.qid, NULL AS name, {hour} AS hour, count(*) AS outputs, max(t1) AS last
FROM answers a JOIN members m ON {RECEIVES}
LEFT JOIN withheld w ON w.answer = a.answer AND w.qid = m.qid
WHERE w.qid IS NULL AND a.batch > {after} AND a.batch <= {until} GROUP BY m.qid, hour
UNION ALL SELECT NULL, query, {hour} AS hour, count(*), max(t1) FROM earlier_outputs
WHERE batch > {after} AND batch <= {until} GROUP BY query, hour
UNION ALL SELECT NULL, NULL, -2, count(*), NULL FROM numbers WHERE batch <= {after}
UNION ALL SELECT NULL, NULL, -3, count(*), NULL FROM numbers WHERE batch <= {until}
UNION ALL SELECT NULL, NULL, -4, (SELECT count(*) FROM memberships) + (SELECT count(*) FROM removed_queries)
+ (SELECT count(*) FROM pauses), (SELECT max(qid) FROM added_queries)"""


NAMES = "SELECT qid, name FROM added_queries ORDER BY qid"
"""The names of all queries there ever were."""


def texts(name: str, most: int, *, paused: bool) -> str:
    """Returns SQL for the registered queries of a name: `qid`, `form`, `text`, `added_at`, and `paused`: the reason, ""
    or null, which is looked for if some of them are."""
    reason = "SELECT arg_max(coalesce(p.reason, ''), p.batch) FROM pauses p WHERE p.qid = q.qid" if paused else "NULL"
    return f"""SELECT q.qid, q.form, q.text, q.added_at, ({reason}) AS paused FROM added_queries q
WHERE q.name = {quoted(name)} AND q.qid NOT IN (SELECT qid FROM removed_queries) ORDER BY q.qid LIMIT {most}"""


def event_queries(name: str) -> str:
    """Returns SQL for `text` of the registered event queries of a name."""
    return f"""SELECT text FROM added_queries WHERE name = {quoted(name)} AND form LIKE 'events-%'
AND qid NOT IN (SELECT qid FROM removed_queries) ORDER BY qid"""


PLACEMENTS = """SELECT p.template, p.variables, q.name, count(DISTINCT p.qid) AS queries
FROM placements p JOIN added_queries q ON q.qid = p.qid
WHERE p.qid NOT IN (SELECT qid FROM removed_queries) GROUP BY p.template, p.variables, q.name
ORDER BY q.name"""
"""Which names use which rows of which templates, and how many queries of each."""


def newest_outputs(name: str, before: tuple[int, int, int] | None, most: int) -> str:
    """Returns SQL for the newest outputs of a name, the newest first: `answer`, -1 in earlier formats, and `qid`; the
    `first_seq`, `last_seq` of its group and its `place` there. `before` has the `first_seq`, `place` and `qid` of the
    output that came last."""
    later = earlier = ""
    if before is not None:
        first, place, qid = before
        later = f"AND a.first_seq <= {first} AND (a.first_seq, a.place, m.qid) < ({first}, {place}, {qid})"
        earlier = f"AND seq < {first}"
    return f"""SELECT * FROM (
  SELECT a.answer, m.qid, a.first_seq, a.last_seq, a.place FROM answers a JOIN members m ON {RECEIVES}
  LEFT JOIN withheld w ON w.answer = a.answer AND w.qid = m.qid WHERE w.qid IS NULL
  AND m.name = {quoted(name)} {later} ORDER BY a.first_seq DESC, a.place DESC, m.qid DESC LIMIT {most}
) AS later UNION ALL SELECT * FROM (
  SELECT -1 AS answer, -1 AS qid, seq AS first_seq, seq AS last_seq, 0 AS place FROM earlier_outputs
  WHERE query = {quoted(name)} {earlier} ORDER BY seq DESC LIMIT {most}
) AS earlier ORDER BY first_seq DESC, place DESC, qid DESC LIMIT {most}"""


def numbers_of(groups: Iterable[int], wanted: Iterable[tuple[int, int]]) -> str:
    """Returns SQL for the `seq` of outputs, which are given as answer and qid, in groups that are given by their first
    numbers: `answer`, `qid` and `seq`."""
    pairs = ", ".join(f"({answer}, {qid})" for answer, qid in sorted(wanted))
    return f"""SELECT * FROM (
  SELECT a.answer, m.qid,
  a.first_seq + row_number() OVER (PARTITION BY a.first_seq ORDER BY m.name, a.place, m.qid) - 1 AS seq
  FROM answers a JOIN members m ON {RECEIVES} LEFT JOIN withheld w ON w.answer = a.answer AND w.qid = m.qid
  WHERE w.qid IS NULL AND a.first_seq IN ({listed(groups)})
) AS numbered WHERE (answer, qid) IN (VALUES {pairs})"""


def answers(numbers: Iterable[int]) -> str:
    """Returns SQL for some answers."""
    rows = ", ".join(f"({number})" for number in sorted(set(numbers)))
    return f"""SELECT a.answer, a.t0, a.t1, a.documents, a.streams, a.nodes, a.choice,
CASE WHEN length(a.tail) <= {LONGEST_XML} THEN a.head END AS head,
CASE WHEN length(a.tail) <= {LONGEST_XML} THEN a.tail END AS tail
FROM answers a JOIN (VALUES {rows}) AS x(answer) ON x.answer = a.answer"""


def matches_behind(numbers: Iterable[int]) -> str:
    """Returns SQL for the matches behind some answers: `answer`, `docid1`, `docid2`."""
    return f"""SELECT l.answer, m.docid1, m.docid2 FROM match_rows m JOIN answer_matches l ON m.match = l.match
WHERE l.answer IN ({listed(numbers)}) ORDER BY m.match"""


def earlier_outputs(numbers: Iterable[int]) -> str:
    """Returns SQL for some outputs of earlier formats by `seq`, with the docids of the matches behind them."""
    return f"""SELECT o.*, (
  SELECT list([m.docid1, m.docid2] ORDER BY m.match) FROM match_rows m
  WHERE m.match IN (SELECT l.match FROM earlier_output_matches l WHERE l.seq = o.seq)
) AS matches FROM earlier_outputs o WHERE o.seq IN ({listed(numbers)})"""


def identities(qids: Iterable[int]) -> str:
    """Returns SQL for some queries: `qid`, `identity`, `form` and `text`."""
    return f"SELECT qid, identity, form, text FROM added_queries WHERE qid IN ({listed(qids)})"


def listed(numbers: Iterable[int]) -> str:
    """Returns numbers as a list of SQL."""
    return ", ".join(map(str, sorted(set(numbers)))) or "NULL"
