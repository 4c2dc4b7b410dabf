"""Looks up single outputs with what is behind them, queries and documents, by SELECTs that run in any thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pyarrow as pa

from common.batches import in_batches

Select = Callable[[str], pa.Table]
"""Returns the answer to a question over the tables of a store: that of `mmqjp.session.Session.question`, or of another
process."""

Row = dict[str, Any]

LARGE = 1 << 20
"""A document with more characters is only found by its id."""

AT_ONCE, CHARACTERS_AT_ONCE = 1_000, 50_000
"""So many documents, and ids of so many characters, are asked for at once."""

# Who gets which answer. The condition that follows keeps the windows of the view `recipients` from being computed over
# all answers.
RECIPIENTS = """FROM answers a JOIN members m ON a.form = m.form AND a.width <= m.widest AND m.since < a.appeared
AND a.first_qid <= m.qid AND m.begun <= a.batch
AND (a.batch < m.ended OR (a.batch = m.ended AND a.arrival < m.ended_at))
LEFT JOIN withheld w ON w.answer = a.answer AND w.qid = m.qid WHERE w.qid IS NULL"""

ID = "substr(sha2(m.identity || a.choice, 256), 1, 32)"
"""The id of an output, there."""

_OUTPUT = f"""SELECT a.answer, m.qid, m.name AS query, a.form, a.t0, a.t1, a.documents, a.streams, a.nodes,
CASE WHEN a.head = '' THEN a.tail ELSE a.head || m.name || a.tail END AS xml, {ID} AS id,
a.first_seq + row_number() OVER (PARTITION BY a.first_seq ORDER BY m.name, a.place, m.qid) - 1 AS seq {RECIPIENTS}"""

_EARLIER = """SELECT NULL AS answer, NULL AS qid, query, NULL AS form, t0, t1, documents, streams, nodes, xml, id, seq
FROM earlier_outputs"""


def output_by_seq(select: Select, seq: int) -> Row | None:
    """Returns the output with a number: the columns of `outputs`, and its `answer`, `qid` and `form`, which are None in
    stores of earlier formats."""
    return first_row(
        select(f"""SELECT * FROM ({_OUTPUT} AND a.first_seq <= {seq} AND a.last_seq >= {seq}) AS o WHERE seq = {seq}
UNION ALL {_EARLIER} WHERE seq = {seq}""")
    )


def outputs_by_id(select: Select, prefix: str, most: int, after: int = -1) -> list[tuple[str, int, str]]:
    """Returns outputs whose ids begin so, as (id, seq, query), but at most so many. `prefix` is of letters and digits.
    Those up to number `after` may be left out: ids are made for all that are looked through.

    The seq of those that share it with others is that of the first of these."""
    found = select(f"""SELECT {ID} AS id, a.first_seq AS seq, m.name AS query {RECIPIENTS}
AND a.last_seq > {after} AND {ID} LIKE '{prefix}%'
UNION ALL SELECT id, seq, query FROM earlier_outputs WHERE id LIKE '{prefix}%' LIMIT {most}""").to_pylist()
    return [(row["id"], row["seq"], row["query"]) for row in found]


def output_by_id(select: Select, id: str, first_seq: int) -> Row | None:
    """Returns the output with an id, among those whose numbers begin at `first_seq`, as `output_by_seq` does."""
    return first_row(
        select(f"""SELECT * FROM ({_OUTPUT} AND a.first_seq = {first_seq}) AS o WHERE id = '{id}'
UNION ALL {_EARLIER} WHERE seq = {first_seq} AND id = '{id}'""")
    )


def outputs_between(select: Select, after: int, until: int) -> list[Row]:
    """Returns the outputs with greater numbers than `after`, up to `until`, as `output_by_seq` does, in their order."""
    within = f"seq > {after} AND seq <= {until}"
    found: list[Row] = select(f"""SELECT * FROM (
SELECT * FROM ({_OUTPUT} AND a.last_seq > {after} AND a.first_seq <= {until}) AS o WHERE {within}
UNION ALL {_EARLIER} WHERE {within}) AS found ORDER BY seq""").to_pylist()
    return found


def span_of_outputs(select: Select) -> tuple[int, int]:
    """Returns the numbers of the oldest output that is kept and of the newest one; (0, -1) if there is none."""
    (row,) = select("""SELECT min(oldest) AS oldest, max(newest) AS newest FROM (
SELECT min(first_seq) AS oldest, max(last_seq) AS newest FROM answers
UNION ALL SELECT min(seq), max(seq) FROM earlier_outputs) AS spans""").to_pylist()
    return (0, -1) if row["oldest"] is None else (row["oldest"], row["newest"])


def matches_of_all(select: Select, outputs: Sequence[Row]) -> dict[int, list[tuple[int, ...]]]:
    """Returns what `matches_of` does, of each of some outputs by its number."""
    numbers: dict[int, list[tuple[int, ...]]] = {row["answer"]: [] for row in outputs if row["answer"] is not None}
    found: dict[int, list[tuple[int, ...]]] = {row["seq"]: numbers.get(row["answer"], []) for row in outputs}
    sources = (
        ("answer", "answer_matches", numbers),
        ("seq", "earlier_output_matches", {row["seq"]: found[row["seq"]] for row in outputs if row["answer"] is None}),
    )
    for column, table, into in sources:
        if not into:
            continue
        rows = select(f"""SELECT l.{column} AS key, m.docid1, m.docid2 FROM {table} l
