"""Runs operations on an engine and on the model of live use, and reports where they differ."""

from __future__ import annotations

import functools
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from inspect import signature
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from mmqjp.answers.output import Output
from mmqjp.sinks.deliverer import OUTPUT_SINK
from mmqjp.state import sql_worker
from tests.generate.seeds import at_length
from tests.live import operations as ops
from tests.live.events import STATEMENTS, EventRow, event_row, parsed_events
from tests.live.model import Expected, LiveModel, Refused
from tests.live.operations import (
    Batch,
    Broken,
    Change,
    Doc,
    Operation,
    PassTime,
    Pause,
    Prune,
    Reopen,
    Resume,
    Subscribe,
)
from tests.oracle.bindings import OutputRow
from tests.oracle.evaluation import comparable
from tests.support.agreement import as_row
from tests.support.delivery import mark_delivered, undelivered
from tests.support.faults import FaultySession, FaultyStore, Injected
from tests.support.shown import assert_shown
from xscl import lalr
from xscl.parser import parse_script
from xscl.syntax import Script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS = ("feeds", "join_stage", "mmqjp", "templates", "xpath_stage", "xscl")
WRITES = ("begin", "append", "join", "extend", "evict", "drop_before", "commit")
"""The calls of a store that may fail."""

ASKED = ("documents", "outputs", "dead_letters", "queries")
"""The tables that strangers' SQL is asked for."""


class Parted(AssertionError):
    """The engine did not do what the model expects."""


