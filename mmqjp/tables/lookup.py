"""Read-only SQL over outputs, queries, documents and event definitions, answered in any thread. Functions that take
`select` run their queries; the others return SQL text, for pages and feeds in DuckDB's dialect. Unlike the view
`outputs`, they read the answers of one form, of some batches or groups, and long columns for some rows only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from common.dates import DAY, HOUR
from common.tools import in_batches
from join_stage.store.protocol import QuestionRefused
from mmqjp.tables.schema import ITEM_VERSIONS, MEMBERS_WHERE, RECIPIENTS, SEQ

SelectFn = Callable[[str], pa.Table]
"""Runs a query over a store's tables, as `mmqjp.engine.Session.question` does, or another process."""

Row = dict[str, Any]

LARGE = 1 << 20  # longer documents, in characters, are found by id only

AT_ONCE, CHARACTERS_AT_ONCE = 1_000, 50_000  # maximum number of documents, and of characters of ids, per query

ID = "substr(sha2(m.identity || a.choice, 256), 1, 32)"  # SQL expression for an output's id

_OUTPUT = f"""SELECT a.answer, m.qid, m.name AS query, a.form, a.t0, a.t1, a.documents, a.streams, a.nodes,
CASE WHEN a.head = '' THEN a.tail ELSE a.head || m.name || a.tail END AS xml, {ID} AS id,
{SEQ} {RECIPIENTS}"""

_EARLIER = """SELECT NULL AS answer, NULL AS qid, query, NULL AS form, t0, t1, documents, streams, nodes, xml, id, seq
FROM earlier_outputs"""


def output_by_seq(select: SelectFn, seq: int) -> Row | None:
    """Returns the numbered output: the columns of `outputs`, with `answer`, `qid` and `form`, None in old ones."""
    sql = f"""SELECT * FROM ({_OUTPUT} AND a.first_seq <= {seq} AND a.last_seq >= {seq}) AS o WHERE seq = {seq}
UNION ALL {_EARLIER} WHERE seq = {seq}"""
    return first_row(select, sql)


def outputs_by_id(select: SelectFn, prefix: str, most: int, after: int = -1) -> list[tuple[str, int, str]]:
    """Returns at most `most` outputs with an id prefix (letters and digits), as (id, seq, query). May omit those up to
    `after`: ids are computed for all that are scanned. Outputs that share a seq get that of the first."""
    sql = f"""SELECT {ID} AS id, a.first_seq AS seq, m.name AS query {RECIPIENTS}
AND a.last_seq > {after} AND {ID} LIKE '{prefix}%'
UNION ALL SELECT id, seq, query FROM earlier_outputs WHERE id LIKE '{prefix}%' LIMIT {most}"""
    return [(row["id"], row["seq"], row["query"]) for row in all_rows(select, sql)]


def output_by_id(select: SelectFn, id: str, first_seq: int) -> Row | None:
    """Returns the output with an id whose group begins at `first_seq`, as `output_by_seq` does."""
    sql = f"""SELECT * FROM ({_OUTPUT} AND a.first_seq = {first_seq}) AS o WHERE id = '{id}'
UNION ALL {_EARLIER} WHERE seq = {first_seq} AND id = '{id}'"""
    return first_row(select, sql)


def span_of_outputs(select: SelectFn) -> tuple[int, int]:
    """Returns the first and last stored output numbers; (0, -1) if there is none."""
    sql = """SELECT coalesce(min(oldest), 0) AS oldest, coalesce(max(newest), -1) AS newest FROM (
SELECT min(first_seq) AS oldest, max(last_seq) AS newest FROM answers
UNION ALL SELECT min(seq), max(seq) FROM earlier_outputs) AS spans"""
    (row,) = all_rows(select, sql)
    return row["oldest"], row["newest"]


class BelatedDocuments(NamedTuple):
    """Numbers of belated documents by stream, and, largest first, by query of those too late for its outputs."""

    by_stream: dict[str, int]
    by_query: dict[str, int]


def belated_documents(select: SelectFn, name: str | None = None) -> BelatedDocuments:
    """Returns the counts of all streams and queries, or of the queries with a name."""
    condition = "" if name is None else f" WHERE query = {quote_literal(name)}"
    rows = all_rows(select, f"SELECT * FROM belated{condition} ORDER BY documents DESC, query, stream")
    streams = {row["stream"]: row["documents"] for row in rows if row["query"] is None}
    return BelatedDocuments(streams, {row["query"]: row["documents"] for row in rows if row["query"] is not None})


