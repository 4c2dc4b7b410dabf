"""Tree patterns: what a query block looks for in one document, with names resolved and filters sorted out.

A filter arm that is a path becomes a branch; `path = "literal"` becomes a branch whose last node carries the literal
(equal to XPath's existential comparison); every other boolean arm becomes a condition, kept as XPath 1.0 text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from xscl.functions import number_string
from xscl.syntax import And, Call, Compare, Expr, NameTest, NodeKind, Not, Number, Or, Rel, Step, String

EXTENSION_PREFIX = "mmqjp"
"""Prefix of our own functions in the XPath text of a condition: `ends-with` and `matches`, which XPath 1.0 lacks, and
`number`, `string` and `compare` (of numbers), which libxml2 has otherwise: to it 1e3 is a number, 1e+12 a string."""

_EXACT_DIGITS = 15
_NUMERIC = ("count", "number", "string-length")
_STRING_ARGUMENTS = ("contains", "starts-with", "normalize-space", "string-length", "string")


@dataclass(frozen=True, slots=True, order=True)
class Test:
    """A name test with its namespace: `uri` is "" for none and "*" for any, `local` is "*" for any name."""

    kind: NodeKind
    uri: str
    local: str

    def accepts(self, name: str) -> bool:
        """Whether a node of this kind with the name `local` or `{uri}local` passes."""
        uri, local = name[1:].rsplit("}", 1) if name.startswith("{") else ("", name)
        return self.uri in ("*", uri) and self.local in ("*", local)

    def __str__(self) -> str:
        name = self.local if self.uri == "" or self.uri == self.local == "*" else f"{{{self.uri}}}{self.local}"
        return f"@{name}" if self.kind == "attribute" else name


@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """A condition on a node: its string value equals `literal`, or the boolean XPath 1.0 expression `xpath` holds."""

    literal: str | None = None
    xpath: str | None = None

    def __str__(self) -> str:
        return f". = {quoted(self.literal)}" if self.literal is not None else str(self.xpath)


@dataclass(frozen=True, slots=True)
class PatternNode:
    """A node of a tree pattern. `axis` leads to it from its parent; "." is the self axis, whose node may carry
    the derived-value `functions` to apply to the string value, the innermost first."""

    axis: str
    test: Test
    conditions: tuple[Condition, ...] = ()
    children: tuple[PatternNode, ...] = ()
    var: str | None = None
    functions: tuple[str, ...] = ()

    def walk(self) -> Iterator[PatternNode]:
        """This node and all below it, in pre-order."""
        yield self
        for child in self.children:
            yield from child.walk()

    def __str__(self) -> str:
        functions = "".join(f"[{name}]" for name in self.functions)
        head = f".{functions}" if self.axis == "." else f"{self.axis}{self.test}"
        arrow = f"->{self.var}" if self.var else ""
        conditions = "".join(f"[{condition}]" for condition in self.conditions)
        return head + arrow + conditions + "".join(f"[.{child}]" for child in self.children)


def transform(node: PatternNode, change: Callable[[PatternNode], PatternNode]) -> PatternNode:
    """The pattern with `change` applied to every node, children first."""
    return change(replace(node, children=tuple(transform(child, change) for child in node.children)))


def attach(pattern: PatternNode, var: str, branch: PatternNode) -> PatternNode:
    """The pattern with one more child below the node bound to `var`."""
    return transform(pattern, lambda n: replace(n, children=(*n.children, branch)) if n.var == var else n)


class PatternBuilder:
    """Builds tree patterns from syntax, resolving prefixes by `namespaces` (prefix -> URI)."""

    def __init__(self, namespaces: Mapping[str, str]) -> None:
        self._uris = dict(namespaces)

    def path(self, steps: tuple[Step, ...], last_var: str | None = None, literal: str | None = None) -> PatternNode:
        """The chain of `steps`, each with its filters. The last step is bound to `last_var` unless it has a
        variable of its own, and must have the string value `literal` if one is given."""
        last = steps[-1]
        node = self._step(last, (), last.var or last_var, literal)
        for step in reversed(steps[:-1]):
            node = self._step(step, (node,), step.var)
        return node

    def _step(
        self, step: Step, below: tuple[PatternNode, ...], var: str | None, literal: str | None = None
    ) -> PatternNode:
        conditions = [] if literal is None else [Condition(literal=literal)]
        branches: list[PatternNode] = []
        for arm in _arms(step.filters):
            path, value = _path_and_literal(arm)
            if path is None:
                conditions.append(Condition(xpath=self._xpath(arm)))
            elif path.steps:
                branches.append(self.path(path.steps, literal=value))
            elif value is not None:
                conditions.append(Condition(literal=value))
        conditions = list(dict.fromkeys(conditions))
        return PatternNode(step.axis, self.test(step.test), tuple(conditions), (*branches, *below), var)

    def test(self, test: NameTest) -> Test:
        if test.prefix is None:
            uri = "*" if test.local == "*" else ""
        elif test.prefix == "*":
            uri = "*"
        else:
            uri = "http://www.w3.org/XML/1998/namespace" if test.prefix == "xml" else self._uris[test.prefix]
        return Test(test.kind, uri, test.local)

    def _xpath(self, expr: Expr) -> str:
        """XPath 1.0 text of a boolean filter, free of namespace prefixes other than EXTENSION_PREFIX."""
        match expr:
            case Rel(steps=steps):
                return "." + "".join(self._xpath_step(step) for step in steps)
            case String(value=value):
                return quoted(value)
            case Number(text=text):
                # libxml2 reads 1.64 as the double after the nearest one; short integers it reads as they are.
                exact = text.lstrip("-").isdigit() and len(text) <= _EXACT_DIGITS
                return text if exact else f'{EXTENSION_PREFIX}:number("{text}")'
            case Compare(op=op, left=left, right=right):
                one, two = self._xpath(left), self._xpath(right)
                numeric = _is_numeric(left) + _is_numeric(right)
                if numeric == 2 or (numeric == 0 and op in ("=", "!=")):
                    return f"{one} {op} {two}"
                return f'{EXTENSION_PREFIX}:compare({one}, "{op}", {two})'
            case Call(name="ends-with" | "matches" as name, args=args):
                return f"{EXTENSION_PREFIX}:{name}({', '.join(map(self._xpath_string, args))})"
            case Call(name="number", args=(arg,)):
                return f"{EXTENSION_PREFIX}:number({self._xpath_string(arg)})"
            case Call(name=name, args=args) if name in _STRING_ARGUMENTS:
                return f"{name}({', '.join(self._xpath_string(a) if _is_numeric(a) else self._xpath(a) for a in args)})"
            case Call(name=name, args=args):
                return f"{name}({', '.join(self._xpath(a) for a in args)})"
            case And(args=args):
                return " and ".join(f"({self._xpath(a)})" for a in args)
            case Or(args=args):
                return " or ".join(f"({self._xpath(a)})" for a in args)
            case Not(arg=arg):
                return f"not({self._xpath(arg)})"
        raise AssertionError(f"not a filter: {expr!r}")

    def _xpath_string(self, expr: Expr) -> str:
        """XPath text of an operand of which a string is wanted."""
        if isinstance(expr, Number):
            return quoted(number_string(expr.text))
        text = self._xpath(expr)
        if _is_numeric(expr):
            return f"{EXTENSION_PREFIX}:string({text})"
        return f"string({text})" if isinstance(expr, Rel) else text

    def _xpath_step(self, step: Step) -> str:
        test = self.test(step.test)
        parts = []
        # libxml2 knows the names of XML's fourth edition only: other letters are compared as text.
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


def _arms(filters: tuple[Expr, ...]) -> Iterator[Expr]:
    for expr in filters:
        if isinstance(expr, And):
            yield from _arms(expr.args)
        else:
            yield expr


def _is_numeric(expr: Expr) -> bool:
    return isinstance(expr, Number) or (isinstance(expr, Call) and expr.name in _NUMERIC)


def _path_and_literal(arm: Expr) -> tuple[Rel | None, str | None]:
    match arm:
        case Rel():
            return arm, None
        case Compare(op="=", left=Rel() as path, right=String(value=value)):
            return path, value
        case Compare(op="=", left=String(value=value), right=Rel() as path):
            return path, value
    return None, None


def quoted(text: str) -> str:
    """An XPath 1.0 string expression for `text`, by concat() where it holds both kinds of quotes."""
    if '"' not in text:
        return f'"{text}"'
    if "'" not in text:
        return f"'{text}'"
    parts = [f'"{part}"' for part in text.split('"')]
    return "concat(" + ", '\"', ".join(parts) + ")"
