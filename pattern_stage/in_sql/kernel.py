"""A one-shot kernel for a complete, finite set of events, which has a database run the statements that it can.
Statements of a form that SQL expresses are one query each, on DuckDB over Arrow or on Spark. Patterns are matched in
two phases: the database finds windows that may have a match, and a kernel matches in these. Other kernels run the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol, TypeGuard

import duckdb
import numpy as np
import pyarrow as pa

from common.limits import UNLIMITED, Quota
from pattern_stage.columns import Columns, Flow, each_once, no_events, padded, sorted_flow
from pattern_stage.definition import StatementForm, StatementForms
from pattern_stage.in_sql.question import (
    AlikeStatements,
    Constants,
    QuestionGroup,
    StatementQuestion,
    is_askable,
    question,
    results_of,
    window_question,
)
from pattern_stage.kernel import Kernel, Results
from pattern_stage.lineage import Lineage
from pattern_stage.pattern.program import match_windows
from pattern_stage.plan import source_streams
from pattern_stage.values import Texts
from xscl.algebra.events import NearPattern, Pattern, Statement, Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Database(Protocol):
    """A stateless database: each query comes with its tables."""

    def ask(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Answers a query over named tables."""


def runs_as_sql(stream: Statement) -> TypeGuard[Stream]:
    """Returns whether a statement runs as SQL (see `pattern_stage.in_sql.question.is_askable`)."""
    return not isinstance(stream, Pattern | NearPattern) and is_askable(StatementForms().form(stream)[0])


def has_match_windows(statement: Statement) -> TypeGuard[Pattern]:
    """Returns whether a statement is matched in two phases: a PATTERN whose strategy skips events."""
    return isinstance(statement, Pattern) and match_windows(statement) is not None


class ReplayKernel(Kernel):
    """A kernel for a single interval, after which it is empty. A database query starts once all its streams are there;
    statements that read the same streams share one."""

    def __init__(
        self,
        texts: Texts,
        lineage: Lineage,
        database: Database,
        matching: Callable[[Texts, Lineage], Kernel],
        *,
        limits: Quota = UNLIMITED,
    ) -> None:
        """`matching` creates the kernel that matches in the windows found by the database; `limits` are for statements
        that run here."""
        super().__init__(texts, lineage, limits=limits)
        self._database, self._matching = database, matching
        self._asked: dict[int, tuple[Stream | Pattern, int]] = {}
        self._fed: dict[str, Columns] = {}
        self._ended = False

    def add(self, statement: int, stream: Statement, since: int) -> None:
        """Adds a statement before the interval. It sees events whose first part has a t1 after `since`."""
        if runs_as_sql(stream) or has_match_windows(stream):
            self._asked[statement] = stream, since
        else:
            super().add(statement, stream, since)

    def narrow(self, statement: int, since: int) -> None:
        """Raises `since` of a statement, before the interval."""
        if statement in self._asked:
            self._asked[statement] = self._asked[statement][0], since
        else:
            super().narrow(statement, since)

    def remove(self, statements: Sequence[int]) -> None:
        others = [number for number in statements if self._asked.pop(number, None) is None]
        for number in statements:
            self._exceeded.pop(number, None)
        if others:
            super().remove(others)

    def begin(self, until: int) -> None:
        """Begins an interval that ends before `until`. Raises RuntimeError after an earlier interval with events."""
        if self._ended:
            raise RuntimeError("a replay has one interval with events, which has all of them")
        self._fed, self._waiting = {}, dict(self._asked)
        super().begin(until)

    def feed(self, events: Mapping[str, Columns]) -> list[Results]:
        """Takes all events of some streams. Returns the results of statements whose streams are now complete."""
        self._fed |= events
        found = super().feed(events)
        ready = [number for number, (stream, _) in self._waiting.items() if source_streams(stream) <= self._fed.keys()]
        return found + self._ask(ready)

    def end(self) -> list[Results]:
        """Ends the interval: missing streams had no events."""
        found = super().end() + self._ask(list(self._waiting))
        self._ended = any(map(len, self._fed.values()))
        self._fed = {}
        return found

    # ------------------------------------------------------------ the database

    def _ask(self, numbers: Sequence[int]) -> list[Results]:
        if not numbers:
            return []
        whole, windowed = AlikeStatements(question), AlikeStatements(_any_window)
        for number in numbers:
            stream, since = self._waiting.pop(number)
            (windowed if isinstance(stream, Pattern) else whole).add(number, stream, since)
        found = [one for one in map(self._answered, whole) if len(one)]
        return found + [one for alike in windowed for one in self._matched(alike)]

    def _answered(self, alike: QuestionGroup) -> Results:
        asked = question(alike.form, alike.fixed)
        given = self._given(asked)
        answer = self._database.ask(asked.sql, asked.tables(alike, given, self.texts))
        places = max(one.parts.shape[1] for one in given)
        parts = np.concatenate([padded(one, places).parts for one in given])
        made, rows = results_of(asked, answer, alike.form.schema, parts)
        flow = each_once(sorted_flow(made, np.arange(len(made)), rows))
        return Results(alike.form.schema, Flow(flow.events, flow.at, np.array(alike.numbers, np.int64)[flow.rows]))

    def _given(self, asked: StatementQuestion) -> list[Columns]:
        return [self._fed.get(source.stream, no_events(source.schema)) for source in asked.sources]

    def _matched(self, alike: QuestionGroup) -> list[Results]:
        """Returns the matches in windows that may have one."""
        asked = window_question(alike.form, alike.fixed, max(chain.from_iterable(alike.windows), default=0))
        given = self._given(asked)
        if not any(map(len, given)):
            return []
        starts = np.cumsum([0, *map(len, given)])
        answer = self._database.ask(asked.sql, asked.tables(alike, given, self.texts))
        kept = np.sort(answer["k"].to_numpy())
        bounds = zip(starts.tolist(), np.split(kept, np.searchsorted(kept, starts[1:-1])), strict=False)
        left = {
            source.stream: some.take(places - first)
            for source, some, (first, places) in zip(asked.sources, given, bounds, strict=True)
        }
        matcher = self._matching(self.texts, self._lineage)
        for number, since in zip(alike.numbers, alike.since, strict=True):
            matcher.add(number, self._asked[number][0], since)
        found = matcher.run(left, self._until)
        self._exceeded |= matcher.exceeded
        return found


def _any_window(form: StatementForm, fixed: Constants) -> StatementQuestion:
    return window_question(form, fixed, 0)


class DuckDBDatabase:
    """A `Database` on an in-memory DuckDB."""

    def __init__(self, set_up: Callable[[duckdb.DuckDBPyConnection], object] = lambda connection: None) -> None:
        self._set_up = set_up

    def ask(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        # By default a database in memory spills into the working directory, which is the user's.
        with (
            TemporaryDirectory(prefix="mmqjp-") as spilled,
            duckdb.connect(config={"temp_directory": spilled}) as connection,
        ):
            self._set_up(connection)
            for name, table in tables.items():
                connection.register(name, table)
            return connection.sql(sql).to_arrow_table()


class SparkDatabase:
    """A `Database` on Spark."""

    def __init__(self, session: SparkSession) -> None:
        # The views of one session are not those of another.
        self._session = session.newSession()
        self._session.conf.set("spark.sql.shuffle.partitions", session.sparkContext.defaultParallelism)

    def ask(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        for name, table in tables.items():
            self._session.createDataFrame(table.combine_chunks()).createOrReplaceTempView(name)
        try:
            return self._session.sql(sql).toArrow()
        finally:
            for name in tables:
                self._session.catalog.dropTempView(name)
