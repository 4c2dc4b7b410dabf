"""Explains syntax errors in event queries, definitions and patterns, and remarks on correct queries.

A remark says that a query may not mean what it seems to: texts compared as numbers, or state without end. Each has its
place in the query's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lark import UnexpectedInput, UnexpectedToken

from xscl.advice import Rule, explain_syntax_error, known_mistake, plain_problem
from xscl.algebra.events import Constant, EventCondition, Fold, Next, Schema, Select, Stream, Value
from xscl.algebra.values import ORDERS, Span
from xscl.event_forms import RESERVED, RESERVED_IN_PATTERNS, expression_kind, is_windowed
from xscl.event_resolve import STRATEGIES, PatternResolver, Resolver, Scope
from xscl.problems import Lines, Problem
from xscl.syntax import (
    Both,
    EventCompare,
    EventExpr,
    EventQuery,
    EventStream,
    Filtered,
    Grouped,
    Inner,
    Iteration,
    NextStream,
    Reference,
    Sequenced,
    UnionStream,
    Window,
)
from xscl.text import UNITS_HINT, bracket_problem

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
    Rule("unknown unit of time {0}", UNITS_HINT, r"(?:[0-9][0-9.]*|\.[0-9]+)([A-Za-z]\w*)"),
    Rule("unknown unit of time {0}", UNITS_HINT, rf"((?i:{_LONG_UNITS})\b)", r"(?<![\w.])[0-9.]+"),
    Rule("unknown unit of time {0}", UNITS_HINT, rf"((?!(?i:{'|'.join(sorted(RESERVED))})\b)[A-Za-z]\w*)",
         r"(?i:\b(?:within|over))\s+[0-9.]+"),
    Rule("IS asks for NULL only", "write IS NULL or IS NOT NULL", before=r"(?i:\bis)", expects="NULL"),
)  # fmt: skip
"""Mistakes common to all statements over events."""

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
    Rule("a new statement begins here", "write ; between two statements", r"(?i:from|select|define|pattern)\b",
         expects="$END"),
    Rule("an operator is missing", "write a comparison, AND or OR between the two", r"[\w\"'($]", expects="AND"),
)  # fmt: skip
"""Parts that may be missing from any statement over events."""

_QUERY_RULES = (
    # What belongs to queries over documents.
    Rule("a path reads documents, and an event query reads events",
         "write DEFINE EVENT and a name, FROM the path (x := ...), and the name here", r"/|->|@", expects="NEXT"),
    Rule("a path reads documents, and an event query reads events",
         "write DEFINE EVENT and a name, FROM the path (x := ...), and the name here", r"/", expects="FILTER"),
    Rule("there are no brackets here", "write FILTER{{...}} in front of the source", r"\[", expects="NEXT"),
    Rule("there are no brackets here", "write $1.x = $2.x", r"\["),
    Rule("an event query has no element constructor",
         "write SELECT x, y AS z: an output has an element for each attribute", "<", "(?i:select)"),
    Rule("{0} joins documents, and this is an event query",
         "write NEXT, or define events from the matches of a join that is PUBLISHed", r"(?i:(join|followed)\b)",
         expects="NEXT"),
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
    Rule("an item is missing", "write one behind the comma, or remove it", r"(?i:from)\b|$", ",", expects="FUNCTION"),
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
    at, ended, expected = error_position(error, text)
    problem = (
        bracket_problem(text, at, ended, expected, start, lines)
        or known_mistake(_QUERY_RULES, text[:at], text[at:], at, expected)
        or _keyword_problem(text[at:], at, expected)
        or plain_problem(text[at:], at, expected)
    )
    return problem.moved(start)


def explain_definition(error: UnexpectedInput, text: str, start: int, lines: Lines) -> Problem:
    at, ended, expected = error_position(error, text)
    problem = bracket_problem(text, at, ended, expected, start, lines) or known_mistake(
        _DEFINITION_RULES, text[:at], text[at:], at, expected
    )
    return problem.moved(start) if problem else explain_syntax_error(error, text, start, lines)


def error_position(error: UnexpectedInput, text: str) -> tuple[int, bool, set[str]]:
    """(offset where the parser stopped, whether at the end, expected terminals)."""
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


_FOREVER = "what waits here is kept for ever"
_NUMBER_HINT = "make it a number where the event is defined, with number(...)"


def remarks(query: EventQuery, schemas: Mapping[str, Schema]) -> list[Problem]:
    """The remarks on a query without problems, in the order of their places."""
    body = query.stream
    if isinstance(body, Sequenced):
        of_pattern = _PatternRemarking(schemas)
        of_pattern.pattern(query, body)
        found, place = of_pattern.remarks, None
        if query.within is not None and query.within.us is None:
            place, hint = query.within.span, "write a window, such as WITHIN 30 d"
    else:
        remarking = _Remarking(schemas)
        remarking.query(query.select, body, query.within)
        found, place = remarking.remarks, _without_end(query, body, schemas)
        hint = "write WITHIN and a window at the end of the query, such as WITHIN 30 d"
    if place is not None:
        found.append(Problem(f"{_FOREVER}: nothing says how long a result may take", place, hint))
    # A part of the tree may have been resolved more than once.
    distinct = {(problem.span.start, problem.span.end, problem.message): problem for problem in found}
    return [problem for _, problem in sorted(distinct.items())]


class _TextRemarks(Resolver):
    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        super().__init__(schemas, ())
        self.remarks: list[Problem] = []

    def comparison(self, expr: EventCompare, scope: Scope, negated: bool) -> EventCondition | None:
        """Texts count as numbers in all but = and !=, and beside a number."""
        left, right = self.value(expr.left, scope), self.value(expr.right, scope)
        if left is not None and right is not None:
            self._texts(expr, left, right)
        return super().comparison(expr, scope, negated)

    def _texts(self, expr: EventCompare, left: Value, right: Value) -> None:
        texts = [
            one for one, value in ((expr.left, left), (expr.right, right))
            if expression_kind(value) == "string" and not isinstance(value, Constant)
        ]  # fmt: skip
        if len(texts) == 2 and expr.op in ORDERS:
            message = f"{expr.op} compares numbers, and both of these are texts: it holds for texts that are numbers"
            self.remarks.append(
                Problem(message, expr.span, f"{_NUMBER_HINT}; DUR and GAP say how far apart events are")
            )
        elif len(texts) == 1 and (expr.op in ORDERS or "number" in (expression_kind(left), expression_kind(right))):
            message = "a text is compared with a number: this never holds for a text that is none"
            self.remarks.append(Problem(message, texts[0].span, _NUMBER_HINT))


class _PatternRemarking(_TextRemarks, PatternResolver): ...


class _Remarking(_TextRemarks):
    def query(self, select: object, source: EventStream, within: Window | None) -> Stream | None:
        """WITHIN has a meaning for NEXT and FOLD only."""
        if within is not None and within.us is not None and not any(_joins(source)):
            hint = "remove it; OVER in the braces of AGGREGATE says how far back it looks"
            self.remarks.append(Problem("WITHIN changes nothing without NEXT or FOLD", within.span, hint))
        return super().query(select, source, within)  # type: ignore[arg-type]  # the items, which are passed on

    def filter(self, node: Filtered) -> Stream | None:
        """After a NEXT without a condition, a FILTER tests the first event only, whichever it is."""
        join = node.source
        if isinstance(join, NextStream) and join.condition is None:
            left, right = Resolver.stream(self, join.left), Resolver.stream(self, join.right)
            if left is not None and right is not None:
                self._behind_next(node.condition, left.schema, right.schema)
        return super().filter(node)

    def _behind_next(self, condition: EventExpr, left: Schema, right: Schema) -> None:
        names = {name for name, _ in right}
        clash = any(name in names for name, _ in left)
        before = {f"{name}_1" if clash else name for name, _ in left}
        for atom in condition.args if isinstance(condition, Both) else (condition,):
            match atom:
                case EventCompare(op="=", left=Reference(name=one), right=Reference(name=other)) if {
                    one,
                    other,
                } & before and {one, other} & names:
                    message = "NEXT has taken the first event of all before this is tested"
                    hint = "write it in the braces of NEXT for the first event for which it holds"
                    self.remarks.append(Problem(message, atom.span, hint))


def _joins(stream: EventStream) -> Iterator[EventStream]:
    waiting = [stream]
    while waiting:
        node = waiting.pop()
        match node:
            case Inner():
                waiting.append(node.stream)
            case Filtered() | Grouped():
                waiting.append(node.source)
            case NextStream() | Iteration() | UnionStream():
                if not isinstance(node, UnionStream):
                    yield node
                waiting += node.left, node.right


def _without_end(query: EventQuery, node: EventStream, schemas: Mapping[str, Schema]) -> Span | None:
    """The place of the outermost NEXT or FOLD of the query whose state never expires."""
    stream = Resolver(schemas, ()).query(query.select, node, query.within)
    if stream is None or is_windowed(stream):
        return None
    while True:
        match node:
            case Inner():
                node = node.stream
            case Filtered() | Grouped():
                node = node.source
            case UnionStream():
                left = Resolver(schemas, ()).stream(node.left)
                node = node.right if left is not None and is_windowed(left) else node.left
            case NextStream() | Iteration():
                if _is_endless(Resolver(schemas, ()).stream(node)):
                    return node.span
                left = Resolver(schemas, ()).stream(node.left)
                node = node.right if left is not None and is_windowed(left) else node.left
            case _:
                return node.span


def _is_endless(stream: Stream | None) -> bool:
    while isinstance(stream, Select):
        stream = stream.source
    return isinstance(stream, Next | Fold) and stream.within is None


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
    Rule("RETURN returns nothing", "write what to tell, such as a.x AS x, or leave RETURN out",
         r"(?i:publish|all|earliest|non)\b|$", r"(?i:\breturn)"),
    Rule("an item is missing", "write one behind the comma, or remove it",
         r"(?i:publish|all|earliest|non)\b|$", ",", expects="FUNCTION"),
    Rule("HAVING without a condition", "write one, such as a.x > 5, or leave HAVING out",
         r"(?i:return|publish|all|earliest|non)\b|$", r"(?i:\bhaving)"),
    Rule("HAVING without a condition", "write one, such as a.x > 5, or leave HAVING out", r"\w",
         r"(?i:\bhaving\s+(?:return|all|earliest|non))"),
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
    at, ended, expected = error_position(error, text)
    problem = (
        bracket_problem(text, at, ended, expected, start, lines)
        or _where_without_braces(text, at)
        or known_mistake(_RULES, text[:at], text[at:], at, expected)
        or _pattern_keyword_problem(text[at:], at, expected)
        or plain_problem(text[at:], at, {_WORDS.get(name, name) for name in expected})
    )
    return problem.moved(start)


def _where_without_braces(text: str, at: int) -> Problem | None:
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


def _pattern_keyword_problem(behind: str, at: int, expected: set[str]) -> Problem | None:
    found = re.match(r"[A-Za-z]+(?!\w)", behind)
    if found is None or not expected & {"NAME", "VARIABLE"}:
        return None
    if found[0].lower() not in (RESERVED_IN_PATTERNS if "VARIABLE" in expected else RESERVED):
        return None
    message = f"{found[0]} is a keyword, and a name is needed here"
    return Problem(message, Span(at, at + len(found[0])), "choose another name (behind a dot any name will do)")
