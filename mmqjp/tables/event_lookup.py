"""Questions about the documents and outputs behind event queries, and about these and their definitions."""

from __future__ import annotations

from collections.abc import Collection

from mmqjp.tables.lookup import ID, RECIPIENTS, Row, Select, first_row, quoted


def documents_between(
    select: Select, streams: Collection[str], t0: int, t1: int, near: int, most: int, refused: str
) -> list[tuple[int, int]]:
    """Returns documents of some streams that end in an interval, as their docids and sizes in characters: those that
    end nearest to a time first, but at most so many. Those are left out of which a dead letter's reason begins with
    `refused`."""
    listed = ", ".join(quoted(stream) for stream in sorted(streams))
    rows = select(
        f"""SELECT d.docid, length(d.xml) AS size FROM documents d
WHERE d.stream IN ({listed}) AND d.t1 >= {t0} AND d.t1 <= {t1} AND d.kind <> 'hidden' AND NOT EXISTS (
SELECT 1 FROM dead_letters l WHERE l.stream = d.stream AND l.id = d.id AND l.reason LIKE '{refused}%')
ORDER BY abs(d.t1 - {near}), d.docid LIMIT {most}"""
    ).to_pylist()
    return [(row["docid"], row["size"]) for row in rows]


def reason_refused(select: Select, stream: str, id: str, like: str) -> str | None:
    """Returns the reason of a dead letter of a document that is LIKE a pattern of SQL, or None."""
    row = first_row(
        select(
            f"""SELECT reason FROM dead_letters
WHERE stream = {quoted(stream)} AND id = {quoted(id)} AND reason LIKE '{like}' ORDER BY noted_at LIMIT 1"""
        )
    )
    return None if row is None else row["reason"]


def outputs_between_times(select: Select, name: str, t0: int, t1: int, near: int, most: int) -> list[Row]:
    """Returns the outputs of a query that end in an interval, those nearest to a time first, but at most so many: `id`,
    `qid`, `first_qid`, `t0`, `t1`, `documents`, `streams`, `nodes` and `xml`."""
    found: list[Row] = select(
        f"""SELECT {ID} AS id, m.qid, a.first_qid, a.t0, a.t1, a.documents, a.streams, a.nodes,
CASE WHEN a.head = '' THEN a.tail ELSE a.head || m.name || a.tail END AS xml {RECIPIENTS}
AND m.name = {quoted(name)} AND a.t1 >= {t0} AND a.t1 <= {t1}
ORDER BY abs(a.t1 - {near}), a.answer, m.qid LIMIT {most}"""
    ).to_pylist()
    return found


def span_of_outputs_with(select: Select, name: str, documents: Collection[str]) -> tuple[int, int] | None:
    """Returns when the first of the outputs of a query begins that are made of one of some external documents, given by
    their ids, and when the last one ends; None if there is none."""
    made = " OR ".join(f"array_contains(a.documents, {quoted(id)})" for id in sorted(set(documents)))
    (row,) = select(
        f"SELECT min(a.t0) AS t0, max(a.t1) AS t1 {RECIPIENTS} AND m.name = {quoted(name)} AND ({made})"
    ).to_pylist()
    return None if row["t0"] is None else (row["t0"], row["t1"])


def definitions_named(select: Select, names: Collection[str]) -> list[Row]:
    """Returns the definitions of events that were ever registered under some names: `id`, `name`, `text`, `added_at`
    and `removed_at`, the oldest first."""
    listed = ", ".join(quoted(name) for name in sorted(names)) or "NULL"
    found: list[Row] = select(
        f"""SELECT d.id, d.name, d.text, d.added_at, r.removed_at FROM definitions d
LEFT JOIN removed_definitions r ON r.id = d.id WHERE d.name IN ({listed}) ORDER BY d.id"""
    ).to_pylist()
    return found


def event_queries_named(select: Select, names: Collection[str]) -> list[Row]:
    """Returns one event query of each of some names, a registered one if there is any: `name` and `text`."""
    listed = ", ".join(quoted(name) for name in sorted(names)) or "NULL"
    found: list[Row] = select(
        f"""SELECT name, min(text) AS text, removed FROM (
SELECT a.name, a.text, r.qid IS NOT NULL AS removed FROM added_queries a LEFT JOIN removed_queries r ON r.qid = a.qid
WHERE a.form LIKE 'events-%' AND a.name IN ({listed})) AS q GROUP BY name, removed ORDER BY name, removed DESC"""
    ).to_pylist()
    return list({row["name"]: row for row in found}.values())  # the last is registered


def latest_setting(select: Select, key: str) -> str | None:
    """Returns the latest value of a setting, or None."""
    row = first_row(select(f"SELECT value FROM settings WHERE key = {quoted(key)} ORDER BY batch DESC LIMIT 1"))
    return None if row is None else row["value"]
