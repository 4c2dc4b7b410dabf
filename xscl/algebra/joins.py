"""Tree patterns, which query blocks match in documents, with names resolved and filters lowered; and value-join normal
form (thesis 6.2): conjunctive queries of tree patterns, value joins and residual predicates.

Stores hold patterns as JSON: a node is `[axis, kind, uri, name, conditions, children, functions]`, a condition `["=",
literal]` or `["?", xpath]`; shared patterns have no variables. System names of hidden streams, block roots and path
ends begin with #, as no other name does; they are stored, so their spelling cannot change. Also decides, for JOIN
UNORDERED, which matches have a mirror: a match of the same two documents the other way round."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from json.encoder import encode_basestring as _quoted
from operator import is_
from sys import intern
from typing import Any, Literal, get_args

from common.bounds import deadline
from common.errors import InvalidValue
from common.tools import Remembered, frozen, quick
from xscl.algebra import values as exp

EXTENSION_PREFIX = "mmqjp"
"""The prefix of extension functions in a condition's XPath: those that XPath 1.0 lacks, such as `lower-case` and
`compare-times`; and `number`, `string` and `compare` (of numbers), which libxml2 gets wrong: it reads 1e3 as a number,
and writes 1e+12."""


@quick
@dataclass(frozen=True, slots=True, order=True)
class Test:
    """A name test. `uri` is the namespace, "" for none and "*" for any; `local` is "*" for any name."""

    kind: exp.NodeKind
    uri: str
    local: str

    def accepts(self, name: str) -> bool:
        """Whether the test accepts a node of this kind named `local` or `{uri}local`."""
        uri, local = name[1:].rsplit("}", 1) if name.startswith("{") else ("", name)
        return self.uri in ("*", uri) and self.local in ("*", local)

    def __str__(self) -> str:
        name = self.local if self.uri == "" or self.uri == self.local == "*" else f"{{{self.uri}}}{self.local}"
        return f"@{name}" if self.kind == "attribute" else name


@quick
@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """A condition on a node: its string value is `literal`, or the XPath 1.0 expression `xpath` is true."""

    literal: str | None = None
    xpath: str | None = None

    def __str__(self) -> str:
        return f". = {xpath_literal(self.literal)}" if self.literal is not None else str(self.xpath)


@frozen
class PatternNode:
    """A node on `axis` from its parent. On the self axis, ".", it may have `functions`, innermost first."""

    axis: str
    test: Test
    conditions: tuple[Condition, ...] = ()
    children: tuple[PatternNode, ...] = ()
    var: str | None = None
    functions: tuple[str, ...] = ()
    _text: str | None = field(default=None, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return _shown(self) if self.children else _shown_leaf(self)

    def variables(self) -> list[str]:
        """The variables of this subtree, in pre-order."""
        found = [self.var] if self.var else []
        for child in self.children:
            if child.children:
                found += child.variables()
            elif child.var:
                found.append(child.var)
        return found

    def walk(self) -> Iterator[PatternNode]:
        yield self
        for child in self.children:
            yield from child.walk()

    def __str__(self) -> str:
        if self._text is None:  # cached, since many patterns share nodes
            functions = "".join([f"[{name}]" for name in self.functions])
            head = f".{functions}" if self.axis == "." else f"{self.axis}{self.test}"
            arrow = f"->{self.var}" if self.var else ""
            conditions = "".join([f"[{condition}]" for condition in self.conditions])
            children = "".join([f"[.{text}]" for text in node_texts(self.children)])
            object.__setattr__(self, "_text", head + arrow + conditions + children)
        return self._text  # type: ignore[return-value]  # it has just been set


def _shown(node: PatternNode) -> str:
    """The `repr` of a dataclass, whose digests are stored."""
    return (
        f"PatternNode(axis={node.axis!r}, test={node.test!r}, conditions={node.conditions!r}, "
        f"children={node.children!r}, var={node.var!r}, functions={node.functions!r})"
    )


_shown_leaf = Remembered(_shown)  # many patterns share them


def node_texts(nodes: Iterable[PatternNode]) -> list[str]:
    """The nodes' `str`, cached."""
    return [node._text or str(node) for node in nodes]


