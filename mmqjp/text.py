"""Text as lines take it: a message without breaks, an object as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping


def one_line(text: str) -> str:
    """The text without line breaks and other control characters."""
    return "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))


def json_line(values: Mapping[str, object]) -> bytes:
    """A line of JSON in UTF-8."""
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"
