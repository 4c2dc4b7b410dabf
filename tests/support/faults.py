"""Faults as an input: calls that fail, or that end the process, at a named point and at the n-th call."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from join_stage.plans import JoinEngine
from mmqjp.engine import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Point = tuple[Any, str]
"""A class, module or object, and the name of one of its functions."""


class Injected(Exception):
    """The failure that a test injects."""


class Killed(BaseException):
    """Stands for the end of the process. Nothing catches it."""


def fail(*given: object) -> NoReturn:
    raise Injected


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed() -> NoReturn:
    raise Killed


def wrap(point: Point, before: Callable[[], object], after: Callable[[], object]) -> None:
    """Makes each call at a point run `before` first, and `after` once it has succeeded."""
    owner, name = point
    method: Callable[..., Any] = getattr(owner, name)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        before()
        result = method(*arguments, **options)
        if isawaitable(result):
            return awaited(result)
        after()
        return result

    async def awaited(result: Any) -> Any:
        found = await result
        after()
        return found

    setattr(owner, name, wrapped)


def arm(point: Point, strike: Callable[[], object], calls: int = 1, *, after: bool = False) -> None:
    """Makes `strike` run at the n-th call: before it does anything, or after it has succeeded."""
    count, struck = 0, False

    def counted() -> None:
        nonlocal count
        count += 1
        if not after and count == calls:
            strike()

    def done() -> None:
        nonlocal struck
        if after and count >= calls and not struck:
            struck = True
            strike()

    wrap(point, counted, done)


@contextmanager
def armed(point: Point, strike: Callable[[], object], calls: int = 1, *, after: bool = False) -> Iterator[None]:
    owner, name = point
    own = vars(owner).get(name)
    arm(point, strike, calls, after=after)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


class FaultyStore:
    """A store that passes all calls on to another one, except those that a test has replaced."""

    def __init__(self, store: JoinEngine) -> None:
        self._store = store
        self._instead: Mapping[str, Callable[..., Any]] = {}

    @property  # type: ignore[misc]  # that of object can be set
    def __class__(self) -> Any:  # isinstance asks it
        return type(self._store)

    def __getattr__(self, name: str) -> Any:
        return self._instead[name] if name in self._instead else getattr(self._store, name)

    @contextmanager
    def instead(self, **calls: Callable[..., Any]) -> Iterator[None]:
        kept, self._instead = self._instead, {**self._instead, **calls}
        try:
            yield
        finally:
            self._instead = kept

    @contextmanager
    def failing(self, *names: str, call: Callable[..., Any] = fail) -> Iterator[None]:
        with self.instead(**dict.fromkeys(names, call)):
            yield


class FaultySession(Session):
    store: FaultyStore

    def _open_store(
        self, session: SparkSession | None, directory: Path | None, plan: str, cache_bytes: int, read_only: bool
    ) -> JoinEngine:
        self.store = FaultyStore(super()._open_store(session, directory, plan, cache_bytes, read_only))
        return cast(JoinEngine, self.store)
