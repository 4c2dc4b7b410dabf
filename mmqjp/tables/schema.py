"""Schema and access functions of a store's tables beside the join state; and the ledger, which numbers documents,
matches and outputs across batches, and stores metadata with each batch. Tables are append-only, each row written by one
batch; for offsets and settings the row of the highest batch is current. Matches are pairs of documents on a row of R_T,
and answers what a form gives for them; both are stored once, and views expand them."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import zip_longest
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from common.arrays import batch_of_rows
from common.bounds import INFINITE, DocId
from common.tools import Remembered, from_json
from feeds.documents import Now, now_us
from feeds.readers import Offset
from join_stage.protocol import Cost
from join_stage.store.protocol import NumberedViews, StoreError, StoreSchema, TableStore, whole_batch

INT, TEXT = pa.int64(), pa.string()
INTS, TEXTS = pa.list_(INT), pa.list_(TEXT)


def schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


FEW_ROWS = 20  # up to this many rows convert to Arrow faster by row than by column


class TableRows:
    def __init__(self, store: TableStore) -> None:
        self._store = store

    def append(self, table: str, rows: Sequence[Sequence[object]]) -> None:
        """Appends rows whose columns follow the table's schema."""
        if rows:
            self._store.append(table, rows_table(rows, self._store.schema.tables[table]))

    def select(self, sql: str) -> Iterator[dict[str, Any]]:
        for chunk in self._store.select(sql).to_batches(max_chunksize=1000):
            yield from chunk.to_pylist()

    def tuples(self, table: str, columns: str, order: str | None = None) -> Iterator[tuple[Any, ...]]:
        """Yields all rows of a table as tuples of some columns, ascending by `order`."""
        rows = self._store.read(table, columns.split())
        if order is not None:
            rows = rows.sort_by([(name, "ascending") for name in order.split()])
        return zip(*(column.to_pylist() for column in rows.columns), strict=True)


def single_number(store: TableStore, sql: str) -> int | None:
    """Returns the only value that a query selects."""
    (value,) = store.select(sql).column(0).to_pylist()
    return None if value is None else int(value)


_struct_of: Remembered[pa.Schema, pa.StructType] = Remembered(lambda schema: pa.struct(list(schema)))


