"""Names, as far as the registered tests distinguish them: all tags that no query mentions are one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from xscl.algebra.pattern import Test

K = TypeVar("K")
T = TypeVar("T")

OTHER = "\0"
"""Stands for a local name or a namespace that no test mentions; no XML name has it."""


class Memo(dict[K, T]):
    """A cache of the results of a function, for at most `limit` keys."""

    __slots__ = ("_function", "_limit")

    def __init__(self, function: Callable[[K], T], limit: int) -> None:
        super().__init__()
        self._function, self._limit = function, limit

    def __missing__(self, key: K) -> T:
        value = self._function(key)
        if len(self) < self._limit:
            self[key] = value
        return value


class Vocabulary:
    """The registered name tests, counted."""

    def __init__(self) -> None:
        self._locals: Counter[str] = Counter()
        self._uris: Counter[str] = Counter()

    def add(self, test: Test) -> None:
        self._locals[test.local] += 1
        self._uris[test.uri] += 1

    def remove(self, test: Test) -> None:
        decrease(self._locals, test.local)
        decrease(self._uris, test.uri)

    def canonical(self, name: str) -> str:
        """The canonical name that passes the same tests. There are only as many as the tests distinguish."""
        uri, local = split_name(name)
        if local not in self._locals:
            local = OTHER
        if uri and uri not in self._uris:
            uri = OTHER
        return f"{{{uri}}}{local}" if uri else local


class Tags:
    """The set of tags that pass one of some tests, which are counted. All tags pass the test None."""

    def __init__(self) -> None:
        self._tests: Counter[Test | None] = Counter()

    def add(self, test: Test | None) -> None:
        self._tests[test] += 1

    def remove(self, test: Test | None) -> None:
        decrease(self._tests, test)

    def __bool__(self) -> bool:
        return bool(self._tests)

    def __contains__(self, tag: str) -> bool:
        return any(test is None or test.accepts(tag) for test in self._tests)


def owner_test(parent: Test | None, axis: str) -> Test | None:
    """The test that the owner of an attribute must pass, on this axis below a node that passes `parent`. None: no
    test."""
    return parent if axis == "/" else None


def split_name(name: str) -> tuple[str, str]:
    """(namespace, local name) of lxml's `{uri}local`."""
    if name.startswith("{"):
        uri, local = name[1:].rsplit("}", 1)
        return uri, local
    return "", name


def decrease(counter: Counter[T], item: T) -> None:
    """Decreases a count, and removes it at zero."""
    counter[item] -= 1
    if not counter[item]:
        del counter[item]
