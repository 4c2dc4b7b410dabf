"""The engine: queries are subscribed, batches of documents processed, output documents come back."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from feeds.document import Clock, Document, Reject, now_us
from join_stage.engine import JoinEngine, StoreError
from join_stage.tables import TABLES
from mmqjp.admission import Admission
from mmqjp.delivery import Delivery, Match, Output
from mmqjp.records import Record, Records
from mmqjp.registry import Registry, Subscription
from templates.catalog import INFINITE, Catalog
from templates.template import Shape
from xpath_stage.evaluator import StreamDocument, XPathStage
from xscl import Query, Script, parse_script, to_xscl
from xscl.normal import normalize
from xscl.publishing import check_publishing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA_VERSION = "1"
MATCH_CHUNK = 2_000
"""Matches delivered at a time: their documents are held in memory together."""

_NUMBERED = re.compile(r"q([0-9]+)")


@dataclass(frozen=True, slots=True)
class Counters:
    """What an engine has seen: `duplicates` and `dead_letters` are documents that were not taken in."""

    documents: int
    duplicates: int
    dead_letters: int
    outputs: int


class Engine:
    """Standing XSCL queries over streams of documents.

    `engine` is "duckdb", "spark", or a SparkSession. With `state`, a directory, everything is kept there and found
    again; without, it is gone at `close`. `lateness` in microseconds is how far behind its stream a document may be
    (None: any). `now` is the clock, in microseconds.
    """

    def __init__(
        self,
        engine: str | SparkSession = "spark",
        *,
        state: Path | str | None = None,
        lateness: int | None = None,
        master: str | None = None,
        now: Clock = now_us,
    ) -> None:
        self._now = now
        self._store = open_store(engine, None if state is None else Path(state), master)
        try:
            self._restore()
        except BaseException:
            self._store.close()
            raise
        self._admission = Admission(self._store, lateness, now)
        self._records = Records(self._store)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the store. What was processed is kept if there is a state directory."""
        self._store.close()

    # ------------------------------------------------------------ queries

    def subscribe(self, text: str) -> list[str]:
        """Registers the queries of a script and returns their names. They see documents that arrive from now on.

        Raises XsclErrors with every mistake in the text; then nothing is registered.
        """
        return self._subscribe(parse_script(text), skip_known=False)

    def ensure(self, script: Script) -> list[str]:
        """Registers the queries of a script that are not registered yet under the same name with the same text."""
        return self._subscribe(script, skip_known=True)

    def unsubscribe(self, name: str) -> None:
        """Removes all queries of a name. Raises KeyError if there is none."""
        gone = [s.qid for s in self._registry.subscriptions.values() if s.name == name]
        if not gone:
            raise KeyError(f"no query is named {name!r}")
        self._store.begin()
        removed = {"qid": gone, "removed_at": [self._now()] * len(gone)}
        self._store.append("removed_queries", pa.table(removed, schema=TABLES["removed_queries"]))
        self._store.commit()
        for qid in gone:
            self._registry.remove(qid)

    def queries(self) -> dict[str, list[str]]:
        """The texts of the registered queries by name."""
        found: dict[str, list[str]] = {}
        for subscription in self._registry.subscriptions.values():
            found.setdefault(subscription.name, []).append(subscription.text)
        return found

    def _subscribe(self, script: Script, *, skip_known: bool) -> list[str]:
        known = Counter((s.name, s.text) for s in self._registry.subscriptions.values())
        seen: Counter[tuple[str, str]] = Counter()
        fresh: list[tuple[str, str, int, Query]] = []
        names = []
        for place, query in enumerate(script.queries, 1):
            text = to_xscl(Script((query,), script.namespaces))
            name = query.publish or f"q{place}"
            if skip_known and known[name, text] > seen[name, text]:
                seen[name, text] += 1
                names.append(name)
                continue
            if query.publish is None and place <= self._highest_number:
                name = f"q{self._highest_number + 1}"
            if query.publish is None:
                self._highest_number = max(self._highest_number, int(name[1:]))
            seen[name, text] += 1
            fresh.append((name, text, max(known[name, text], seen[name, text] - 1), query))
            known[name, text] += 1
            names.append(name)
        self._check_cycles([query for *_, query in fresh])
        subscriptions = [
            Subscription(
                self._next_qid + i,
                name,
                text,
                occurrence,
                self._next_docid - 1,
                normalize(query, dict(script.namespaces)),
                query.publish is not None,
            )
            for i, (name, text, occurrence, query) in enumerate(fresh)
        ]
        for subscription in subscriptions:
            self._registry.add(subscription)
        self._next_qid += len(subscriptions)
        self._store.begin()
        self._save_queries(subscriptions)
        self._save_catalog()
        self._store.commit()
        return names

    def _check_cycles(self, fresh: list[Query]) -> None:
        """Refuses queries that would make a PUBLISHed stream out of itself, those registered before included."""
        texts = [s.text for s in self._registry.subscriptions.values() if s.publishes]
        if not texts or not any(query.publish for query in fresh):
            return
        registered = tuple(query for text in texts for query in parse_script(text).queries)
        for problem in check_publishing(Script((*registered, *fresh))):
            raise ValueError(f"{problem.message}, with queries registered earlier")

    # ------------------------------------------------------------ documents

    def process(self, documents: Iterable[Document | Reject]) -> list[Output]:
        """Processes a batch of documents and returns the outputs that it completes, in the order of output lines.

        A document that cannot be taken in becomes a dead letter. The batch is committed whole or not at all.
        """
        self._store.begin()
        before = (self._next_docid, self._next_match, self._counts)
        try:
            outputs = self._process(documents)
            self._store.commit()
        except BaseException:
            self._store.rollback()
            self._records.forget()
            self._next_docid, self._next_match, self._counts = before
            raise
        self._batch += 1
        return sorted_outputs(outputs)

    def _process(self, documents: Iterable[Document | Reject]) -> list[Output]:
        admitted = self._admission.admit(documents)
        self._store.append("dead_letters", admitted.dead_letters)
        self._registry.flush()
        delivery = Delivery(self._registry, self._records)
        outputs: list[tuple[Output, int]] = []
        level: list[Record] = admitted.records
        while level:
            matches = self._step(level)
            level = []
            for chunk in matches.to_batches(max_chunksize=MATCH_CHUNK):
                level += self._deliver(delivery, chunk, outputs)
        self._records.flush()
        self._admission.advance(admitted)
        self._evict()
        self._save_outputs(outputs)
        self._save_catalog()
        self._counts = Counters(
            self._counts.documents + len(admitted.records),
            self._counts.duplicates + admitted.duplicates,
            self._counts.dead_letters + len(admitted.dead_letters),
            self._counts.outputs + len(outputs),
        )
        return [output for output, _ in outputs]

    def _step(self, level: list[Record]) -> pa.Table:
        """Stages 1 and 2 for documents that arrive together."""
        first = self._next_docid
        for docid, record in enumerate(level, first):
            record.docid = docid
            record.parts = record.parts or (docid,)
            self._records.add(record)
        self._next_docid += len(level)
        witnesses = self._stage1.evaluate(StreamDocument(r.docid, r.stream, r.t0, r.t1, r.tree) for r in level)
        return self._store.join(witnesses, first, self._registry.window)

    def _deliver(
        self, delivery: Delivery, chunk: pa.RecordBatch, outputs: list[tuple[Output, int]]
    ) -> list[Record]:
        matches = [Match(m["qid"], m["docid1"], m["docid2"], m["nodes"]) for m in chunk.to_pylist()]
        self._records.load(d for m in matches for d in (m.docid1, m.docid2) if d is not None)
        published: list[Record] = []
        rows: list[tuple[object, ...]] = []
        users: list[tuple[object, ...]] = []
        for match, delivered in delivery.deliver(matches):
            names = {}
            for item in delivered:
                if item.output is not None and item.subscription is not None:
                    outputs.append((item.output, item.subscription.qid))
                    names[item.subscription.qid] = item.subscription.name
                if item.document is not None:
                    published.append(item.document)
            if names:
                inputs = [self._records[d] for d in (match.docid1, match.docid2) if d is not None]
                template = next(iter(self._registry.of_row(match.row))).placement.template
                times = min(r.t0 for r in inputs), max(r.t1 for r in inputs)
                rows.append((self._next_match, template, match.docid1, match.docid2, *times, match.nodes))
                users += [(self._next_match, name, qid) for qid, name in names.items()]
                self._next_match += 1
        self._append("match_rows", rows)
        self._append("match_queries", users)
        return published

    def _evict(self) -> None:
        horizon = self._admission.horizon(self._registry.streams())
        if horizon is not None and self._registry.window != INFINITE:
            self._store.evict(horizon - self._registry.window)

    # ------------------------------------------------------------ what was done

    def counters(self) -> Counters:
        """Totals since the engine was opened."""
        return self._counts

    def undelivered(self) -> Iterator[Output]:
        """The outputs that were committed but not yet marked as delivered, in the order of output lines."""
        delivered = int(self._setting("delivered") or -1)
        sql = f"SELECT * FROM outputs WHERE batch > {delivered} ORDER BY t1, query, documents"
        rows = (row for chunk in self._store.select(sql).to_batches(max_chunksize=1000) for row in chunk.to_pylist())
        outputs = (_output(row) for row in rows)
        for _, group in groupby(outputs, key=lambda o: (o.t1, o.query, o.documents)):
            yield from sorted_outputs(group)

    def mark_delivered(self) -> None:
        """Notes that all outputs so far have reached their reader."""
        self._store.begin()
        self._append("settings", [("delivered", str(self._batch - 1), self._batch)])
        self._store.commit()

    def dead_letters(self, since: int = 0) -> Iterator[dict[str, Any]]:
        """The dead letters of the store, less the first `since`."""
        table = self._store.select("SELECT * FROM dead_letters")
        for chunk in table.slice(since).to_batches(max_chunksize=100):
            yield from chunk.to_pylist()

    def sql(self, query: str) -> pa.Table:
        """Answers an SQL query over the engine's tables."""
        return self._store.select(query)

    # ------------------------------------------------------------ keeping and restoring

    def _append(self, table: str, rows: list[tuple[object, ...]]) -> None:
        schema = TABLES[table]
        columns = zip(*rows, strict=True) if rows else [()] * len(schema)
        arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
        if rows:
            self._store.append(table, pa.table(arrays, schema=schema))

    def _save_outputs(self, outputs: list[tuple[Output, int]]) -> None:
        self._append(
            "outputs",
            [
                (o.query, o.t0, o.t1, o.documents, o.streams, _json(o.nodes), o.xml, self._batch)
                for o, _ in outputs
            ],
        )

    def _save_queries(self, subscriptions: list[Subscription]) -> None:
        rows: list[tuple[object, ...]] = []
        for s in subscriptions:
            templates = sorted({target.placement.template for target in s.targets})
            rows.append(
                (s.qid, s.name, s.text, s.occurrence, templates, s.normal.window, self._now(), s.since)
            )
        self._append("added_queries", rows)

    def _save_catalog(self) -> None:
        """Writes the variables and templates that are new since the last time."""
        steps = [step for step in self._catalog.steps.values() if step.id >= self._saved_steps]
        self._append("variables", [(s.id, s.parent, s.stream, str(s.node)) for s in steps])
        self._saved_steps = max((step.id + 1 for step in steps), default=self._saved_steps)
        shapes = list(enumerate(self._catalog.templates))[self._saved_templates :]
        self._append(
            "templates",
            [(n, s.left, s.parents, [leaf for join in s.joins for leaf in join]) for n, s in shapes],
        )
        self._saved_templates = len(self._catalog.templates)

    def _setting(self, key: str) -> str | None:
        rows = self._store.select(f"SELECT value FROM settings WHERE key = '{key}' ORDER BY batch DESC LIMIT 1")
        return rows["value"][0].as_py() if len(rows) else None

    def _maximum(self, column: str, table: str) -> int:
        value = self._store.select(f"SELECT max({column}) AS top FROM {table}")["top"][0].as_py()
        return -1 if value is None else int(value)

    def _restore(self) -> None:
        """Reads what an earlier run left in the store, and registers its queries again under the same ids."""
        version = self._setting("schema_version")
        if version is None:
            self._store.begin()
            self._append("settings", [("schema_version", SCHEMA_VERSION, 0)])
            self._store.commit()
        elif version != SCHEMA_VERSION:
            raise StoreError(f"the store has format {version}; this version of mmqjp reads format {SCHEMA_VERSION}")
        select = self._store.select
        self._next_docid = self._maximum("docid", "documents") + 1
        self._next_match = self._maximum("match", "match_rows") + 1
        self._next_qid = self._maximum("qid", "added_queries") + 1
        self._batch = max(self._maximum("batch", "outputs"), self._maximum("batch", "settings")) + 1
        self._counts = Counters(0, 0, 0, 0)
        shapes = [
            Shape(row["left_nodes"], tuple(row["parents"]), tuple(zip(row["joins"][::2], row["joins"][1::2], strict=True)))
            for row in select("SELECT * FROM templates ORDER BY template").to_pylist()
        ]
        self._saved_templates = len(shapes)
        self._saved_steps = self._maximum("var", "variables") + 1
        known = {
            (row["stream"], row["parent"], row["definition"]): row["var"]
            for row in select("SELECT * FROM variables ORDER BY var").to_pylist()
        }
        self._catalog = Catalog(known_steps=known, next_step=self._saved_steps, known_templates=shapes)
        groups: dict[int, set[tuple[int, int]]] = {}
        for row in select("SELECT * FROM groups").to_pylist():
            groups.setdefault(row["grp"], set()).add((row["var1"], row["var2"]))
        self._stage1 = XPathStage((number, frozenset(edges)) for number, edges in groups.items())
        self._registry = Registry(self._catalog, self._stage1, self._store)
        self._restore_queries()

    def _restore_queries(self) -> None:
        added = self._store.select("SELECT * FROM added_queries ORDER BY qid").to_pylist()
        removed = set(self._store.select("SELECT qid FROM removed_queries")["qid"].to_pylist())
        numbers = [_NUMBERED.fullmatch(row["name"]) for row in added]
        self._highest_number = max((int(found[1]) for found in numbers if found), default=0)
        for row in added:
            if row["qid"] not in removed:
                script = parse_script(row["text"])
                query = script.queries[0]
                normal = normalize(query, dict(script.namespaces))
                self._registry.add(
                    Subscription(
                        row["qid"],
                        row["name"],
                        row["text"],
                        row["occurrence"],
                        row["since"],
                        normal,
                        query.publish is not None,
                    )
                )


