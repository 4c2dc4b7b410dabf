"""Explains a syntax error in an event statement in the words of the language."""

from __future__ import annotations

import re

from lark import UnexpectedInput, UnexpectedToken

from xscl.advice import Rule, explain, known_mistake, plain_problem
from xscl.algebra.expressions import Span
from xscl.brackets import bracket_problem
from xscl.event_names import RESERVED
from xscl.problems import Lines, Problem

_UNITS = "the units are us, ms, s, min, h, d and w; without one it is seconds"
_LONG_UNITS = "(?:micro|milli)?sec(?:ond)?s?|mins|minutes?|hrs?|hours?|days?|weeks?|months?|years?"
_COMPARISON = r"(?:!=|<=|>=|=|<|>)"

SPELLING_RULES = (
    # Spellings of other languages, in expressions and windows.
    Rule("there is no operator ==", "write =", "=", "=", whole=True),
    Rule("there is no operator <>", "write !=", ">", "<", whole=True),
    Rule("there is no operator =<", "write <=", "<", "=", whole=True),
    Rule("there is no operator =>", "write >=", ">", "=", whole=True),
    Rule("there is no operator !", "write != between values, and NOT in front of a condition", "!"),
    Rule("there is no operator {0}", "write AND", "(&&?)"),
    Rule("there is no operator ||", "write OR, or concat(x, y)", r"\|\|"),
    Rule("there is no operator {0}", "write /", r"(?i:(div)\b)", expects="AND"),
    Rule("there is no operator {0}", "write %", r"(?i:(mod)\b)", expects="AND"),
    Rule("there is no operator {0}", 'write contains(x, "part"), or matches(x, "pattern")',
         r"(?i:(like|ilike|regexp|rlike)\b)", expects="AND"),
    Rule("there is no IN", 'write x = "a" OR x = "b"', r"(?i:in)\b", expects="AND"),
    Rule("there is no BETWEEN", "write x >= 1 AND x <= 2", r"(?i:between)\b", expects="AND"),
    Rule("there is no {0} BY", "events come in the order of time", r"(?i:(order)\b)"),
    Rule("strings are written in straight quotes", "write \" or '", "[‘’“”„«»]"),
    Rule("numbers have no exponent", "write the digits out", r"[0-9.]+[eE][0-9+-]"),
    Rule("unknown unit of time {0}", _UNITS, r"(?:[0-9][0-9.]*|\.[0-9]+)([A-Za-z]\w*)"),
    Rule("unknown unit of time {0}", _UNITS, rf"((?i:{_LONG_UNITS})\b)", r"(?<![\w.])[0-9.]+"),
    Rule("unknown unit of time {0}", _UNITS, rf"((?!(?i:{'|'.join(sorted(RESERVED))})\b)[A-Za-z]\w*)",
         r"(?i:\b(?:within|over))\s+[0-9.]+"),
    Rule("IS asks for NULL only", "write IS NULL or IS NOT NULL", before=r"(?i:\bis)", expects="NULL"),
)  # fmt: skip
"""The mistakes that are the same in all statements over events."""

PART_RULES = (
    Rule("PUBLISH without a name", "write a name of letters, digits and _", r"\W|$", r"(?i:\bpublish)"),
    Rule("{0} without a window", "write a number and a unit, such as 7 d", before=r"(?i:\b(within|over))"),
    Rule("{0} has no right side", "write a condition behind it, or remove it", r"(?:[,})]|$)", r"(?i:\b(and|or))"),
    Rule("{0} has no left side", "write a condition before it, or remove it", r"(?i:(and|or)\b)", expects="FUNCTION"),
    Rule("% has no right side", "write a value behind it, or 80% without a blank", r"(?:[,})]|$)", r"[0-9]\s+%"),
    Rule("{0} has no right side", "write what to compare with", r"(?:[,})]|(?i:and|or)\b|$)", rf"({_COMPARISON})"),
    Rule("{0} has no left side", "write what to compare", rf"({_COMPARISON})", expects="FUNCTION"),
    Rule("a comparison of a comparison", "write AND between two comparisons", _COMPARISON, expects="AND"),
    Rule("a name is missing", "write one behind AS", r"(?!\w)", before=r"(?i:\bas)"),
    Rule("a new statement begins here", "write ; between two statements", r"(?i:from|select|define)\b", expects="$END"),
    Rule("an operator is missing", "write a comparison, AND or OR between the two", r"[\w\"'($]", expects="AND"),
)  # fmt: skip
"""The parts that may be missing from all statements over events."""

