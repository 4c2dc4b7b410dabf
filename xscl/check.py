"""Checks the meaning of a well-formed script: names, scopes, functions, comparisons, joins, ONCE PER and PUBLISH.

It rejects comparisons that could never hold, or would not compare what was meant, and streams that derive from
themselves. A join predicate is brought into disjunctive normal form, in which each disjunct needs an equality, near()
or similar() between both inputs, by which documents are found."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import product

from common.dates import parse_timestamp
from common.errors import InputError
from common.tools import track_progress
from xscl import check_expressions as expressions
from xscl.algebra import values as exp
from xscl.algebra.joins import NEGATED, JoinOp, Term, shared_term
from xscl.algebra.near import MANY_WORDS, selectivity, word_level
from xscl.algebra.values import ORDERS, NodeKind, Span, is_number, is_time
from xscl.check_expressions import NameKind, blocks, operand_kind
from xscl.syntax import (
    OWN_STREAMS,
    EventDefinition,
    EventQuery,
    Input,
    Join,
    Once,
    Query,
    Script,
    SelectItems,
    SubQuery,
    names_read,
)
from xscl.text import Lines, Problem, did_you_mean, dotted_hint

KNOWN_NAMESPACES = {
    "atom": "http://www.w3.org/2005/Atom",
    "content": "http://purl.org/rss/1.0/modules/content/",
    "dc": "http://purl.org/dc/elements/1.1/",
    "dcterms": "http://purl.org/dc/terms/",
    "georss": "http://www.georss.org/georss",
    "itunes": "http://www.itunes.com/dtds/podcast-1.0.dtd",
    "media": "http://search.yahoo.com/mrss/",
    "slash": "http://purl.org/rss/1.0/modules/slash/",
    "sy": "http://purl.org/rss/1.0/modules/syndication/",
    "xhtml": "http://www.w3.org/1999/xhtml",
}
"""Namespaces of prefixes that are common in feeds."""

_A_TIME = 'write an ISO date or time, such as "2026-07-16" or "2026-07-16T08:30:00Z"'


InPlace = Callable[[Query], Query]
"""Parses a query of the script again, because spans inside it may be from another query."""


def check_comparison(
    expr: exp.Compare, names: Mapping[str, NameKind], path: str, text_of: Callable[[exp.Expr], str]
) -> Iterator[Problem]:
    """Returns the problem of a comparison of valid operands, if any. `names` are visible to it, `path` is an example
    path to a time, and `text_of` returns an operand's text."""
    for side, other in ((expr.left, expr.right), (expr.right, expr.left)):
        kind, other_kind = _kind(side, names), _kind(other, names)
        text = other.value if isinstance(other, exp.String) else None
        if kind == "time":
            if text is not None and parse_timestamp(text) is None:
                yield Problem(f"{_shown(text)} is not a time", other.span, _A_TIME)
            elif other_kind == "number":
                hint = _A_TIME if isinstance(other, exp.Number) else "compare it with a time: date(...)"
                yield Problem("a time is compared with a number", other.span, hint)
            elif text is None and other_kind not in ("time", "constant"):
                yield Problem("a time is compared with a text", other.span, f"write date({text_of(other)})")
            return
        if kind == "number" and text is not None and not _is_numeral(text):
            message = f"a number is compared with {_shown(text)}, which is not one"
            yield Problem(message, other.span, "write a number")
            return
    # Literals in order comparisons have to be numbers or times.
    literals = [side for side in (expr.left, expr.right) if isinstance(side, exp.String)]
    if expr.op not in ORDERS or all(_is_numeral(literal.value) for literal in literals):
        return
    literal = next((one for one in literals if parse_timestamp(one.value) is None), None)
    if literal is not None:
        message = f"{expr.op} compares numbers or times, and {_shown(literal.value)} is neither"
        hint = f'write a number, or a time, as in date({path}) {expr.op} "2026-07-16"'
        yield Problem(message, literal.span, hint)


def _kind(expr: exp.Expr, names: Mapping[str, NameKind]) -> NameKind:
    if isinstance(expr, exp.VarPath) and not expr.steps:
        return names.get(expr.var, "element")
    return "time" if is_time(expr) else "number" if is_number(expr) else "value"


