"""The tables of matches and answers, and the views that show outputs: what each query gets of them.

A match is a pair of documents on a row of R_T. An answer is what all queries of a form get for one choice of documents
and nodes. Both are stored once, however many queries get them.
"""

from __future__ import annotations

import pyarrow as pa

from join_stage.store.protocol import TableStore
from mmqjp.tables.columns import INT, INTS, TEXT, TEXTS, schema

TABLES = {
    # The members of `form` get the answer that have a window of at least `width`, see documents before `appeared`, have
    # at least `first_qid`, and are members in `batch` and for `arrival` (see `mmqjp.queries.members`). There are
    # `recipients` of them. In XML a query's name stands between `head` and `tail`, unless `head` is empty; `choice` is
    # the end of what outputs' ids are digests of. Answers of a batch with the same t1 have the same `first_seq` and
    # `last_seq`, the numbers of the first and the last of their outputs, and are in the order of `place`.
    "answers": schema(
        answer=INT, form=TEXT, t0=INT, t1=INT, documents=TEXTS, streams=TEXTS, nodes=TEXT, head=TEXT, tail=TEXT,
        choice=TEXT, width=INT, appeared=INT, first_qid=INT, arrival=INT, batch=INT, first_seq=INT,
        last_seq=INT, place=INT, recipients=INT,
    ),
    # Members that do not get an answer: they were paused when one of its documents came, or told it before.
    "withheld": schema(answer=INT, qid=INT),
    # Matches that gave a query outputs which it had told before, so that they have no numbers (ONCE PER).
    "untold": schema(match=INT, qid=INT),
    "match_rows": schema(match=INT, template=INT, docid1=INT, docid2=INT, t0=INT, t1=INT, bindings=INTS),
    # The matches behind an answer: one for each row of R_T that gave it.
    "answer_matches": schema(answer=INT, match=INT),
    # Up to format 5 there was a row for each output. `id` was given otherwise, up to format 4.
    "earlier_outputs": schema(
        query=TEXT, t0=INT, t1=INT, documents=TEXTS, streams=TEXTS, nodes=TEXT, xml=TEXT, batch=INT, seq=INT, id=TEXT
    ),
    "earlier_match_queries": schema(match=INT, query=TEXT, qid=INT),
    "earlier_output_matches": schema(seq=INT, match=INT),
}  # fmt: skip

FORMER_NAMES = {
    "earlier_outputs": "outputs",
    "earlier_match_queries": "match_queries",
    "earlier_output_matches": "output_matches",
}
"""What tables were called up to format 5."""

RECEIVES = """a.form = m.form AND a.width <= m.widest AND m.since < a.appeared
AND a.first_qid <= m.qid AND m.begun <= a.batch
AND (a.batch < m.ended OR (a.batch = m.ended AND a.arrival < m.ended_at))"""
"""The condition of SQL for a member `m` to get an answer `a`, unless it is in `withheld`."""

VIEWS = {
    # Who gets which answer, and the number of the output that it is.
    "recipients": f"""SELECT a.answer, m.qid, m.name AS query, m.identity,
a.first_seq + row_number() OVER (PARTITION BY a.first_seq ORDER BY m.name, a.place, m.qid) - 1 AS seq
FROM answers a JOIN members m ON {RECEIVES}
LEFT JOIN withheld w ON w.answer = a.answer AND w.qid = m.qid WHERE w.qid IS NULL""",
    # `seq` numbers outputs in the order in which they are committed. `id` is the same on every engine.
    "outputs": """SELECT r.query, a.t0, a.t1, a.documents, a.streams, a.nodes,
CASE WHEN a.head = '' THEN a.tail ELSE a.head || r.query || a.tail END AS xml, a.batch, r.seq,
substr(sha2(r.identity || a.choice, 256), 1, 32) AS id FROM recipients r JOIN answers a ON a.answer = r.answer
UNION ALL SELECT query, t0, t1, documents, streams, nodes, xml, batch, seq, id FROM earlier_outputs""",
    "output_matches": """SELECT r.seq, l.match FROM recipients r JOIN answer_matches l ON l.answer = r.answer
UNION ALL SELECT seq, match FROM earlier_output_matches""",
    "matches": """SELECT q.query, m.docid1, m.docid2, m.t0, m.t1, m.bindings, m.match
FROM (
  SELECT r.query, r.qid, l.match FROM recipients r JOIN answer_matches l ON l.answer = r.answer
  UNION SELECT q.name, u.qid, u.match FROM untold u JOIN added_queries q ON q.qid = u.qid
  UNION ALL SELECT query, qid, match FROM earlier_match_queries
) q JOIN match_rows m ON m.match = q.match""",
}