class Live:
    """An engine in use, next to the model. Its store is in a directory below `place`. Each process that dies leaves a
    copy of the state at that moment."""

    def __init__(self, engine: str | SparkSession, place: Path, now: int, patterns: str = "driver") -> None:
        self._kind, self._place, self._now, self._patterns = engine, place, now, patterns
        self._numbers = count()
        self._state = place / str(next(self._numbers))
        self.outputs = 0

    def run(self, operations: Sequence[Operation]) -> None:
        """Runs all operations. The first one opens the store. Raises Parted."""
        first = operations[0]
        assert isinstance(first, Reopen)
        self._model = LiveModel(self._now, first)
        self._open(first)
        try:
            for at, operation in enumerate(operations[1:], 1):
                try:
                    self._do(operation)
                except Parted as error:
                    raise Parted(f"at operation {at}, {type(operation).__name__}: {error}") from None
            self._compare_kept()
            self._compare_asked()
        finally:
            self._engine.__exit__(Injected, None, None)
            shutil.rmtree(self._place, ignore_errors=True)

    # ------------------------------------------------------------ operations

    def _do(self, operation: Operation) -> None:
        match operation:
            case Reopen():
                self._compare_kept(shown=False)  # it is again below
                self._engine.close()
                self._model.reopen(operation)
                self._open(operation)
                self._compare_kept()
            case PassTime():
                self._model.pass_time(operation.by)
                self._now += operation.by
                if self._engine.pass_time():
                    self._model.noted()
            case ops.Delivered():
                self._deliver()
            case Broken():
                self._break(operation)
            case _:
                self._change(operation)

    def _open(self, opened: Reopen) -> None:
        forget_process()
        self._opened = opened
        self._engine = FaultySession(
            self._kind,
            state=self._state,
            plan=opened.plan,
            lateness=opened.lateness,
            idle_after=opened.idle_after,
            max_ahead=opened.max_ahead,
            settle=opened.settle,
            belated=opened.belated,
            patterns=self._patterns,
            now=lambda: self._now,
        )

    def _change(self, change: Change) -> None:
        if isinstance(change, Prune):
            self._deliver()
        self._judge(change, self._tried(change))

    def _tried(self, change: Change) -> Expected | Exception:
        try:
            return self._apply(change)
        except (KeyError, ValueError) as error:
            return error

    def _judge(self, change: Change, got: Expected | Exception) -> None:
        try:
            expected = self._model.change(change)
        except Refused as refused:
            if not isinstance(got, refused.kind):
                raise Parted(f"not refused with {refused}") from None
            return
        if isinstance(got, Exception):
            raise Parted(f"refused: {got!r}") from got
        self._compare(change, got, expected)

    def _apply(self, change: Change) -> Expected:
        engine = self._engine
        match change:
            case Batch():
                outputs = engine.process(one.document() if isinstance(one, Doc) else one for one in change.documents)
                letters = [_letter(row) for row in engine.last_dead_letters()]
                return Expected([self._row(output) for output in outputs], letters)
            case Subscribe(how="ensure"):
                return Expected(names=engine.ensure(parse_script(change.text, events=engine.registry.events.streams())))
            case Subscribe():
                names = engine.subscribe(change.text, add=change.how == "add", backfill=change.backfill)
                return Expected(names=names)
            case ops.Unsubscribe():
                engine.unsubscribe(change.name)
            case Pause():
                engine.pause(change.name)
            case Resume():
                engine.resume(change.name)
            case Prune():
                engine.prune(change.keep, change.keep_ids)
        return Expected()

    def _break(self, broken: Broken) -> None:
        """Makes a change that fails in the store. If it was committed anyway, the process dies in any case."""
        change = broken.change
        if isinstance(change, Prune):
            self._deliver()
        store = self._engine.store
        breaking = Breaking(store, broken.call, broken.after, partial(self._strike, broken))
        got: Expected | Exception = Expected()
        with suppress(Injected, KeyboardInterrupt), store.instead(**breaking.calls):
            got = self._tried(change)
        if not breaking.failed:  # there were not so many calls: it was done, or refused
            self._judge(change, got)
            self._compare_kept()
            return
        if broken.interrupted:
            if breaking.committed:
                self._model.change(change)
        elif broken.dies or breaking.committed:
            self._engine.__exit__(Injected, None, None)
            if broken.dies:
                shutil.rmtree(self._state)
                self._state = self._dead
            self._open(self._opened)
            if breaking.committed:
                self._model.change(change)
            self._model.reopen(self._opened)
        self._compare_kept()
        self._compare_asked()

    def _deliver(self) -> None:
        self._compare_undelivered()
        mark_delivered(self._engine)
        self._model.delivered()

    def _strike(self, broken: Broken) -> None:
        if broken.interrupted:
            signal.raise_signal(signal.SIGINT)
            return
        if broken.dies:  # what the process leaves is kept
            self._dead = self._place / str(next(self._numbers))
            shutil.copytree(self._state, self._dead)
        raise Injected

    # ------------------------------------------------------------ comparisons

    def _row(self, output: Output) -> OutputRow | EventRow:
        return self._of_any(as_row(output))

    def _of_any(self, row: OutputRow | EventRow) -> OutputRow | EventRow:
        """A row as one of an event statement, if such a one ever had its name."""
        if isinstance(row, OutputRow) and row.query in self._model.event_names:
            return event_row(row.query, row.t0, row.t1, row.xml, row.documents)
        return row

    def _compare(self, change: Change, got: Expected, expected: Expected) -> None:
        if isinstance(change, Subscribe):
            same("names", got.names, expected.names)
            self._compare_undelivered()
            self._compare_queries()
        elif isinstance(change, Batch):
            self.outputs += len(got.outputs)
            same_rows("outputs", got.outputs, map(self._of_any, expected.outputs))
            same("dead letters", sorted(got.dead_letters), sorted(expected.dead_letters))
        elif isinstance(change, Prune):
            self._compare_kept()

    def _compare_undelivered(self) -> None:
        outputs = list(self._engine.outputs(self._engine.position(OUTPUT_SINK).acked))
        if outputs:  # numbers have no gaps, whatever was rolled back
            same("numbers", [o.seq for o in outputs], list(range(outputs[0].seq, self._engine.last_seq + 1)))
        ids = [output.id for output in self._engine.outputs()]
        same("ids that are told twice", [id for id, count in Counter(ids).items() if count > 1], [])
        left = [self._row(output) for output in undelivered(self._engine)]
        same_rows("undelivered outputs", left, map(self._of_any, self._model.undelivered))

    def _compare_queries(self) -> None:
        texts, registry = self._engine.queries(), self._engine.registry
        same("forms", registry._forms.keys(), {query.form_id for query in registry.subscriptions.values()})
        every = [(name, text) for name, some in texts.items() for text in some]
        statements = Counter((name, text) for name, text in every if text in STATEMENTS)
        same("event statements", statements, Counter((one.name, one.text) for one in self._model.statements))
        got = Counter((name, parsed_events(text)) for name, text in every if text not in STATEMENTS)
        kept = Counter((one.name, Script((one.query,), one.namespaces)) for one in self._model.queries)
        same("queries", got, kept)

    def _compare_kept(self, *, shown: bool = True) -> None:
        """Compares all that is kept: undelivered outputs, queries, which of them are paused, dead letters,
        documents."""
        self._compare_undelivered()
        if shown:
            assert_shown(self._engine, self._model.event_names)  # takes seconds on Spark
        self._compare_queries()
        paused = Counter(s.name for s in self._engine.registry.subscriptions.values() if s.paused is not None)
        resting = Counter(one.name for one in self._model.queries if one.paused is not None)
        resting += Counter(one.name for one in self._model.statements if one.paused is not None)
        same("paused", paused, resting)
        letters = sorted(_letter(row) for row in self._engine.dead_letters())
        same("kept dead letters", letters, sorted(letter for _, letter in self._model.dead_letters))
        sql = "SELECT stream, id, kind FROM documents WHERE kind <> 'hidden'"
        rows = self._engine.sql(sql).to_pylist()
        outside = sorted((row["stream"], row["id"]) for row in rows if row["kind"] == "external")
        same("kept documents", outside, sorted((d.stream, str(d.identity)) for d in self._model.documents if d.outside))
        published = Counter(row["stream"] for row in rows if row["kind"] == "published")
        same("published", published, Counter(d.stream for d in self._model.documents if not d.outside))

    def _compare_asked(self) -> None:
        """Compares what strangers' SQL sees, in a process of its own, with what this process does."""
        for table in ASKED if at_length() else ():
            asked = (ask(f"SELECT * FROM {table}") for ask in (self._engine.confined_question, self._engine.question))
            # On Spark, a worker may answer from a snapshot that is STALE seconds old.
            with patch.object(sql_worker, "STALE", 0.0):
                seen, there = (sorted(map(repr, question.answer().to_pylist())) for question in asked)
            same(f"what SQL sees of {table}", seen, there)