def transform(node: PatternNode, change: Callable[[PatternNode], PatternNode]) -> PatternNode:
    """Applies `change` to every node, children first. An unchanged node stays the same object."""
    if node.children:
        node = _with_children(node, tuple([transform(child, change) for child in node.children]))
    return change(node)


def naming(node: PatternNode, variables: Collection[str]) -> PatternNode:
    """Removes the names of all other variables."""
    if not node.children:
        return node if node.var in variables else unnamed(node)
    # A leaf whose name stays needs no call.
    children = [one if one.var in variables and not one.children else naming(one, variables) for one in node.children]
    if node.var is None or node.var in variables:
        return _with_children(node, tuple(children))
    return _renamed(node, tuple(children), None)


def unnamed(node: PatternNode) -> PatternNode:
    if node.var is None:
        return node
    return _renamed(node, node.children, None) if node.children else _unnamed_leaf(node)


def _renamed(node: PatternNode, children: tuple[PatternNode, ...], var: str | None) -> PatternNode:
    # Written out, because `replace` takes several times as long.
    return PatternNode(node.axis, node.test, node.conditions, children, var, node.functions)


_unnamed_leaf = Remembered[PatternNode, PatternNode](lambda node: _renamed(node, (), None))


def _with_children(node: PatternNode, children: tuple[PatternNode, ...]) -> PatternNode:
    if len(children) == len(node.children) and all(map(is_, children, node.children)):
        return node
    return _renamed(node, children, node.var)


def attach_branch(pattern: PatternNode, var: str, branch: PatternNode) -> PatternNode:
    """Adds a child to the node bound to `var`."""
    children = pattern.children
    if children:
        children = tuple(
            [attach_branch(child, var, branch) if child.children or child.var == var else child for child in children]
        )
    return _with_children(pattern, (*children, branch) if pattern.var == var else children)


def rename_variables(pattern: PatternNode, names: Mapping[str, str]) -> PatternNode:
    children = tuple([rename_variables(child, names) for child in pattern.children])
    var = pattern.var and names[pattern.var]
    if var == pattern.var:
        return _with_children(pattern, children)
    return _renamed(pattern, children, var)


def xpath_literal(text: str) -> str:
    """An XPath 1.0 expression for `text`: a literal, or concat() if it has both kinds of quotes."""
    if '"' not in text:
        return f'"{text}"'
    if "'" not in text:
        return f"'{text}'"
    return "concat(" + ", '\"', ".join(f'"{part}"' for part in text.split('"')) + ")"


_AXES = ("/", "//", ".")

shared_test = lru_cache(maxsize=10_000)(Test)
"""A cached Test: many patterns have equal ones, and identical objects are compared fast."""


def pattern_to_json(node: PatternNode) -> str:
    """Without variables."""
    return _json(node) if node.children else _leaf_json(node)


def pattern_from_json(text: str) -> PatternNode:
    """The inverse of `pattern_to_json`. Raises InvalidValue for other text."""
    try:
        return _node(json.loads(text))
    except (TypeError, RecursionError) as error:
        raise InvalidValue(f"{text[:80]!r} is not a tree pattern") from error


def _json(node: PatternNode) -> str:
    test = ",".join(map(_quoted, (node.axis, node.test.kind, node.test.uri, node.test.local)))
    conditions = [
        f'["?",{_quoted(one.xpath or "")}]' if one.literal is None else f'["=",{_quoted(one.literal)}]'
        for one in node.conditions
    ]
    children = ",".join(map(pattern_to_json, node.children))
    functions = ",".join(map(_quoted, node.functions))
    return f"[{test},[{','.join(conditions)}],[{children}],[{functions}]]"


_leaf_json = Remembered(_json)  # many patterns share leaves


