"""Where the time of an engine goes, and its calls of the store, observed from outside by wrapping its parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pyarrow as pa

from bench.stage2_engines import timed_join
from join_stage.protocol import JoinEngine
from mmqjp.engine import Session

PARTS = ("admission and parse", "stage 1", "stage 2", "expansion", "store", "rest")
_JOIN = "stage 2"

Call = tuple[str, tuple[Any, ...]]


class PartTimes:
    """The seconds of each part of an engine, without those of the parts inside it."""

    def __init__(self, engine: Session) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._inside = ["rest"]
        self._since = time.perf_counter()
        # The engine's parts are its own business; only a benchmark looks behind them.
        components, store = engine._components, engine._store
        self._wrap(components.admission, "admission and parse", "admit")
        self._wrap(components.stage1, "stage 1", "evaluate", "finish_batch")
        self._wrap_readers(components.pipeline)
        self._wrap(components.records, "store", "load", "flush")
        self._wrap(components.outbox, "store", "save_matches", "save_answers")
        self._wrap(store, "store", "append", "select", "find", "evict", "begin", "commit")
        self._wrap_join(store)

    def reset(self) -> None:
        """Starts anew."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Charges what passed since the last part to where we are."""
        self._charge()

    def _charge(self) -> None:
        now = time.perf_counter()
        self.seconds[self._inside[-1]] += now - self._since
        self._since = now

    @contextmanager
    def _part(self, part: str) -> Iterator[None]:
        # What a join does with its own store is the join's.
        self._charge()
        self._inside.append(_JOIN if self._inside[-1] == _JOIN else part)
        try:
            yield
        finally:
            self._charge()
            self._inside.pop()

    def _wrap(self, owner: object, part: str, *names: str) -> None:
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name), part))

    def _wrap_readers(self, pipeline: Any) -> None:
        make_reader = pipeline._reader

        def made(*arguments: Any) -> Any:
            reader = make_reader(*arguments)
            self._wrap(reader, "expansion", "read_chunk")
            return reader

        pipeline._reader = made

    def _timed(self, method: Callable[..., Any], part: str) -> Callable[..., Any]:
        @wraps(method)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            with self._part(part):
                return method(*arguments, **keywords)

        return timed

    def _wrap_join(self, store: Any) -> None:
        join = self._timed(store.join, _JOIN)
        store.join = lambda *arguments: _Listed(self, join(*arguments))


class _Listed:
    """The matches of a join. Listing them counts as time of the join."""

    def __init__(self, split: PartTimes, matches: Any) -> None:
        self._split, self._matches = split, matches
        self.num_rows = matches.num_rows

    def to_batches(self, max_chunksize: int) -> Iterator[pa.RecordBatch]:
        with self._split._part(_JOIN):
            batches = iter(self._matches.to_batches(max_chunksize=max_chunksize))
        while True:
            with self._split._part(_JOIN):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


def recorded(store: JoinEngine) -> list[Call]:
    """The calls that an engine makes of its store from now on, as far as joins depend on them: a list that grows."""
    calls: list[Call] = []

    def record(name: str, wanted: Callable[[tuple[Any, ...]], bool]) -> None:
        method = getattr(store, name)

        @wraps(method)
        def recording(*arguments: Any) -> Any:
            if wanted(arguments):
                calls.append((name, arguments))
            return method(*arguments)

        setattr(store, name, recording)

    for name in ("put_rows", "drop_rows", "begin", "commit", "join", "evict"):
        record(name, lambda arguments: True)
    record("append", lambda arguments: arguments[0] == "documents")
    return calls


def replayed(store: JoinEngine, calls: Iterable[Call], keep: bool) -> tuple[list[float], pa.Table]:
    """Makes recorded calls of another store: seconds of each join, and the rows of all of them if they are kept."""
    seconds, tables = [], []
    for name, arguments in calls:
        if name == "join":
            batch, first, scope = arguments
            joined = timed_join(store, batch, first, scope, keep)
            seconds.append(joined.seconds)
            tables.append(joined.table)
        else:
            getattr(store, name)(*arguments)
    return seconds, pa.concat_tables(tables)


def shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Each part's share of the whole."""
    whole = sum(seconds.values())
    return {part: taken / whole for part, taken in seconds.items()}