def texts_by_form(select: SelectFn, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Returns the text of a query ever registered under each name, by form ("" in earlier formats)."""
    sql = f"""SELECT name, coalesce(form, '') AS form, min(text) AS text FROM added_queries
WHERE name IN ({literal_list(names)}) GROUP BY name, coalesce(form, '') ORDER BY text"""
    found: dict[str, dict[str, str]] = {}
    for row in all_rows(select, sql):
        found.setdefault(row["name"], {})[row["form"]] = row["text"]
    return found


def matches_of(select: SelectFn, output: Row) -> list[tuple[int, ...]]:
    """Returns the docids of each match behind an output, in the query's order."""
    numbers = f"answer_matches l WHERE l.answer = {output['answer']}"
    if output["answer"] is None:
        numbers = f"earlier_output_matches l WHERE l.seq = {output['seq']}"
    sql = f"""SELECT m.docid1, m.docid2 FROM match_rows m
WHERE m.match IN (SELECT l.match FROM {numbers}) ORDER BY m.match"""
    return [docids_of(row) for row in all_rows(select, sql)]


def query_texts(select: SelectFn, name: str, form: str | None, most: int, qid: int | None = None) -> list[str]:
    """Returns the texts of queries ever registered under a name, of a form unless None; of one query if its `qid` is
    known."""
    condition = "" if form is None else f" AND form = '{form}'"
    condition = condition if qid is None else f" AND qid = {qid}"
    sql = f"""SELECT DISTINCT text FROM added_queries WHERE name = {quote_literal(name)}{condition}
ORDER BY text LIMIT {most}"""
    return [row["text"] for row in all_rows(select, sql)]


def documents_by_docid(select: SelectFn, docids: Iterable[int]) -> list[Row]:
    among = "docid IN (SELECT v.docid FROM (VALUES {}) AS v(docid))"  # as in `value_rows`
    return _documents(select, among, [f"({docid})" for docid in sorted(set(docids))])


def document_rows_by_id(select: SelectFn, ids: Iterable[str]) -> list[Row]:
    """Returns the documents with some ids on any stream, without hidden tuples."""
    # Only these columns are read.
    among = "docid IN (SELECT docid FROM documents WHERE kind <> 'hidden' AND id IN ({}))"
    return _documents(select, among, [quote_literal(id) for id in sorted(set(ids))])


def external_docids(select: SelectFn, ids: Iterable[str]) -> dict[tuple[str, str], int]:
    """Returns the docids of kept documents from outside with some ids, by id and stream."""
    found: dict[tuple[str, str], int] = {}
    for some in in_batches(sorted(map(quote_literal, set(ids))), AT_ONCE, CHARACTERS_AT_ONCE, len):
        sql = f"SELECT docid, id, stream FROM documents WHERE kind = 'external' AND id IN ({', '.join(some)})"
        found |= {(row["id"], row["stream"]): row["docid"] for row in select(sql).to_pylist()}
    return found


def _documents(select: SelectFn, among: str, literals: Sequence[str]) -> list[Row]:
    found: list[Row] = []
    for some in in_batches(literals, AT_ONCE, CHARACTERS_AT_ONCE, len):
        try:
            found += all_rows(select, f"SELECT * FROM documents WHERE {among.format(', '.join(some))}")
        except QuestionRefused:
            if len(some) == 1:
                raise
            for half in (some[: len(some) // 2], some[len(some) // 2 :]):  # together they may be too large
                found += _documents(select, among, half)
    return found


def quote_literal(text: str) -> str:
    """Quotes a text for SQL, without NUL. Spark treats backslashes as escapes, so they are concatenated.

    >>> quote_literal("it's")
    "'it''s'"
    """
    parts = ["'" + part.replace("'", "''") + "'" for part in text.replace("\0", "").split("\\")]
    return parts[0] if len(parts) == 1 else "(" + " || chr(92) || ".join(parts) + ")"


def literal_list(texts: Iterable[str]) -> str:
    return ", ".join(map(quote_literal, sorted(set(texts)))) or "NULL"


def number_list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(numbers)))) or "NULL"


def all_rows(select: SelectFn, sql: str) -> list[Row]:
    found: list[Row] = select(sql).to_pylist()
    return found


def first_row(select: SelectFn, sql: str) -> Row | None:
    return next(iter(all_rows(select, sql)), None)


def docids_of(match: Row) -> tuple[int, ...]:
    """Returns the docids of a row of `match_rows`, in the query's order."""
    return (match["docid1"],) if match["docid2"] is None else (match["docid1"], match["docid2"])


