"""The one error that stops a run before it starts: a source that cannot be read at all."""

from __future__ import annotations


class SourceError(ValueError):
    """`source` (a path or an option) cannot be used because of `cause`; `hint` says what to do."""

    def __init__(self, source: str, cause: str, hint: str = "") -> None:
        super().__init__(f"{source}: {cause}" + (f"; {hint}" if hint else ""))
        self.source = source
        self.cause = cause
        self.hint = hint
