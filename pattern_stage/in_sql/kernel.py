"""A one-shot kernel for a complete, finite set of events, which has a database run the statements that it can.
Statements of a form that SQL expresses are one query each, on DuckDB over Arrow or on Spark. Patterns are matched in
two phases: the database finds windows that may have a match, and a kernel matches in these. Other kernels run the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeGuard

import duckdb
import numpy as np
import pyarrow as pa

from common.limits import UNLIMITED, Quota
from pattern_stage.columns import Columns, each_once, padded, sorted_flow
from pattern_stage.definition import StatementForms
from pattern_stage.in_sql.question import (
    NotSql,
    QuestionGroup,
    alike_statements,
    fixed_constants,
    question,
    results_of,
    window_question,
)
from pattern_stage.kernel import Kernel, Results
from pattern_stage.lineage import Lineage
from pattern_stage.pattern.program import match_windows
from pattern_stage.values import Texts
from xscl.algebra.events import NearPattern, Pattern, Statement, Stream, read_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Ask = Callable[[str, Mapping[str, pa.Table]], pa.Table]
"""Answers a query over named tables."""


def runs_as_sql(stream: Statement) -> TypeGuard[Stream]:
    """Returns whether a statement runs as SQL: no PATTERN, FOLD or AGGREGATE, and its conditions on several events use
    only arithmetic, `coalesce` and substring tests."""
    if isinstance(stream, Pattern | NearPattern):
        return False
    try:
        fixed_constants(StatementForms().form(stream)[0], question)
    except NotSql:
        return False
    return True


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
        ask: Ask,
        matching: Callable[[Texts, Lineage], Kernel],
        *,
        limits: Quota = UNLIMITED,
    ) -> None:
        """`ask` queries a database; `matching` creates the kernel that matches in the windows found by it; `limits` are
        for statements that run here."""
        super().__init__(texts, lineage, limits=limits)
        self._ask, self._matching = ask, matching
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
            self.exceeded.pop(number, None)
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
        ready = [number for number, (stream, _) in self._waiting.items() if read_by(stream).keys() <= self._fed.keys()]
        return found + self._answers(ready)

    def end(self) -> list[Results]:
        """Ends the interval: missing streams had no events."""
        found = super().end() + self._answers(list(self._waiting))
        self._ended = any(map(len, self._fed.values()))
        self._fed = {}
        return found

    # ------------------------------------------------------------ the database

    def _answers(self, numbers: Sequence[int]) -> list[Results]:
        asked = [(number, *self._waiting.pop(number)) for number in numbers]
        patterns = [one for one in asked if isinstance(one[1], Pattern)]
        whole = alike_statements([one for one in asked if not isinstance(one[1], Pattern)], question)
        windowed = alike_statements(patterns, lambda form, fixed: window_question(form, fixed, 0))
        found = []
        for alike in whole:
            query = question(alike.form, alike.fixed)
            given = query.events_in(self._fed)
            answer = self._ask(query.sql, query.tables(alike, given, self.texts))
            places = max(one.parts.shape[1] for one in given)
            parts = np.concatenate([padded(one, places).parts for one in given])
            made, rows = results_of(query, answer, alike.form.schema, parts)
            if len(made):
                flow = each_once(sorted_flow(made, np.arange(len(made)), np.array(alike.numbers, np.int64)[rows]))
                found.append(Results(alike.form.schema, flow))
        return found + [one for alike in windowed for one in self._matched(alike)]

    def _matched(self, alike: QuestionGroup) -> list[Results]:
        """Returns the matches in windows that may have one."""
        asked = window_question(alike.form, alike.fixed, max(chain.from_iterable(alike.windows), default=0))
        given = asked.events_in(self._fed)
        if not any(map(len, given)):
            return []
        starts = np.cumsum([0, *map(len, given)])
        kept = np.sort(self._ask(asked.sql, asked.tables(alike, given, self.texts))["k"].to_numpy())
        places = np.split(kept, np.searchsorted(kept, starts[1:-1]))
        left = {
            source.stream: some.take(of - first)
            for source, some, of, first in zip(asked.sources, given, places, starts.tolist(), strict=False)
        }
        matcher = self._matching(self.texts, self._lineage)
        for number, since in zip(alike.numbers, alike.since, strict=True):
            matcher.add(number, self._asked[number][0], since)
        found = matcher.run(left, self._until)
        self.exceeded |= matcher.exceeded
        return found


def ask_duckdb(
    sql: str,
    tables: Mapping[str, pa.Table],
    set_up: Callable[[duckdb.DuckDBPyConnection], object] = lambda connection: None,
) -> pa.Table:
    """`Ask` of an in-memory DuckDB."""
    # By default a database in memory spills into the working directory, which is the user's.
    with (
        TemporaryDirectory(prefix="mmqjp-") as spilled,
        duckdb.connect(config={"temp_directory": spilled}) as connection,
    ):
        set_up(connection)
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql).to_arrow_table()


def asking_spark(session: SparkSession) -> Ask:
    """`Ask` of Spark, in a session of its own: the views of one session are not those of another."""
    own = session.newSession()
    own.conf.set("spark.sql.shuffle.partitions", session.sparkContext.defaultParallelism)

    def ask(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        for name, table in tables.items():
            own.createDataFrame(table.combine_chunks()).createOrReplaceTempView(name)
        try:
            return own.sql(sql).toArrow()
        finally:
            for name in tables:
                own.catalog.dropTempView(name)

    return ask
