"""Names and passwords in addresses, as in `https://name:password@host/feed`: for the host and nobody else."""

from __future__ import annotations

import re

_USER = re.compile(r"//[^/?#\s]*@")


def without_credentials(text: str) -> str:
    """A text with addresses, without the names and passwords in them.

    >>> without_credentials("http://ada:pa@ss@example.org/feed?by=me@home was not found")
    'http://example.org/feed?by=me@home was not found'
    """
    return _USER.sub("//", text)