def _node(plain: Any) -> PatternNode:
    axis, kind, uri, local, conditions, children, functions = plain
    try:
        known = all(map(exp.chained, functions))
    except KeyError:
        known = False
    known = known and axis in _AXES and kind in get_args(exp.NodeKind)
    if not known or not isinstance(uri, str) or not isinstance(local, str):
        raise InvalidValue(f"{str(plain)[:80]!r} is not a tree pattern")
    for one in conditions:
        sort, text = one
        if not isinstance(text, str) or sort not in ("=", "?"):
            raise InvalidValue(f"{str(one)[:80]!r} is not a condition")
    found = tuple([Condition(literal=text) if sort == "=" else Condition(xpath=text) for sort, text in conditions])
    inside = found, tuple(map(_node, children))
    return PatternNode(intern(axis), shared_test(kind, uri, local), *inside, functions=tuple(functions))


_MARK = "#"


def hidden_stream(definition: str) -> str:
    """The name of an inner join's hidden stream, shared by joins with the same definition.

    >>> hidden_stream("a join")
    '#f6a765cd4b30211473c21765'
    """
    return _MARK + hashlib.sha256(definition.encode()).hexdigest()[:24]


def is_hidden(stream: str) -> bool:
    """Whether a stream is hidden, by its name."""
    return stream.startswith(_MARK)


def short_name(stream: str) -> str:
    """A stream's display name: of a hidden stream, six digits of the digest.

    >>> short_name("#f6a765cd4b30211473c21765"), short_name("news")
    ('#f6a765', 'news')
    """
    return stream[:7] if is_hidden(stream) else stream


def block_root(block: int) -> str:
    """The variable of a block root that the query does not name. Blocks are numbered from 0."""
    return f"{_MARK}b{block}"


def path_end(number: int) -> str:
    """The variable at the end of a path on a variable. Paths of a query are numbered from 1."""
    return f"{_MARK}p{number}"


def is_system_variable(variable: str) -> bool:
    """Whether the query does not name this variable."""
    return variable.startswith(_MARK)


JoinOp = Literal["FOLLOWED BY", "JOIN", "JOIN UNORDERED", "NOT FOLLOWED BY", "NOT JOIN", "NOT PRECEDED BY"]

NEGATED: Mapping[JoinOp | None, JoinOp] = {
    "NOT FOLLOWED BY": "FOLLOWED BY",
    "NOT JOIN": "JOIN",
    "NOT PRECEDED BY": "FOLLOWED BY",
}
"""The operators of absences, which select documents without a partner, each with the operator that joins partners. For
NOT PRECEDED BY, the right input comes before the left one."""

TUPLE_TEST = Test("element", "", "tuple")
"""The root of a hidden stream's documents. Its children are v0, v1, ..., one for each variable."""


@frozen
class Term:
    """A variable's string value, with functions applied, innermost first."""

    var: str
    functions: tuple[str, ...] = ()


@frozen
class Side:
    """One input of a conjunctive query: a tree pattern over a stream. Only needed variables have names. The pattern
    over a hidden stream matches its tuples."""

    stream: str
    pattern: PatternNode
    hidden: Hidden | None = None

    def variables(self) -> tuple[str, ...]:
        return tuple(self.pattern.variables())


@frozen
class Conjunct:
    """A conjunctive query. A filter has no `right`. Each of `joins` pairs a left term with a right one."""

    left: Side
    right: Side | None
    joins: tuple[tuple[Term, Term], ...] = ()
    residual: tuple[exp.Expr, ...] = ()

    def sides(self) -> tuple[Side, ...]:
        return (self.left,) if self.right is None else (self.left, self.right)

    def equalities(self) -> tuple[tuple[Term, Term], ...]:
        """The joins by equality. Joins by words are near() or similar(), in `residual`."""
        return tuple(pair for pair in self.joins if exp.many_valued(pair[0].functions) is None)


