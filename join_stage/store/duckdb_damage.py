"""Reports damage of a DuckDB file as StoreError. DuckDB checks its blocks when it reads them."""

from __future__ import annotations

from typing import TypeVar

import duckdb

from join_stage.store.protocol import StoreError
from join_stage.store.telling import telling

ADVICE = "if it is damaged, take an older copy of the store, or name another directory"
"""Advice about a store that cannot be opened."""

_Kind = TypeVar("_Kind", bound=type)

_FATAL = (duckdb.FatalException, duckdb.SerializationException)
_WORDS = ("corrupt", "could not read", "cannot read", "failure while replaying wal")


def telling_damage(kind: _Kind) -> _Kind:
    """A class decorator: public methods raise StoreError if DuckDB finds that its file is damaged."""
    return telling(kind, duckdb.Error, _told)


def _told(error: BaseException) -> StoreError | None:
    found = _damage(error)
    if found is None:
        return None
    cause = str(found).partition("\n")[0]
    return StoreError(f"the store is damaged, or its disk is: {cause}; take an older copy of the store")


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