def queries_named(select: SelectFn, name: str, most: int) -> list[Row]:
    """Returns queries ever registered under a name, current ones first."""
    sql = f"""SELECT a.qid, a.text, a.occurrence, a.since, a.window_us, a.form, r.removed_at
FROM added_queries a LEFT JOIN removed_queries r ON r.qid = a.qid WHERE a.name = {quote_literal(name)}
ORDER BY r.removed_at NULLS FIRST, a.qid LIMIT {most}"""
    return all_rows(select, sql)


def texts_of_name(select: SelectFn, name: str, most: int) -> list[Row]:
    """Returns a name's queries, registered ones first, then by latest removal: `qid`, `text`, `added_at`,
    `removed_at`."""
    sql = f"""SELECT a.qid, a.text, a.added_at, r.removed_at FROM added_queries a
LEFT JOIN removed_queries r ON r.qid = a.qid WHERE a.name = {quote_literal(name)}
ORDER BY r.removed_at DESC NULLS FIRST, a.qid DESC LIMIT {most}"""
    return all_rows(select, sql)


def texts_of_all(select: SelectFn, most: int) -> list[Row]:
    """Returns registered queries in order of registration: `qid`, `name`, `text`."""
    sql = f"""SELECT qid, name, text FROM added_queries
WHERE qid NOT IN (SELECT qid FROM removed_queries) ORDER BY qid LIMIT {most}"""
    return all_rows(select, sql)


def names_of_queries(select: SelectFn, most: int) -> list[str]:
    sql = f"""SELECT DISTINCT name FROM added_queries
WHERE qid NOT IN (SELECT qid FROM removed_queries) ORDER BY name LIMIT {most}"""
    return [row["name"] for row in all_rows(select, sql)]


def pauses_of(select: SelectFn, qids: Sequence[int]) -> list[Row]:
    """Returns pauses and resumptions in order: `qid`, `docid`, `reason` (None: resumption)."""
    return all_rows(select, f"SELECT qid, docid, reason FROM pauses WHERE qid IN ({number_list(qids)}) ORDER BY batch")


def documents_with(select: SelectFn, text: str, most: int) -> list[Row]:
    """Returns at most `most` external documents whose XML contains a text, newest first. Omits those above LARGE."""
    sql = f"""SELECT * FROM documents
WHERE kind = 'external' AND length(xml) <= {LARGE} AND contains(xml, {quote_literal(text)})
ORDER BY docid DESC LIMIT {most}"""
    return all_rows(select, sql)


def dead_letter_of(select: SelectFn, id: str) -> Row | None:
    """Returns the last dead letter of an id: `stream` and `reason`."""
    sql = f"SELECT stream, reason FROM dead_letters WHERE id = {quote_literal(id)} ORDER BY noted_at DESC LIMIT 1"
    return first_row(select, sql)


def is_dropped(select: SelectFn, id: str) -> bool:
    return first_row(select, f"SELECT id FROM dropped_ids WHERE id = {quote_literal(id)} LIMIT 1") is not None


def joinable(select: SelectFn, docids: Sequence[int]) -> set[int]:
    return set(select(f"SELECT docid FROM r_docts WHERE docid IN ({number_list(docids)})")["docid"].to_pylist())


def newest_documents(select: SelectFn, streams: Collection[str], most: int) -> list[tuple[int, int]]:
    """Returns the newest documents as (docid, characters), newest first."""
    sql = f"""SELECT docid, length(xml) AS size FROM documents WHERE stream IN ({literal_list(streams)})
ORDER BY docid DESC LIMIT {most}"""
    return [(row["docid"], row["size"]) for row in all_rows(select, sql)]


def ids_among(select: SelectFn, name: str, t0: int, t1: int, ids: Collection[str]) -> dict[str, int]:
    """Returns the number of the first output with these times, by id, for a query's outputs with some ids."""
    sql = f"""SELECT {ID} AS id, a.first_seq AS seq {RECIPIENTS} AND a.t0 = {t0} AND a.t1 = {t1}
AND m.name = {quote_literal(name)} UNION ALL SELECT id, seq FROM earlier_outputs
WHERE t0 = {t0} AND t1 = {t1} AND query = {quote_literal(name)}"""
    return {row["id"]: row["seq"] for row in all_rows(select, sql) if row["id"] in ids}


def outputs_at(select: SelectFn, name: str, t1: int, most: int) -> list[Row]:
    """Returns a query's outputs that end at a time, with `id` and `answer`."""
    sql = f"""SELECT {ID} AS id, a.answer {RECIPIENTS} AND a.t1 = {t1} AND m.name = {quote_literal(name)}
ORDER BY id LIMIT {most}"""
    return all_rows(select, sql)


