"""What callers did wrong, as errors of our own: each is also the builtin that one would catch."""

from __future__ import annotations


class MmqjpError(Exception):
    """A mistake of the caller's; the message says which."""


class UnknownQuery(MmqjpError, KeyError):
    """No query has a name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no query is named {name!r}")

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError's own is the message in quotation marks


class PublishCycle(MmqjpError, ValueError):
    """A PUBLISHed stream would be made of itself."""


class BadCommand(MmqjpError, ValueError):
    """A command from another process is none, or lacks an argument."""


class StreamFailed(MmqjpError, RuntimeError):
    """Spark could not go on with a query; the message is the cause."""
