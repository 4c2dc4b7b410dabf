"""Builds syntax trees while the parser reduces the rules of xscl.lark and events.lark: one method per rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice, pairwise
from sys import intern
from typing import Any, cast

from lark import Token, Transformer

from common.bounds import UNITS
from common.tools import frozen
from xscl import syntax
from xscl.algebra import values as exp
from xscl.algebra.joins import JoinOp
from xscl.algebra.values import DERIVED, MANY_VALUED, NOWHERE, NUMBERS, WITH_LITERAL, Span, holes_of, is_number
from xscl.check_expressions import name_span
from xscl.text import Problem, unescaped, unit_hint, window_us

# Functions of a filter that apply to the filtered node if written without an argument. As a condition,
# those that return strings stand for `!= ""`.
_OF_CONTEXT = frozenset({"normalize-space", "string", "string-length", "number"})
_STRING_VALUED = ({"string", "concat", *MANY_VALUED} | DERIVED.keys() | WITH_LITERAL.keys()) - NUMBERS - {"date"}


@frozen
class Declaration:
    """`DECLARE NAMESPACE prefix = "uri"`."""

    prefix: str
    uri: str
    span: Span


@frozen
class WeightsDeclaration:
    """`DECLARE WEIGHTS "name"`."""

    name: str
    span: Span


@frozen
class _Clause:
    """A part of the node that the rule above builds; `word` is a keyword, a name, or empty."""

    word: str
    value: Any
    span: Span
    hidden: syntax.MadeForOthers | None = None


def _query(source: syntax.Input, select: Any, publish: list[_Clause], span: Span) -> syntax.Query | syntax.StoryQuery:
    if not publish:
        return syntax.Query(source, select, None, span)
    clause = publish[0]
    if isinstance(clause.value, syntax.StoryClause):
        return syntax.StoryQuery(
            syntax.Query(source, select, clause.word, span, None, clause.hidden), clause.value, span
        )
    return syntax.Query(source, select, clause.word, span, clause.value, clause.hidden)


def _span(first: Any, last: Any) -> Span:
    start: int = first.start_pos if isinstance(first, Token) else first.span.start  # type: ignore[assignment]  # made-up tokens have none
    end: int = last.end_pos if isinstance(last, Token) else last.span.end  # type: ignore[assignment]  # the same
    return _shared_span(start, end)


_shared_span = lru_cache(maxsize=65536)(Span)  # a cached Span, since many statements have equal ones


def _name(token: Token) -> Any:
    """Interns a token's text, so that equal names share an object. The grammar admits only valid names."""
    return intern(str(token))


def _node(kind: Callable[..., Any], *places: int, start: int = 0, end: int = -1) -> Any:
    """Returns a callback that builds a node from some of the children, with the span from one child to another."""

    def build(_: object, children: list[Any]) -> Any:
        return kind(*[children[place] for place in places], _span(children[start], children[end]))

    return build


def _spanning(build: Callable[[list[Any], Span], Any]) -> Any:
    """Returns a callback that builds a node from all children, with their span."""
    return lambda _, children: build(children, _span(children[0], children[-1]))


class _ExpressionBuilder(Transformer[Token, Any]):
    """The callbacks that queries over documents and event statements share."""

    number = _node(lambda text, span: exp.Number(str(text), span), 0)
    star = _node(syntax.SelectStar)
    parentheses = _node(lambda inner, _: inner, 1)
    call = _spanning(lambda children, span: exp.Call(_name(children[0]), tuple(children[2:-1:2]), span))
    or_ = _spanning(lambda children, span: exp.Or(_arms(children, exp.Or), span))
    and_ = _spanning(lambda children, span: exp.And(_arms(children, exp.And), span))

    def string(self, children: list[Token]) -> exp.String:
        return exp.String(unquoted(children[0]), _span(children[0], children[0]))

    def compare(self, children: list[Any]) -> exp.Compare:
        left, op, right = children
        return exp.Compare(_name(op), left, right, _span(left, right))