def ids_with(select: SelectFn, name: str, documents: Collection[str], most: int) -> list[str]:
    """Returns the ids of a query's outputs derived from all of some external documents."""
    made = " AND ".join(f"array_contains({{}}.documents, {quote_literal(id)})" for id in sorted(set(documents)))
    sql = f"""SELECT {ID} AS id {RECIPIENTS} AND m.name = {quote_literal(name)} AND {made.replace("{}", "a")}
UNION ALL SELECT e.id FROM earlier_outputs e WHERE e.query = {quote_literal(name)} AND {made.replace("{}", "e")}
ORDER BY id LIMIT {most}"""
    return [row["id"] for row in all_rows(select, sql)]


def times_told(select: SelectFn, qid: int, key: tuple[int, int]) -> list[int]:
    """Returns the ends of a query's outputs with a ONCE PER key, given as digest halves."""
    sql = f"SELECT t1 FROM told WHERE qid = {qid} AND high = {key[0]} AND low = {key[1]} ORDER BY t1"
    return [row["t1"] for row in all_rows(select, sql)]


_STORIES = "FROM answers WHERE head = '<story query=\"' AND form = "
_OF_STORY = """regexp_extract(tail, ' id="([0-9a-f]+)"', 1)"""
_MEMBERS = """CAST(regexp_extract(tail, ' members="([0-9]+)"', 1) AS BIGINT)"""
_LISTED = """regexp_extract(tail, '((<merged [^<]*>|<member [^<]*>)*)</story>$', 1)"""


def story_lists(select: SelectFn, form: str, stories: Collection[str]) -> list[Row]:
    """Returns a form's outputs about some stories, in order: `answer`, `story`, `t1`, the number of `members`, and as
    `listed` the end of the document: merged stories, and members that no earlier output lists."""
    which = f"{quote_literal(form)} AND {_OF_STORY} IN ({literal_list(stories)}) ORDER BY t1, members, answer"
    columns = f"answer, {_OF_STORY} AS story, t1, {_MEMBERS} AS members, {_LISTED} AS listed"
    return all_rows(select, f"SELECT {columns} {_STORIES}{which}")


def story_mergers(select: SelectFn, form: str, after: int) -> list[str]:
    """Returns `listed`, as above, for answers after a number whose stories merged others."""
    which = f"{quote_literal(form)} AND answer > {after} AND tail LIKE '%<merged id=%'"
    return [row["listed"] for row in all_rows(select, f"SELECT {_LISTED} AS listed {_STORIES}{which}")]


def count_outputs(select: SelectFn, name: str) -> int:
    sql = f"""SELECT count(*) AS n FROM (SELECT r.answer FROM recipients r WHERE r.query = {quote_literal(name)}
UNION ALL SELECT seq AS answer FROM earlier_outputs WHERE query = {quote_literal(name)}) AS o"""
    (row,) = all_rows(select, sql)
    return int(row["n"])


def find_nearest_documents(
    select: SelectFn, streams: Collection[str], t0: int, t1: int, near: int, most: int, refused: str
) -> list[tuple[int, int]]:
    """Returns (docid, characters) of documents that end in an interval, nearest to `near` first. `refused` begins the
    reasons of dead letters whose documents are omitted."""
    sql = f"""SELECT d.docid, length(d.xml) AS size FROM documents d
WHERE d.stream IN ({literal_list(streams)}) AND d.t1 >= {t0} AND d.t1 <= {t1} AND d.kind <> 'hidden' AND NOT EXISTS (
SELECT 1 FROM dead_letters l WHERE l.stream = d.stream AND l.id = d.id AND l.reason LIKE '{refused}%')
ORDER BY abs(d.t1 - {near}), d.docid LIMIT {most}"""
    return [(row["docid"], row["size"]) for row in all_rows(select, sql)]


def reason_refused(select: SelectFn, stream: str, id: str, like: str) -> str | None:
    """Returns the reason of a document's dead letter that is LIKE a pattern, or None."""
    sql = f"""SELECT reason FROM dead_letters
WHERE stream = {quote_literal(stream)} AND id = {quote_literal(id)} AND reason LIKE '{like}'
ORDER BY noted_at LIMIT 1"""
    return (first_row(select, sql) or {}).get("reason")


