"""Reports damage of a DuckDB file as StoreError. DuckDB checks its blocks when it reads them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import duckdb

from join_stage.store.protocol import StoreError

ADVICE = "if it is damaged, take an older copy of the store, or name another directory"
"""Advice about a store that cannot be opened."""

_Kind = TypeVar("_Kind", bound=type)

_FATAL = (duckdb.FatalException, duckdb.SerializationException)
_WORDS = ("corrupt", "could not read", "cannot read", "failure while replaying wal")


def telling_damage(kind: _Kind) -> _Kind:
    """A class decorator: public methods raise StoreError if DuckDB finds that its file is damaged."""
    for name, method in list(vars(kind).items()):
        if callable(method) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, _telling(method))
    return kind


def _telling(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except duckdb.Error as error:
            found = _damage(error)
            if found is None:
                raise
            cause = str(found).partition("\n")[0]
            raise StoreError(
                f"the store is damaged, or its disk is: {cause}; take an older copy of the store"
            ) from error

    return call


def _damage(error: BaseException | None) -> duckdb.Error | None:
    """The error that reports a damaged file, and not a bad statement: this one or one of its contexts."""
    while error is not None:
        if isinstance(error, _FATAL):
            return error
        # A bad statement has an error of another class, whose text may contain these words.
        of_file = isinstance(error, duckdb.IOException) or type(error) is duckdb.Error
        if isinstance(error, duckdb.Error) and of_file and any(word in str(error).lower() for word in _WORDS):
            return error
        error = error.__context__
    return None
