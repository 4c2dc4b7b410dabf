"""Escapes in the text of an element constructor: entities, and braces that are written twice."""

from __future__ import annotations

import re
from functools import partial

from xscl.algebra.expressions import Span
from xscl.problems import Problem

_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_ESCAPE = re.compile(r"\{\{|\}\}|&(#x[0-9A-Fa-f]{1,6}|#[0-9]{1,7}|\w+)?;?")
_XML_CHAR = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def unescaped(text: str, start: int) -> str:
    """The text that a text of a constructor stands for, which begins at `start`. Raises Problem."""
    return _ESCAPE.sub(partial(_unescape, start), text)


def _unescape(start: int, found: re.Match[str]) -> str:
    whole, reference = found[0], found[1]
    if whole in ("{{", "}}"):
        return whole[0]
    span = Span(start + found.start(), start + found.end())
    if reference and whole.endswith(";"):
        if reference in _ENTITIES:
            return _ENTITIES[reference]
        if reference.startswith("#"):
            digits = reference[1:]
            code = int(digits[1:], 16) if digits.startswith("x") else int(digits)
            if code <= 0x10FFFF and _XML_CHAR.fullmatch(chr(code)):
                return chr(code)
            raise Problem(f"{whole} is not a character of XML", span, "remove it")
    hint = "write &amp; for &; only &amp; &lt; &gt; &quot; &apos; and &#...; are known"
    raise Problem(f"unknown escape {whole} in constructor text", span, hint)
