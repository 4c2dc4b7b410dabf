"""A one-shot kernel for a complete, finite set of events, which has a database run the statements that it can.
Statements of a form that SQL expresses are one query each, on DuckDB over Arrow or on Spark. Patterns are matched in
two phases: the database finds windows that may have a match, and a kernel matches in these. Other kernels run the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol, TypeGuard

import duckdb
import numpy as np
import pyarrow as pa

from common.arrays import Ints
from common.limits import Excess
from pattern_stage.columns import Columns, Flow, each_once, no_events, sorted_flow
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
from pattern_stage.kernel import Kernel, PatternKernel, Results
from pattern_stage.pattern.program import match_windows
from pattern_stage.plan import source_streams
from pattern_stage.values import Texts
from xscl.algebra.events import NearPattern, Pattern, Statement, Stream
from xscl.algebra.events import Statement as AnyStatement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Database(Protocol):
    """A stateless database: each query comes with its tables."""

    def ask(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Answers a query over named tables."""


def runs_as_sql(stream: Statement) -> TypeGuard[Stream]:
    """Returns whether a statement runs as SQL (see `pattern_stage.in_sql.question.is_askable`)."""
    return not isinstance(stream, Pattern | NearPattern) and is_askable(StatementForms().form(stream)[0])


class SqlEvaluator:
    """Runs statements once over all events."""

    def __init__(self, texts: Texts, database: Database) -> None:
        self._texts, self._database = texts, database
        self._statements = AlikeStatements(question)

    def add(self, statement: int, stream: Stream, since: int) -> None:
        """Adds a statement, which sees events whose first part has a t1 after `since`. Raises NotSql."""
        self._statements.add(statement, stream, since)

    def run(self, events: Mapping[str, Columns]) -> list[Results]:
        """Returns the results of all statements; `events` is by stream, missing streams are empty."""
        found = (self._answered(alike, events) for alike in self._statements)
        return [one for one in found if len(one)]

    def _answered(self, alike: QuestionGroup, events: Mapping[str, Columns]) -> Results:
        form = alike.form
        asked = question(form, alike.fixed)
        given = _given(asked, events)
        answer = self._database.ask(asked.sql, asked.tables(alike, given, self._texts))
        parts = [one.parts for one in given]
        made, rows = results_of(asked, answer, form.schema, _stacked(parts))
        flow = each_once(sorted_flow(made, np.arange(len(made)), rows))
        return Results(form.schema, Flow(flow.events, flow.at, np.array(alike.numbers, np.int64)[flow.rows]))


def _given(asked: StatementQuestion, events: Mapping[str, Columns]) -> list[Columns]:
    return [events.get(source.stream, no_events(source.schema)) for source in asked.sources]


def _stacked(parts: Sequence[Ints]) -> Ints:
    places = max(one.shape[1] for one in parts)
    padded: Iterable[Ints] = (np.pad(one, ((0, 0), (0, places - one.shape[1])), constant_values=-1) for one in parts)
    return np.concatenate(list(padded))


MakeMatcher = Callable[[], PatternKernel]


def has_match_windows(statement: Statement) -> TypeGuard[Pattern]:
    """Returns whether a statement is matched in two phases: a PATTERN whose strategy skips events."""
    return isinstance(statement, Pattern) and match_windows(statement) is not None


class WindowedReplay:
    """Runs patterns once over all events."""

    def __init__(self, texts: Texts, database: Database, make_matcher: MakeMatcher) -> None:
        self._texts, self._database, self._make_matcher = texts, database, make_matcher
        self._statements = AlikeStatements(_any_window)
        self._patterns: dict[int, Pattern] = {}
        self.exceeded: dict[int, Excess] = {}
        """Statements that exceeded a limit of their matcher."""

    def add(self, statement: int, pattern: Pattern, since: int) -> None:
        """Adds a statement with `has_match_windows`. It sees events whose first part has a t1 after `since`."""
        self._statements.add(statement, pattern, since)
        self._patterns[statement] = pattern

    def run(self, events: Mapping[str, Columns], until: int) -> list[Results]:
        """Returns the matches that become known before `until`; `events` is by stream, missing streams are empty."""
        return [one for alike in self._statements for one in self._matches(alike, events, until)]

    def _matches(self, alike: QuestionGroup, events: Mapping[str, Columns], until: int) -> list[Results]:
        if not any(len(events.get(name, ())) for number in alike.numbers for name in self._patterns[number].streams):
            return []
        matcher = self._make_matcher()
        for number, since in zip(alike.numbers, alike.since, strict=True):
            matcher.add(number, self._patterns[number], since)
        matcher.begin(until)
        found = matcher.feed(self.surviving(alike, events)) + matcher.end()
        self.exceeded |= matcher.exceeded
        return found

    def surviving(self, alike: QuestionGroup, events: Mapping[str, Columns]) -> dict[str, Columns]:
        """Returns the events, by stream, in windows that may have a match of some statement."""
        longest = max((int(one.max()) for one in alike.windows()), default=0)
        asked = window_question(alike.form, alike.fixed, longest)
        given = _given(asked, events)
        starts = np.cumsum([0, *map(len, given)])
        answer = self._database.ask(asked.sql, asked.tables(alike, given, self._texts))
        kept = np.sort(answer["k"].to_numpy())
        bounds = np.searchsorted(kept, starts)
        return {
            source.stream: some.take(kept[begin:end] - first)
            for source, some, first, begin, end in zip(
                asked.sources, given, starts.tolist(), bounds.tolist(), bounds[1:].tolist(), strict=False
            )
        }