def rows_table(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    if not rows:
        return pa.Table.from_batches([], schema)
    if len(rows) <= FEW_ROWS:
        return pa.Table.from_struct_array(pa.array(list(map(tuple, rows)), _struct_of(schema)))
    return pa.Table.from_batches([batch_of_rows(rows, schema)])


ROW_COUNTS = """SELECT 'documents' AS what, kind, stream, count(*) AS rows, sum(length(xml)) AS bytes, max(t1) AS latest
FROM documents WHERE kind <> 'hidden' GROUP BY kind, stream
UNION ALL SELECT 'outputs', NULL, NULL, coalesce(sum(recipients), 0), NULL, NULL FROM answers
UNION ALL SELECT 'outputs', NULL, NULL, count(*), NULL, NULL FROM earlier_outputs
UNION ALL SELECT 'dead_letters', NULL, NULL, count(*), NULL, NULL FROM dead_letters"""
"""Counts documents per kind and stream, outputs, and dead letters, in one statement: one job on Spark."""


# When a batch was received and committed, how many rows it added, and how far it moved streams (JSON). Batches of
# metadata alone have no row.
BATCHES = schema(batch=INT, taken_at=INT, committed_at=INT, documents=INT, dead_letters=INT, outputs=INT, moved=TEXT)

DEAD_LETTERS = schema(id=TEXT, stream=TEXT, time=INT, reason=TEXT, raw=pa.binary(), noted_at=INT)


# `mark` is the fingerprint of the file, which identifies it after it was renamed.
OFFSETS = schema(source=TEXT, file=TEXT, position=INT, batch=INT, mark=TEXT)


def latest_offsets(rows: pa.Table) -> dict[tuple[str, str], Offset]:
    """Returns the latest of the offsets of each file, by source and file."""
    latest = rows.sort_by("batch").select(["source", "file", "position", "mark"]).to_pylist()
    return {(r["source"], r["file"]): Offset(r["source"], r["file"], r["position"], r["mark"] or "") for r in latest}


SETTING_TABLES = {
    "settings": schema(key=TEXT, value=TEXT, batch=INT),
    # The time of the last complete visit of a feed, and its last state in a batch: complete, awaited or ended.
    "feeds": schema(stream=TEXT, feed=TEXT, visited=INT, earlier=INT, outcome=TEXT, batch=INT),
}

SPARK_VIEWS = {
    "costs": """
SELECT kept.batch, kept.cost.plan, CAST(template AS BIGINT) AS template, measured.seconds, measured.matches
FROM (
  SELECT batch, from_json(value, 'plan STRING, templates MAP<STRING, STRUCT<seconds: DOUBLE, matches: BIGINT>>') AS cost
  FROM settings WHERE key = 'costs') AS kept
LATERAL VIEW explode(kept.cost.templates) AS template, measured"""
}
"""Views that only Spark can run. `costs` has, per closed run, each template's cost in its last matching batch."""


def read_settings(store: TableStore, prefix: str) -> dict[str, str]:
    rows = TableRows(store).tuples("settings", "key value batch", "batch")
    return {key.removeprefix(prefix): value for key, value, _ in rows if key.startswith(prefix)}


QUERY_TABLES = {
    # `form` is the id of the query's form, and `identity` the part of its outputs' ids that they share.
    "added_queries": schema(
        qid=INT, name=TEXT, text=TEXT, occurrence=INT, template=INTS, window_us=INT, added_at=INT, since=INT,
        form=TEXT, identity=TEXT,
    ),
    # A query is a member of its form from a batch on, if `begins` is 1, or, if it is 0, up to an arrival of a batch.
    "memberships": schema(qid=INT, batch=INT, begins=INT, arrival=INT),
    # `place` numbers the conjunctive queries of a query or inner join from 0; `streams` has one stream per side.
    "placements": schema(qid=INT, template=INT, variables=INTS, window_us=INT, place=INT, op=TEXT, streams=TEXTS),
    # The hidden streams behind a query. A stream that several queries share has rows for each of them.
    "inner_placements": schema(
        qid=INT, stream=TEXT, template=INT, variables=INTS, window_us=INT, place=INT, op=TEXT, streams=TEXTS
    ),
    "removed_queries": schema(qid=INT, removed_at=INT),
    # `node` is the last step of the definition, written by `xscl.algebra.joins`. One row per variable has it.
    "variables": schema(var=INT, parent=INT, stream=TEXT, definition=TEXT, node=TEXT),
    # The chains of functions whose numbers are part of node ids in the join state.
    "chains": schema(chain=INT, functions=TEXTS),
    "templates": schema(template=INT, left_nodes=INT, parents=INTS, joins=INTS),
    # The text of a query, or else a definition, as it was typed, if that is not what is registered. The newest counts.
    "query_sources": schema(qid=INT, definition=INT, source=TEXT, noted_at=INT, batch=INT),
    # A query is paused after a document for a reason, or, if the reason is null, resumed after it.
    "pauses": schema(qid=INT, docid=INT, reason=TEXT, noted_at=INT, batch=INT),
}  # fmt: skip


MEMBERS_WHERE = f"""SELECT q.qid, q.name, q.form, q.identity, q.since, coalesce(q.window_us, {INFINITE}) AS widest,
m.begun, coalesce(m.ended, {INFINITE}) AS ended, coalesce(m.ended_at, {INFINITE}) AS ended_at
FROM (
  SELECT qid, begins, batch AS begun, lead(batch) OVER (PARTITION BY qid ORDER BY batch, begins DESC) AS ended,
  lead(arrival) OVER (PARTITION BY qid ORDER BY batch, begins DESC) AS ended_at FROM memberships WHERE {{condition}}
) m JOIN added_queries q ON m.qid = q.qid WHERE m.begins = 1"""
"""SQL for the times at which queries were members of their forms (see `mmqjp.queries.model`), given a `condition`."""

QUERY_VIEWS = {
    "queries": """SELECT a.qid, a.name, a.text, a.template, a.window_us, a.added_at, r.removed_at,
coalesce(s.source, a.text) AS source
FROM added_queries a LEFT JOIN removed_queries r ON r.qid = a.qid LEFT JOIN (
  SELECT qid, max_by(source, batch) AS source FROM query_sources GROUP BY qid
) s ON s.qid = a.qid""",
    "members": MEMBERS_WHERE.format(condition="true"),
}


def _r_t(template: int, parents: list[int | None], first_index: int) -> str:
    """R_T as in the thesis, Table 6.4(a): a row per conjunctive query of each query."""
    variables = ", ".join(f"variables[{first_index + i}] AS var{i + 1}" for i in range(len(parents)))
    return f"""SELECT qid, {variables}, window_us AS wl
FROM placements WHERE template = {template} AND qid NOT IN (SELECT qid FROM removed_queries)"""


MOST_SOURCES = 50  # maximum number of former original texts kept for each name

_KEPT_SOURCES = f"""SELECT {", ".join(f"s.{name}" for name in QUERY_TABLES["query_sources"].names)} FROM (
  SELECT o.*, row_number() OVER (PARTITION BY coalesce(a.name, d.name) ORDER BY o.batch DESC) AS place,
  row_number() OVER (PARTITION BY o.qid, o.definition ORDER BY o.batch DESC) AS newest
  FROM query_sources o LEFT JOIN added_queries a ON a.qid = o.qid LEFT JOIN definitions d ON d.id = o.definition
) s WHERE s.place <= {MOST_SOURCES} OR (s.newest = 1
AND (s.qid IS NULL OR s.qid NOT IN (SELECT qid FROM removed_queries))
AND (s.definition IS NULL OR s.definition NOT IN (SELECT id FROM removed_definitions)))"""


def compact_sources(store: TableStore, compacted: int) -> int:
    """Drops, in a batch, non-current original texts older than the newest MOST_SOURCES of each name. Returns the number
    of rows left; does nothing if that is still `compacted`, the last result, because the search is slow."""
    rows = len(store.read("query_sources", ["batch"]))
    if rows > MOST_SOURCES and rows != compacted and rows > len(kept := store.select(_KEPT_SOURCES)):
        store.drop_before("query_sources", "batch", store.highest("query_sources", "batch") + 1)
        store.append("query_sources", kept)
        return len(kept)
    return rows


R_T = NumberedViews("r_t_", "templates", "template", "parents", _r_t)


def removed_texts(store: TableStore, name: str) -> list[str]:
    sql = """SELECT DISTINCT q.text FROM added_queries q JOIN asked a ON q.name = a.name
JOIN removed_queries r ON q.qid = r.qid ORDER BY q.text"""
    texts: list[str] = store.select(sql, {"asked": pa.table({"name": [name]})})["text"].to_pylist()
    return texts


EVENTS = schema(number=INT, stream=TEXT, docid=INT, nodes=INTS, t0=INT, t1=INT, attributes=TEXTS, batch=INT)
"""Documents' events, with numbers never reused. `nodes` are node ids, root first; numbers in `attributes` are texts."""

SNAPSHOTS = schema(batch=INT, name=TEXT, state=pa.binary())
"""Parts of a snapshot by name, as Arrow streams; the greatest batch counts."""

EVENT_TABLES = {
    "events": EVENTS,
    "pattern_state": SNAPSHOTS,
    "definitions": schema(id=INT, name=TEXT, text=TEXT, added_at=INT),
    "removed_definitions": schema(id=INT, removed_at=INT),
}


# `kind` is external, published or hidden. `parts` and `part_ids` identify the documents behind a chain, and `source_*`
# the external documents behind any document. `bound_*` are the nodes that the children of a tuple stand for. `arrival`
# numbers external documents; other documents have that of the latest one behind them. `appeared` has an entry per part.
# `watermark` is that of the stream when a belated document arrived, and NULL for all others. `taken_at` is when an
# external document arrived. `mmqjp.documents.record.Record` describes them. What is in OWN is NULL for external
# documents: it follows from their docids, ids and streams.
DOCUMENTS = schema(
    docid=INT, id=TEXT, stream=TEXT, t0=INT, t1=INT, xml=TEXT, kind=TEXT, parts=INTS, part_ids=TEXTS, source_ids=TEXTS,
    source_streams=TEXTS, bound_docids=INTS, bound_nodes=INTS, arrival=INT, appeared=INTS, watermark=INT,
    taken_at=INT,
)  # fmt: skip

OWN = ("parts", "part_ids", "source_ids", "source_streams", "bound_docids", "bound_nodes", "appeared")
"""Columns that only derived documents need; earlier external documents have them too."""

# External documents that were dropped.
DROPPED_IDS = schema(id=TEXT, stream=TEXT, t1=INT)

FROM_OUTSIDE = "SELECT id, stream, t0, xml FROM documents WHERE kind = 'external'"

BEFORE_ARRIVALS = 1 << 40
"""Offset that orders documents from stores without arrivals before all others, by docid."""

ARRIVAL = f"coalesce(arrival, docid - {BEFORE_ARRIVALS})"


class HasDocuments(Protocol):
    def find(self, table: str, column: str, numbers: pa.Array, columns: Sequence[str] | None = None) -> pa.Table: ...


def document_sizes(
    store: TableStore,
    streams: Collection[str],
    *,
    starts: range | None = None,
    ends: range | None = None,
    joined: bool = False,
    refused: str = "",
) -> pa.Table:
    """Returns the documents of some streams by docid: `docid`, and `size` in characters.

    `starts` and `ends` restrict to ranges of start and end times; `joined` to the join state; `refused` excludes those
    with a dead letter whose reason begins so.
    """
    spans = [(column, span) for column, span in (("t0", starts), ("t1", ends)) if span is not None]
    conditions = ["true", *(f"d.{column} >= {span.start} AND d.{column} < {span.stop}" for column, span in spans)]
    if refused:
        same = "l.stream = d.stream AND l.id = d.id"
        conditions.append(f"NOT EXISTS (SELECT 1 FROM dead_letters l WHERE {same} AND l.reason LIKE '{refused}%')")
    if joined:
        conditions.append("d.docid IN (SELECT docid FROM r_docts)")
    sql = f"""SELECT d.docid, length(d.xml) AS size FROM documents d JOIN streams s ON d.stream = s.stream
WHERE {" AND ".join(conditions)} ORDER BY d.docid"""
    return store.select(sql, _streams(streams))


def hidden_tuples(store: TableStore, streams: Collection[str]) -> pa.Table:
    """Returns the tuples of hidden streams: `stream`, `parts`, `bound_docids`, `bound_nodes`."""
    sql = """SELECT d.stream, d.parts, d.bound_docids, d.bound_nodes
FROM documents d JOIN streams s ON d.stream = s.stream"""
    return store.select(sql, _streams(streams))


def known_ids(store: TableStore, documents: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns the (stream, id) pairs of stored documents and of dropped ones with retained ids."""
    if not (pairs := list(documents)):
        return set()
    arriving = pa.table({"stream": [s for s, _ in pairs], "id": [i for _, i in pairs]})
    sql = """SELECT d.stream, d.id FROM documents d JOIN arriving a ON d.stream = a.stream AND d.id = a.id
UNION ALL SELECT o.stream, o.id FROM dropped_ids o JOIN arriving a ON o.stream = a.stream AND o.id = a.id"""
    found = store.select(sql, {"arriving": arriving})
    return set(zip(found["stream"].to_pylist(), found["id"].to_pylist(), strict=True))


def ids_between(store: TableStore, low: int, high: int) -> pa.Table:
    """Returns `stream` and `id` of the documents with `low` <= docid < `high`, without hidden tuples."""
    condition = f"docid >= {low} AND docid < {high} AND kind <> 'hidden'"
    return store.select(f"SELECT stream, id FROM documents WHERE {condition}")


def _streams(streams: Collection[str]) -> dict[str, pa.Table]:
    return {"streams": pa.table({"stream": pa.array(sorted(streams), pa.string())})}


ANSWER_TABLES = {
    # The members of `form` get the answer that have a window of at least `width`, see documents before `appeared`, have
    # at least `first_qid`, and are members in `batch` and for `arrival` (see `mmqjp.queries.model`). There are
    # `recipients` of them. In XML a query's name stands between `head` and `tail`, unless `head` is empty; `choice` is
    # the end of what outputs' ids are digests of. Answers of a batch with the same t1 have the same `first_seq` and
    # `last_seq`, the numbers of the first and the last of their outputs, and are in the order of `place`.
    "answers": schema(
        answer=INT, form=TEXT, t0=INT, t1=INT, documents=TEXTS, streams=TEXTS, nodes=TEXT, head=TEXT, tail=TEXT,
        choice=TEXT, width=INT, appeared=INT, first_qid=INT, arrival=INT, batch=INT, first_seq=INT,
        last_seq=INT, place=INT, recipients=INT,
    ),
    # Members that do not get an answer: they were paused when one of its documents came, or reported it before.
    "withheld": schema(answer=INT, qid=INT),
    # Matches whose outputs a query had reported before, so that these have no numbers (ONCE PER).
    "untold": schema(match=INT, qid=INT),
    "match_rows": schema(match=INT, template=INT, docid1=INT, docid2=INT, t0=INT, t1=INT, bindings=INTS),
    # The matches behind an answer: one for each row of R_T that gave it.
    "answer_matches": schema(answer=INT, match=INT),
    # Up to format 5 there was a row for each output; up to format 4 `id` was formed differently.
    "earlier_outputs": schema(
        query=TEXT, t0=INT, t1=INT, documents=TEXTS, streams=TEXTS, nodes=TEXT, xml=TEXT, batch=INT, seq=INT, id=TEXT
    ),
    "earlier_match_queries": schema(match=INT, query=TEXT, qid=INT),
    "earlier_output_matches": schema(seq=INT, match=INT),
}  # fmt: skip

FORMER_NAMES = {f"earlier_{name}": name for name in ("outputs", "match_queries", "output_matches")}

RECEIVES = """a.form = m.form AND a.width <= m.widest AND m.since < a.appeared
AND a.first_qid <= m.qid AND m.begun <= a.batch
AND (a.batch < m.ended OR (a.batch = m.ended AND a.arrival < m.ended_at))"""
"""SQL condition for member `m` to get answer `a`, apart from `withheld`."""

RECIPIENTS = f"""FROM answers a JOIN members m ON {RECEIVES}
LEFT JOIN withheld w ON w.answer = a.answer AND w.qid = m.qid WHERE w.qid IS NULL"""
"""SQL for who gets which answer. With a condition after it, `recipients` need not compute windows over all answers."""

SEQ = "a.first_seq + row_number() OVER (PARTITION BY a.first_seq ORDER BY m.name, a.place, m.qid) - 1 AS seq"
"""The number of an output, if whole groups are selected."""

ANSWER_VIEWS = {
    # The recipients of each answer, and the numbers of their outputs.
    "recipients": f"SELECT a.answer, m.qid, m.name AS query, m.identity, {SEQ} {RECIPIENTS}",
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


IN_HIDDEN_FORM = "(form LIKE 'hidden-%' OR form LIKE 'events-hidden-%')"
HIDDEN_SEQS = f"SELECT r.seq FROM recipients r JOIN answers a ON a.answer = r.answer WHERE {IN_HIDDEN_FORM}"
"""SQL for whether queries or answers are of hidden queries, and for the numbers of such outputs."""


def batches_after(store: TableStore, seq: int) -> pa.Table:
    """Returns the batches with outputs numbered above `seq`, in order: `batch`, and its number of `answers`."""
    answers = f"answers WHERE last_seq > {seq}"
    return store.select(f"SELECT batch, count(*) AS answers FROM {answers} GROUP BY batch ORDER BY batch")


def rows_of_batches(store: TableStore, first: int, last: int, *, by_time: bool) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Returns the answers of batches; the members of their forms by form, name, qid; and who is withheld."""
    among = f"a.batch >= {first} AND a.batch <= {last}"
    return (
        store.select(f"SELECT * FROM answers a WHERE {among} ORDER BY {'t1, ' if by_time else ''}first_seq, place"),
        store.select(f"""SELECT m.* FROM members m WHERE m.begun <= {last} AND m.ended >= {first} AND m.form IN
(SELECT a.form FROM answers a WHERE {among}) ORDER BY m.form, m.name, m.qid, m.begun"""),
        store.select(f"SELECT w.answer, w.qid FROM withheld w JOIN answers a ON a.answer = w.answer WHERE {among}"),
    )


def registered_before(store: TableStore, queries: pa.Table, qid: int) -> pa.Table:
    """Returns those of `queries` (`qid`, `identity`) whose identity queries before `qid` have had: `qid`."""
    sql = f"SELECT DISTINCT a.qid FROM asked a JOIN added_queries q ON q.identity = a.identity WHERE q.qid < {qid}"
    return store.select(sql, {"asked": queries})


def output_before(store: TableStore, outputs: pa.Table) -> pa.Table:
    """Returns `place` and `qid` of those `outputs` (also `identity`, `choice`) whose ids are stored."""
    sql = f"""SELECT DISTINCT o.place, o.qid FROM asked o JOIN answers a ON a.choice = o.choice
JOIN members m ON m.identity = o.identity AND {RECEIVES}
LEFT JOIN withheld w ON w.answer = a.answer AND w.qid = m.qid WHERE w.qid IS NULL"""
    return store.select(sql, {"asked": outputs})


def find_output_matches(store: TableStore, outputs: pa.Table) -> pa.Table:
    """Returns candidate matches behind `outputs` (`seq`, `documents`, `nodes`); `form` is null in earlier formats."""
    first, last = min(outputs["seq"].to_pylist(), default=0), max(outputs["seq"].to_pylist(), default=-1)
    sql = f"""SELECT o.seq, a.form, m.match, m.docid1, m.docid2 FROM asked o
JOIN answers a ON a.documents = o.documents AND a.nodes = o.nodes AND a.first_seq <= o.seq AND a.last_seq >= o.seq
JOIN answer_matches l ON l.answer = a.answer JOIN match_rows m ON m.match = l.match
WHERE a.first_seq <= {last} AND a.last_seq >= {first}
UNION ALL SELECT o.seq, NULL, m.match, m.docid1, m.docid2 FROM asked o
JOIN earlier_output_matches l ON l.seq = o.seq JOIN match_rows m ON m.match = l.match ORDER BY seq, match"""
    return store.select(sql, {"asked": outputs})


def lowest(store: TableStore, table: str, column: str, default: int) -> int:
    least = single_number(store, f"SELECT min({column}) AS least FROM {table}")
    return default if least is None else least


DELIVERY_TABLES = {
    # The `count` outputs between the numbers `first` and `last` that a sink missed because its backlog was limited.
    "gaps": schema(sink=TEXT, first=INT, last=INT, count=INT, reason=TEXT, noted_at=INT),
    # The receiver of a sink refused an output `tries` times.
    "undelivered": schema(sink=TEXT, seq=INT, id=TEXT, tries=INT, reason=TEXT, noted_at=INT),
}

MOST_APART = 200  # number of rows at which gaps are merged


@dataclass(frozen=True, slots=True)
class GapRow:
    sink: str
    first: int
    last: int
    count: int
    reason: str
    noted_at: int


@dataclass(frozen=True, slots=True)
class UndeliveredRow:
    sink: str
    seq: int
    id: str
    tries: int
    reason: str
    noted_at: int


class Owed(NamedTuple):
    """Outputs owed to sinks: their least `t0`, and the first commit time."""

    t0: int
    committed_at: int


def save_deliveries(store: TableStore, gaps: Sequence[GapRow], undelivered: Sequence[UndeliveredRow]) -> None:
    TableRows(store).append("gaps", [astuple(row) for row in gaps])
    TableRows(store).append("undelivered", [astuple(row) for row in undelivered])


def join_gaps(store: TableStore) -> None:
    """Merges consecutive gaps, in a batch, if there are many rows. The result has the time of its last part."""
    rows = [GapRow(*row) for row in TableRows(store).tuples("gaps", " ".join(DELIVERY_TABLES["gaps"].names))]
    if len(rows) < MOST_APART:
        return
    joined: list[GapRow] = []
    for row in sorted(rows, key=lambda row: (row.sink, row.noted_at, row.first)):
        before = joined[-1] if joined else None
        if before is not None and (before.sink, before.reason, before.last + 1) == (row.sink, row.reason, row.first):
            joined[-1] = replace(row, first=before.first, count=before.count + row.count)
        else:
            joined.append(row)
    if len(joined) < len(rows):
        store.drop_before("gaps", "noted_at", max(row.noted_at for row in rows) + 1)
        save_deliveries(store, joined, ())


# A query reported a key in an output that ended at `t1`. `high` and `low` are the halves of the key's digest. Outputs
# with the key are suppressed up to `until`; null means forever.
TOLD = schema(qid=INT, high=INT, low=INT, t1=INT, until=INT)

ToldRow = tuple[int, int, int, int, int | None]


def told_among(store: TableStore, asked: Sequence[tuple[int, int, int, int, int]]) -> pa.Table:
    """Returns reported outputs for distinct keys, given as query, digest halves, and the relevant range of `t1`."""
    keys = rows_table(asked, schema(qid=INT, high=INT, low=INT, earliest=INT, latest=INT))
    sql = "SELECT qid, high, low, t1 FROM told JOIN asked USING (qid, high, low) WHERE t1 BETWEEN earliest AND latest"
    return store.select(sql, {"asked": keys})


def drop_told_by_removed(store: TableStore) -> None:
    """Drops the keys of removed queries, whose qids are never reused."""
    qids = pc.unique(store.read("removed_queries", ["qid"])["qid"])
    if len(qids) and len(store.find("told", "qid", qids)):
        rows = store.read("told", TOLD.names)
        store.drop_before("told", "qid", pc.max(rows["qid"]).as_py() + 1)
        store.append("told", rows.filter(pc.invert(pc.is_in(rows["qid"], qids))))


# Usage by the members of a form, a query, or a group of readers of a hidden stream up to an arrival. `owner` is the id
# of a form, the qid of a query, or the key of a group. A form's usage counts for members with a window of at least
# `width` that see documents after `since`, have at least `first_qid`, and began in the batch `begun` or before. A
# query's own usage is added to that.
SPENT = schema(
    owner=TEXT, arrival=INT, outputs=INT, work=INT, batch=INT, width=INT, since=INT, first_qid=INT, begun=INT
)

UsageKey = tuple[str, int, int, int, int]  # owner, width, since, first_qid, begun

NO_FORM = (-1, -1, -1, 0)
"""Key without owner for anything but a form; a query's last number is the batch in which it began."""


def spent(store: TableStore) -> Iterator[tuple[UsageKey, int, int, int]]:
    """Yields all rows as (key, arrival, outputs, work), unordered."""
    columns = "owner width since first_qid begun arrival outputs work"
    for owner, *key, arrival, outputs, work in TableRows(store).tuples("spent", columns):
        yield (owner, *(NO_FORM if key[0] is None else key)), arrival, outputs, work  # null in earlier formats


def save_spent(store: TableStore, rows: Sequence[tuple[UsageKey, int, int, int]], batch: int) -> None:
    spent_rows = [(owner, arrival, outputs, work, batch, *key) for (owner, *key), arrival, outputs, work in rows]
    TableRows(store).append("spent", spent_rows)


# The number of documents in a batch that came too late to change outputs. `owner` is a form or a hidden stream; the
# counts apply to its queries with at least `first_qid` that see documents after a mark up to `since`. With a `qid` they
# apply to that query alone, mostly as a deduction. Without `since`, `owner` is a stream, and the count is of its
# belated documents.
BELATED = schema(owner=TEXT, since=INT, first_qid=INT, qid=INT, documents=INT, batch=INT)

BelatedKey = tuple[str, int | None, int, int | None]
"""The columns of BELATED that rows of a batch differ in."""

_OWNERS = "(SELECT qid, form AS owner FROM added_queries UNION SELECT qid, stream FROM inner_placements)"

_BELATED_VIEW = f"""SELECT m.name AS query, NULL AS stream, CAST(sum(c.documents) AS BIGINT) AS documents
FROM belated_counts c JOIN {_OWNERS} o ON o.owner = c.owner
JOIN members m ON m.qid = o.qid AND m.since <= c.since AND c.first_qid <= m.qid AND coalesce(c.qid, m.qid) = m.qid
AND m.begun <= c.batch AND c.batch <= m.ended
WHERE m.qid NOT IN (SELECT qid FROM removed_queries) GROUP BY m.name HAVING sum(c.documents) > 0
UNION ALL SELECT NULL, owner, CAST(sum(documents) AS BIGINT) FROM belated_counts WHERE since IS NULL GROUP BY owner"""


def save_belated(store: TableStore, counts: Mapping[BelatedKey, int], batch: int) -> None:
    TableRows(store).append("belated_counts", [(*key, count, batch) for key, count in counts.items()])


def compact_belated(store: TableStore) -> None:
    """Compacts, in a batch, if there are many rows: sums the counts of batches between which no query began or ended,
    and drops those of removed queries."""
    rows = sorted(TableRows(store).tuples("belated_counts", " ".join(BELATED.names)), key=itemgetter(-1))
    if len(rows) < MOST_APART:
        return
    spans: list[list[int]] = [[], []]  # the batches in which queries ended, and began
    for batch, begins in TableRows(store).tuples("memberships", "batch begins", "batch"):
        spans[begins].append(batch)
    removed = "SELECT qid FROM removed_queries"
    live = store.select(f"SELECT DISTINCT o.owner FROM {_OWNERS} o WHERE o.qid NOT IN ({removed})")
    owners = set(live["owner"].to_pylist())
    sums, latest = Counter[tuple[object, ...]](), dict[tuple[object, ...], int]()
    for owner, since, first_qid, qid, count, batch in rows:
        if since is None or owner in owners:
            span = bisect_left(spans[0], batch), bisect_right(spans[1], batch)
            key = owner, since, first_qid, qid, *(span if since is not None else ())
            sums[key] += count
            latest[key] = batch
    store.drop_before("belated_counts", "batch", rows[-1][-1] + 1)
    TableRows(store).append("belated_counts", [(*key[:4], count, latest[key]) for key, count in sums.items()])


VERSION_DIGITS = 12  # length of the hash of a version at the end of an item's id, which a blank precedes

_ITEM = f"""CASE WHEN regexp_extract(id, '^[^ ]+ .+ [0-9a-f]{{{VERSION_DIGITS}}}$', 0) = '' THEN id
ELSE substr(id, 1, length(id) - {VERSION_DIGITS + 1}) END"""

ITEM_VERSIONS = f"(SELECT docid, id, stream, t1, taken_at, {_ITEM} AS item FROM documents WHERE kind = 'external')"
"""SQL for all documents from outside with the id of their `item`: the document id without the version."""

_HEAD = "split_part(d.xml, '<content>', 1)"  # without the content, which is the last field, and long

_IS_ITEM = f"""d.kind = 'external' AND d.xml LIKE '<item>%'
AND regexp_extract(substr({_HEAD}, 7), '<[^/<>](?:[^<>]*[^/<>])?>[^<]*<[^/]', 0) = ''"""
"""SQL for whether a document is an item (docs/items.md): inside it, no start tag is followed by another one. Regular
expressions read its fields exactly, because only tags are stored with < and >; DuckDB has no XPath. A table of the
fields would add cost to each document, and would lack those of older stores."""


def _unescaped(text: str) -> str:
    for escape, character in (("&lt;", "'<'"), ("&gt;", "'>'"), ("&#13;", "chr(13)"), ("&amp;", "'&'")):
        text = f"replace({text}, '{escape}', {character})"
    return text


def _texts_of(field: str) -> str:
    return f"{_HEAD}, '<{field}(?: [^<>]*)?>([^<]*[^< \n\t][^<]*)</{field}>', 1"


def _field(field: str) -> str:
    text = _unescaped(f"regexp_extract({_texts_of(field)})")
    return f"nullif(trim({text}), '')"


def _fields(field: str, separator: str) -> str:
    return _unescaped(f"concat_ws({separator}, regexp_extract_all({_texts_of(field)}))")


def _time_field(field: str) -> str:
    written = f"regexp_extract({_HEAD}, '<{field}>([0-9-]+T[0-9:.]+Z)</{field}>', 1)"
    return f"unix_micros(try_cast(nullif({written}, '') AS TIMESTAMP))"


_BETWEEN = "chr(1)"  # a character that XML cannot hold

_ITEM_COLUMNS = f"""{_field("feed_url")} AS feed, {_field("feed_title")} AS feed_title, {_field("title")} AS title,
{_field("item_url")} AS url, nullif({_fields("author", "', '")}, '') AS author, {_field("lang")} AS lang,
{_time_field("timestamp")} AS published, {_time_field("updated")} AS updated,
CASE WHEN {_HEAD} LIKE '%<category>%' THEN split({_fields("category", _BETWEEN)}, {_BETWEEN}) END AS categories"""

ITEM_VIEWS = {
    # The newest stored version of each item.
    "items": f"""SELECT d.id, {_ITEM_COLUMNS}, d.t0, n.first_seen, n.versions, d.stream, n.item, d.docid
FROM documents d JOIN (
  SELECT max(docid) AS docid, item, count(*) AS versions,
  CASE WHEN count(taken_at) = count(*) THEN min(taken_at) END AS first_seen
  FROM {ITEM_VERSIONS} AS v GROUP BY stream, item
) n ON n.docid = d.docid WHERE {_IS_ITEM}""",
    "versions": f"""SELECT d.id, {_ITEM_COLUMNS}, d.t0, d.taken_at AS first_seen, n.version, d.stream, n.item, d.docid
FROM documents d JOIN (
  SELECT docid, item, row_number() OVER (PARTITION BY stream, item ORDER BY docid) AS version
  FROM {ITEM_VERSIONS} AS v
) n ON n.docid = d.docid WHERE {_IS_ITEM}""",
}


TABLES = {
    "documents": DOCUMENTS,
    "dropped_ids": DROPPED_IDS,
    "dead_letters": DEAD_LETTERS,
    **ANSWER_TABLES,
    "batches": BATCHES,
    **QUERY_TABLES,
    **SETTING_TABLES,
    "offsets": OFFSETS,
    "spent": SPENT,
    "belated_counts": BELATED,
    "commands": schema(id=TEXT, answer=TEXT, noted_at=INT, batch=INT),
    "told": TOLD,
    **DELIVERY_TABLES,
    **EVENT_TABLES,
}

_DOCUMENTED = (
    *("documents", "queries", "matches", "outputs", "output_matches", "dead_letters", "belated", "events", "batches"),
    *("items", "versions", "gaps", "undelivered", "r_bin", "r_doc", "r_docts"),
)

_VIEWS = QUERY_VIEWS | ANSWER_VIEWS | {"belated": _BELATED_VIEW} | ITEM_VIEWS

SCHEMA = StoreSchema(TABLES, _VIEWS, R_T, documented=_DOCUMENTED, former_names=FORMER_NAMES)

TIMES = frozenset(("t0", "t1", "time", "timestamp", "published", "updated", "first_seen")) | frozenset(
    ("added_at", "removed_at", "noted_at", "taken_at", "committed_at")
)
"""Columns of tables and views that hold times, in microseconds."""


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """Committed with a batch: source offsets, settings by key, answers by command id, and undelivered outputs."""

    offsets: Sequence[Offset] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    gaps: Sequence[GapRow] = ()
    undelivered: Sequence[UndeliveredRow] = ()


NO_METADATA = CommitMetadata()

MetadataOf = Callable[[Sequence[str | None]], CommitMetadata]
"""Returns a batch's metadata, given the fate of each item: None if admitted, DUPLICATE if already stored, else the
reason why it is a dead letter."""

DUPLICATE = ""


SCHEMA_VERSION = 14
"""The format of a store.

Format 2 added pauses of queries and offsets of sources; 3 placements of queries; 4 numbered chains of functions, and
arrivals; 5 numbers and ids of outputs; 6 answers in place of outputs, and forms; 7 the keys of ONCE PER; 8 undelivered
outputs; 9 events; 10 see `mmqjp.state.engine_choice`; 11 belated documents and visits; 12 progress with each batch; 13
the texts of queries as they were typed, and the arrival times of documents; 14 the journal of small batches on DuckDB,
which earlier versions would pass over. A change of normal forms or templates needs
a new format.
"""

BATCH_TABLES = (
    "batches", "answers", "earlier_outputs", "memberships", "settings", "offsets", "pauses", "commands", "events",
    "pattern_state", "query_sources",
)  # fmt: skip
"""Tables whose column `batch` is the number of the batch that wrote the row."""

NEXT_IDS = "numbers"  # setting with the next numbers, since the rows with the highest may be dropped

COSTS = "costs"

NextIds = tuple[int, int, int, int, int]  # next docid, arrival, match, output and answer


class Ledger:
    """Reads and writes numbers and metadata, in batches of the caller unless noted. `batch` is the running one."""

    def __init__(self, store: TableStore, now: Now = now_us) -> None:
        """Raises StoreError if the store has a newer format."""
        self._store, self._rows, self._now = store, TableRows(store), now
        self.version = version = int(self.setting("schema_version") or 0)
        if version > SCHEMA_VERSION:
            cause = f"the store has format {version}, and this version of mmqjp reads formats up to {SCHEMA_VERSION}"
            raise StoreError(f"{cause}: install the version that wrote it, or a newer one")
        self.committed_at = 0  # time of this process's last commit, in microseconds
        self.batch = 1 + max(store.highest(table, "batch") for table in BATCH_TABLES)
        of_documents = store.highest("documents", "docid"), store.highest("documents", "arrival")
        seq = max(store.highest("answers", "last_seq"), store.highest("earlier_outputs", "seq"))
        kept = *of_documents, store.highest("match_rows", "match"), seq, store.highest("answers", "answer")
        noted = json.loads(self.setting(NEXT_IDS) or "[]")  # older stores saved fewer
        pairs = zip_longest((number + 1 for number in kept), noted, fillvalue=0)
        docid, arrival, match, seq, answer = map(max, pairs)
        self.restore_next_ids((docid, arrival, match, seq, answer))

    @property
    def is_current(self) -> bool:
        return self.version == SCHEMA_VERSION

    # ------------------------------------------------------------ numbers

    def next_ids(self) -> NextIds:
        return self.next_docid, self.next_arrival, self.next_match, self.next_seq, self.next_answer

    def restore_next_ids(self, next_ids: NextIds) -> None:
        self.next_docid, self.next_arrival, self.next_match, self.next_seq, self.next_answer = next_ids

    def save_next_ids(self) -> None:
        """Persists the next numbers, so that none is reused after rows are dropped."""
        self.save_settings({NEXT_IDS: json.dumps(self.next_ids())})

    def arrivals(self) -> pa.Table:
        """Returns `docid` and `arrival` of all stored documents, by docid."""
        return self._store.select(f"SELECT docid, {ARRIVAL} AS arrival FROM documents ORDER BY docid")

    def docid_of_arrival(self, arrival: int) -> DocId | None:
        """Returns the first stored external docid at or after an arrival, or None."""
        sql = f"SELECT min(docid) AS docid FROM documents WHERE kind = 'external' AND {ARRIVAL} >= {arrival}"
        docid = single_number(self._store, sql)
        return None if docid is None else DocId(docid)

    # ------------------------------------------------------------ metadata

    def save_version(self) -> None:
        self.save_settings({"schema_version": str(SCHEMA_VERSION)})

    def save_batch(
        self, taken_at: int, documents: int, dead_letters: int, outputs: int, moved: str | None = None
    ) -> None:
        """Writes the batch's row unless it is empty. `taken_at` is in microseconds."""
        self.committed_at = self._now()
        if documents or dead_letters or outputs:
            row = self.batch, taken_at, self.committed_at, documents, dead_letters, outputs, moved
            self._rows.append("batches", [row])

    def moved_after(self, batch: int) -> list[str]:
        """Returns the recorded progress of streams (JSON) of the batches after one, in order."""
        if self.batch == 1:  # the store is new
            return []
        sql = f"SELECT moved FROM batches WHERE batch > {batch} AND moved IS NOT NULL ORDER BY batch"
        return [row["moved"] for row in self._rows.select(sql)]

    def save_metadata(self, metadata: CommitMetadata) -> None:
        self._save_offsets(metadata.offsets)
        self.save_settings(metadata.settings)
        now = self._now()
        self._rows.append("commands", [(id, answer, now, self.batch) for id, answer in metadata.answers.items()])
        save_deliveries(self._store, metadata.gaps, metadata.undelivered)

    def answer_to(self, command: str) -> str | None:
        asked = pa.table({"id": [command]})
        found = self._store.select("SELECT c.answer FROM commands c JOIN asked a ON c.id = a.id", {"asked": asked})
        return next((row["answer"] for row in found.to_pylist()), None)

    def offsets(self) -> dict[tuple[str, str], Offset]:
        return latest_offsets(self._store.read("offsets", OFFSETS.names))

    def _save_offsets(self, found: Iterable[Offset]) -> None:
        self._rows.append("offsets", [(o.source, o.file, o.position, self.batch, o.fingerprint or None) for o in found])

    def compact_offsets(self, latest: Iterable[Offset]) -> None:
        """Rewrites the current offsets, in a batch, and drops earlier rows."""
        self._store.drop_before("offsets", "batch", self.batch)
        self._save_offsets(latest)

    def setting(self, key: str) -> str | None:
        return self.dated_setting(key)[0]

    def dated_setting(self, key: str) -> tuple[str | None, int]:
        """Returns a setting and the batch that wrote it; None and -1 if there is none."""
        found = self._store.read("settings", ["value", "batch"], key).sort_by("batch")
        return (found["value"][-1].as_py(), found["batch"][-1].as_py()) if len(found) else (None, -1)

    def settings(self, prefix: str) -> dict[str, str]:
        return read_settings(self._store, prefix)

    def save_settings(self, values: Mapping[str, str]) -> None:
        self._rows.append("settings", [(key, value, self.batch) for key, value in values.items()])

    def compact_settings(self, changed: Mapping[str, str]) -> None:
        """Rewrites the current settings, with some `changed`, in a batch, and drops earlier rows."""
        latest = {**self.settings(""), **changed}
        self._store.drop_before("settings", "batch", self.batch)
        self.save_settings(latest)

    def save_costs(self, costs: Mapping[int, Cost], plan: str) -> None:
        """Writes template costs under a plan, in a batch of its own."""
        noted = {"plan": plan, "templates": {number: asdict(cost) for number, cost in costs.items()}}
        with whole_batch(self._store):
            self.save_settings({COSTS: json.dumps(noted, ensure_ascii=False)})
        self.batch += 1

    def costs(self) -> tuple[str, dict[int, Cost]] | None:
        """Returns the last measured plan and its template costs, or None."""
        if (value := self.setting(COSTS)) is None:
            return None
        kept = json.loads(value)
        return kept["plan"], {int(number): from_json(Cost, cost) for number, cost in kept["templates"].items()}

    def dead_letters(self) -> Iterator[dict[str, Any]]:
        return self._rows.select("SELECT * FROM dead_letters")