class Breaking:
    """The writing calls of a store, one of which fails."""

    def __init__(self, store: FaultyStore, call: int, after: bool, strike: Callable[[], object]) -> None:
        self._left, self._after, self._strike = call, after, strike
        self.committed = self.failed = False
        self.calls = {name: self._around(name, getattr(store, name)) for name in WRITES}

    def _around(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            fails = self._left == 0
            after = self._after and name != "begin"  # which does nothing if it fails
            if fails and not after:
                self._fail()
            result = method(*arguments, **options)
            self.committed = self.committed or name == "commit"
            if fails:
                self._fail()
            return result

        return call

    def _fail(self) -> None:
        self.failed = True
        self._strike()


def forget_process() -> None:
    """Clears what modules keep between calls, as if this were a new process."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in OURS:
            for key, value in vars(module).items():
                if isinstance(value, dict | list | set) and re.match("_?[a-z]", key):  # constants are in capitals
                    value.clear()
                elif isinstance(value, functools._lru_cache_wrapper) and has_parameters(value):
                    value.cache_clear()  # but not the grammars, which take long to make, and are always the same


def has_parameters(called: Callable[..., Any]) -> bool:
    return called not in (lalr.lark_of, lalr.parser_of) and bool(signature(called).parameters)


def _letter(row: dict[str, Any]) -> tuple[str, str, str]:
    reason = str(row["reason"])
    kinds = ("late", "from the future", "late for patterns")
    kind = next((kind for kind in kinds if reason.startswith(f"{kind}: ")), "unreadable")
    return row["stream"], row["id"], kind


def same(what: str, got: object, expected: object) -> None:
    if got != expected:
        raise Parted(f"{what}:\n  {got}\nexpected:\n  {expected}")


def same_rows(what: str, got: Iterable[OutputRow | EventRow], expected: Iterable[OutputRow | EventRow]) -> None:
    one, other = _counted(list(got)), _counted(list(expected))
    if one != other:
        extra, missing = list((one - other).elements()), list((other - one).elements())
        raise Parted(f"{what}: {len(extra)} too many: {extra[:3]}; {len(missing)} missing: {missing[:3]}")


def _counted(rows: Sequence[OutputRow | EventRow]) -> Counter[object]:
    events = Counter[object](row for row in rows if isinstance(row, EventRow))
    return events + Counter(comparable(row for row in rows if isinstance(row, OutputRow)))