JOIN match_rows m ON m.match = l.match WHERE l.{column} IN ({", ".join(map(str, sorted(into)))})
ORDER BY m.match""").to_pylist()
        for row in rows:
            into[row["key"]].append((row["docid1"],) if row["docid2"] is None else (row["docid1"], row["docid2"]))
    return found


def texts_by_qid(select: Select, qids: Iterable[int]) -> dict[int, str]:
    """Returns the texts of some queries, by their numbers."""
    listed = ", ".join(map(str, sorted(set(qids)))) or "NULL"
    rows = select(f"SELECT qid, text FROM added_queries WHERE qid IN ({listed})").to_pylist()
    return {row["qid"]: row["text"] for row in rows}


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
    # A list of many numbers has DuckDB read all columns of all rows. It joins with a few rows by what they are between.
    among = "docid IN (SELECT v.docid FROM (VALUES {}) AS v(docid))"
    return _documents(select, among, [f"({docid})" for docid in sorted(set(docids))])


def documents_by_id(select: Select, ids: Iterable[str]) -> list[Row]:
    """Returns the rows of the documents that have some ids, on whatever stream, without tuples of hidden streams."""
    among = (
        "docid IN (SELECT docid FROM documents WHERE kind <> 'hidden' AND id IN ({}))"  # only these columns are read
    )
    return _documents(select, among, [quoted(id) for id in sorted(set(ids))])


def _documents(select: Select, among: str, literals: Sequence[str]) -> list[Row]:
    found: list[Row] = []
    for some in in_batches(literals, AT_ONCE, CHARACTERS_AT_ONCE, len):
        found += select(f"SELECT * FROM documents WHERE {among.format(', '.join(some))}").to_pylist()
    return found


def quoted(text: str) -> str:
    """Returns a text as SQL writes it. Spark reads backslashes as escapes, so a text with one is put together."""
    parts = ["'" + part.replace("'", "''") + "'" for part in text.split("\\")]
    return parts[0] if len(parts) == 1 else "(" + " || chr(92) || ".join(parts) + ")"


def first_row(found: pa.Table) -> Row | None:
    """Returns the first row of an answer, or None."""
    rows = found.slice(0, 1).to_pylist()
    return rows[0] if rows else None


# ------------------------------------------------------------ why there is no output


def queries_named(select: Select, name: str, most: int) -> list[Row]:
    """Returns the queries that were ever registered under a name, the registered ones first: `qid`, `text`,
    `occurrence`, `since`, `window_us`, `form`, `removed_at`."""
    found: list[Row] = select(
        f"""SELECT a.qid, a.text, a.occurrence, a.since, a.window_us, a.form, r.removed_at
FROM added_queries a LEFT JOIN removed_queries r ON r.qid = a.qid WHERE a.name = {quoted(name)}
ORDER BY r.removed_at NULLS FIRST, a.qid LIMIT {most}"""
    ).to_pylist()
    return found


def names_of_queries(select: Select, most: int) -> list[str]:
    """Returns the names of registered queries."""
    names: list[str] = select(
        f"""SELECT DISTINCT name FROM added_queries
