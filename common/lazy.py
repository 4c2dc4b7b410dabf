"""Attributes that are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801  # named like the decorators of the standard library
    """Like `functools.cached_property`, without its lock, which takes most of its time before Python 3.12.

    >>> class Circle:
    ...     radius = 2
    ...     @lazy
    ...     def diameter(self):
    ...         return 2 * self.radius
    >>> circle = Circle()
    >>> circle.diameter, vars(circle)
    (4, {'diameter': 4})
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self._name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> lazy[T] | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