def outputs_between_times(select: SelectFn, name: str, t0: int, t1: int, near: int, most: int) -> list[Row]:
    """Returns at most `most` outputs of a query that end in an interval, nearest to `near` first."""
    sql = f"""SELECT {ID} AS id, m.qid, a.first_qid, a.t0, a.t1, a.documents, a.streams, a.nodes,
CASE WHEN a.head = '' THEN a.tail ELSE a.head || m.name || a.tail END AS xml {RECIPIENTS}
AND m.name = {quote_literal(name)} AND a.t1 >= {t0} AND a.t1 <= {t1}
ORDER BY abs(a.t1 - {near}), a.answer, m.qid LIMIT {most}"""
    return all_rows(select, sql)


def span_of_outputs_with(select: SelectFn, name: str, documents: Collection[str]) -> tuple[int, int] | None:
    """Returns the first start and last end of a query's outputs derived from any of some documents, or None."""
    made = " OR ".join(f"array_contains(a.documents, {quote_literal(id)})" for id in sorted(set(documents)))
    sql = f"SELECT min(a.t0) AS t0, max(a.t1) AS t1 {RECIPIENTS} AND m.name = {quote_literal(name)} AND ({made})"
    (row,) = all_rows(select, sql)
    return None if row["t0"] is None else (row["t0"], row["t1"])


def definitions_named(select: SelectFn, names: Collection[str]) -> list[Row]:
    """Returns all event definitions of some names, oldest first: `id`, `name`, `text`, `added_at`, `removed_at`."""
    sql = f"""SELECT d.id, d.name, d.text, d.added_at, r.removed_at FROM definitions d
LEFT JOIN removed_definitions r ON r.id = d.id WHERE d.name IN ({literal_list(names)}) ORDER BY d.id"""
    return all_rows(select, sql)


def typed_texts_of(select: SelectFn, owner: str, numbers: Collection[int]) -> list[Row]:
    """Returns original texts, oldest first: the number of the `owner` (`qid` or `definition`), `source`, `noted_at`."""
    if not numbers:
        return []
    sql = f"""SELECT {owner}, source, noted_at FROM query_sources
WHERE {owner} IN ({number_list(numbers)}) ORDER BY batch"""
    return all_rows(select, sql)


def event_queries_named(select: SelectFn, names: Collection[str]) -> list[Row]:
    """Returns one event query per name, preferably a registered one: `name` and `text`."""
    sql = f"""SELECT name, min(text) AS text, removed FROM (
SELECT a.name, a.text, r.qid IS NOT NULL AS removed FROM added_queries a LEFT JOIN removed_queries r ON r.qid = a.qid
WHERE a.form LIKE 'events-%' AND a.name IN ({literal_list(names)})
) AS q GROUP BY name, removed ORDER BY name, removed DESC"""
    return list({row["name"]: row for row in all_rows(select, sql)}.values())  # the last is registered


def latest_setting(select: SelectFn, key: str) -> str | None:
    sql = f"SELECT value FROM settings WHERE key = {quote_literal(key)} ORDER BY batch DESC LIMIT 1"
    return (first_row(select, sql) or {}).get("value")


LONGEST_XML = 100_000  # longer outputs and documents, in characters, are read only on demand
LONGEST_OUTPUT_XML = 200_000  # longer outputs, in characters, are skipped


def settings_sql(prefix: str) -> str:
    """SQL for the current settings with a prefix: `key`, `value`."""
    return f"""SELECT key, arg_max(value, batch) AS value FROM settings
WHERE starts_with(key, {quote_literal(prefix)}) GROUP BY key"""


def outputs_between(after: int, until: int, name: str | None = None) -> str:
    """SQL for outputs with `after` < `seq` <= `until`, in order: `answer` and `qid` (-1 in earlier formats), `seq`."""
    seqs, named = f"seq > {after} AND seq <= {until}", "" if name is None else f" AND name = {quote_literal(name)}"
    return f"""SELECT answer, qid, seq FROM (
  SELECT a.answer, m.qid, m.name, {SEQ} {RECIPIENTS} AND a.last_seq > {after} AND a.first_seq <= {until}
  UNION ALL SELECT -1, -1, query, seq FROM earlier_outputs WHERE {seqs}
) AS numbered WHERE {seqs}{named} ORDER BY seq"""


def numbers_in_group(name: str, first_seq: int) -> str:
    """SQL for a name's outputs in the group that begins at `first_seq`, in order: `answer`, `qid`, `seq`."""
    return f"""SELECT answer, qid, seq FROM (
  SELECT a.answer, m.qid, m.name, {SEQ} {RECIPIENTS} AND a.first_seq = {first_seq}
) AS numbered WHERE name = {quote_literal(name)} ORDER BY seq"""


