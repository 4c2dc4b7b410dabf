"""Finds what is wrong with brackets where the parser stopped."""

from __future__ import annotations

import re

from xscl.algebra.expressions import Span
from xscl.problems import Lines, Problem

_BRACKETS = re.compile(r"\"(?:[^\"\n]|\"\")*\"|(?<![\w.\-'])'(?:[^'\n]|'')*'|[()\[\]{}]")
_CLOSER = {"(": ")", "[": "]", "{": "}"}


def bracket_problem(text: str, at: int, ended: bool, expected: set[str], start: int, lines: Lines) -> Problem | None:
    """The problem of a bracket that closes nothing or another one, or that is open at the end; else None."""
    if not ended and (text[at] not in ")]}" or expected & {"TEXT", "DQUOTED", "SQUOTED"}):
        return None
    stack: list[int] = []
    for found in _BRACKETS.finditer(text, 0, at):
        if found[0] in "([{":
            stack.append(found.start())
        elif found[0] in ")]}" and stack:
            stack.pop()
    opener = text[stack[-1]] if stack else ""
    if ended:
        hint = f"write the {_CLOSER.get(opener)} that belongs to it"
        return Problem(f"this {opener} is not closed", Span(stack[-1], stack[-1] + 1), hint) if stack else None
    here = Span(at, at + 1)
    if not stack:
        return Problem(f"this {text[at]} closes nothing", here, "remove it, or write what it should close")
    if _CLOSER[opener] == text[at]:
        return None
    line, column = lines.place(start + stack[-1])
    message = f"this {text[at]} comes before the {opener} at {line}:{column} is closed"
    return Problem(message, here, f"write {_CLOSER[opener]} first")
