"""The root of all errors that callers catch, and its two branches: what was given is at fault, or what the work needs.

Every error below them is defined where it is raised, and is also the builtin that one would catch: a ValueError, a
KeyError, a RuntimeError or an OSError. Its arguments are those of its constructor, so that it pickles.
"""

from __future__ import annotations


class MmqjpError(Exception):
    """Anything that mmqjp raises for its caller. The message is a sentence: what happened, and what to do about it."""


class InputError(MmqjpError):
    """What was given is at fault: a query, a name, an option, a document, a feed. The same call fails again."""


class OperationalError(MmqjpError):
    """What the work needs has failed: a store, the memory, Java, Spark, a server. The same call may succeed later."""


class InvalidValue(InputError, ValueError):
    """A value that cannot be what it was given for, such as a time that is none."""
