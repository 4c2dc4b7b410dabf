"""Remembers what a function makes of objects, by their identity: for objects that many others share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

MOST = 20_000
"""How many results are remembered. When there are more, all are forgotten."""


class Remembered(Generic[T, R]):
    """A function of immutable objects that is called once for each object, rather than for each equal one: looking at
    all of a tree to find out what it equals may take longer than the function."""

    __slots__ = ("_function", "_known")

    def __init__(self, function: Callable[[T], R]) -> None:
        self._function = function
        # With the objects, so that no others can get their identities.
        self._known: dict[int, tuple[T, R]] = {}

    def __call__(self, of: T) -> R:
        """Returns the function's result."""
        found = self._known.get(id(of))
        if found is not None:
            return found[1]
        result = self._function(of)
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[id(of)] = of, result
        return result
