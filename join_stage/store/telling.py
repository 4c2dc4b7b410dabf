"""Tells errors of a library as errors of ours, wherever a class lets them out."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from join_stage.store.protocol import StoreError

_Kind = TypeVar("_Kind", bound=type)

Told = Callable[[Exception], StoreError | None]
"""What an error is told as; None if it stays what it is."""


def telling(kind: _Kind, errors: type[Exception] | tuple[type[Exception], ...], told: Told) -> _Kind:
    """Has the public methods of a class raise what errors are told as."""
    for name, method in list(vars(kind).items()):
        if callable(method) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, _telling(method, errors, told))
    return kind


def _telling(
    method: Callable[..., Any], errors: type[Exception] | tuple[type[Exception], ...], told: Told
) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except errors as error:
            found = told(error)
            if found is None:
                raise
            raise found from error

    return call
