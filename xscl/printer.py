"""Prints syntax trees of queries and event statements as canonical text, which parses back to an equal tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from common.bounds import window_text
from common.errors import InvalidValue
from common.tools import Remembered
from xscl import syntax
from xscl.algebra import values as exp
from xscl.algebra.values import is_number

_STRONG = {exp.Or: 0, exp.And: 1, exp.Not: 2, exp.Compare: 3, syntax.IsNull: 3, syntax.Minus: 6}
"""Precedence of operators. Others bind most tightly; arithmetic has 4 and 5."""


def _event(node: Any) -> str:
    """Prints a part of an event statement."""
    return _EVENT_PRINTERS[type(node)](node)


def _listed(nodes: Iterable[Any]) -> str:
    return ", ".join(map(_event, nodes))


def _event_query(query: syntax.EventQuery | syntax.Inner) -> str:
    if isinstance(query.stream, syntax.Sequenced):
        return _pattern(query.stream, query.select, query.within)
    select = "" if query.select is None else f"SELECT {_listed(query.select)} "
    within = "" if query.within is None else f" WITHIN {_event(query.within)}"
    return f"{select}FROM {_event(query.stream)}{within}"


def _named(item: syntax.Named) -> str:
    text = _event(item.expr)
    is_named = isinstance(item.expr, syntax.Reference | syntax.ItemReference) and item.expr.name == item.name
    return text if is_named or not item.name else f"{text} AS {item.name}"


def _aggregate(node: syntax.Grouped) -> str:
    by = f" BY {_listed(node.by)}" if node.by else ""
    over = f" OVER {_event(node.over)}" if node.over else ""
    return f"AGGREGATE{{{_listed(node.items)}{by}{over}}} {_source(node.source)}"


def _stories(node: syntax.StoryStream) -> str:
    counts = f"{_listed(node.counts)} " if node.counts else ""
    having = "" if node.having is None else f" HAVING {_event(node.having)}"
    tell = f" TELL {', '.join(node.tell)}" if node.tell else ""
    return f"STORIES{{{counts}LASTING {_event(node.lasting)}{having}{tell}}} {_source(node.source)}"


def _story_count(count: syntax.StoryCount) -> str:
    return count.name if count.value is None else f"count(DISTINCT {to_xscl(count.value)})"


def _next(node: syntax.NextStream) -> str:
    braces = "" if node.condition is None else f"{{{_event(node.condition)}}}"
    return f"{_event(node.left)} {node.word}{braces} {_source(node.right)}"


def _fold(node: syntax.Iteration) -> str:
    ways = ["" if one is None else _event(one) for one in (node.chooses, node.continues)]
    braces = ", ".join([*ways, _listed(node.sets)]).rstrip(" ")
    return f"{_event(node.left)} FOLD{{{braces}}} {_source(node.right)}"


def _source(node: syntax.EventStream) -> str:
    is_binary = isinstance(node, syntax.NextStream | syntax.Iteration | syntax.UnionStream)
    return f"({_event(node)})" if is_binary else _event(node)


def _pattern(body: syntax.Sequenced, select: syntax.EventItems | None, within: syntax.Window | None) -> str:
    strategy = "" if body.strategy is None else f" {_event(body.strategy)}"
    braces = "" if body.where is None else _event(body.where)
    errors = body.errors
    parts = [f"PATTERN SEQ({_listed(body.components)})"]
    parts += [f"WHERE{strategy} {{{braces}}}"] if strategy or braces else []
    parts += [f"ERRORS <= {errors.most}"] if errors else []
    parts += [f"BUDGET {errors.budget}"] if errors and errors.budget is not None else []
    parts += [f"WITHIN {_event(within)}"] if within else []
    parts += [f"HAVING {_event(body.having)}"] if body.having is not None else []
    parts += [f"RETURN {_listed(select)}"] if select is not None else []
    parts += ["ALL MATCHES TOGETHER"] if isinstance(body.mode, syntax.TogetherMode) else []
    parts += ["EARLIEST MAXIMAL"] if body.mode.maximal else []
    parts += ["NON OVERLAPPING"] if body.mode.apart else []
    return " ".join(parts)


def _strength(node: syntax.EventExpr) -> int:
    if isinstance(node, syntax.ArithmeticExpr):
        return 4 if node.op in "+-" else 5
    return _STRONG.get(type(node), 7)


def _at_least(strength: int, node: syntax.EventExpr) -> str:
    return _event(node) if _strength(node) >= strength else f"({_event(node)})"


def _minus(node: syntax.Minus) -> str:
    arg = _at_least(6, node.arg)
    return f"- {arg}" if arg.startswith("-") else f"-{arg}"  # -- begins a comment


def _item_reference(node: syntax.ItemReference) -> str:
    place = {"": "", "LEN": f"[{node.variable}.LEN]", "[]": "[]"}.get(node.place, f"[{node.place}]")
    return f"{node.variable}{place}.{node.name}" if node.name else f"{node.variable}{place}"


_EVENT_PRINTERS: dict[type, Callable[[Any], str]] = {
    syntax.SelectStar: lambda _: "*",
    syntax.Named: _named,
    # Streams.
    syntax.StreamName: lambda node: node.name,
    syntax.Inner: lambda node: f"({_event_query(node)})",
    syntax.Filtered: lambda node: f"FILTER{{{_event(node.condition)}}} {_source(node.source)}",
    syntax.Grouped: _aggregate,
    syntax.StoryStream: _stories,
    syntax.StoryCount: _story_count,
    syntax.NextStream: _next,
    syntax.LatestStream: _next,
    syntax.Iteration: _fold,
    syntax.UnionStream: lambda node: f"{_event(node.left)} UNION {_source(node.right)}",
    # Components and strategies of patterns.
    syntax.OneEvent: lambda node: f"{node.stream.name}{'+' * node.many} {node.variable}{'[]' * node.many}",
    syntax.NoEvent: lambda node: f"~({_event(node.component)})",
    syntax.AnyOrder: lambda node: f"SET({_listed(node.components)})",
    syntax.LetterOf: lambda node: f"{node.stream.name}{'!' * node.needed}",
    syntax.Alternatives: lambda node: f"({' | '.join(map(_listed, node.words))})",
    syntax.Repetition: lambda node: _event(node.part) + {0: "*", 1: "+"}.get(node.least, f"{{{node.least},}}"),
    syntax.StrategyName: lambda node: node.name + (f"({_listed(node.variables)})" if node.variables else ""),
    syntax.ListedVariable: lambda node: f"{node.name}{'[]' * node.many}",
    # Expressions.
    syntax.Reference: lambda node: f"{node.side}.{node.name}" if node.side else node.name,
    syntax.ItemReference: _item_reference,
    syntax.EquivalenceTest: lambda node: f"[{_listed(node.names)}]",
    syntax.TimeMeasure: lambda node: node.name,
    exp.String: lambda node: _string(node.value),
    exp.Number: lambda node: node.text,
    syntax.Percentage: lambda node: f"{node.text}%",
    syntax.Window: lambda node: window_text(node.us),
    syntax.SessionGap: lambda node: f"SESSION {window_text(node.us)}",
    syntax.Null: lambda _: "NULL",
    syntax.ArithmeticExpr: lambda node: (
        f"{_at_least(_strength(node), node.left)} {node.op} {_at_least(_strength(node) + 1, node.right)}"
    ),
    syntax.Minus: _minus,
    exp.Call: lambda node: exp.call_text(node.name, map(_event, node.args)),
    exp.Compare: lambda node: f"{_at_least(4, node.left)} {node.op} {_at_least(4, node.right)}",
    syntax.IsNull: lambda node: f"{_at_least(4, node.value)} IS {'NOT ' * node.negated}NULL",
    exp.And: lambda node: " AND ".join(_at_least(2, arg) for arg in node.args),
    exp.Or: lambda node: " OR ".join(_at_least(1, arg) for arg in node.args),
    exp.Not: lambda node: f"NOT {_at_least(2, node.arg)}",
}


_Statement = syntax.Script | syntax.Query | syntax.EventQuery | syntax.EventDefinition | syntax.DefinedAttribute
_Clause = syntax.Once | syntax.SelectClause | syntax.SelectItem | syntax.Input | syntax.Window
_Node = _Statement | _Clause | exp.Expr | exp.Step | exp.NameTest | exp.Hole

_TEXT_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "{": "{{", "}": "}}"}
_TO_ESCAPE = re.compile("[&<>{}\t\n\r\x85\u2028\u2029]")


def to_xscl(node: _Node) -> str:
    """Prints a node as XSCL on one line. Raises InvalidValue if a string has a line break, which no literal can.

    >>> from xscl.parser import parse_script
    >>> to_xscl(parse_script("//book AS x1[author]"))
    'FROM S//book->x1[./author]'
    """
    return _PRINTERS[type(node)](node)


def around_window(script: syntax.Script) -> tuple[str, ...]:
    """The text of a script of one query; for a join, in two parts around its window."""
    (query,) = script.queries
    if query.publish is not None or not isinstance(query.source, syntax.Join):
        return (to_xscl(script),)
    before, behind = _around_window(query.source)
    return _beginning(script) + _selected(query) + before, behind


def _beginning(script: syntax.Script) -> str:
    weights = "" if script.weights is None else f"DECLARE WEIGHTS {_string(script.weights)}; "
    return weights + "".join(f"DECLARE NAMESPACE {prefix} = {_string(uri)}; " for prefix, uri in script.namespaces)


def _selected(query: syntax.Query) -> str:
    return "FROM " if query.select is None else f"SELECT {to_xscl(query.select)} FROM "


def _query(query: syntax.Query) -> str:
    publish = _publish(query)
    once = "" if query.once is None else f" {to_xscl(query.once)}"
    return f"{_selected(query)}{to_xscl(query.source)}{publish}{once}"


def _publish(query: syntax.Query | syntax.EventQuery) -> str:
    return "" if query.publish is None else f" PUBLISH {query.publish}{' HIDDEN' if query.hidden else ''}"


def _story_query(query: syntax.StoryQuery) -> str:
    stories = query.stories
    having = "" if stories.having is None else f" HAVING {_event(stories.having)}"
    tell = f" TELL {', '.join(stories.tell)}" if stories.tell else ""
    return f"{to_xscl(query.pairs)} STORIES LASTING {_event(stories.lasting)}{having}{tell}"


def _attribute(attribute: syntax.DefinedAttribute) -> str:
    operand = to_xscl(attribute.operand)
    stays = is_number(attribute.operand) and not operand.startswith("number(")  # the parser removes one number()
    if attribute.number and not stays:
        operand = f"number({operand})"
    return f"{attribute.name} {'IN' if attribute.each else ':='} {operand}"


def _once(once: syntax.Once) -> str:
    within = "" if once.window is None else f" WITHIN {to_xscl(once.window)}"
    return f"ONCE PER ({_commas(once.keys)}){within}"


def _item(item: syntax.SelectItem) -> str:
    operand = to_xscl(item.operand)
    return operand if operand == item.name else f"{operand} AS {item.name}"


def _around_window(join: syntax.Join) -> tuple[str, str]:
    right = f"({to_xscl(join.right)})" if isinstance(join.right, syntax.Join) else to_xscl(join.right)
    return f"{to_xscl(join.left)} {join.op} {{{to_xscl(join.pred)}, ", f"}} {right}"


def _commas(nodes: Iterable[_Node]) -> str:
    return ", ".join(map(to_xscl, nodes))


def _steps(steps: tuple[exp.Step, ...]) -> str:
    return "".join(map(_step, steps))


def _step(step: exp.Step) -> str:
    binding = "" if step.var is None else f"->{step.var}"
    return f"{step.axis}{_test(step.test)}{binding}{''.join(map(_filter, step.filters))}"


def _test(test: exp.NameTest) -> str:
    at = "@" if test.kind == "attribute" else ""
    return f"{at}{test.local}" if test.prefix is None else f"{at}{test.prefix}:{test.local}"


def _grouped(arm: exp.Expr) -> str:
    return f"({to_xscl(arm)})" if isinstance(arm, exp.And | exp.Or) else to_xscl(arm)


def _concat(node: exp.Call) -> str:
    of, function = node.args[0], exp.derivation(node)
    return exp.written(str(function), to_xscl(of))


def _string(value: str) -> str:
    if "\n" in value:
        raise InvalidValue(f"a string literal cannot hold a line break: {value!r}")
    return '"' + value.replace('"', '""') + '"'


def _element(node: exp.ElementConstructor) -> str:
    quoted = partial(_content, quoted=True)
    attributes = "".join(f' {name}="{"".join(map(quoted, parts))}"' for name, parts in node.attributes)
    children = "".join(map(_content, node.children))
    end = f"{node.name} " if node.name.endswith("-") else node.name  # a hyphen before > would be an arrow
    begin = f"{node.name}{attributes}" if attributes else end
    return f"<{begin}>{children}</{end}>" if children else f"<{node.name}{attributes}/>"


def _content(part: str | exp.Hole | exp.ElementConstructor, *, quoted: bool = False) -> str:
    if not isinstance(part, str):
        return to_xscl(part)
    escaped = _TO_ESCAPE.sub(lambda found: _TEXT_ESCAPES.get(found[0], f"&#{ord(found[0])};"), part)
    return escaped.replace('"', "&quot;") if quoted else escaped


# The parser shares the trees of equal filters.
_filter: Remembered[exp.Expr, str] = Remembered(lambda condition: f"[{to_xscl(condition)}]")

_PRINTERS: dict[type, Callable[[Any], str]] = {
    syntax.Script: lambda node: (_beginning(node) + "; ".join(map(to_xscl, node.statements))).removesuffix("; "),
    syntax.Query: _query,
    syntax.EventDefinition: lambda node: (
        f"DEFINE EVENT {node.name} FROM {to_xscl(node.block)} ({_commas(node.attributes)})"
    ),
    syntax.DefinedAttribute: _attribute,
    syntax.EventQuery: lambda node: _event_query(node) + _publish(node),
    syntax.StoryQuery: _story_query,
    syntax.Once: _once,
    syntax.SelectStar: lambda _: "*",
    syntax.SelectItems: lambda node: _commas(node.items),
    syntax.SelectItem: _item,
    exp.ElementConstructor: _element,
    exp.Hole: lambda node: f"{{{to_xscl(node.operand)}}}",
    syntax.Block: lambda node: node.stream + _steps(node.steps),
    syntax.SubQuery: lambda node: f"(SELECT {to_xscl(node.select)} FROM {to_xscl(node.source)})",
    syntax.Join: lambda node: to_xscl(node.window).join(_around_window(node)),
    syntax.Window: lambda node: window_text(node.us),
    exp.Step: _step,
    exp.NameTest: _test,
    exp.Rel: lambda node: "." + _steps(node.steps),
    exp.VarPath: lambda node: node.var + _steps(node.steps),
    exp.String: lambda node: _string(node.value),
    exp.Number: lambda node: node.text,
    exp.Call: lambda node: f"{node.name}({_commas(node.args)})" if node.name != exp.PARTS else _concat(node),
    exp.Bound: lambda node: f"{to_xscl(node.value)}->{node.var}",
    exp.Compare: lambda node: f"{to_xscl(node.left)} {node.op} {to_xscl(node.right)}",
    exp.And: lambda node: " and ".join(map(_grouped, node.args)),
    exp.Or: lambda node: " or ".join(map(_grouped, node.args)),
    exp.Not: lambda node: f"not({to_xscl(node.arg)})",
}