_QUERY_RULES = (
    # What belongs to queries over documents.
    Rule(
        "a path reads documents, and an event query reads events",
        "write DEFINE EVENT and a name, FROM the path (x := ...), and the name here",
        r"/|->|@",
        expects="NEXT",
    ),
    Rule(
        "a path reads documents, and an event query reads events",
        "write DEFINE EVENT and a name, FROM the path (x := ...), and the name here",
        r"/",
        expects="FILTER",
    ),
    Rule("there are no brackets here", "write FILTER{{...}} in front of the source", r"\[", expects="NEXT"),
    Rule("there are no brackets here", "write $1.x = $2.x", r"\["),
    Rule(
        "an event query has no element constructor",
        "write SELECT x, y AS z: an output has an element for each attribute",
        "<",
        "(?i:select)",
    ),
    Rule(
        "{0} joins documents, and this is an event query",
        "write NEXT, or define events from the matches of a join that is PUBLISHed",
        r"(?i:(join|followed)\b)",
        expects="NEXT",
    ),
    Rule("ONCE PER belongs to queries over documents", "remove it", r"(?i:once)\b", expects="$END"),
    Rule("WITHIN stands in front of PUBLISH", "write WITHIN 7 d PUBLISH name", r"(?i:within)\b", r"(?i:publish)\s+\w+"),
    *SPELLING_RULES,
    Rule("there is no {0}", "write FILTER{{...}} in front of the source", r"(?i:(where|having)\b)"),
    Rule("there is no GROUP BY", "write AGGREGATE{{count() AS n BY x OVER 1 d}} in front of the source",
         r"(?i:group)\b"),
    # References.
    Rule("{0}.{1} is no reference", "write $1.{1} for the left event, $2.{1} for the right one, $.{1} for FOLD's last",
         r"\.\s*(\w*)", r"(\w+)", whole=True),
    Rule("{0} without an attribute", "write a dot and a name behind it, as in {0}.x", before=r"(\$\w*)", expects="DOT"),
    # Parts that are missing, or too many.
    Rule("FOLD has three parts in its braces", "write FOLD{{which, while, x + 1 AS x}}; each part may be empty",
         r"\}", expects="COMMA", without="RBRACE"),
    Rule("empty braces", "leave them out, or write a condition", r"\}", r"(?i:\bnext)\s*\{"),
    Rule("empty braces", "write a condition", r"\}", r"(?i:\bfilter)\s*\{"),
    Rule("empty braces", "write what to compute, such as count() AS n", r"\}", r"(?i:\baggregate)\s*\{"),
    Rule("{0} has one condition in its braces", "write AND between conditions, and WITHIN with a window at the end",
         ",", r"(?i:\b(next|filter))\s*\{[^{}]*", expects="RBRACE", without="COMMA"),
    Rule("SELECT without FROM", "write FROM and what to select from", "$", expects="FROM"),
    Rule("SELECT selects nothing", "write *, or attributes", r"(?i:from)\b|$", "(?i:select)"),
    Rule("FROM is missing", "write FROM before the source", r"(?i:filter|aggregate)\b", expects="FUNCTION"),
    Rule("FROM is missing", "write FROM before the source (or a comma between items)", r"[\w(]", expects="FROM"),
    Rule("{0} has no right side", "write the name of events behind it, or a source in parentheses",
         r"(?:\)|(?i:within|publish)\b|$)", r"(?i:\b(union|next|fold)\b\s*(?:\{[^{}]*\})?)", expects="FILTER"),
    Rule("a source is missing", "write the name of events, or a source in parentheses",
         r"(?:[,)}]|(?i:next|fold|union|within|publish)\b|$)", expects="FILTER"),
    *PART_RULES,
    Rule("this is no operator of events", "the operators between two sources are NEXT, FOLD and UNION",
         r"[\w(]", expects="NEXT"),
)  # fmt: skip

_DEFINITION_RULES = (
    Rule("DEFINE EVENT without a name", "write DEFINE EVENT and a name, FROM S//item->i (title := i/title)",
         before=r"(?i:\bevent)", expects="WORD"),
    Rule("FROM is missing", "write FROM and the path of the event, as in FROM S//item->i", expects="FROM"),
    Rule("the block of an event stands without parentheses", "write FROM S//item->i (title := i/title)",
         r"\(", r"(?i:\bfrom)"),
    Rule("an event is defined from one block", "PUBLISH the join, and define the event FROM its name/match->m",
         r"(?i:join|followed)\b", expects="LPAR"),
    Rule("this event has no attributes", "write them in parentheses behind the block: (title := i/title)",
         r"$", expects="LPAR"),
    Rule("this event has no attributes", "write one, such as title := i/title", r"\)", r"\("),
    Rule("an attribute is missing", "write one behind the comma, or remove it", r"\)", ","),
    Rule("{0} without its value", "write {0} := i/title, or {0} IN i/category for an event for each",
         r"", r"\b([\w\-]+)", expects="ASSIGN"),
    Rule(":= has no right side", "write a path on a variable, as in i/title", r"[,)]|$", ":="),
    Rule("there is no {0} in a definition", "write a query over the events: FROM name {0} ...",
         r"(?i:(publish|within|once|select|where)\b)"),
)  # fmt: skip


def explain_query(error: UnexpectedInput, text: str, start: int, lines: Lines) -> Problem:
    """What is wrong where the parser stopped in the `text` of an event query, which begins at `start` in its script."""
    at, ended, expected = place_of(error, text)
    problem = (
        bracket_problem(text, at, ended, expected, start, lines)
        or known_mistake(_QUERY_RULES, text[:at], text[at:], at, expected)
        or _keyword_problem(text[at:], at, expected)
        or plain_problem(text[at:], at, expected)
    )
    return problem.moved(start)


def explain_definition(error: UnexpectedInput, text: str, start: int, lines: Lines) -> Problem:
    """The same for a definition of events."""
    at, ended, expected = place_of(error, text)
    problem = bracket_problem(text, at, ended, expected, start, lines) or known_mistake(
        _DEFINITION_RULES, text[:at], text[at:], at, expected
    )
    return problem.moved(start) if problem else explain(error, text, start, lines)


def place_of(error: UnexpectedInput, text: str) -> tuple[int, bool, set[str]]:
    """Where the parser stopped, whether at the end, and what it expected."""
    if not isinstance(error, UnexpectedToken):
        return error.pos_in_stream or 0, False, set(getattr(error, "allowed", ()))
    ended = error.token.type == "$END"
    return len(text) if ended else error.pos_in_stream or 0, ended, set(error.accepts)


def _keyword_problem(behind: str, at: int, expected: set[str]) -> Problem | None:
    found = re.match(r"[A-Za-z]+(?!\w)", behind)
    if found is None or found[0].lower() not in RESERVED or "NAME" not in expected:
        return None
    message = f"{found[0]} is a keyword, and a name is needed here"
    return Problem(message, Span(at, at + len(found[0])), "choose another name (behind $1. and $2. any name will do)")
