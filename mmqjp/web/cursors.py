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
    return _text([value, name])


def place_of(text: str | None) -> tuple[int, str] | None:
    """Returns the number and the name of a cursor; None for none. Raises InvalidValue."""
    if not text:
        return None
    match _read(text):
        case [int(value), str(name)] if _fits(value):
            return value, name
    raise _unknown(text)


def places_text(places: tuple[int, int, int]) -> str:
    """Returns a cursor for a place that three numbers describe.

    >>> places_of(places_text((3, 0, 7)))
    (3, 0, 7)
    """
    return _text(places)


def places_of(text: str | None) -> tuple[int, int, int] | None:
    """Returns the three numbers of a cursor; None for none. Raises InvalidValue."""
    if not text:
        return None
    match _read(text):
        case [int(first), int(second), int(third)] if all(map(_fits, (first, second, third))):
            return first, second, third
    raise _unknown(text)


def _text(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _read(text: str) -> object:
    try:
        return json.loads(base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise _unknown(text) from None


def _fits(value: int) -> bool:
    return not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


def _unknown(text: str) -> InvalidValue:
    return InvalidValue(f"after={text[:80]!r} is not the next of a list")