class Builder(_ExpressionBuilder):
    """The parser's callbacks: each receives the children of its rule (tokens and nodes) and returns a node. Raises
    Problem for what the grammar accepts but the language does not."""

    # ------------------------------------------------------------ statements and queries

    statement = _node(lambda inner, _: inner, 0)
    namespace = _node(lambda prefix, uri, span: Declaration(str(prefix), unquoted(uri), span), 2, 4)
    weights = _node(lambda name, span: WeightsDeclaration(unquoted(name), span), 2)

    def select_query(self, children: list[Any]) -> syntax.Query | syntax.StoryQuery:
        _, select, _, source, *publish = children
        return _query(source, select, publish, _span(children[0], children[-1]))

    def plain_query(self, children: list[Any]) -> syntax.Query | syntax.StoryQuery:
        source, *publish = children[1:] if isinstance(children[0], Token) else children
        return _query(source, None, publish, _span(children[0], children[-1]))

    def publish(self, children: list[Any]) -> _Clause:
        name, span = children[1], _span(children[1], children[-1])
        clause = children[-1] if isinstance(children[-1], syntax.Once | syntax.StoryClause) else None
        hidden = syntax.MadeForOthers(span) if len(children) - (clause is not None) > 2 else None
        return _Clause(str(name), clause and replace(clause, span=span), span, hidden)

    def stories(self, children: list[Any]) -> syntax.StoryClause:
        return syntax.StoryClause(children[2], *_having_and_tell(children[3:]), _span(children[0], children[-1]))

    counted = _node(lambda name, span: syntax.StoryCount(str(name), None, span), 0)
    story_compare = _spanning(
        lambda children, span: exp.Compare(_name(children[1]), children[0], _number_of(children[2]), span)
    )

    def counted_distinct(self, children: list[Any]) -> syntax.StoryCount:
        span = _span(children[0], children[-1])
        if children[0] != "count":
            raise Problem(
                f"{children[0]}() does not count", _span(children[0], children[0]), "write count(DISTINCT path)"
            )
        return syntax.StoryCount("", children[3], span)

    def once(self, children: list[Any]) -> syntax.Once:
        window = children[-1] if isinstance(children[-1], syntax.Window) else None
        keys = children[3:-3] if window else children[3:-1]
        return syntax.Once(tuple(keys[::2]), window, _span(children[0], children[-1]))

    def group(self, children: list[Any]) -> syntax.Input:
        query = children[1].pairs if isinstance(children[1], syntax.StoryQuery) else cast(syntax.Query, children[1])
        if query.publish is not None:
            hint = "PUBLISH the inner query as its own query"
            raise Problem("PUBLISH is not allowed inside parentheses", name_span(query), hint)
        if isinstance(query.select, exp.ElementConstructor):
            hint = "write SELECT with a list of items here, and the constructor in the outermost SELECT"
            raise Problem("an element constructor is not allowed inside parentheses", query.select.span, hint)
        if query.select is None:
            return query.source
        return syntax.SubQuery(query.select, query.source, _span(children[0], children[2]))

    def join(self, children: list[Any]) -> syntax.Join:
        left, right, window, pred = children[0], children[-1], children[-3], children[-5]
        op = cast(JoinOp, " ".join(word.type for word in children[1:-6]))  # the type of a terminal is its spelling
        if window.us is None and op in ("NOT FOLLOWED BY", "NOT JOIN"):
            hint = "write how long to wait, such as 7 d; only what came before needs no end: NOT PRECEDED BY {.., INF}"
            raise Problem(f"{op} without end would never be decided", window.span, hint)
        return syntax.Join(op, left, right, pred, window, _span(left, right))

    def window(self, children: list[Token]) -> syntax.Window:
        span = _span(children[0], children[-1])
        if children[0].type == "INF":
            return syntax.Window(None, span)
        unit = str(children[1]) if len(children) > 1 else "s"
        if unit not in UNITS:
            raise Problem(f"unknown unit of time {unit}", _span(children[1], children[1]), unit_hint(unit))
        return syntax.Window(window_us(str(children[0]), unit, span), span)

    def definition(self, children: list[Any]) -> syntax.EventDefinition:
        _, _, name, _, block, _, *attributes, end = children
        span = Span(children[0].start_pos, end.end_pos)
        return syntax.EventDefinition(str(name), block, tuple(attributes[::2]), span)

    def first_of(self, children: list[Any]) -> syntax.DefinedAttribute:
        operand = children[2]
        is_numeric = is_number(operand)
        if isinstance(operand, exp.Call) and operand.name == "number" and len(operand.args) == 1:
            operand = operand.args[0]
        return syntax.DefinedAttribute(str(children[0]), operand, is_numeric, False, _span(children[0], children[2]))

    each_of = _node(lambda name, path, span: syntax.DefinedAttribute(str(name), path, False, True, span), 0, 2)

    def block(self, children: list[Any]) -> syntax.Block:
        first, span = children[0], _span(children[0], children[-1])
        if not isinstance(first, Token):
            return syntax.Block(syntax.DEFAULT_STREAM, tuple(children), span)
        stream, rest = _name(first), children[1:]
        if rest and isinstance(rest[0], Token) and rest[0].type == "COLON":
            stream, rest = intern(f"{first}:{rest[1]}"), rest[2:]
        if rest and isinstance(rest[0], exp.Step):
            return syntax.Block(stream, tuple(rest), span)
        var = _name(rest[-1]) if rest else None
        return syntax.Block(stream, (exp.Step("/", exp.NameTest("element", "*"), (), var, span),), span)

    def step(self, children: list[Any]) -> exp.Step:
        return _step(_name(children[0]), children[1], children[2:], _span(children[0], children[-1]))

    first_step = _spanning(lambda children, span: _step("/", children[0], children[1:], span))

    def test(self, children: list[Token]) -> exp.NameTest:
        span = _span(children[0], children[-1])
        if children[0].type == "AT":
            prefix = _name(children[1]) if len(children) == 4 else None
            return exp.NameTest("attribute", _name(children[-1]), prefix, span)
        prefix = _name(children[0]) if len(children) == 3 else None
        return exp.NameTest("element", _name(children[-1]), prefix, span)

    def binding(self, children: list[Token]) -> _Clause:
        return _Clause("AS", children[1], _span(children[0], children[1]))

    def filter(self, children: list[Any]) -> _Clause:
        return _Clause("", _condition(children[1]), _span(children[0], children[2]))

    def var_path(self, children: list[Any]) -> exp.VarPath:
        return exp.VarPath(_name(children[0]), tuple(children[1:]), _span(children[0], children[-1]))

    def rel(self, children: list[Any]) -> exp.Rel:
        steps = children[1:] if isinstance(children[0], Token) else children
        return exp.Rel(tuple(steps), _span(children[0], children[-1]))

    either = _spanning(lambda children, span: exp.Or(_arms(map(_condition, children), exp.Or), span))
    both = _spanning(lambda children, span: exp.And(_arms(map(_condition, children), exp.And), span))

    def call(self, children: list[Any]) -> exp.Call | exp.Not:
        name, args = _name(children[0]), tuple(children[2:-1:2])
        span = _span(children[0], children[-1])
        if name.lower() == "not" and len(args) == 1:
            return exp.Not(_condition(args[0]), span)
        if not args and name in _OF_CONTEXT:
            args = (exp.Rel((), span),)
        return exp.Call(name, args, span)

    def bound(self, children: list[Any]) -> exp.Bound:
        call = self.call(children[:-1])
        if isinstance(call, exp.Not):
            raise Problem("not() is a condition, and has no value", call.span, "leave out its name")
        return exp.Bound(call, _name(children[-1].value), _span(children[0], children[-1]))

    # ------------------------------------------------------------ SELECT

    items = _spanning(lambda children, span: syntax.SelectItems(tuple(children[::2]), span))
    attribute = _spanning(lambda children, span: _Clause(str(children[0]), tuple(children[3:-1]), span))
    hole = _node(lambda operand, span: exp.Hole(operand, "", span), 1)

    def item(self, children: list[Any]) -> syntax.SelectItem:
        operand, span = children[0], _span(children[0], children[-1])
        if len(children) > 1:
            return syntax.SelectItem(operand, str(children[2]), span)
        if not isinstance(operand, exp.VarPath) or operand.steps:
            raise Problem("this SELECT item needs a name", span, "write AS and a name after it")
        return syntax.SelectItem(operand, operand.var, span)

    def element(self, children: list[Any]) -> exp.ElementConstructor:
        name, span = children[1], _span(children[0], children[-1])
        attributes: dict[str, tuple[str | exp.Hole, ...]] = {}
        at = 2
        while isinstance(children[at], _Clause):
            attribute = children[at]
            if attribute.word in attributes:
                raise Problem(f"the attribute {attribute.word} is written twice", attribute.span, "remove one of them")
            attributes[attribute.word] = attribute.value
            at += 1
        content: tuple[Any, ...] = ()
        if children[at].type == "TAG_CLOSE":
            content, end = tuple(children[at + 1 : -3]), children[-2]
            if str(end) != str(name):
                message = f"the end tag </{end}> does not match <{name}>"
                raise Problem(message, Span(end.start_pos, end.end_pos), f"write </{name}>")
        return exp.ElementConstructor(str(name), tuple(attributes.items()), content, span)

    def qname(self, children: list[Token]) -> Token:
        return Token("QNAME", ":".join(children[::2]), start_pos=children[0].start_pos, end_pos=children[-1].end_pos)

    def text(self, children: list[Token]) -> str:
        return unescaped(str(children[0]), cast(int, children[0].start_pos))


