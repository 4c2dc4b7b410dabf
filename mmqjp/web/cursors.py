"""The opaque `next` of lists: where the next page begins."""

from __future__ import annotations

import base64
import binascii
import json

from common.errors import InvalidValue


def cursor(value: int, name: str) -> str:
    """Returns a cursor for a place in a list, which a number and a name describe.

    >>> place_of(cursor(-3, "a'b")), place_of(None)
    ((-3, "a'b"), None)
    """
    return base64.urlsafe_b64encode(json.dumps([value, name]).encode()).decode().rstrip("=")


def place_of(text: str | None) -> tuple[int, str] | None:
    """Returns the number and the name of a cursor; None for none. Raises InvalidValue."""
    if not text:
        return None
    try:
        found = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
        value, name = found
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise InvalidValue(f"after={text[:80]!r} is not the next of a list") from None
    if not isinstance(value, int) or not isinstance(name, str) or not -(1 << 63) <= value < 1 << 63:
        raise InvalidValue(f"after={text[:80]!r} is not the next of a list")
    return value, name
