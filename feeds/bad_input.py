"""What cannot be read at all: a source that was named, or the bytes of a feed."""

from __future__ import annotations

from common.errors import InputError


class SourceError(InputError, ValueError):
    """A source (a path, an address or an option) that cannot be used: it stops a run before it starts.

    `source` is its name, `cause` why, and `hint` what to do ("" where nothing is known).
    """

    def __init__(self, source: str, cause: str, hint: str = "") -> None:
        super().__init__(source, cause, hint)
        self.source = source
        self.cause = cause
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.source}: {self.cause}" + (f"; {self.hint}" if self.hint else "")


class FeedError(InputError, ValueError):
    """The bytes hold no feed that can be read; the message is the cause."""