def _having_and_tell(children: list[Any]) -> tuple[Any, tuple[str, ...]]:
    """The operands of HAVING and TELL of stories; None and () without them."""
    having = children[1] if children and children[0].type == "HAVING" else None
    changes = [str(one).lower() for one in children[2 * (having is not None) + 1 :: 2]]
    return having, tuple(changes)


def _number_of(token: Token) -> exp.Number:
    return exp.Number(str(token), _span(token, token))


def with_hole_texts(node: Any, text: str) -> Any:
    """Fills in the texts of a constructor's holes from their spans in `text`. Returns any other node unchanged."""
    if isinstance(node, exp.Hole) and not node.text:  # otherwise it is from another statement
        return exp.Hole(node.operand, text[node.span.start + 1 : node.span.end - 1].strip(), node.span)
    if not isinstance(node, exp.ElementConstructor) or all(hole.text for hole in holes_of(node)):
        return node
    attributes = tuple((name, tuple(with_hole_texts(part, text) for part in parts)) for name, parts in node.attributes)
    children = tuple(with_hole_texts(child, text) for child in node.children)
    return exp.ElementConstructor(node.name, attributes, children, node.span)


def unquoted(literal: str) -> str:
    quote = literal[0]
    return literal[1:-1].replace(quote * 2, quote)


