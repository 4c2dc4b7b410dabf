"""Explains a syntax error in a PATTERN statement in the words of the language."""

from __future__ import annotations

import re

from lark import UnexpectedInput

from xscl.advice import Rule, known_mistake, plain_problem
from xscl.algebra.expressions import Span
from xscl.brackets import bracket_problem
from xscl.event_advice import PART_RULES, SPELLING_RULES, place_of
from xscl.event_names import RESERVED, RESERVED_IN_PATTERNS
from xscl.pattern_resolve import STRATEGIES
from xscl.problems import Lines, Problem

_WORDS = {
    "VARIABLE": "a name",
    "TILDE": "~",
    "BANG": "!",
    "BAR": "|",
    "CURRENT": "i",
    "PREVIOUS": "i-1",
    "LAST": "v.LEN",
    "EARLIER": "..i-1",
}

_WHERE = re.compile(r"(?i:\bwhere)(?!\w)")
_STRATEGY = re.compile(rf"\s*(?:(?:{'|'.join(STRATEGIES)})(?!\w)\s*(?:\([^()]*\)\s*)?)?")
_CLAUSE = re.compile(r"(?i:\b(?:errors|within|having|return|all|earliest|non|publish))(?![\w.])")

_RULES = (
    # Components.
    Rule("PATTERN SEQ without its components", "write them in parentheses: PATTERN SEQ(A a, B b)",
         before=r"(?i:\bseq)", expects="LPAR"),
    Rule("a component is missing", "write a stream and a variable, such as Post p", r"[,)]|$", expects="TILDE"),
    Rule("there is no {0} in front of a component", "write ~(A a) for no event of A", r"(!|(?i:not\b))",
         expects="TILDE"),
    Rule("{0} in front of a component", "write the name of events, and a variable", r"(?i:(filter|from|select)\b)",
         expects="TILDE"),
    Rule("{1}[] is of a component with +", "write {0}+ {1}[]", r"\[", r"(\w+)\s+(\w+)", expects="COMMA"),
    Rule("a component with + has a variable with brackets", "write {0}[]", r"[,)]", r"\+\s*(\w+)", expects="LSQB"),
    Rule("{0}* is no component with a variable", "write {0}+ {1}[]: one event or more", r"(\w+)", r"(\w+)\s*\*"),
    # Clauses.
    Rule("BUDGET belongs to ERRORS", "write ERRORS <= 1 BUDGET 100", r"(?i:budget)\b"),
    Rule("ERRORS has an upper bound", "write ERRORS <= 1", before=r"(?i:\berrors)", expects="COMPARE"),
    Rule("there is no {0} in a pattern", "write RETURN a.x AS x behind WITHIN", r"(?i:(select)\b)"),
    Rule("there is no {0} in a pattern", "write NON OVERLAPPING for one of those that overlap", r"(?i:(once)\b)"),
    Rule("there is no OR between patterns", "write two patterns that PUBLISH one name", r"(?i:or|union)\b",
         expects="WHERE"),
    # References.
    Rule("there is no such event of a variable", "write v[1], v[i], v[i-1], v[v.LEN] or v[]", r"[\w.+\- ]+\]",
         expects="CURRENT"),
    Rule("there is no such event of a variable", "write v[1], v[i], v[i-1], v[v.LEN] or v[]", r"\.\.[^\]]*\]",
         expects="CURRENT"),
    Rule("{0}[...] without an attribute", "write {0}[1].x", before=r"(\w+)\[[^\[\]]*\]", expects="DOT", without="AND"),
    *SPELLING_RULES,
    *PART_RULES,
)  # fmt: skip


def explain_pattern(error: UnexpectedInput, text: str, start: int, lines: Lines) -> Problem:
    """What is wrong where the parser stopped in the `text` of a PATTERN, which begins at `start` in its script."""
    at, ended, expected = place_of(error, text)
    problem = (
        bracket_problem(text, at, ended, expected, start, lines)
        or _where_without_braces(text, at)
        or known_mistake(_RULES, text[:at], text[at:], at, expected)
        or _keyword_problem(text[at:], at, expected)
        or plain_problem(text[at:], at, {_WORDS.get(name, name) for name in expected})
    )
    return problem.moved(start)


def _where_without_braces(text: str, at: int) -> Problem | None:
    """The problem of a WHERE whose condition is not in braces, if the parser stopped at it."""
    found = _WHERE.search(text, text.rfind("{", 0, at) + 1, at)
    strategy = _STRATEGY.match(text, found.end()) if found else None
    if found is None or strategy is None:
        return None
    begin = strategy.end()
    ending = _CLAUSE.search(text, begin)
    end = ending.start() if ending else len(text)
    condition = text[begin:end].rstrip()
    if "{" in condition or end < at:
        return None
    if not condition:
        return Problem("WHERE without a condition", Span(*found.span()), "write it in braces: WHERE {a.x = b.x}")
    hint = "write WHERE {a.x = b.x}" if "\n" in condition else f"write {{{condition}}}"
    return Problem("the conditions of WHERE stand in braces", Span(begin, begin + len(condition)), hint)


def _keyword_problem(behind: str, at: int, expected: set[str]) -> Problem | None:
    found = re.match(r"[A-Za-z]+(?!\w)", behind)
    if found is None or not expected & {"NAME", "VARIABLE"}:
        return None
    if found[0].lower() not in (RESERVED_IN_PATTERNS if "VARIABLE" in expected else RESERVED):
        return None
    message = f"{found[0]} is a keyword, and a name is needed here"
    return Problem(message, Span(at, at + len(found[0])), "choose another name (behind a dot any name will do)")
