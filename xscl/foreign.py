"""Recognizes what belongs to SQL, XQuery or JSONPath where the parser stopped, and says what to write here."""

from __future__ import annotations

import re
from collections.abc import Container
from difflib import get_close_matches
from typing import NamedTuple

from xscl.algebra.expressions import Span
from xscl.problems import Problem

FAR = 200
"""How many characters in front of the place are looked at."""

_JOIN = "JOIN {x = y, 1 h}"
_FILTER = 'S//item[./title = "x"]'
_ONE = "each document is answered by itself"

_CLAUSES = {
    "inner": ("every JOIN is an inner one", f"write {_JOIN}"),
    "left": ("there is no LEFT JOIN: outputs have both sides", f"write {_JOIN}"),
    "right": ("there is no RIGHT JOIN: outputs have both sides", f"write {_JOIN}"),
    "full": ("there is no FULL JOIN: outputs have both sides", f"write {_JOIN}"),
    "outer": ("there is no OUTER JOIN: outputs have both sides", f"write {_JOIN}"),
    "cross": ("there is no CROSS JOIN", f"write {_JOIN}"),
    "natural": ("there is no NATURAL JOIN", f"write {_JOIN}"),
    "on": ("there is no ON", f"write the condition and a window in braces behind JOIN: {_JOIN}"),
    "using": ("there is no USING", f"write the condition and a window in braces behind JOIN: {_JOIN}"),
    "then": ("there is no THEN", "write FOLLOWED BY {x = y, 1 h}"),
    "within": ("there is no WITHIN here", f"write the window behind the condition of a join: {_JOIN}"),
    "group": ("there is no GROUP BY", _ONE),
    "having": ("there is no HAVING", _ONE),
    "order": ("there is no ORDER BY", "outputs come in the order of time"),
    "limit": ("there is no LIMIT", "a query stands, and is answered for every document"),
    "union": ("there is no UNION", "PUBLISH two queries under one name"),
    "into": ("there is no INTO", "write PUBLISH and a name"),
    "return": ("there is no RETURN", "write SELECT in front of FROM"),
    "emit": ("there is no EMIT", "write PUBLISH and a name"),
}
"""Words of other languages behind an input of a query: the message, and what to write."""

_OPERATORS = {
    "in": ("there is no IN", './lang = "en" or ./lang = "de" says the same'),
    "is": ("there is no IS", "write ./title for one that is there, and not(./title) for one that is not"),
    "between": ("there is no BETWEEN", "write ./price >= 1 and ./price <= 2"),
    "eq": ("there is no operator eq", "write ="),
    "ne": ("there is no operator ne", "write !="),
    "lt": ("there is no operator lt", "write <"),
    "le": ("there is no operator le", "write <="),
    "gt": ("there is no operator gt", "write >"),
    "ge": ("there is no operator ge", "write >="),
    "within": ("there is no WITHIN", "write a comma in front of the window"),
}
"""Words between two operands of a condition: the message, and what to write."""

_STARTS = {
    "for": ("there is no FOR", "write FROM S//item->x"),
    "let": ("there is no LET", "bind a variable where it is found: S//item[./title->t]"),
    "create": ("there is no CREATE", "write the query, and PUBLISH and a name behind it"),
    "insert": ("there is no INSERT", "write the query, and PUBLISH and a name behind it"),
    "with": ("there is no WITH", "PUBLISH a query, and read its name as a stream"),
    "pattern": (
        "a PATTERN begins with SEQ",
        "write PATTERN SEQ(A a, B b) WITHIN 7 d; in any order: SEQ(SET(A a, B b))",
    ),
    "seq": ("SEQ belongs to a PATTERN", "write PATTERN SEQ(A a, B b) WITHIN 7 d"),
    "set": ("SET belongs to a PATTERN", "write PATTERN SEQ(SET(A a, B b)) WITHIN 7 d"),
    "subscribe": ("there is no SUBSCRIBE in a query", "write FROM S//item"),
}
"""Words at the beginning of a query, which the parser takes for a stream: the message, and what to write."""


class _Habit(NamedTuple):
    """A spelling with other signs. `before` and `behind` are regular expressions for the text on both sides."""

    message: str
    hint: str
    behind: str = ""
    before: str = ""
    expects: str = ""