def _step(axis: exp.Axis, test: exp.NameTest, suffixes: list[_Clause], span: Span) -> exp.Step:
    bindings = [suffix for suffix in suffixes if suffix.word]
    filters = tuple(suffix.value for suffix in suffixes if not suffix.word)
    if not bindings:
        return exp.Step(axis, test, filters, None, span)
    if len(bindings) > 1:
        raise Problem("a step can be bound to one variable only", bindings[1].span, "use the first variable for both")
    if bindings[0] is not suffixes[0] and bindings[0] is not suffixes[-1]:
        raise Problem("this binding is between two filters", bindings[0].span, "move it before or after them")
    return exp.Step(axis, test, filters, _name(bindings[0].value), span)


def _condition(expr: exp.Expr) -> exp.Expr:
    """Turns an expression into a condition of a filter: a string is true if it is not empty."""
    if isinstance(expr, exp.Call) and expr.name in _STRING_VALUED:
        return exp.Compare("!=", expr, exp.String("", expr.span), expr.span)
    return expr


def _arms(children: Iterable[Any], kind: type[exp.And | exp.Or]) -> tuple[Any, ...]:
    """The operands of AND or OR, flattened, from children separated by keywords."""
    arms: list[Any] = []
    for child in islice(children, 0, None, 2):
        arms.extend(child.args if isinstance(child, kind) else [child])
    return tuple(arms)


_SIDES = ("$", "$1", "$2")


