"""The SQL of pages: questions about queries and outputs that read no more than they show.

The view `outputs` numbers all outputs to read one. These read the answers of some batches, or of one query.
"""

from __future__ import annotations

from mmqjp.tables.answers import RECEIVES

HOUR = 3_600_000_000
"""The microseconds of an hour."""

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


def tally(after: int, since_hour: int) -> str:
    """Returns SQL that counts the outputs of the batches after one: by `name` and `hour`, which is that of t1, or -1 if
    it is before `since_hour`, with the latest t1 as `last`.

    Two more rows have no name: the number of answers and earlier outputs up to that batch as `outputs` and the newest
    batch as `last`; and, with the hour -2, what is another number when other queries are registered or paused.
    """
    return f"""WITH new_outputs AS (
  SELECT m.name, a.t1 FROM answers a JOIN members m ON {RECEIVES}
  LEFT JOIN withheld w ON w.answer = a.answer AND w.qid = m.qid WHERE w.qid IS NULL AND a.batch > {after}
  UNION ALL SELECT query, t1 FROM earlier_outputs WHERE batch > {after}
), numbers AS (
  SELECT batch FROM answers UNION ALL SELECT batch FROM earlier_outputs
)
SELECT name, CASE WHEN t1 < {since_hour * HOUR} THEN -1 ELSE t1 // {HOUR} END AS hour, count(*) AS outputs,
max(t1) AS last FROM new_outputs GROUP BY name, hour
UNION ALL SELECT NULL, -1, count(*) FILTER (WHERE batch <= {after}), max(batch) FROM numbers
UNION ALL SELECT NULL, -1, count(*), -1 FROM numbers
UNION ALL SELECT NULL, -2, (SELECT count(*) FROM memberships) + (SELECT count(*) FROM removed_queries)
+ (SELECT count(*) FROM pauses), (SELECT max(qid) FROM added_queries)"""