WHERE qid NOT IN (SELECT qid FROM removed_queries) ORDER BY name LIMIT {most}"""
    )["name"].to_pylist()
    return names


def pauses_of(select: Select, qids: Sequence[int]) -> list[Row]:
    """Returns the pauses and resumptions of some queries, in order: `qid`, `docid`, `reason`, None for a resumption."""
    if not qids:
        return []
    found: list[Row] = select(
        f"SELECT qid, docid, reason FROM pauses WHERE qid IN ({', '.join(map(str, qids))}) ORDER BY batch"
    ).to_pylist()
    return found


def documents_with(select: Select, text: str, most: int) -> list[Row]:
    """Returns external documents in whose XML a text stands, the newest first, but at most so many. Larger ones than
    LARGE are left out."""
    found: list[Row] = select(
        f"""SELECT * FROM documents WHERE kind = 'external' AND length(xml) <= {LARGE} AND contains(xml, {quoted(text)})
ORDER BY docid DESC LIMIT {most}"""
    ).to_pylist()
    return found


def dead_letter_of(select: Select, id: str) -> Row | None:
    """Returns the last dead letter with an id: `stream` and `reason`."""
    return first_row(
        select(f"SELECT stream, reason FROM dead_letters WHERE id = {quoted(id)} ORDER BY noted_at DESC LIMIT 1")
    )


def is_dropped(select: Select, id: str) -> bool:
    """Returns whether a document with an id was dropped, and its id was kept."""
    return bool(len(select(f"SELECT id FROM dropped_ids WHERE id = {quoted(id)} LIMIT 1")))


def joinable(select: Select, docids: Sequence[int]) -> set[int]:
    """Returns those documents among some that others may still be joined with."""
    return set(select(f"SELECT docid FROM r_docts WHERE docid IN ({', '.join(map(str, docids))})")["docid"].to_pylist())


def newest_documents(select: Select, streams: Collection[str], most: int) -> list[tuple[int, int]]:
    """Returns the newest documents of some streams, as their docids and sizes in characters, the newest first."""
    listed = ", ".join(quoted(stream) for stream in sorted(streams))
    rows = select(
        f"""SELECT docid, length(xml) AS size FROM documents WHERE stream IN ({listed}) ORDER BY docid DESC
LIMIT {most}"""
    ).to_pylist()
    return [(row["docid"], row["size"]) for row in rows]


def ids_among(select: Select, name: str, t0: int, t1: int, ids: Collection[str]) -> dict[str, int]:
    """Returns the numbers of the outputs of a query with these times that have one of some ids, by their ids. The
    number is that of the first output with these times."""
    found = select(
        f"""SELECT {ID} AS id, a.first_seq AS seq {RECIPIENTS} AND a.t0 = {t0} AND a.t1 = {t1}
AND m.name = {quoted(name)} UNION ALL SELECT id, seq FROM earlier_outputs
WHERE t0 = {t0} AND t1 = {t1} AND query = {quoted(name)}"""
    ).to_pylist()
    return {row["id"]: row["seq"] for row in found if row["id"] in ids}


def outputs_at(select: Select, name: str, t1: int, most: int) -> list[Row]:
    """Returns outputs of a query that end at a time, with their `id` and `answer`."""
    found: list[Row] = select(
        f"""SELECT {ID} AS id, a.answer {RECIPIENTS} AND a.t1 = {t1} AND m.name = {quoted(name)}
ORDER BY id LIMIT {most}"""
    ).to_pylist()
    return found


def ids_with(select: Select, name: str, documents: Collection[str], most: int) -> list[str]:
    """Returns the ids of outputs of a query that are made of all of some external documents, given by their ids."""
    made = " AND ".join(f"array_contains({{}}.documents, {quoted(id)})" for id in sorted(set(documents)))
    found: list[str] = select(
        f"""SELECT {ID} AS id {RECIPIENTS} AND m.name = {quoted(name)} AND {made.replace("{}", "a")}
UNION ALL SELECT e.id FROM earlier_outputs e WHERE e.query = {quoted(name)} AND {made.replace("{}", "e")}
ORDER BY id LIMIT {most}"""
    )["id"].to_pylist()
    return found


def times_told(select: Select, qid: int, key: tuple[int, int]) -> list[int]:
    """Returns when the outputs ended in which a query told a key, of which the halves of the digest are given."""
    high, low = key
    found: list[int] = select(f"SELECT t1 FROM told WHERE qid = {qid} AND high = {high} AND low = {low} ORDER BY t1")[
        "t1"
    ].to_pylist()
    return found


def count_outputs(select: Select, name: str) -> int:
    """Returns how many outputs the queries of a name have."""
    (row,) = select(
        f"""SELECT count(*) AS n FROM (SELECT r.answer FROM recipients r WHERE r.query = {quoted(name)}
UNION ALL SELECT seq AS answer FROM earlier_outputs WHERE query = {quoted(name)}) AS o"""
    ).to_pylist()
    return int(row["n"])