def _is_numeral(text: str) -> bool:
    return not math.isnan(exp.xpath_number(text))


def _shown(text: str) -> str:
    return f'"{text}"' if len(text) <= 40 else f'"{text[:40]}..."'


def check_publishing(script: Script, in_place: InPlace, text: str = "") -> Iterator[Problem]:
    """Yields the problems of the names that a script's statements define and PUBLISH, one per cycle."""
    read = (block.stream for one in script.queries for block in blocks(one.source))
    if not script.has_events and script.published().isdisjoint(read):
        return  # no query reads what another query of the script publishes
    makers: dict[str, set[str]] = {}  # what each name derives from
    first_of: dict[str, Query | EventDefinition | EventQuery] = {}
    defined = {definition.name for definition in script.definitions}  # reading one as documents is reported elsewhere
    for one in script.statements:
        match one:
            case Query(publish=name):
                reads = {block.stream for block in blocks(one.source)} - defined
            case EventDefinition(name=name):
                reads = {one.block.stream} - defined
            case EventQuery(publish=name):
                reads = {read.name for read in names_read(one.stream)}
        if name is not None:
            makers.setdefault(name, set()).update(reads)
            first_of.setdefault(name, one)
    edges = {name: sorted(reads & makers.keys()) for name, reads in makers.items()}
    order = list(makers)
    for cycle in find_cycles(edges):
        first = min(cycle, key=order.index)
        at = cycle.index(first)
        path = " -> ".join([*cycle[at:], *cycle[:at], first])
        hint = "a stream cannot be made from itself; read another stream, or PUBLISH under another name"
        maker = first_of[first]
        span = expressions.name_span(in_place(maker) if isinstance(maker, Query) else maker, text)
        names = "PUBLISHed names" if all(isinstance(first_of[name], Query) for name in cycle) else "names"
        yield Problem(f"a cycle of {names}: {path}", span, hint)


