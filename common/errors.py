"""The root of all errors that callers catch, and its two branches: bad input, or a failed resource.

Every subclass is defined where it is raised and is also a builtin error (ValueError, KeyError, RuntimeError, OSError).
Its `args` are its constructor's arguments, so that it pickles.
"""

from __future__ import annotations


class MmqjpError(Exception):
    """Any error raised for the caller. The message says what happened, and what to do about it."""


class InputError(MmqjpError):
    """The input is at fault: a query, a name, an option, a document, a feed. The same call fails again."""


class OperationalError(MmqjpError):
    """A resource has failed: a store, memory, Java, Spark, a server. The same call may succeed later."""


class InvalidValue(InputError, ValueError):
    """A value that is invalid for its purpose, such as an unparsable time."""