class EventBuilder(_ExpressionBuilder):
    """The parser's callbacks for queries over events and patterns. An operator's span is its keyword, if its operands
    are in parentheses."""

    selected = _spanning(lambda children, span: _event_query(children[1], children[3], children[4:], span))

    def plain(self, children: list[Any]) -> syntax.EventQuery:
        stream, *clauses = children[1:] if isinstance(children[0], Token) else children
        return _event_query(None, stream, clauses, _span(children[0], children[-1]))

    within = _node(partial(_Clause, "WITHIN"), 1)

    def publish(self, children: list[Any]) -> _Clause:
        span = _span(children[1], children[-1])
        hidden = syntax.MadeForOthers(span) if len(children) > 2 else None
        return _Clause("PUBLISH", _name(children[1]), span, hidden)

    items = named_list = components = _spanning(lambda children, _: tuple(children[::2]))

    def named(self, children: list[Any]) -> syntax.Named:
        expr, span = children[0], _span(children[0], children[-1])
        if len(children) > 1:
            return syntax.Named(expr, _name(children[2]), span)
        return syntax.Named(expr, expr.name if isinstance(expr, syntax.Reference | syntax.ItemReference) else "", span)

    stream_name = stream_of = _node(lambda name, span: syntax.StreamName(_name(name), span), 0)
    filtered = _node(syntax.Filtered, 2, 4, end=3)
    together = _node(syntax.UnionStream, 0, 2, start=1, end=1)
    by = _spanning(lambda children, span: _Clause("BY", _references(children[1::2]), span))

    def over(self, children: list[Any]) -> _Clause:
        window: syntax.Window = children[-1]
        if len(children) > 2:
            window = syntax.SessionGap(window.us, _span(children[1], window))
        return _Clause("OVER", window, _span(children[0], window))

    def group(self, children: list[Any]) -> syntax.EventStream:
        query: syntax.EventQuery = children[1]
        stream = cast(syntax.EventStream, query.stream)  # a pattern cannot stand in parentheses
        if query.publish is not None:
            span = name_span(query)
            hint = "PUBLISH the inner query as a statement of its own, and read its name"
            raise Problem("PUBLISH is not allowed inside parentheses", span, hint)
        if query.select is None and query.within is None:
            return stream
        return syntax.Inner(query.select, stream, query.within, _span(children[0], children[2]))

    def grouped(self, children: list[Any]) -> syntax.Grouped:
        _, _, items, *clauses, _, source = children
        found = {clause.word: clause.value for clause in clauses}
        return syntax.Grouped(items, found.get("BY", ()), found.get("OVER"), source, _span(children[0], children[-2]))

    def stories(self, children: list[Any]) -> syntax.StoryStream:
        counts = children[2] if isinstance(children[2], tuple) else ()
        at = next(place for place, one in enumerate(children) if isinstance(one, syntax.Window))
        span = _span(children[0], children[-2])
        return syntax.StoryStream(counts, children[at], *_having_and_tell(children[at + 1 : -2]), children[-1], span)

    def sequence(self, children: list[Any]) -> syntax.NextStream:
        condition = children[3] if len(children) > 3 else None
        return syntax.NextStream(children[0], children[-1], condition, _span(children[1], children[1]))

    def latest(self, children: list[Any]) -> syntax.LatestStream:
        condition = children[4] if len(children) > 4 else None
        return syntax.LatestStream(children[0], children[-1], condition, _span(children[1], children[2]))

    def iteration(self, children: list[Any]) -> syntax.Iteration:
        left, word, _, *parts, _, right = children
        found: list[Any] = [None]
        for part in parts:
            if isinstance(part, Token):  # commas separate the parts
                found.append(None)
            else:
                found[-1] = part
        chooses, continues, sets = found
        return syntax.Iteration(left, right, chooses, continues, sets or (), _span(word, word))

    def window(self, children: list[Token]) -> syntax.Window:
        text, span = str(children[0]), _span(children[0], children[0])
        if children[0].type == "INF":
            return syntax.Window(None, span)
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz").rstrip()
        return syntax.Window(window_us(number, text[len(number) :].strip() or "s", span), span)

    duration = window

    def call_distinct(self, children: list[Any]) -> exp.Call:
        name, _, word, arg, _ = children
        if name != "count":
            hint = "only count() counts values once; AGGREGATE{count() AS n BY x} gives an event for each value"
            raise Problem(f"DISTINCT in {name}()", _span(word, word), hint)
        return exp.Call(exp.COUNT_DISTINCT, (arg,), _span(name, children[-1]))

    def call_of_all(self, children: list[Token]) -> exp.Call:
        if children[0] != "count":
            span = _span(children[0], children[-1])
            raise Problem(f"{children[0]}(*) is not a function", span, "write count(*), or an attribute")
        return exp.Call("count", (), _span(children[0], children[-1]))

    negated = _node(exp.Not, 1)
    minus = _node(syntax.Minus, 1)
    bare = _node(lambda name, span: syntax.Reference("", _name(name), span), 0)
    percentage = _node(lambda text, span: syntax.Percentage(str(text)[:-1], span), 0)
    null = _node(syntax.Null)
    measure = _node(lambda word, span: syntax.TimeMeasure("DUR" if word.upper() == "DUR" else "GAP", span), 0)
    is_null = _spanning(lambda children, span: syntax.IsNull(children[0], len(children) > 3, span))
    operation = _node(lambda left, op, right, span: syntax.ArithmeticExpr(_name(op), left, right, span), 0, 1, 2)

    def reference(self, children: list[Token]) -> syntax.Reference:
        side, span = str(children[0]), _span(children[0], children[0])
        if side not in _SIDES:
            hint = "$1 is the left event, $2 the right one, and $ the latest in FOLD"
            raise Problem(f"there is no {side}", span, hint)
        return syntax.Reference(cast(syntax.Qualifier, side), _name(children[2]), _span(children[0], children[2]))

    # ------------------------------------------------------------ patterns

    def pattern(self, children: list[Any]) -> syntax.EventQuery:
        clauses: list[_Clause] = children[5:]
        _check_order(clauses)
        found: dict[str, Any] = {clause.word: clause.value for clause in clauses}
        strategy, where = found.get("WHERE", (None, None))
        span = next((clause.span for clause in clauses if clause.word in ("EARLIEST", "NON", "ALL")), NOWHERE)
        kind = syntax.TogetherMode if found.get("ALL") else syntax.Mode
        mode = kind("EARLIEST" in found, "NON" in found, span)
        span, errors, having = _span(children[0], children[4]), found.get("ERRORS"), found.get("HAVING")
        body = syntax.Sequenced(children[3], strategy, where, errors, having, mode, span)
        end = clauses[-1].span.end if clauses else span.end
        return _event_query(found.get("RETURN"), body, clauses, Span(span.start, end))

    no_event = _node(syntax.NoEvent, 2)
    any_order = _node(syntax.AnyOrder, 2)

    def one_event(self, children: list[Any]) -> syntax.OneEvent:
        many = len(children) > 2
        return syntax.OneEvent(children[0], _name(children[1 + many]), many, _span(children[0], children[-1]))

    many_events = one_event

    letter = _spanning(lambda children, span: syntax.LetterOf(children[0], len(children) > 1, span))
    alternatives = _spanning(lambda children, span: syntax.Alternatives(tuple(children[1:-1:2]), span))
    repetition = _node(lambda part, times, span: syntax.Repetition(part, times.value, span), 0, 1)

    def repeated_letter(self, children: list[Any]) -> syntax.Repetition:
        *letter, times = children
        return syntax.Repetition(self.letter(letter), times.value, _span(children[0], times))

    def times(self, children: list[Token]) -> _Clause:
        least = _whole(children[1]) if len(children) > 1 else int(children[0] == "+")
        return _Clause("", least, _span(children[0], children[-1]))

    def where(self, children: list[Any]) -> _Clause:
        strategy = children[1] if isinstance(children[1], syntax.StrategyName) else None
        condition = children[-2] if not isinstance(children[-2], Token) else None
        span = _span(children[0], children[-1])
        if strategy is None and condition is None:
            raise Problem("empty braces", span, "write a condition, or leave WHERE out")
        return _Clause("WHERE", (strategy, condition), span)

    strategy = _spanning(lambda children, span: syntax.StrategyName(_name(children[0]), tuple(children[2:-1:2]), span))
    listed = _spanning(lambda children, span: syntax.ListedVariable(_name(children[0]), len(children) > 1, span))
    having = _node(partial(_Clause, "HAVING"), 1)
    mode = _spanning(lambda children, span: _Clause(children[0].upper(), len(children) > 2, span))

    def returned(self, children: list[Any]) -> _Clause:
        return _Clause("RETURN", children[1], _span(children[0], children[1][-1]))

    def errors(self, children: list[Token]) -> _Clause:
        if children[1] != "<=":
            raise Problem("ERRORS has an upper bound", _span(children[1], children[1]), "write ERRORS <= 1")
        budget = _whole(children[4]) if len(children) > 3 else None
        if budget == 0:
            raise Problem("BUDGET 0 keeps nothing", _span(children[4], children[4]), "write a greater number")
        span = _span(children[0], children[-1])
        return _Clause("ERRORS", syntax.Errors(_whole(children[2]), budget, span), span)

    def item(self, children: list[Any]) -> syntax.ItemReference:
        variable, attribute = children[0], children[-1]
        place = _place(variable, children[2]) if len(children) > 3 else ""
        return syntax.ItemReference(_name(variable), place, _name(attribute), _span(variable, attribute))

    alike = _spanning(lambda children, span: syntax.EquivalenceTest(_references(children[1::2]), span))

    def items_of(self, children: list[Token]) -> syntax.ItemReference:
        place: syntax.ItemIndex = "..i-1" if children[2].type == "EARLIER" else "[]"
        name = _name(children[-1]) if children[-1].type == "ATTRIBUTE" else ""
        return syntax.ItemReference(_name(children[0]), place, name, _span(children[0], children[-1]))


