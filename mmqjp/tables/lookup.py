"""Looks up single outputs with what is behind them, queries and documents, by SELECTs that run in any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from common.batches import in_batches

Select = Callable[[str], pa.Table]
"""Returns the answer to a question over the tables of a store: that of `mmqjp.session.Session.question`, or of another
process."""

Row = dict[str, Any]

AT_ONCE, CHARACTERS_AT_ONCE = 1_000, 50_000
"""So many documents, and ids of so many characters, are asked for at once."""

# Who gets which answer. The condition that follows keeps the windows of the view `recipients` from being computed over
# all answers.
_RECIPIENTS = """FROM answers a JOIN members m ON a.form = m.form AND a.width <= m.widest AND m.since < a.appeared
AND a.first_qid <= m.qid AND m.begun <= a.batch
AND (a.batch < m.ended OR (a.batch = m.ended AND a.arrival < m.ended_at))
LEFT JOIN withheld w ON w.answer = a.answer AND w.qid = m.qid WHERE w.qid IS NULL"""

_ID = "substr(sha2(m.identity || a.choice, 256), 1, 32)"

_OUTPUT = f"""SELECT a.answer, m.qid, m.name AS query, a.form, a.t0, a.t1, a.documents, a.streams, a.nodes,
CASE WHEN a.head = '' THEN a.tail ELSE a.head || m.name || a.tail END AS xml, {_ID} AS id,
a.first_seq + row_number() OVER (PARTITION BY a.first_seq ORDER BY m.name, a.place, m.qid) - 1 AS seq {_RECIPIENTS}"""

_EARLIER = """SELECT NULL AS answer, NULL AS qid, query, NULL AS form, t0, t1, documents, streams, nodes, xml, id, seq
FROM earlier_outputs"""


def output_by_seq(select: Select, seq: int) -> Row | None:
    """Returns the output with a number: the columns of `outputs`, and its `answer`, `qid` and `form`, which are None in
    stores of earlier formats."""
    return _first(
        select(f"""SELECT * FROM ({_OUTPUT} AND a.first_seq <= {seq} AND a.last_seq >= {seq}) AS o WHERE seq = {seq}
UNION ALL {_EARLIER} WHERE seq = {seq}""")
    )


def outputs_by_id(select: Select, prefix: str, most: int) -> list[tuple[str, int, str]]:
    """Returns outputs whose ids begin so, as (id, seq, query), but at most so many. `prefix` is of letters and digits.

    The seq of those that share it with others is that of the first of these."""
    found = select(f"""SELECT {_ID} AS id, a.first_seq AS seq, m.name AS query {_RECIPIENTS} AND {_ID} LIKE '{prefix}%'
UNION ALL SELECT id, seq, query FROM earlier_outputs WHERE id LIKE '{prefix}%' LIMIT {most}""").to_pylist()
    return [(row["id"], row["seq"], row["query"]) for row in found]


def output_by_id(select: Select, id: str, first_seq: int) -> Row | None:
    """Returns the output with an id, among those whose numbers begin at `first_seq`, as `output_by_seq` does."""
    return _first(
        select(f"""SELECT * FROM ({_OUTPUT} AND a.first_seq = {first_seq}) AS o WHERE id = '{id}'
UNION ALL {_EARLIER} WHERE seq = {first_seq} AND id = '{id}'""")
    )


def matches_of(select: Select, output: Row) -> list[tuple[int, ...]]:
    """Returns the docids of the documents of each match behind an output, in the query's order."""
    numbers = f"answer_matches l WHERE l.answer = {output['answer']}"
    if output["answer"] is None:
        numbers = f"earlier_output_matches l WHERE l.seq = {output['seq']}"
    rows = select(f"""SELECT m.docid1, m.docid2 FROM match_rows m
WHERE m.match IN (SELECT l.match FROM {numbers}) ORDER BY m.match""").to_pylist()
    return [(row["docid1"],) if row["docid2"] is None else (row["docid1"], row["docid2"]) for row in rows]


def texts_of(select: Select, name: str, form: str | None, most: int) -> list[str]:
    """Returns the texts of the queries that were ever registered under a name, of a form if it is not None."""
    condition = "" if form is None else f" AND form = '{form}'"
    found = select(
        f"SELECT DISTINCT text FROM added_queries WHERE name = {quoted(name)}{condition} ORDER BY text LIMIT {most}"
    )
    texts: list[str] = found["text"].to_pylist()
    return texts


def documents_by_docid(select: Select, docids: Iterable[int]) -> list[Row]:
    """Returns the rows of some documents."""
    return _among(select, "docid", [str(docid) for docid in sorted(set(docids))])


def documents_by_id(select: Select, ids: Iterable[str]) -> list[Row]:
    """Returns the rows of the documents that have some ids, on whatever stream, without tuples of hidden streams."""
    return [row for row in _among(select, "id", [quoted(id) for id in sorted(set(ids))]) if row["kind"] != "hidden"]


def _among(select: Select, column: str, literals: Sequence[str]) -> list[Row]:
    found: list[Row] = []
    for some in in_batches(literals, AT_ONCE, CHARACTERS_AT_ONCE, len):
        found += select(f"SELECT * FROM documents WHERE {column} IN ({', '.join(some)})").to_pylist()
    return found


def quoted(text: str) -> str:
    """Returns a text as SQL writes it. Spark reads backslashes as escapes, so a text with one is put together."""
    parts = ["'" + part.replace("'", "''") + "'" for part in text.split("\\")]
    return parts[0] if len(parts) == 1 else "(" + " || chr(92) || ".join(parts) + ")"


def _first(found: pa.Table) -> Row | None:
    rows = found.slice(0, 1).to_pylist()
    return rows[0] if rows else None