def find_cycles(edges: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """Finds disjoint cycles, each in the direction of the data. Removing their names leaves no cycle."""
    remaining = dict(edges)
    while True:
        try:
            TopologicalSorter(remaining).prepare()
            return
        except CycleError as error:
            cycle: list[str] = error.args[1][:-1]
            yield cycle
            for name in cycle:
                del remaining[name]


MAX_DISJUNCTS = 64  # maximum number of disjuncts of a join predicate


class TooManyDisjuncts(InputError, ValueError):
    """A condition has more disjuncts than `limit`."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"more than {self.limit} disjuncts in disjunctive normal form"


def disjuncts(pred: exp.Expr, limit: int = MAX_DISJUNCTS) -> tuple[tuple[exp.Expr, ...], ...]:
    """Returns the disjuncts of a condition, each a conjunction of literals: `a and (b or c)` gives `((a, b), (a, c))`.

    Everything but `And` and `Or` is a literal. Literals keep the order of the text; repeated literals of a conjunction,
    and repeated conjunctions, are dropped. Raises TooManyDisjuncts if any part of the condition has more than `limit`
    disjuncts, so that no step builds more than the square of that."""
    if isinstance(pred, exp.Or):
        return _distinct((conjunction for arg in pred.args for conjunction in disjuncts(arg, limit)), limit)
    if isinstance(pred, exp.And):
        if not any(isinstance(arg, exp.And | exp.Or) for arg in pred.args):
            return (tuple(dict.fromkeys(pred.args)),)
        result: tuple[tuple[exp.Expr, ...], ...] = ((),)
        for arg in pred.args:
            result = _distinct((left + right for left, right in product(result, disjuncts(arg, limit))), limit)
        return result
    return ((pred,),)


def _distinct(conjunctions: Iterable[tuple[exp.Expr, ...]], limit: int) -> tuple[tuple[exp.Expr, ...], ...]:
    found: dict[frozenset[exp.Expr], tuple[exp.Expr, ...]] = {}
    for conjunction in conjunctions:
        literals = tuple(dict.fromkeys(conjunction))
        found.setdefault(frozenset(literals), literals)
        if len(found) > limit:
            raise TooManyDisjuncts(limit)
    return tuple(found.values())


_LINKS = frozenset({"item_url", "channel_url", "feed_url", "guid", "href", "link", "url"})
"""Names of nodes that contain addresses of pages, in items and in feeds."""

_ANY = "such as x = y with x bound on the left and y on the right"


def joins_inputs(literal: exp.Expr, left: Container[str], right: Container[str], both: dict[str, NameKind]) -> bool:
    """Whether a literal is an equality, near() or similar() between both inputs."""
    match literal:
        case exp.Compare(op="=", left=one, right=other) | exp.Call(name="near" | "similar", args=(one, other, _)):
            a, b = _path(one), _path(other)
            if a is None or b is None or "constant" in (operand_kind(one, both), operand_kind(other, both)):
                return False
            return (a.var in left and b.var in right) or (a.var in right and b.var in left)
    return False


def missing_equality(literals: Sequence[exp.Expr], left: Container[str], text_of: Callable[[exp.Expr], str]) -> str:
    """Returns a hint for a conjunction without an equality. `left` are the left input's names."""
    for literal in literals:
        if isinstance(literal, exp.Call) and literal.name in exp.TESTS:
            where, what = _path(literal.args[0]), _path(literal.args[1])
            if where is not None and what is not None and (where.var in left) != (what.var in left):
                if what.steps and what.steps[-1].test.local in _LINKS:
                    text = text_of(literal.args[1])
                    text = text if text.startswith("canonical-url") else f"canonical-url({text})"
                    return f"items have a link for each page that they mention: write {where.var}/link/@href = {text}"
                example = f"add an equality, such as {what.var}/category = {where.var}/category"
                return f"{literal.name}() alone would try all documents with all others: {example}"
    return f"add one, {_ANY}"


def _path(operand: exp.Expr) -> exp.VarPath | None:
    return next(expressions.paths_of(operand), None)


MAX_VALUE_JOINS = 16  # maximum number of equalities between both inputs in a disjunct of a join predicate

MAX_INPUTS = 50  # maximum number of inputs of a query

MAX_STEPS = 100  # maximum number of steps of a path

_BINDS = re.compile(r"\s*(?:->|as\b)\s*", re.IGNORECASE)


def check_script(script: Script, lines: Lines, in_place: InPlace, *, stored: bool = False) -> list[Problem]:
    """Finds all mistakes in the meaning of a script's queries. `lines` are the script's. `stored`: the script was
    registered earlier, so comparisons that older versions accepted are allowed."""
    prefixes = {prefix for prefix, _ in script.namespaces} | {"xml"}
    problems: list[Problem] = []
    right: set[tuple[object, ...]] = set()
    for query in track_progress("checking", script.queries):
        parts = query.shared_parts()
        if parts in right:  # a name or a window cannot be wrong by itself
            continue
        if query_problems(query, lines, prefixes, by_filter=True, stored=stored):
            problems += query_problems(in_place(query), lines, prefixes, stored=stored)
        else:
            right.add(parts)
    return problems + list(check_publishing(script, in_place, lines.text))


def query_problems(
    query: Query, lines: Lines, prefixes: set[str], *, by_filter: bool = False, stored: bool
) -> list[Problem]:
    """With `by_filter`, filters that many queries share are checked once, and the places of mistakes may be wrong."""
    checker = _QueryChecker(lines, prefixes, by_filter=by_filter, stored=stored)
    checker.query(query)
    return checker.problems


_INSIDE: dict[type, str] = {exp.Or: "in an arm of an or", exp.Not: "under not()", exp.Compare: "inside a comparison"}
"""Contexts in which a path cannot bind variables."""


class _QueryChecker:
    def __init__(self, lines: Lines, prefixes: set[str], *, by_filter: bool, stored: bool) -> None:
        self.by_filter, self.stored = by_filter, stored
        self.lines, self.prefixes = lines, prefixes
        self.problems: list[Problem] = []
        self.bound: dict[str, Span] = {}
        self.unseen: dict[str, JoinOp] = {}  # the variables of absent inputs, with the operators

    def problem(self, message: str, span: Span, hint: str) -> None:
        self.problems.append(Problem(message, span, hint))

    # ------------------------------------------------------------ sources

    def query(self, query: Query) -> None:
        inputs = blocks(query.source)
        if len(inputs) > MAX_INPUTS:
            hint = "PUBLISH a part of it, and read that stream"
            self.problem(f"more than {MAX_INPUTS} inputs in one query", inputs[MAX_INPUTS].span, hint)
            return
        for block in inputs:  # all variables first: a name may be used left of its binding
            if ":" in block.stream and block.stream not in OWN_STREAMS:
                span = exp.Span(block.span.start, block.span.start + len(block.stream))
                hint = f"the only stream with a prefix is {OWN_STREAMS[0]}"
                self.problem(f"there is no stream {block.stream}", span, hint)
            self.steps(block.steps, None, binds=True)
        names = self.source(query.source)
        match query.select:
            case SelectItems():
                self.items(query.select, names)
            case exp.ElementConstructor():
                self.element(query.select, names)
            case _ if not self.problems:
                self.star(query.source, query.span)
        if query.once is not None:
            self.once(query.once, query, names)

    def source(self, source: Input) -> dict[str, NameKind]:
        """Checks the joins and subqueries. Returns the names visible outside the source."""
        match source:
            case Join():
                left, right = self.source(source.left), self.source(source.right)
                self.predicate(source, left, right)
                if source.op in NEGATED:
                    self.unseen |= dict.fromkeys(right, source.op)
            case SubQuery():
                names = self.source(source.source)
                if isinstance(source.select, SelectItems):
                    self.items(source.select, names)
                    for item in source.select.items:
                        if item.operand != exp.VarPath(item.name):
                            self.bind(item.name, _end(item.span, item.name))
                else:
                    self.star(source.source, source.select.span)
                    for name in expressions.visible_names(source).keys() - names.keys():
                        self.bind(name, source.select.span)
        return expressions.visible_names(source)

    def star(self, source: Input, span: Span) -> None:
        names = [name for name, _ in expressions.star_items(source)]
        for name in sorted({name for name in names if names.count(name) > 1}):
            hint = "bind the blocks' last steps to names of your own: FROM S//item->a ..."
            self.problem(f"two block roots are named {name}", self.bound.get(name, span), hint)

    # ------------------------------------------------------------ paths

    def bind(self, name: str, span: Span) -> None:
        if name in self.bound:
            line, column = self.lines.place(self.bound[name].start)
            message = f"variable {name} is already bound at {line}:{column}"
            self.problem(message, span, "use another name, and compare the two in a predicate")
        else:
            self.bound[name] = span

    def steps(self, steps: tuple[exp.Step, ...], above: NodeKind | None, *, binds: bool, why: str = "") -> None:
        """`above` is None for the document; `why` says why the path cannot bind variables."""
        if len(steps) > MAX_STEPS:
            hint = "write // for the steps between"
            self.problem(f"a path of more than {MAX_STEPS} steps", steps[MAX_STEPS].span, hint)
            return
        for step in steps:
            if above == "attribute":
                self.problem("an attribute has no steps below it", step.span, "end the path with the attribute")
                return
            above = step.test.kind
            if step.test.prefix is not None:
                self.prefix(step.test.prefix, step.test.span, ", or write *: for any namespace")
            if step.var is not None:
                span = step.span if self.by_filter else self.binding_span(step)
                if binds:
                    self.bind(step.var, span)
                else:
                    self.problem(f"a variable cannot be bound {why}", span, "bind it in a filter of its own: [./a->x]")
            for condition in step.filters:
                if self.by_filter and binds and above == "element":
                    names = expressions.variables_of_plain(condition)
                    if names is not None and self.bound.keys().isdisjoint(names):
                        self.bound.update(dict.fromkeys(names, condition.span))
                        continue
                self.condition(condition, expressions.FILTER, {}, "./timestamp")
                self.paths(condition, {}, above, binds=binds, why=why)

    def condition(self, expr: exp.Expr, place: expressions.ExprContext, names: dict[str, NameKind], path: str) -> None:
        def compared(expr: exp.Compare) -> Iterator[Problem]:
            return iter(()) if self.stored else check_comparison(expr, names, path, self.text_of)

        self.problems += expressions.check_condition(expr, place, compared)

    def text_of(self, expr: exp.Expr) -> str:
        return self.lines.text[expr.span.start : expr.span.end]

    def binding_span(self, step: exp.Step) -> Span:
        var = step.var or ""
        found = _BINDS.match(self.lines.text, step.test.span.end)
        if found and self.lines.text.startswith(var, found.end()):
            return Span(found.end(), found.end() + len(var))
        return _end(step.span, var)

    def prefix(self, prefix: str, span: Span, instead: str = "") -> None:
        if prefix not in self.prefixes and prefix != "*":
            declaration = f'DECLARE NAMESPACE {prefix} = "{KNOWN_NAMESPACES.get(prefix, "...")}"; before the queries'
            hint = did_you_mean(prefix, self.prefixes - {"xml"}) or f"put {declaration}{instead}"
            self.problem(f"prefix {prefix} is not declared", span, hint)

    def paths(
        self, expr: exp.Expr, names: dict[str, NameKind], above: NodeKind | None, *, binds: bool = False, why: str = ""
    ) -> None:
        """Checks the paths in an expression: on its variables `names`, or from a filtered node of kind `above`."""
        match expr:
            case exp.Rel():
                self.steps(expr.steps, above, binds=binds, why=why)
            case exp.VarPath():
                self.var_path(expr, names, why)
        if not isinstance(expr, exp.And):
            inside = f"inside {expr.name}()" if isinstance(expr, exp.Call) else _INSIDE.get(type(expr), "")
            binds, why = False, why or inside
        for operand in exp.operands_of(expr):
            self.paths(operand, names, above, binds=binds, why=why)

    # ------------------------------------------------------------ predicates

    def predicate(self, join: Join, left: dict[str, NameKind], right: dict[str, NameKind]) -> None:
        before, both = len(self.problems), left | right
        self.condition(join.pred, expressions.PREDICATE, both, f"{next(iter(both), 'x')}/timestamp")
        self.paths(join.pred, both, None, why=f"in {expressions.PREDICATE.name}")
        if len(self.problems) > before:
            return
        try:
            conjunctions = disjuncts(join.pred)
        except TooManyDisjuncts:
            hint = "split the query, and PUBLISH the parts under one name"
            self.problem(f"the predicate has more than {MAX_DISJUNCTS} disjuncts", join.pred.span, hint)
            return
        for conjunction in conjunctions:
            joins = [literal for literal in conjunction if joins_inputs(literal, left, right, both)]
            if sum(isinstance(one, exp.Compare) for one in joins) > MAX_VALUE_JOINS:
                message = f"more than {MAX_VALUE_JOINS} value joins in one disjunct"
                self.problem(message, join.pred.span, "join on fewer pairs of nodes")
            elif not joins:
                hint = missing_equality(conjunction, left, self.text_of)
                if len(conjunctions) == 1:
                    self.problem("the predicate has no equality between the two inputs", join.pred.span, hint)
                else:
                    message = "this disjunct of the predicate has no equality between the two inputs"
                    hint = f", {_ANY}" if hint.endswith(_ANY) else f": {hint}"
                    self.problem(message, conjunction[0].span, f"each arm of an or needs one{hint}")

    def var_path(self, path: exp.VarPath, names: dict[str, NameKind], where: str) -> None:
        kind = names.get(path.var)
        if kind is not None and not path.steps:
            return
        if kind is None:
            self.unknown_variable(path.var, names, Span(path.span.start, path.span.start + len(path.var)))
        elif kind not in ("element", "attribute") and path.steps:
            hint = "take the path inside the inner SELECT"
            self.problem(f"{path.var} is a value of the inner SELECT, not a node: it has no paths", path.span, hint)
            return
        above: NodeKind = "attribute" if kind == "attribute" else "element"
        self.steps(path.steps, above, binds=False, why=where)

    def unknown_variable(self, var: str, names: Iterable[str], span: Span) -> None:
        if var in self.unseen:
            message = f"variable {var} has no value here: it is of what did not come"
            hint = f"the variables on the right of {self.unseen[var]} can be used in its braces only"
        elif var in self.bound:
            message = f"variable {var} is bound, but cannot be seen here"
            hint = "add it to the inner SELECT, or move this behind the block that binds it"
        elif var.lower() in ("true", "false"):
            message, hint = f"{var} is not a value", 'there are no booleans: compare with a string, as in x = "true"'
        else:
            message = f"variable {var} is not bound"
            known = dotted_hint(var, self.bound) or did_you_mean(var, names)
            hint = known or f"bind it in a block, as in //title->{var}"
        self.problem(message, span, hint)

    # ------------------------------------------------------------ SELECT

    def items(self, select: SelectItems, names: dict[str, NameKind]) -> None:
        seen: set[str] = set()
        for item in select.items:
            self.operand(item.operand, expressions.SELECT, names)
            if item.name in seen:
                message = f"two SELECT items are named {item.name}"
                self.problem(message, _end(item.span, item.name), "give one another name with AS")
            seen.add(item.name)

    def operand(self, operand: exp.Expr, place: expressions.ExprContext, names: dict[str, NameKind]) -> None:
        before = len(self.problems)
        self.problems += expressions.check_operand(operand, place)
        self.paths(operand, names, None, why=f"in {place.name}")
        if len(self.problems) > before or operand_kind(operand, names) != "constant":
            return
        if place is expressions.ONCE:
            hint = "write a variable, such as the one bound to a title or a link"
            self.problem("ONCE PER needs what differs between outputs, and this is constant", operand.span, hint)
        elif is_time(operand) or (is_number(operand) and not isinstance(operand, exp.Number)):
            self.problem("a function of a constant", operand.span, "write its value, as a string or a number")

    def once(self, once: Once, query: Query, names: dict[str, NameKind]) -> None:
        selected = {item.name for item in query.select.items} if isinstance(query.select, SelectItems) else ()
        for key in once.keys:
            if isinstance(key, exp.VarPath) and key.var not in names and key.var in selected:
                hint = "write again what SELECT has there, or bind a variable"
                self.problem(f"{key.var} is a name of SELECT, and no variable", key.span, hint)
            else:
                self.operand(key, expressions.ONCE, names)
        window = once.window
        if window is not None and window.us is None:
            self.problem("the window of ONCE PER has no end", window.span, "leave out WITHIN, to report it once only")
        elif window is not None and not window.us:
            self.problem("the window of ONCE PER has the length 0", window.span, "write a longer one")

    def element(self, node: exp.ElementConstructor, names: dict[str, NameKind]) -> None:
        for name, parts in [(node.name, ()), *node.attributes]:
            prefix, colon, local = name.rpartition(":")
            if colon and prefix != "xmlns":
                self.prefix(prefix, self.tag_span(node, name))
            elif prefix == "xmlns" or (local == "xmlns" and name is not node.name):
                hint = 'put DECLARE NAMESPACE p = "..."; before the queries, and use the prefix'
                self.problem("a constructor cannot declare namespaces", self.tag_span(node, name), hint)
            for part in parts:
                if isinstance(part, exp.Hole):
                    self.operand(part.operand, expressions.CONSTRUCTOR, names)
        for child in node.children:
            if isinstance(child, exp.ElementConstructor):
                self.element(child, names)
            elif isinstance(child, exp.Hole):
                self.operand(child.operand, expressions.CONSTRUCTOR, names)

    def tag_span(self, node: exp.ElementConstructor, name: str) -> Span:
        start = self.lines.text.find(name, node.span.start, node.span.end)
        return Span(start, start + len(name)) if start >= 0 else node.span


def _end(span: Span, name: str) -> Span:
    return Span(span.end - len(name), span.end)


Joined = tuple[Term, Term]


def near_join(residual: Iterable[exp.Expr], pair_of: Callable[[exp.Expr], Joined | None]) -> Joined | None:
    """Returns the terms that a residual near() or similar() between both inputs compares, or None. Of several, it takes
    the most selective: a near() if possible, with the greatest threshold. `pair_of` returns the terms of an equality,
    the left one first."""
    found: tuple[str, Joined] | None = None
    for expr in residual:
        match expr:
            case exp.Call(name="near" | "similar" as name, args=(one, other, exp.Number(text=text))):
                pair, level = pair_of(exp.Compare("=", one, other)), word_level(name, exp.number_string(text))
                if pair is not None and (found is None or selectivity(level) > selectivity(found[0])):
                    found = level, pair
    if found is None:
        return None
    level, pair = found
    chained = exp.with_literal(MANY_WORDS, level)
    left, right = (shared_term(term.var, (*term.functions, chained)) for term in pair)
    return left, right