def open_store(engine: str | SparkSession, state: Path | None, master: str | None) -> JoinEngine:
    """The store and join engine that `engine` names. Raises StoreError or ValueError."""
    if engine == "duckdb":
        from join_stage.duckdb_engine import DuckDBEngine

        return DuckDBEngine(state)
    if isinstance(engine, str) and engine != "spark":
        raise ValueError(f"an engine is 'duckdb', 'spark' or a SparkSession, not {engine!r}")
    from join_stage.spark.engine import SparkEngine
    from join_stage.spark.session import spark_session

    session = spark_session(master) if isinstance(engine, str) else engine
    return SparkEngine(session, state)


def sorted_outputs(outputs: Iterable[Output]) -> list[Output]:
    """Outputs in the order of output lines: by t1, query, documents, nodes (numbers before attributes)."""

    def node(value: int | str) -> tuple[int, str]:
        element, _, attribute = str(value).partition("/")
        return int(element), attribute

    return sorted(outputs, key=lambda o: (o.t1, o.query, o.documents, [(k, node(v)) for k, v in o.nodes.items()]))


def _json(nodes: object) -> str:
    return json.dumps(nodes, ensure_ascii=False)


def _output(row: dict[str, Any]) -> Output:
    return Output(
        row["query"],
        row["t0"],
        row["t1"],
        tuple(row["documents"]),
        tuple(row["streams"]),
        json.loads(row["nodes"]),
        row["xml"],
    )