def kept(low: int, high: int) -> str:
    """SQL for the number of stored outputs of all queries with `low` <= seq < `high`."""
    return f"""SELECT (
  SELECT coalesce(sum(least(last_seq, {high - 1}) - greatest(first_seq, {low}) + 1), 0) FROM (
    SELECT DISTINCT first_seq, last_seq FROM answers WHERE last_seq >= {low} AND first_seq < {high}
  ) AS groups
) + (SELECT count(*) FROM earlier_outputs WHERE seq >= {low} AND seq < {high}) AS kept"""


class QuerySeen(NamedTuple):
    """Cursor in the changes of queries: the last qid, the time of the last removal, and the batch of the last pause."""

    qid: int = -1
    removed_at: int = -1
    paused_in: int = -1


def query_changes(seen: QuerySeen) -> str:
    """SQL for changes of queries since a cursor, possibly repeating its last ones. `what` is "added" (with the `name`),
    "removed" or "paused" (`name` is the reason; null: resumed), of the query `qid`. A row "seen" has the number of
    removed queries as `qid`, the time of the last removal, and the batch of the last pause."""
    nothing = "CAST(NULL AS BIGINT) AS last_removed, CAST(NULL AS BIGINT) AS last_paused"
    return f"""SELECT 'added' AS what, qid, name, {nothing} FROM added_queries WHERE qid > {seen.qid}
UNION ALL SELECT 'removed', qid, NULL, NULL, NULL FROM removed_queries WHERE removed_at >= {seen.removed_at}
UNION ALL SELECT 'paused', qid, reason, NULL, NULL FROM (
  SELECT qid, reason, row_number() OVER (PARTITION BY qid ORDER BY batch DESC) AS newest FROM pauses
  WHERE batch >= {seen.paused_in}
) AS p WHERE newest = 1
UNION ALL SELECT 'seen', (SELECT count(*) FROM removed_queries), NULL,
coalesce((SELECT max(removed_at) FROM removed_queries), -1), coalesce((SELECT max(batch) FROM pauses), -1)"""


_NUMBERS = """numbers AS (
  SELECT batch, first_seq AS seq FROM answers UNION ALL SELECT batch, seq FROM earlier_outputs
)"""


def next_batches(after: int, most: int) -> str:
    """SQL for `until`, the last of the batches after one that together have about `most` outputs, and for the `newest`
    batch; null if none."""
    return f"""WITH {_NUMBERS}, new AS (SELECT batch, seq FROM numbers WHERE batch > {after})
SELECT max(batch) FILTER (WHERE seq < (SELECT min(seq) FROM new) + {most}) AS until, max(batch) AS newest FROM new"""


def forms_of_answers(after: int, until: int) -> str:
    return f"SELECT DISTINCT form FROM answers WHERE batch > {after} AND batch <= {until}"


def queries_of_forms(known: Iterable[str], after: int, others: Iterable[str]) -> str:
    """SQL for `qid` and `form` of the queries, ever registered, of `known` forms after a qid and of all of other forms;
    and a row without form, with the greatest qid."""
    return f"""SELECT qid, form FROM added_queries WHERE qid > {after} AND form IN ({literal_list(known)})
UNION ALL SELECT qid, form FROM added_queries WHERE form IN ({literal_list(others)})
UNION ALL SELECT max(qid), NULL FROM added_queries"""


def tally(after: int, until: int, since_hour: int, qids: Iterable[int] | None = None) -> str:
    """SQL that counts outputs of the batches after one up to another: by `qid` (earlier formats: `name`) and `hour` of
    t1 (-1: before `since_hour`), with the latest t1 as `last`.

    Three extra rows have neither. Hours -2 and -3: the number of answers and earlier outputs up to `after` and up to
    `until`, as `outputs`. Hour -4: a number that changes when queries are registered, retyped or paused.

    `qids` are the queries of the forms of these answers, if known: to find them among very many takes most of the time.
    """
    hour = f"CASE WHEN t1 < {since_hour * HOUR} THEN -1 ELSE t1 // {HOUR} END"
    # Only of forms with new answers: window functions over many members would dominate the cost.
    of_forms = f"SELECT qid FROM added_queries WHERE form IN ({forms_of_answers(after, until)})"
    members = MEMBERS_WHERE.format(condition=f"qid IN ({of_forms if qids is None else number_list(qids)})")
    return f"""WITH {_NUMBERS}, members AS ({members})
SELECT m.qid, NULL AS name, {hour} AS hour, count(*) AS outputs, max(t1) AS last
{RECIPIENTS} AND a.batch > {after} AND a.batch <= {until} GROUP BY m.qid, hour
UNION ALL SELECT NULL, query, {hour} AS hour, count(*), max(t1) FROM earlier_outputs
WHERE batch > {after} AND batch <= {until} GROUP BY query, hour
UNION ALL SELECT NULL, NULL, -2, count(*), NULL FROM numbers WHERE batch <= {after}
UNION ALL SELECT NULL, NULL, -3, count(*), NULL FROM numbers WHERE batch <= {until}
UNION ALL SELECT NULL, NULL, -4, (SELECT count(*) FROM memberships) + (SELECT count(*) FROM removed_queries)
+ (SELECT count(*) FROM pauses) + (SELECT count(*) FROM query_sources), (SELECT max(qid) FROM added_queries)"""