@frozen
class Branch:
    """A path of a predicate on a variable of an absence's left input: the pattern below the variable's node. It
    restricts what must be absent, not the left input itself."""

    var: str
    path: PatternNode


@frozen
class Absent:
    """One disjunct of an absence: there must be no match of `right` that satisfies all `joins`, pairs of a left and a
    right term, and `residual`. `branches` are their paths on the left input."""

    right: Side
    joins: tuple[tuple[Term, Term], ...]
    residual: tuple[exp.Expr, ...] = ()
    branches: tuple[Branch, ...] = ()

    def variables(self) -> set[str]:
        """The variables of both inputs that it needs, including those with paths on them, without the paths' ends."""
        joined = {term.var for pair in self.joins for term in pair}
        used = joined.union(*map(variables_of, self.residual), (branch.var for branch in self.branches))
        return used.difference(*(branch.path.variables() for branch in self.branches))


@frozen
class Hidden:
    """An inner join, as a stream of tuples: one for each set of documents and each joint binding of `variables`. `side`
    is the input of the outer join that it forms. Two equal inputs have different documents as tuples. `alone` has the
    conjunctive queries of a JOIN UNORDERED without the outer query's restrictions. `absent` is that of `NormalQuery`.
    Tuples contain copies of the elements of `whole`, a subset of the variables, and texts of the other variables."""

    op: JoinOp
    window: int | None
    conjuncts: tuple[Conjunct, ...]
    variables: tuple[str, ...]
    side: Literal["left", "right"]
    alone: tuple[Conjunct, ...] = field(default=(), repr=False)
    absent: tuple[Absent, ...] = field(default=(), repr=False)
    whole: tuple[str, ...] = field(default=(), repr=False)

    @property
    def stream(self) -> str:
        """A name that equal inner joins share, whatever their variables' names. It is stored, and derived from `repr`,
        so no class or field inside a Hidden can be renamed."""
        return hidden_stream(repr(self) + "".join(repr(part) for part in (self.alone, self.absent, self.whole) if part))


@frozen
class SelectEntry:
    """A SELECT item: its key in `nodes`, which is also its element's name, and its value or constant text."""

    key: str
    value: Term | str


@frozen
class OncePer:
    """ONCE PER: report each value of `keys` (operands over variables) once in a `window` of microseconds; if None, once
    and never again."""

    keys: tuple[exp.Expr, ...]
    window: int | None


@frozen
class NormalQuery:
    """A query in normal form.

    `op` is None for a filter. `window` is in microseconds, None for INF. With `star` the output is that of `SELECT *`,
    in which roots keep their own names. `holes` fill those of `constructor`, in order. An absence (see NEGATED) has
    `absent`, and its `conjuncts` are filters: the first finds its left input, the others the right one, one per
    disjunct of `absent`."""

    op: JoinOp | None
    window: int | None
    conjuncts: tuple[Conjunct, ...]
    entries: tuple[SelectEntry, ...]
    star: bool
    constructor: exp.ElementConstructor | None = None
    holes: tuple[Term | str, ...] = ()
    namespaces: tuple[tuple[str, str], ...] = ()
    once: OncePer | None = field(default=None, repr=False)  # stored digests are of the `repr` before this field existed
    absent: tuple[Absent, ...] = field(default=(), repr=False)


shared_term = lru_cache(maxsize=10_000)(Term)  # a cached Term, since many queries have equal ones


def as_term(expr: exp.Expr) -> Term | None:
    """An expression as a term, if it is a variable with functions applied; else None."""
    if isinstance(expr, exp.VarPath):
        return None if expr.steps else shared_term(expr.var)
    match expr:
        case exp.Call(args=(arg, *_)) if name := exp.derivation(expr):
            term = as_term(arg)
            return term and shared_term(term.var, (*term.functions, name))
    return None


