"""Explains a syntax error in an event query in the words of the language."""

from __future__ import annotations

from lark import UnexpectedInput, UnexpectedToken

from xscl.advice import bracket_problem, explain, plain_problem
from xscl.problems import Lines, Problem


def explain_query(error: UnexpectedInput, text: str, start: int, lines: Lines) -> Problem:
    """What is wrong where the parser stopped in the `text` of a statement, which begins at `start` in its script."""
    if isinstance(error, UnexpectedToken):
        expected, ended = set(error.accepts), error.token.type == "$END"
    else:
        expected, ended = set(getattr(error, "allowed", ())), False
    at = len(text) if ended else error.pos_in_stream or 0
    problem = bracket_problem(text, at, ended, expected, start, lines) or plain_problem(text[at:], at, expected)
    return problem.moved(start)


def explain_definition(error: UnexpectedInput, text: str, start: int, lines: Lines) -> Problem:
    """The same for a definition of events."""
    return explain(error, text, start, lines)