def items_by_feed(since_day: int) -> str:
    """SQL that counts items by `feed` and `day` of t1 (-1: before `since_day`), both taken from the oldest stored
    version: `items`, and as `last` the latest arrival, or its t1 if unknown."""
    return f"""SELECT feed, CASE WHEN t1 < {since_day * DAY} THEN -1 ELSE t1 // {DAY} END AS day,
count(*) AS items, max(coalesce(taken_at, t1)) AS last FROM (
  SELECT split_part(min(id), ' ', 1) AS feed, arg_min(t1, docid) AS t1, min(taken_at) AS taken_at
  FROM {ITEM_VERSIONS} AS v WHERE item <> id GROUP BY stream, item
) AS firsts GROUP BY 1, 2"""


def registered_queries_sql(name: str, most: int, *, paused: bool) -> str:
    """SQL for a name's registered queries. The column `paused` has the reason, "" after a resumption, or null; without
    `paused` it is not looked up."""
    reason = "SELECT arg_max(coalesce(p.reason, ''), p.batch) FROM pauses p WHERE p.qid = q.qid" if paused else "NULL"
    return f"""SELECT q.qid, q.form, q.text, q.added_at, ({reason}) AS paused FROM added_queries q
WHERE q.name = {quote_literal(name)} AND q.qid NOT IN (SELECT qid FROM removed_queries)
ORDER BY q.qid LIMIT {most}"""


def event_queries(name: str) -> str:
    return f"""SELECT qid, text FROM added_queries WHERE name = {quote_literal(name)} AND form LIKE 'events-%'
AND qid NOT IN (SELECT qid FROM removed_queries) ORDER BY qid"""


PLACEMENTS = """SELECT p.template, p.variables, q.name, count(DISTINCT p.qid) AS queries
FROM placements p JOIN added_queries q ON q.qid = p.qid
WHERE p.qid NOT IN (SELECT qid FROM removed_queries) GROUP BY p.template, p.variables, q.name
ORDER BY q.name"""
"""Number of queries by template, row and name."""


def newest_outputs(name: str, before: tuple[int, int, int] | None, most: int) -> str:
    """SQL for a name's newest outputs, newest first: `answer` and `qid` (-1 in earlier formats), and `seq`, -1 if it is
    not known. `before` has the `first_seq`, `place` and `qid` of the output that they precede."""
    later = earlier = ""
    if before is not None:
        first, place, qid = before
        later = f"AND a.first_seq <= {first} AND (a.first_seq, a.place, m.qid) < ({first}, {place}, {qid})"
        earlier = f"AND seq < {first}"
    return f"""SELECT answer, qid, seq FROM (SELECT * FROM (
  SELECT a.answer, m.qid, a.first_seq, a.place, CASE WHEN a.first_seq = a.last_seq THEN a.first_seq ELSE -1 END AS seq
  {RECIPIENTS} AND m.name = {quote_literal(name)} {later}
  ORDER BY a.first_seq DESC, a.place DESC, m.qid DESC LIMIT {most}
) AS later UNION ALL SELECT * FROM (
  SELECT -1 AS answer, -1 AS qid, seq AS first_seq, 0 AS place, seq FROM earlier_outputs
  WHERE query = {quote_literal(name)} {earlier} ORDER BY seq DESC LIMIT {most}
) AS earlier) AS found ORDER BY first_seq DESC, place DESC, qid DESC LIMIT {most}"""


def texts_of(answers: Iterable[int], longest: int = LONGEST_OUTPUT_XML) -> str:
    return texts_where(f"answer IN ({value_rows(answers)})", longest)


def texts_where(condition: str, longest: int) -> str:
    """SQL for `head` and `tail` of some answers, unordered, without long ones."""
    return f"SELECT answer, head, tail FROM answers WHERE {condition} AND length(head) + length(tail) <= {longest}"