def constant_operand_text(expr: exp.Expr) -> str | None:
    """The text of a constant operand; None for one with a variable."""
    match expr:
        case exp.String(value=value):
            return value
        case exp.Call(name="concat", args=args):
            texts = list(map(constant_operand_text, args))
            return None if None in texts else exp.concat_text(filter(None, texts), str)
        case exp.Call(args=(arg, *_)) if name := exp.derivation(expr):
            inner = constant_operand_text(arg)
            return None if inner is None else exp.derive(name, inner)
        case exp.Number(text=text):
            return exp.number_string(text)
    return None


def variables_of(expr: exp.Expr) -> Iterator[str]:
    """The variables of a residual predicate or an operand, with repetitions."""
    if isinstance(expr, exp.VarPath):
        yield expr.var
    for operand in exp.operands_of(expr):
        yield from variables_of(operand)


def hole_key(hole: exp.Hole) -> str:
    """The key of a constructor's hole in `nodes`: a variable's name, else the text between the braces."""
    return hole.operand.var if isinstance(hole.operand, exp.VarPath) and not hole.operand.steps else hole.text


UNORDERED: JoinOp = "JOIN UNORDERED"

_TURNED: dict[exp.CompareOp, exp.CompareOp] = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


@dataclass(frozen=True, eq=False)
class Mirror:
    """Decides whether a match of a join has a mirror: its documents satisfy one of `conjuncts` the other way round."""

    conjuncts: tuple[Conjunct, ...]

    @cached_property
    def always(self) -> bool:
        exchanged = []
        for one in self.conjuncts:
            assert one.right is not None, "a join has two inputs"
            joins = tuple((right, left) for left, right in one.joins)
            exchanged.append(Conjunct(one.right, one.left, joins, one.residual))
        return set(map(_shape, self.conjuncts)) == set(map(_shape, exchanged))


def mirror_of(conjuncts: tuple[Conjunct, ...]) -> Mirror | None:
    """Decides whether matches have mirrors; None if none can, because the inputs have no documents in common."""
    left, right = conjuncts[0].left, conjuncts[0].right
    if right is None or left.stream != right.stream or left.hidden or right.hidden:
        return None
    return Mirror(conjuncts)


def needed(conjunct: Conjunct) -> frozenset[str]:
    """The variables that decide whether two documents satisfy a conjunctive query."""
    joined = {term.var for pair in conjunct.joins for term in pair}
    return frozenset(joined.union(*map(variables_of, conjunct.residual)))


def _shape(conjunct: Conjunct) -> object:
    """The same for equal conjunctive queries, whatever their variables' names. It may differ for equivalent ones."""
    used, names, patterns = needed(conjunct), dict[str, str](), []
    for place, side in enumerate(conjunct.sides()):
        pattern = naming(side.pattern, used)
        names |= {var: f"{place} {number}" for number, var in enumerate(pattern.variables())}
        patterns.append(rename_variables(pattern, names))
    joins = [tuple(Term(names[term.var], term.functions) for term in pair) for pair in conjunct.joins]
    return *patterns, frozenset(joins), frozenset(repr(_named(expr, names)) for expr in conjunct.residual)


def _named(expr: exp.Expr, names: dict[str, str]) -> exp.Expr:
    match expr:
        case exp.VarPath(var=var):
            return exp.VarPath(names[var])
        case exp.Call(name="near" | "similar" as name, args=(one, other, threshold)):
            pair = sorted((_named(one, names), _named(other, names)), key=repr)
            return exp.Call(name, (*pair, threshold))
        case exp.Compare(op=op, left=left, right=right):
            one, other = _named(left, names), _named(right, names)
            return exp.Compare(op, one, other) if repr(one) <= repr(other) else exp.Compare(_TURNED[op], other, one)
    return exp.map_operands(expr, lambda operand: _named(operand, names))


def over_at(op: JoinOp, window: int, t0: int, t1: int) -> int:
    """Returns the end of the time in which an absence's left document may have a partner, in microseconds."""
    return t1 if op == "NOT PRECEDED BY" else max(t1, deadline(t0, window))
