"""Lowers paths and their filters to tree patterns.

A filter is a conjunction of arms. An arm that is a path becomes a branch. `path = "literal"` becomes a branch whose
last node carries the literal, which says what XPath's existential comparison does. Any other arm becomes a condition,
as XPath 1.0 text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from common.remembered import Remembered
from xscl.algebra.comparisons import is_number, is_of_times, is_time
from xscl.algebra.expressions import And, Call, Compare, Expr, NameTest, Not, Number, Or, Rel, Step, String
from xscl.algebra.functions import number_string
from xscl.algebra.pattern import EXTENSION_PREFIX, Condition, PatternNode, Test, quoted
from xscl.algebra.times import time_text

_STRING_ARGUMENTS = (
    "contains",
    "starts-with",
    "normalize-space",
    "string-length",
    "string",
    "substring-before",
    "substring-after",
)
"""The functions of XPath 1.0 whose arguments are strings, and that libxml2 gets right."""


_shared_test = lru_cache(maxsize=10_000)(Test)
"""The test of a name. Very many patterns have the same ones."""


class PatternBuilder:
    """Builds tree patterns from syntax. `namespaces` are the URIs of prefixes."""

    def __init__(self, namespaces: Mapping[str, str]) -> None:
        self._uris = dict(namespaces)
        self._filter = Remembered(self._lowered)  # the parser gives equal filters one tree

    def path(self, steps: tuple[Step, ...], last_var: str | None = None, literal: str | None = None) -> PatternNode:
        """The pattern of a path: a chain of its steps, each with its filters.

        The last node is bound to `last_var` unless its step has a variable. If `literal` is given, it is the node's
        string value.
        """
        last = steps[-1]
        node = self._step(last, (), last.var or last_var, literal)
        for step in reversed(steps[:-1]):
            node = self._step(step, (node,), step.var)
        return node

    def _step(
        self, step: Step, below: tuple[PatternNode, ...], var: str | None, literal: str | None = None
    ) -> PatternNode:
        conditions: tuple[Condition, ...] = () if literal is None else (Condition(literal=literal),)
        branches: tuple[PatternNode, ...] = ()
        for condition in step.filters:
            more, paths = self._filter(condition)
            conditions += more
            branches += paths
        if len(conditions) > 1:
            conditions = tuple(dict.fromkeys(conditions))
        return PatternNode(step.axis, self.test(step.test), conditions, branches + below, var)

    def _lowered(self, condition: Expr) -> tuple[tuple[Condition, ...], tuple[PatternNode, ...]]:
        """A filter as conditions and branches."""
        conditions: list[Condition] = []
        branches: list[PatternNode] = []
        for arm in _arms(condition):
            path, value = _path_and_literal(arm)
            if path is None:
                conditions.append(self.condition(arm))
            elif path.steps:
                branches.append(self.path(path.steps, literal=value))
            elif value is not None:
                conditions.append(Condition(literal=value))
        return tuple(conditions), tuple(branches)

    def test(self, test: NameTest) -> Test:
        """A name test with its prefix resolved."""
        if test.prefix is None:
            uri = "*" if test.local == "*" else ""
        elif test.prefix == "*":
            uri = "*"
        else:
            uri = "http://www.w3.org/XML/1998/namespace" if test.prefix == "xml" else self._uris[test.prefix]
        return _shared_test(test.kind, uri, test.local)

    def condition(self, expr: Expr) -> Condition:
        """A filter without bindings, as a condition of one node."""
        return Condition(xpath=self._xpath(expr))

    def _xpath(self, expr: Expr) -> str:
        """A filter as XPath 1.0 text. It has no namespace prefix but EXTENSION_PREFIX."""
        match expr:
            case Rel(steps=steps):
                return "." + "".join(self._xpath_step(step) for step in steps)
            case String(value=value):
                return quoted(value)
            case Number(text=text):
                return text
            case Compare(op=op, left=left, right=right) if is_of_times(expr):
                return f'{EXTENSION_PREFIX}:compare-times({self._xpath_time(left)}, "{op}", {self._xpath_time(right)})'
            case Compare(op=op, left=left, right=right):
                one, two = self._xpath(left), self._xpath(right)
                numeric = is_number(left) + is_number(right)
                if numeric == 2 or (numeric == 0 and op in ("=", "!=")):
                    return f"{one} {op} {two}"
                return f'{EXTENSION_PREFIX}:compare({one}, "{op}", {two})'
            case Call(name="count", args=(arg,)):
                return f"count({self._xpath(arg)})"
            case Call(name=name, args=args) if name in _STRING_ARGUMENTS:
                return f"{name}({', '.join(self._xpath_string(a) if is_number(a) else self._xpath(a) for a in args)})"
            case Call(name=name, args=args):
                return f"{EXTENSION_PREFIX}:{name}({', '.join(map(self._xpath_string, args))})"
            case And(args=args):
                return " and ".join(f"({self._xpath(a)})" for a in args)
            case Or(args=args):
                return " or ".join(f"({self._xpath(a)})" for a in args)
            case Not(arg=arg):
                return f"not({self._xpath(arg)})"
        raise AssertionError(f"not a filter: {expr!r}")

    def _xpath_string(self, expr: Expr) -> str:
        """An operand as XPath text whose value is a string."""
        if isinstance(expr, Number):
            return quoted(number_string(expr.text))
        text = self._xpath(expr)
        if is_number(expr):
            return f"{EXTENSION_PREFIX}:string({text})"
        return f"string({text})" if isinstance(expr, Rel) else text

    def _xpath_time(self, expr: Expr) -> str:
        """A side of a comparison of times as XPath text, whose value is the text of a time. A path has many."""
        if isinstance(expr, String):
            return quoted(time_text(expr.value) or expr.value)
        if is_time(expr) and isinstance(expr, Call):
            return self._xpath_string(expr.args[0])
        return self._xpath(expr)

    def _xpath_step(self, step: Step) -> str:
        test = self.test(step.test)
        parts = []
        # libxml2 takes only the names of XML's fourth edition. Other names are compared as text.
        plain = test.uri == "" and test.local.isascii()
        if test.local != "*" and not plain:
            parts.append(f"local-name() = {quoted(test.local)}")
        if test.uri != "*" and not plain:
            parts.append(f"namespace-uri() = {quoted(test.uri)}")
        at = "@" if test.kind == "attribute" else ""
        head = test.local if not parts else "*"
        names = f"[{' and '.join(parts)}]" if parts else ""
        filters = "".join(f"[boolean({self._xpath(f)})]" for f in step.filters)
        return f"{step.axis}{at}{head}{names}{filters}"


def _arms(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, And):
        for arg in expr.args:
            yield from _arms(arg)
    else:
        yield expr


def _path_and_literal(arm: Expr) -> tuple[Rel | None, str | None]:
    match arm:
        case Rel():
            return arm, None
        case Compare(op="=", left=Rel() as path, right=String(value=value)):
            return path, value
        case Compare(op="=", left=String(value=value), right=Rel() as path):
            return path, value
    return None, None