def value_rows(numbers: Iterable[int]) -> str:
    # For a long list of numbers DuckDB reads all columns of all rows. For a join with few rows it uses their range.
    listed = ", ".join(f"({number})" for number in sorted(set(numbers)))
    return f"SELECT v.number FROM (VALUES {listed}) AS v(number)"


def answer_matches_sql(which: str) -> str:
    """SQL for the matches behind answers, selected by a condition on their number: `answer`, `docid1`, `docid2`."""
    return f"""SELECT l.answer, m.docid1, m.docid2 FROM match_rows m JOIN answer_matches l ON m.match = l.match
WHERE l.answer {which} ORDER BY m.match"""


def earlier_outputs(numbers: Iterable[int]) -> str:
    """SQL for outputs of earlier formats by `seq`, with commit times and the docids of their matches."""
    return f"""SELECT o.*, b.committed_at, (
  SELECT list([m.docid1, m.docid2] ORDER BY m.match) FROM match_rows m
  WHERE m.match IN (SELECT l.match FROM earlier_output_matches l WHERE l.seq = o.seq)
) AS matches FROM earlier_outputs o LEFT JOIN batches b ON b.batch = o.batch WHERE o.seq IN ({number_list(numbers)})"""


ANSWER_COLUMNS = (
    *("answer", "form", "t0", "t1", "documents", "streams", "nodes", "choice", "width", "appeared", "first_qid"),
    *("arrival", "batch", "first_seq", "last_seq", "place", "committed_at"),
)
"""Columns read of answers, with the commit time of their batch."""

_COLUMNS = ", ".join(f"{'b' if name == 'committed_at' else 'a'}.{name}" for name in ANSWER_COLUMNS)

COUNTED = ("answers", "documents", "withheld", "memberships", "removed_queries", "pauses", "query_sources")
"""Tables whose rows `recent_counts_sql` counts."""

_COUNTS = " ".join(f"UNION ALL SELECT '{name}', count(*){', NULL' * 6} FROM {name}" for name in COUNTED)


_CHANGED_MEMBERS = MEMBERS_WHERE.format(condition="qid IN (SELECT qid FROM memberships WHERE batch >= {since})")


def changed_members(since: int) -> str:
    """SQL for all members of the queries that became or ceased to be members in a batch or later."""
    members = _CHANGED_MEMBERS.format(since=since)
    return f"""SELECT m.qid, m.name, m.form, m.identity, m.widest, m.since, m.begun, m.ended, m.ended_at,
q.text, q.added_at FROM ({members}) m JOIN added_queries q ON q.qid = m.qid"""


def first_added(after: int) -> str:
    """SQL for the time at which each name was first added, by queries after a qid."""
    return f"SELECT name, min(added_at) AS added_at FROM added_queries WHERE qid > {after} GROUP BY name"


def recent_counts_sql(batch: int, docid: int) -> str:
    """SQL for rows named `what`. Each of the tables COUNTED has its number of rows, `n`; `added_queries` also the
    greatest `qid`, and `earlier_outputs` the newest `seq`. `new answers` counts those since a batch, with the newest
    `batch`, `answer` and output `seq`; `new documents` those since a docid, with the newest `docid`. `numbers` has the
    ledger's numbers as `text`.

    As a single row, DuckDB would spend more time on planning than on answering.
    """
    return f"""SELECT 'added_queries' AS what, count(*) AS n, max(qid) AS qid,
NULL AS batch, NULL AS answer, NULL AS seq, NULL AS docid, NULL AS text FROM added_queries
UNION ALL SELECT 'new answers', count(*), NULL, max(batch), max(answer), max(last_seq), NULL, NULL FROM answers
WHERE batch > {batch}
UNION ALL SELECT 'new documents', count(*), NULL, NULL, NULL, NULL, max(docid), NULL FROM documents
WHERE docid > {docid}
UNION ALL SELECT 'earlier_outputs', count(*), NULL, NULL, NULL, max(seq), NULL, NULL FROM earlier_outputs
UNION ALL SELECT 'numbers', 0, NULL, NULL, NULL, NULL, NULL, arg_max(value, batch) FROM settings WHERE key = 'numbers'
{_COUNTS}"""


def answers_where(condition: str, order: str = "a.first_seq, a.place") -> str:
    return f"""SELECT {_COLUMNS} FROM answers a LEFT JOIN batches b ON b.batch = a.batch
WHERE {condition} ORDER BY {order}"""
