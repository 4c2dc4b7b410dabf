"""Resolves event statements: turns syntax trees into operators of the event algebra with schemas, or into problems.

In expressions it resolves attributes, kinds of values, and constants. NOT is pushed down to the atoms: `NOT (a < b AND
c = d)` is `a >= b OR c != d`, and each atom is false if a value in it is NULL, so this changes the meaning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeVar

from xscl import event_forms as forms
from xscl import syntax
from xscl.algebra import events as algebra
from xscl.algebra import values as exp
from xscl.algebra.events import ALWAYS, CHANGES, OWN, SIDES, EventCondition, Part, Schema, Stream, Value, value_kind
from xscl.algebra.values import NUMBERS, ORDERS, TESTS, WITH_LITERAL, Span, compare, with_literal, xpath_number
from xscl.check_expressions import AGGREGATES, EVENT_FUNCTIONS, check_arguments, no_value
from xscl.event_forms import MAX_CLAUSES
from xscl.text import LACKS_EVENTS, Problem, did_you_mean

EventClause = Literal["SELECT", "FILTER", "AGGREGATE", "STORIES", "NEXT", "FOLD", "WHERE", "HAVING", "RETURN"]

MOST_DIGITS = 300
_NUMBERS = NUMBERS | {"abs"}
_OPPOSITE: dict[exp.CompareOp, exp.CompareOp] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_SIDE_PARTS: dict[str, Part] = {"$1": "left", "$2": "right", "$": "latest"}


@dataclass(frozen=True, slots=True)
class Scope:
    """The context of an expression: the operator and the attributes of its inputs. `changes` are the names that FOLD
    updates. In AGGREGATE, `left` has the attributes of BY, and `grouped` resolves an aggregate."""

    operator: EventClause
    left: Schema
    right: Schema = ()
    changes: frozenset[str] = frozenset()
    grouped: Callable[[exp.Call], Value | None] | None = None
    source: Schema = ()


T = TypeVar("T")


MAX_ATTRIBUTES = 100  # maximum number of attributes of an event

MAX_INPUTS = 50  # maximum number of streams of a query

Schemas = Mapping[str, Schema | None]  # schemas of event streams; None for a statement with mistakes of its own


class Resolver:
    """Resolves a statement, and collects `problems` with their places in it."""

    def __init__(self, schemas: Schemas, documents: Ordered[str]) -> None:
        self._schemas, self._documents = schemas, documents
        self.problems: list[Problem] = []
        self.inputs = 0

    def problem(self, message: str, span: Span, hint: str) -> T | None:
        """Adds a problem. Returns None, like the methods that resolve parts if they find one."""
        self.problems.append(Problem(message, span, hint))
        return None

    # ------------------------------------------------------------ values

    def value(self, expr: syntax.EventExpr, scope: Scope) -> Value | None:
        """Returns None after a problem, like all methods that resolve a part."""
        match expr:
            case syntax.Reference():
                return self.reference(expr, scope)
            case syntax.ItemReference():
                return self.item(expr, scope)
            case syntax.EquivalenceTest():
                self.alike(expr)
            case exp.String(value=text):
                return algebra.Constant(text)
            case exp.Number(text=text) | syntax.Percentage(text=text):
                return self._number(text, expr)
            case syntax.Window(us=us):
                if us is not None:
                    return algebra.Constant(us / 1e6)
                self.problem("INF is not a number", expr.span, "leave the condition out")
            case syntax.TimeMeasure(name=name) if scope.operator in ("WHERE", "HAVING", "RETURN"):
                hint = "WITHIN bounds how long a match takes; a reader of what is PUBLISHed has DUR"
                self.problem(f"{name} does not belong in a pattern", expr.span, hint)
            case syntax.TimeMeasure(name="DUR"):
                return algebra.Duration()
            case syntax.TimeMeasure():
                if scope.operator in ("NEXT", "FOLD"):
                    return algebra.Gap()
                hint = "write it in the braces of NEXT or FOLD; DUR is how long an event takes"
                self.problem("GAP belongs in NEXT or FOLD", expr.span, hint)
            case syntax.Minus(arg=arg):
                value = self.value(arg, scope)
                return None if value is None else forms.arithmetic("-", algebra.Constant(0.0), value)
            case syntax.ArithmeticExpr(op=op, left=left, right=right):
                one, two = self.value(left, scope), self.value(right, scope)
                return None if one is None or two is None else forms.arithmetic(op, one, two)
            case exp.Call() if expr.name not in TESTS:
                return self._call(expr, scope)
            case syntax.Null():
                self.problem("NULL is not a value", expr.span, "write x IS NULL, or x IS NOT NULL")
            case exp.Call() | exp.Compare() | syntax.IsNull() | exp.And() | exp.Or() | exp.Not():
                self.problems.append(no_value(expr))
        return None

    def _number(self, text: str, expr: exp.Number | syntax.Percentage) -> Value | None:
        number = float(text) if len(text) < MOST_DIGITS else math.inf
        if not math.isfinite(number):
            return self.problem("this number is too long", expr.span, "write fewer digits")
        is_percentage = isinstance(expr, syntax.Percentage)
        return algebra.Constant(float(Fraction(text.rstrip(".")) / 100) if is_percentage else number)

    def item(self, found: syntax.ItemReference, scope: Scope) -> Value | None:
        name = found.name
        sides = f"write $1.{name} for the left event, $2.{name} for the right, $.{name} for FOLD's last"
        hint = sides if scope.operator in ("NEXT", "FOLD") else f"write {name} alone: {scope.operator} reads one source"
        return self.problem(f"{found.variable}.{name} is not a reference", found.span, hint)

    def alike(self, found: syntax.EquivalenceTest) -> None:
        start = found.span.start
        self.problem("there are no brackets here", Span(start, start + 1), "write $1.x = $2.x")

    def reference(self, found: syntax.Reference, scope: Scope) -> Value | None:
        name, operator = found.name, scope.operator
        if operator not in ("NEXT", "FOLD"):
            if found.side:
                hint = f"write {name} alone: {operator} reads one source"
                return self.problem(f"{found.side} belongs in the braces of NEXT or FOLD", found.span, hint)
            return self.attribute(found, "left", scope)
        if found.side == "$" and operator != "FOLD":
            return self.problem("$ belongs in FOLD", found.span, f"write $1.{name} for the left event")
        if found.side:
            part = _SIDE_PARTS[found.side]
            if part == "latest" and name in dict(scope.left) and name not in scope.changes:
                part = "left"  # it keeps its first value throughout
            return self.attribute(found, part, scope)
        left, right = dict(scope.left), dict(scope.right)
        if name in left and name in right:
            sides = f"$1.{name} or $2.{name}" if operator == "NEXT" else f"$1.{name}, $2.{name} or $.{name}"
            return self.problem(f"{name} is an attribute of both sides", found.span, f"write {sides}")
        if name in left:
            return algebra.Attribute("latest" if name in scope.changes else "left", name, left[name])
        if name in right:
            return algebra.Attribute("right", name, right[name])
        return self.unknown(name, {**left, **right}, found.span, scope)

    def attribute(self, found: syntax.Reference | syntax.ItemReference, part: Part, scope: Scope) -> Value | None:
        schema = dict(scope.right if part == "right" else scope.left)
        if found.name in schema:
            return algebra.Attribute(part, found.name, schema[found.name])
        return self.unknown(found.name, schema, found.span, scope)

    def unknown(self, name: str, names: Iterable[str], span: Span, scope: Scope) -> T | None:
        names = list(dict.fromkeys(names))
        if name in dict(scope.source):
            message = f"{name} differs within a group"
            hint = f"write an aggregate of it, such as max({name}), or add it to BY"
        else:
            message = f"there is no attribute {name} here"
            known = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            hint = did_you_mean(name, names) or (f"the attributes are {known}" if names else "remove it")
            if name.lower() in ("true", "false"):
                hint = 'there are no booleans: compare with a string, as in x = "true"'
            elif name.lower() in ("inf", "infinity"):
                hint = "INF is not a number: leave the condition out"
        return self.problem(message, span, hint)

    def _call(self, call: exp.Call, scope: Scope) -> Value | None:
        name, name_span = call.name, Span(call.span.start, call.span.start + len(call.name))
        if name in AGGREGATES or name == exp.COUNT_DISTINCT:
            if scope.grouped is not None:
                return scope.grouped(call)
            hint = "write AGGREGATE{" + exp.call_text(name, ["..."]) + " AS x BY y OVER 1 d} in front of the source"
            message = f"{name.partition(' ')[0]}() belongs in the braces of AGGREGATE"
            if scope.operator == "AGGREGATE":
                message, hint = "an aggregate of an aggregate", "aggregate in two steps: AGGREGATE{...} AGGREGATE{...}"
            return self.problem(message, name_span, hint)
        if name not in EVENT_FUNCTIONS:
            hint = did_you_mean(name.lower(), EVENT_FUNCTIONS) or f"the functions are {', '.join(EVENT_FUNCTIONS)}"
            return self.problem(f"there is no function {name}()", name_span, hint)
        if (values := self.arguments(call, scope)) is None:
            return None
        if name in WITH_LITERAL:
            literal = call.args[1]
            assert isinstance(literal, exp.String), "it has been checked"
            return forms.function_of(with_literal(name, literal.value), values[:1], "string")
        kinds = {value_kind(value) for value in values}
        if name == "coalesce" and len(kinds) > 1:
            hint = 'make them one kind: number(...) is a number, concat(..., "") a text'
            return self.problem("coalesce() of texts and numbers", call.span, hint)
        kind = "number" if name in _NUMBERS else next(iter(kinds)) if name == "coalesce" else "string"
        return forms.function_of(name, values, kind)

    def arguments(self, call: exp.Call, scope: Scope) -> tuple[Value, ...] | None:
        values = [self.value(arg, scope) for arg in call.args]
        problems = list(check_arguments(call, *EVENT_FUNCTIONS[call.name.partition(" ")[0]]))
        self.problems += problems
        known = tuple(value for value in values if value is not None)
        return None if problems or len(known) < len(values) else known

    # ------------------------------------------------------------ conditions

    def condition(self, expr: syntax.EventExpr, scope: Scope, *, negated: bool = False) -> EventCondition | None:
        """Resolves a condition or, if `negated`, its negation. Returns None after a problem."""
        match expr:
            case exp.And(args=args) | exp.Or(args=args):
                found = [self.condition(arg, scope, negated=negated) for arg in args]
                known = [one for one in found if one is not None]
                if len(known) < len(found):
                    return None
                return forms.all_of(*known) if isinstance(expr, exp.And) is not negated else forms.any_of(*known)
            case exp.Not(arg=arg):
                return self.condition(arg, scope, negated=not negated)
            case exp.Compare():
                return self.comparison(expr, scope, negated)
            case syntax.IsNull(value=inner):
                if (value := self.value(inner, scope)) is None:
                    return None
                if isinstance(value, algebra.Constant):
                    return ALWAYS if expr.negated is not negated else algebra.AnyOf(())
                return algebra.NullTest(value, expr.negated is not negated)
            case exp.Call(name=name) if name in TESTS:
                return self._test(expr, scope, negated)
        if self.value(expr, scope) is not None:
            self.problem("this is a value, not a condition", expr.span, "compare it with something: x = y")
        return None

    def comparison(self, expr: exp.Compare, scope: Scope, negated: bool) -> EventCondition | None:
        """Resolves a comparison or, if `negated`, its opposite. Returns None after a problem."""
        if isinstance(expr.left, syntax.Null) or isinstance(expr.right, syntax.Null):
            return self.problem("a comparison with NULL never holds", expr.span, "write x IS NULL, or x IS NOT NULL")
        left, right = self.value(expr.left, scope), self.value(expr.right, scope)
        if left is None or right is None:
            return None
        for one, text, other in ((expr.left, left, right), (expr.right, right, left)):
            if isinstance(text, algebra.Function) and text.name == "date" and expr.op in ORDERS:
                hint = "only = and != compare texts; how far apart events are say DUR and GAP"
                return self.problem(f"{expr.op} compares numbers, and date() is a text", one.span, hint)
            constant = text.value if isinstance(text, algebra.Constant) else None
            if isinstance(constant, str) and math.isnan(xpath_number(constant)):
                shown = f'"{constant[:40]}"'
                if expr.op in ORDERS:
                    return self.problem(
                        f"{expr.op} compares numbers, and {shown} is not one", one.span, "write a number"
                    )
                if value_kind(other) == "number":
                    return self.problem(
                        f"a number is compared with {shown}, which is not one", one.span, "write a number"
                    )
        op = _OPPOSITE[expr.op] if negated else expr.op
        if isinstance(left, algebra.Constant) and isinstance(right, algebra.Constant):
            return ALWAYS if compare(op, left.value, right.value) else algebra.AnyOf(())
        return algebra.Comparison(op, left, right)

    def _test(self, call: exp.Call, scope: Scope, negated: bool) -> EventCondition | None:
        if (values := self.arguments(call, scope)) is None:
            return None
        texts = [forms.xpath_string(value.value) for value in values if isinstance(value, algebra.Constant)]
        if len(texts) == len(values) and call.name != "matches":
            return ALWAYS if TESTS[call.name](*texts) is not negated else algebra.AnyOf(())
        return algebra.TextTest(call.name, values, negated)

    # ------------------------------------------------------------ streams

    def query(
        self, select: syntax.EventItems | None, source: syntax.EventStream, within: syntax.Window | None
    ) -> Stream | None:
        if (stream := self.stream(source)) is None:
            return None
        if within is not None:
            stream = forms.bounded(stream, within.us, all_inside=True)
        return stream if select is None else self._select(select, stream)

    def stream(self, node: syntax.EventStream) -> Stream | None:
        match node:
            case syntax.StreamName():
                return self.named(node)
            case syntax.Inner():
                return self.query(node.select, node.stream, node.within)
            case syntax.Filtered():
                return self.filter(node)
            case syntax.Grouped():
                return self._aggregate(node)
            case syntax.StoryStream():
                return self._stories(node)
        left, right = self.stream(node.left), self.stream(node.right)
        if left is None or right is None:
            return None
        match node:
            case syntax.NextStream():
                return self._next(node, left, right)
            case syntax.Iteration():
                return self._fold(node, left, right)
            case syntax.UnionStream():
                if difference := forms.unequal(left.schema, right.schema):
                    hint = "SELECT the same ones on both sides"
                    return self.problem(f"UNION of unequal attributes: {difference}", node.span, hint)
                return algebra.Union(left, forms.reorder_attributes(right, left.schema))

    def named(self, node: syntax.StreamName) -> algebra.Events | None:
        self.inputs += 1
        name = node.name
        if name in self._schemas:
            schema = self._schemas[name]
            return None if schema is None else algebra.Events(name, schema)
        if name in self._documents:
            message = f"{name} is a stream of documents, not of events"
            hint = f"write DEFINE EVENT and a name, FROM {name}/match->m (x := m/x)"
        else:
            message = f"{LACKS_EVENTS}{name}"
            example = f"define them: DEFINE EVENT {name} FROM S//item->i (title := i/title)"
            hint = did_you_mean(name, self._schemas) or example
        return self.problem(message, node.span, hint)

    def filter(self, node: syntax.Filtered) -> Stream | None:
        if (source := self.stream(node.source)) is None:
            return None
        condition = self.tested(node.condition, Scope("FILTER", source.schema))
        return None if condition is None else forms.filter_of(source, condition)

    def _next(self, node: syntax.NextStream, left: Stream, right: Stream) -> Stream | None:
        condition = self.tested(node.condition, Scope("NEXT", left.schema, right.schema))
        clash = {name for name, _ in left.schema} & {name for name, _ in right.schema}
        names: list[tuple[Part, str]] = [("left", name) for name, _ in left.schema]
        names += [("right", name) for name, _ in right.schema]
        schema = tuple((f"{name}_1" if clash else name, kind) for name, kind in left.schema) + right.schema
        if not self.is_schema(schema, node.word, node.span) or condition is None:
            return None
        kind = algebra.Latest if isinstance(node, syntax.LatestStream) else algebra.Next
        return forms.next_of(kind(left, right, condition, None, tuple(names), schema))

    def _fold(self, node: syntax.Iteration, left: Stream, right: Stream) -> Stream | None:
        first, latest = dict(left.schema), dict(right.schema)
        missing = [name for name in latest if name not in first]
        if missing:
            hint = f"SELECT them on the right, or give the left side {missing[0]}, too"
            self.problem(f"FOLD's left side has no {', '.join(missing[:5])}, which its right side has", node.span, hint)
        for name in latest:
            if name in first and first[name] != latest[name]:
                message = f"{name} is a {first[name]} on the left side of FOLD, and a {latest[name]} on its right"
                self.problem(message, node.span, 'make them one kind in a SELECT: number(...), or concat(..., "")')
        changes = frozenset(latest) | {item.name for item in node.sets}
        scope = Scope("FOLD", left.schema, right.schema, changes)
        chooses, continues = self.tested(node.chooses, scope), self.tested(node.continues, scope)
        sets = self._sets(node, scope, first)
        names: list[tuple[Part, str]] = [("left", name) for name in first]
        names += [("latest", name) for name in first if name in changes]
        schema = tuple((f"{name}_1" if name in changes else name, kind) for name, kind in left.schema)
        schema += tuple((name, kind) for name, kind in left.schema if name in changes)
        if missing or not self.is_schema(schema, "FOLD", node.span) or chooses is None or continues is None:
            return None
        return forms.fold_of(algebra.Fold(left, right, chooses, continues, sets, None, tuple(names), schema))

    def _sets(self, node: syntax.Iteration, scope: Scope, first: Mapping[str, str]) -> tuple[tuple[str, Value], ...]:
        found: dict[str, Value] = {}
        for item in node.sets:
            if not self.has_new_name(item, found):
                continue
            value = self.value(item.expr, scope) if item.name in first else None
            if item.name not in first:
                hint = f"give it a first value on the left: (SELECT *, 0 AS {item.name} FROM ...) FOLD"
                self.problem(f"FOLD's left side has no {item.name}", item.span, hint)
            elif value is not None and value_kind(value) != first[item.name]:
                message = f"{item.name} is a {first[item.name]} on the left, and FOLD gives it a {value_kind(value)}"
                self.problem(message, item.span, "make them one kind")
            if value is not None:
                found[item.name] = value
        return tuple(found.items())

    def _aggregate(self, node: syntax.Grouped) -> Stream | None:
        if (source := self.stream(node.source)) is None:
            return None
        inside, kinds = Scope("AGGREGATE", source.schema), dict(source.schema)
        by: dict[str, None] = {}
        for reference in node.by:
            if self.value(reference, inside) is None:
                continue
            if reference.name in by:
                self.problem(f"{reference.name} is twice in BY", reference.span, "remove one of them")
            by[reference.name] = None
        over = None if node.over is None else node.over.us
        if node.over is not None and not over:
            fault = "has no end" if over is None else "has the length 0"
            self.problem(f"the window of OVER {fault}", node.over.span, "write one such as 30 d")
        groups = tuple((name, kinds[name]) for name in by)
        found: dict[algebra.Aggregated, tuple[str, Value]] = {}

        def grouped(call: exp.Call) -> Value | None:
            if (values := self.arguments(call, inside)) is None:
                return None
            name: algebra.AggregateName = call.name  # type: ignore[assignment]  # AGGREGATES has no others
            aggregated = algebra.Aggregated(name, values)
            kind = value_kind(values[0]) if name == "argmax" else "number"
            # Attributes have no punctuation in their names.
            attribute = algebra.Attribute("left", f"#{len(found)}", kind)
            return found.setdefault(aggregated, (attribute.name, attribute))[1]

        scope = Scope("AGGREGATE", groups, grouped=grouped, source=source.schema)
        items: dict[str, Value] = {name: algebra.Attribute("left", name, kind) for name, kind in groups}
        for item in node.items:
            self.add_item(item, scope, items)
        schema = tuple((name, value_kind(value)) for name, value in items.items())
        if not self.is_schema(schema, "AGGREGATE", node.span) or self.problems:
            return None
        # A SELECT goes above it unless all items are plain aggregates.
        alone = {value: name for name, value in items.items() if name not in by}
        if list(alone) == [value for _, value in found.values()]:  # all items are distinct aggregates
            names = {name: alone[value] for name, value in found.values()}
        else:
            names = {name: name for name, _ in found.values()}
        own = tuple((names[name], aggregated) for aggregated, (name, _) in found.items())
        below = groups + tuple((names[name], value_kind(value)) for name, value in found.values())
        kind = algebra.Sessions if isinstance(node.over, syntax.SessionGap) else algebra.Aggregate
        aggregate = kind(source, own, tuple(by), over, below)
        return aggregate if below == schema else forms.select_of(aggregate, tuple(items.items()), schema)

    def _stories(self, node: syntax.StoryStream) -> Stream | None:
        if (source := self.stream(node.source)) is None:
            return None
        kinds = dict(source.schema)
        own = {f"{side}_{name}": "number" if name == "time" else "string" for side in SIDES for name in OWN}
        if lacking := [name for name, kind in own.items() if kinds.get(name) != kind]:
            hint = "PUBLISH a join with STORIES, which makes such events"
            return self.problem(f"STORIES reads pairs of documents: there is no {lacking[0]}", node.source.span, hint)
        counts: list[tuple[str, str]] = []
        for item in node.counts:
            match item.expr:
                case exp.Call(name=exp.COUNT_DISTINCT, args=(syntax.Reference(side="", name=name),)):
                    if {f"{side}_{name}" for side in SIDES} <= kinds.keys():
                        counts.append((item.name or name, name))
                    else:
                        self.problem(f"no document of a pair has {name}", item.span, f"define a_{name} and b_{name}")
                case _:
                    self.problem("STORIES counts distinct values", item.span, "write count(DISTINCT x) AS n")
        schema = algebra.story_schema(name for name, _ in counts)
        if not self.is_schema(schema, "STORIES", node.span):
            return None
        condition = self.tested(node.having, Scope("STORIES", schema))
        if unknown := [one for one in node.tell if one not in CHANGES]:
            return self.problem(f"no change is {unknown[0]}", node.span, f"the changes are {', '.join(CHANGES)}")
        if not node.lasting.us:
            return self.problem("stories last some time", node.lasting.span, "write such as LASTING 7 d")
        if condition is None or self.problems:
            return None
        tell: Any = node.tell or (CHANGES if node.having is None else ())
        name = "+".join(one.name for one in syntax.names_read(node.source))
        return algebra.Stories(source, name, tuple(counts), node.lasting.us, condition, tell, schema)

    # ------------------------------------------------------------ SELECT

    def _select(self, select: syntax.EventItems, source: Stream) -> Stream | None:
        scope, before = Scope("SELECT", source.schema), len(self.problems)
        items: dict[str, Value] = {}
        for item in select:
            if isinstance(item, syntax.SelectStar):
                for name, kind in source.schema:
                    if name in items:
                        self.problem(f"* has {name}, too", item.span, "give the other one another name with AS")
                    items[name] = algebra.Attribute("left", name, kind)
            else:
                self.add_item(item, scope, items)
        schema = tuple((name, value_kind(value)) for name, value in items.items())
        if not self.is_schema(schema, "SELECT", select[0].span) or len(self.problems) > before:
            return None
        return forms.select_of(source, tuple(items.items()), schema)

    def add_item(self, item: syntax.Named, scope: Scope, found: dict[str, Value]) -> None:
        value = self.value(item.expr, scope)
        if self.has_new_name(item, found) and value is not None:
            found[item.name] = value

    def has_new_name(self, item: syntax.Named, taken: Mapping[str, object]) -> bool:
        """Whether an item's name is unique; if not, adds a problem."""
        if not item.name:
            self.problem("this value needs a name", item.span, "write AS and a name after it")
        elif item.name in taken:
            span = Span(item.span.end - len(item.name), item.span.end)
            self.problem(f"two attributes are named {item.name}", span, "give one another name with AS")
        else:
            return True
        return False

    # ------------------------------------------------------------ conditions and schemas

    def tested(self, expr: syntax.EventExpr | None, scope: Scope) -> EventCondition | None:
        """Resolves a condition and checks its size. A missing one always holds."""
        if expr is None:
            return ALWAYS
        condition = self.condition(expr, scope)
        if condition is not None and forms.count_dnf_clauses(condition) > MAX_CLAUSES:
            message = f"this condition has more than {MAX_CLAUSES} clauses in disjunctive normal form"
            return self.problem(message, expr.span, "write it as a UNION of FILTERs, or with fewer ORs")
        return condition

    def is_schema(self, schema: Schema, operator: str, span: Span) -> bool:
        """Whether an operator's results can have these attributes."""
        names = [name for name, _ in schema]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            hint = f"rename one of them before, as in (SELECT {twice} AS a FROM ...)"
            self.problem(f"{operator} gives two attributes the name {twice}", span, hint)
        elif len(names) > MAX_ATTRIBUTES:
            self.problem(f"more than {MAX_ATTRIBUTES} attributes", span, "SELECT those that are needed")
        return twice is None and len(names) <= MAX_ATTRIBUTES
