"""Formats text and objects for single lines."""

from __future__ import annotations

import json
from collections.abc import Mapping


def printable_line(text: str) -> str:
    """Returns the text without line breaks and other control characters."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in line)


def printable_text(text: str) -> str:
    """Returns the text with all its spaces, without control characters, and with line breaks and tabs as escapes.

    >>> print(printable_text("a  b\\n"))
    a  b\\n
    """
    escapes = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(char if char.isprintable() else escapes.get(char, "\ufffd") for char in text)


def json_line(values: Mapping[str, object]) -> bytes:
    """Returns an object as a line of JSON in UTF-8."""
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"
