"""Names and passwords in addresses, as in `https://name:password@host/feed`: for the host and nobody else."""

from __future__ import annotations

import re

_USER = re.compile(r"//[^/?#\s]*@")
_BEFORE = re.compile(r"\A((?:https?|feed|file|ftp|gemini|gopher)://)?.*@", re.DOTALL | re.IGNORECASE)

WRITE_ENCODED = "in a name or password, write / as %2F, ? as %3F, # as %23 and @ as %40"
"""What to do about an address with a password that cannot be read."""


def without_credentials(text: str) -> str:
    """A text with addresses, without the names and passwords in them.

    >>> without_credentials("http://ada:pa@ss@example.org/feed?by=me@home was not found")
    'http://example.org/feed?by=me@home was not found'
    """
    return _USER.sub("//", text)


def refused(text: str) -> str:
    """A text that should be an address and is none, without what stands before its last "@".

    Where name and password begin and end in it, nobody can tell.

    >>> refused("https://ada:se/cret@example.org/feed"), refused("ada:secret@example.org"), refused("mailto:")
    ('https://…@example.org/feed', '…@example.org', 'mailto:')
    """
    return _BEFORE.sub(r"\1…@", text)
