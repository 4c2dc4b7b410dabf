"""Says of a DuckDB store that is damaged that it is: DuckDB checks its blocks, and fails where it reads one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import duckdb

from join_stage.store.protocol import StoreError

ADVICE = "if it is damaged, take an older copy of the store, or name another directory"
"""What to do about a store that cannot be opened."""

_Kind = TypeVar("_Kind", bound=type)

_FATAL = (duckdb.FatalException, duckdb.SerializationException)
_WORDS = ("corrupt", "could not read", "cannot read", "failure while replaying wal")


def telling_damage(kind: _Kind) -> _Kind:
    """A class whose methods raise StoreError where DuckDB finds that its file is damaged."""
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
    """The error that tells of a file that cannot be read, not of a statement: this one, or one that it came from."""
    while error is not None:
        if isinstance(error, _FATAL):
            return error
        # What is wrong with a statement has an error of another kind, whose text may have any words.
        of_file = isinstance(error, duckdb.IOException) or type(error) is duckdb.Error
        if isinstance(error, duckdb.Error) and of_file and any(word in str(error).lower() for word in _WORDS):
            return error
        error = error.__context__
    return None