_HABITS = (
    _Habit("this is JSONPath", f"write {_FILTER}", r"\$(?:\.|\[|$)", r"^\s*"),
    _Habit("conditions of a join are not separated by commas", "write AND; the window alone stands behind a comma",
           r"[^,{}]*?(?:[=<>]|\b(?:contains|starts-with|ends-with|matches)\s*\()", r",", "INF"),
    _Habit("conditions are not separated by commas", "write and between two conditions", ",", "", "RSQB"),
    _Habit("inputs are not separated by commas", f"write {_JOIN} between two inputs", ",", "", "FOLLOWED"),
    _Habit("a window does not stand behind a semicolon", "write a comma in front of the window", ";", "", "COMMA"),
    _Habit("a filter stands in brackets", f"write {_FILTER}", r"\{", r"[\w*]\s*", "LSQB"),
    _Habit("there is no operator ~", 'write matches(./title, "x")', r"~"),
    _Habit("there is no operator :=", "write =", "=", ":"),
    _Habit("names are written without backquotes", "remove them", "`"),
    _Habit("comments are written otherwise", "write -- for the rest of the line, or (: and :)",
           r"(?s)[^*]*\*/", r"/\*"),
    _Habit("not is a function", "write not(./title)", r"[./@\w]", r"(?i:\bnot)\s*", "RSQB"),
    _Habit("a path begins with ./", "write ./{0}", r"([\w\-]+)", r"(?<![.\w])\."),
    _Habit("a function stands in front of what it is applied to", "write {0}(./title, ...)", r"\(",
           r"\.(contains|matches|starts-with|ends-with|lower-case|upper-case)\s*"),
    _Habit("a function stands in front of what it is applied to", "write lower-case(x) or upper-case(x)", r"\(",
           r"\.(?:lower|upper|toLowerCase|toUpperCase)\s*"),
    _Habit("the condition of a join stands in braces", f"write {_JOIN} in front of the second input, in place of ON",
           r"[^{;]*\b(?i:on)\b", r"(?i:\bjoin)", "LBRACE"),
    _Habit("there are no aggregates", "each match is an output of its own",
           r"\*", r"(?i:\b(?:count|sum|max|min|avg))\s*\("),
    _Habit("a quote ends the string", "write it twice, or use the other kind of quotes",
           r"\w", r"""(?:'[^'\n\\]*'|"[^"\n\\]*")"""),
    _Habit("all of a document is selected by its variable", "write {0}", r"\*", r"\b([\w\-]+)\."),
    _Habit("DISTINCT is not needed", "remove it: an output is made once", r"\w", r"(?i:\bselect\s+distinct)\s+"),
    _Habit("PUBLISH takes a name alone", "write PUBLISH {0}", r"(?i:as)\s+([\w\-]+)", r"(?i:\bpublish)\s+"),
)  # fmt: skip


def foreign_mistake(before: str, behind: str, at: int, expected: set[str]) -> Problem | None:
    """The problem with words or signs of another language at a place, with the text `before` and `behind` it."""
    before = before[-FAR:]
    word = _word(behind)
    told = _CLAUSES if "FOLLOWED" in expected else _OPERATORS if "AND" in expected else {}
    if known := told.get(word.lower()):
        return Problem(known[0], Span(at, at + len(word)), known[1])
    start = re.search(r"(?:^|;)\s*([A-Za-z]+)\s+[\w$(*]*$", before) if "FOLLOWED" in expected or not expected else None
    start = start or re.search(r"(?:^|;)\s*([A-Za-z]+)\s*$", before)
    cut = at - len(before)
    if start and (not cut or start.start()) and (known := _STARTS.get(start[1].lower())):
        return Problem(known[0], Span(cut + start.start(1), cut + start.end(1)), known[1])
    for habit in _HABITS:
        if habit.expects and habit.expects not in expected:
            continue
        after, ahead = re.match(habit.behind, behind), re.search(rf"(?:{habit.before})\s*$", before)
        if after and ahead:
            groups = [group for one in (ahead, after) for group in one.groups("")]
            group = next(iter(groups), "")
            return Problem(habit.message, Span(at, at + 1), habit.hint.replace("{0}", group))
    possible = [name for name in ("FROM", "FOLLOWED", "JOIN", "PUBLISH", "BY") if name in expected]
    close = get_close_matches(word.upper(), possible, n=1, cutoff=0.7)
    if close and word.upper() != close[0]:
        return Problem(f"there is no {word}", Span(at, at + len(word)), f"did you mean {close[0]}?")
    return None


def _word(behind: str) -> str:
    found = re.match(r"([A-Za-z]+)(?![\w.\-])", behind)
    return found[1] if found else ""


def misplaced_word(before: str, behind: str, at: int, expected: set[str]) -> Problem | None:
    """The problem with a keyword that is spelt wrong in front of the place, where it passed for a stream, or with a
    variable without an arrow."""
    word = _word(behind)
    first = re.search(r"(?:^|;)\s*([A-Za-z]+)\s*$", before)
    close = get_close_matches(first[1].upper(), ("SELECT", "FROM", "DECLARE"), n=1, cutoff=0.7) if first else []
    if first and close and first[1].upper() not in ("SELECT", "FROM", "DECLARE"):
        return Problem(f"there is no {first[1]}", Span(first.start(1), first.end(1)), f"did you mean {close[0]}?")
    if word and "ARROW" in expected and "FOLLOWED" in expected:
        return Problem(
            f"unexpected {word}", Span(at, at + len(word)), f"to bind a variable, write ->{word} or AS {word}"
        )
    return None


def dotted_hint(var: str, bound: Container[str]) -> str:
    """What to write for a variable with dots in its name, if its first part is one of those that are `bound`; else
    nothing."""
    first, dot, rest = var.partition(".")
    if not dot or first not in bound:
        return ""
    if rest in ("text", "value", "string"):
        return f"write {first}: a variable stands for its text"
    path = rest.replace(".", "/").rstrip("/")
    return f"write {first}/{path}, or bind a variable: {first}[./{path}->t]"