def batches_after(store: TableStore, seq: int) -> pa.Table:
    """Returns the batches that have outputs with greater numbers, in order: `batch`, and the number of its answers,
    `answers`."""
    return store.select(
        f"SELECT batch, count(*) AS answers FROM answers WHERE last_seq > {seq} GROUP BY batch ORDER BY batch"
    )


def answers_of_batches(store: TableStore, first: int, last: int) -> pa.Table:
    """Returns the answers of some batches, in the order of their outputs."""
    return store.select(f"SELECT * FROM answers WHERE batch >= {first} AND batch <= {last} ORDER BY first_seq, place")


def answers_by_time(store: TableStore, first: int, last: int) -> pa.Table:
    """Returns the answers of some batches, in the order of t1."""
    return store.select(
        f"SELECT * FROM answers WHERE batch >= {first} AND batch <= {last} ORDER BY t1, first_seq, place"
    )


def members_of_batches(store: TableStore, first: int, last: int) -> pa.Table:
    """Returns the members of the forms that have answers in some batches, in the order of form, name, qid."""
    return store.select(
        f"""SELECT m.* FROM members m WHERE m.begun <= {last} AND m.ended >= {first} AND m.form IN
(SELECT a.form FROM answers a WHERE a.batch >= {first} AND a.batch <= {last}) ORDER BY m.form, m.name, m.qid, m.begun"""
    )


def withheld_of_batches(store: TableStore, first: int, last: int) -> pa.Table:
    """Returns the rows of `withheld` about answers of some batches."""
    return store.select(
        f"""SELECT w.answer, w.qid FROM withheld w JOIN answers a ON a.answer = w.answer
WHERE a.batch >= {first} AND a.batch <= {last}"""
    )


def earlier_outputs_between(store: TableStore, low: int, high: int) -> pa.Table:
    """Returns the outputs of earlier formats with `low` <= seq < `high`, in the order of seq."""
    return store.select(f"SELECT * FROM earlier_outputs WHERE seq >= {low} AND seq < {high} ORDER BY seq")


def earlier_outputs_by_time(store: TableStore, after: int) -> pa.Table:
    """Returns the outputs of earlier formats with seq > `after`, in the order of t1, query, documents."""
    return store.select(f"SELECT * FROM earlier_outputs WHERE seq > {after} ORDER BY t1, query, documents")


def matches_behind(store: TableStore, outputs: pa.Table) -> pa.Table:
    """Returns the matches that may be behind some outputs, which are given by `seq`, `documents` and `nodes`.

    For each there is the `seq` of the output, the `form` of its query, null in earlier formats, and the documents
    `docid1` and `docid2`.
    """
    first, last = min(outputs["seq"].to_pylist(), default=0), max(outputs["seq"].to_pylist(), default=-1)
    return store.select(
        f"""SELECT o.seq, a.form, m.match, m.docid1, m.docid2 FROM asked o
JOIN answers a ON a.documents = o.documents AND a.nodes = o.nodes AND a.first_seq <= o.seq AND a.last_seq >= o.seq
JOIN answer_matches l ON l.answer = a.answer JOIN match_rows m ON m.match = l.match
WHERE a.first_seq <= {last} AND a.last_seq >= {first}
UNION ALL SELECT o.seq, NULL, m.match, m.docid1, m.docid2 FROM asked o
JOIN earlier_output_matches l ON l.seq = o.seq JOIN match_rows m ON m.match = l.match ORDER BY seq, match""",
        {"asked": outputs},
    )


def lowest(store: TableStore, table: str, column: str) -> int | None:
    """Returns the lowest number in a column of one of these tables, or None if the table is empty."""
    (least,) = store.select(f"SELECT min({column}) AS least FROM {table}")["least"].to_pylist()
    return None if least is None else int(least)
