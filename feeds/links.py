"""Which addresses of strangers are passed on: harmless ones, which only lead somewhere."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

SCHEMES = frozenset({"http", "https", "ftp", "gemini", "gopher", "ipfs", "magnet", "mailto", "news", "tel", "xmpp"})
"""The schemes of harmless addresses. `javascript:`, `data:`, `file:` and the like make a reader's program act."""

_SCHEME = re.compile(r"[^:/?#]*+:")
_PASSED_OVER = re.compile("[\0-\u0020\u007f-\u00a0\u00ad\u200b-\u200f\u2028-\u202f\u2060-\u2064\ufeff]+")
"""Characters that some programs drop from an address before they look at its scheme."""


def is_harmless(address: str) -> bool:
    """Whether an address has one of the schemes, or none, as a relative one.

    >>> is_harmless("HTTPS://a.example/x:y"), is_harmless("../a?b:c"), is_harmless("java\\nScript:alert(1)")
    (True, True, False)
    """
    scheme = _SCHEME.match(_PASSED_OVER.sub("", address))
    return scheme is None or scheme[0][:-1].lower() in SCHEMES


def harmless(address: str) -> str:
    """The address if it is harmless, else ""."""
    return address if is_harmless(address) else ""


def is_url(text: str) -> bool:
    """Whether `text` is an absolute http(s) address."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)