def _any_window(form: StatementForm, fixed: Constants) -> StatementQuestion:
    return window_question(form, fixed, 0)


class ReplayKernel:
    """Implements `pattern_stage.kernel.Kernel` for a single interval, after which it is empty. A database query starts
    once all its streams are there; statements that read the same streams share one."""

    def __init__(self, texts: Texts, database: Database, others: Kernel, make_matcher: MakeMatcher) -> None:
        """`others` runs what the database cannot; `make_matcher` creates the matcher for the windows that it found."""
        self._texts, self._database, self._others, self._make_matcher = texts, database, others, make_matcher
        self._statements: dict[int, tuple[Stream | Pattern, int]] = {}
        self._exceeded: dict[int, Excess] = {}
        self._events: dict[str, Columns] = {}
        self._ended = False

    def add(self, statement: int, stream: AnyStatement, since: int) -> None:
        """Adds a statement before the interval. It sees events whose first part has a t1 after `since`."""
        if runs_as_sql(stream) or has_match_windows(stream):
            self._statements[statement] = stream, since
        else:
            self._others.add(statement, stream, since)

    def narrow(self, statement: int, since: int) -> None:
        """Raises `since` of a statement, before the interval."""
        if statement in self._statements:
            self._statements[statement] = self._statements[statement][0], since
        else:
            self._others.narrow(statement, since)

    def remove(self, statements: Sequence[int]) -> None:
        for number in statements:
            self._exceeded.pop(number, None)
        others = [number for number in statements if self._statements.pop(number, None) is None]
        if others:
            self._others.remove(others)

    @property
    def exceeded(self) -> Mapping[int, Excess]:
        """Statements that exceeded a limit: patterns, and others that the database cannot run."""
        return {**self._others.exceeded, **self._exceeded}

    def begin(self, until: int) -> None:
        """Begins an interval that ends before `until`. Raises RuntimeError after an earlier interval with events."""
        if self._ended:
            raise RuntimeError("a replay has one interval with events, which has all of them")
        self._events, self._until = {}, until
        self._waiting = dict(self._statements)
        self._others.begin(until)

    def feed(self, events: Mapping[str, Columns]) -> list[Results]:
        """Takes all events of some streams. Returns the results of statements whose streams are now complete."""
        self._events |= events
        found = self._others.feed(events)
        ready = [number for number, (stream, _) in self._waiting.items() if _streams(stream) <= self._events.keys()]
        return found + self._run(ready)

    def end(self) -> list[Results]:
        """Ends the interval: missing streams had no events."""
        found = self._others.end() + self._run(list(self._waiting))
        self._ended = any(map(len, self._events.values()))
        self._events = {}
        return found

    def _run(self, numbers: Sequence[int]) -> list[Results]:
        if not numbers:
            return []
        replay = SqlEvaluator(self._texts, self._database)
        windowed = WindowedReplay(self._texts, self._database, self._make_matcher)
        for number in numbers:
            stream, since = self._waiting.pop(number)
            if isinstance(stream, Pattern):
                windowed.add(number, stream, since)
            else:
                replay.add(number, stream, since)
        found = replay.run(self._events) + windowed.run(self._events, self._until)
        self._exceeded |= windowed.exceeded
        return found

    # ------------------------------------------------------------ upkeep

    def parts(self) -> Iterable[Ints]:
        return self._others.parts()

    def codes(self) -> Iterable[Ints]:
        return self._others.codes()

    def instances(self) -> tuple[Ints, Ints]:
        return self._others.instances()

    def due(self) -> int | None:
        return self._others.due()

    def state(self) -> dict[str, pa.Table]:
        return self._others.state()

    def restore(self, state: Mapping[str, pa.Table]) -> None:
        self._others.restore(state)


def _streams(stream: Stream | Pattern) -> Set[str]:
    return stream.streams.keys() if isinstance(stream, Pattern) else source_streams(stream)


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