def _event_query(select: Any, stream: Any, clauses: list[_Clause], span: Span) -> syntax.EventQuery:
    found = {clause.word: clause.value for clause in clauses}
    hidden = clauses[-1].hidden if clauses else None
    return syntax.EventQuery(stream, select, found.get("WITHIN"), found.get("PUBLISH"), span, hidden)


_ORDER = ("WHERE", "ERRORS", "WITHIN", "HAVING", "RETURN", "ALL", "EARLIEST", "NON", "PUBLISH")
"""Keywords of a PATTERN's clauses, in order."""

_MOST_DIGITS = 6
_PLACES: Mapping[str, syntax.ItemIndex] = {"CURRENT": "i", "PREVIOUS": "i-1", "LAST": "LEN"}


def _references(names: list[Token]) -> tuple[syntax.Reference, ...]:
    return tuple(syntax.Reference("", _name(token), _span(token, token)) for token in names)


def _place(variable: Token, place: Token) -> syntax.ItemIndex:
    span = _span(place, place)
    if place.type == "NUMBER":
        if place != "1":
            hint = f"the first is {variable}[1], the last {variable}[{variable}.LEN]"
            raise Problem(f"there is no {variable}[{place}]", span, hint)
        return "1"
    if place.type == "LAST" and place.partition(".")[0].strip() != variable:
        raise Problem(f"{variable}[{place}] is of two variables", span, f"write {variable}[{variable}.LEN]")
    return _PLACES[place.type]


def _whole(token: Token) -> int:
    if not token.isdecimal() or len(token) > _MOST_DIGITS:
        raise Problem("this has to be a whole number", _span(token, token), "such as 1 or 2")
    return int(token)


def _check_order(clauses: list[_Clause]) -> None:
    """Raises Problem if a clause is out of order or repeated."""
    for before, clause in pairwise(clauses):
        one, other = _ORDER.index(before.word), _ORDER.index(clause.word)
        if one == other:
            raise Problem(f"{clause.word} is there twice", clause.span, "remove one of them")
        if one > other:
            modes = "ALL MATCHES or EARLIEST MAXIMAL and NON OVERLAPPING"
            hint = f"the order is WHERE, ERRORS, WITHIN, HAVING, RETURN, {modes}, PUBLISH"
            raise Problem(f"{clause.word} comes after {before.word}", clause.span, hint)
        if before.word == "ALL" and clause.word in ("EARLIEST", "NON"):
            raise Problem("ALL MATCHES beside another mode", before.span, "write one of them")
