"""Warns of correct queries and event statements that look like mistakes: conditions that never hold, names that feed
items do not have, times or numbers compared as texts, streams that nothing writes, and state that is never evicted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from itertools import islice
from typing import NamedTuple

from lxml import etree

from feeds.feed import EntryForm
from feeds.items import ATTRIBUTES, FIELDS
from mmqjp.explain.terms import list_with_and
from xpath_stage.binder import DOCUMENT, Node, PreparedNode, each_below
from xpath_stage.documents import ParsedDocument, parse_document
from xscl import syntax
from xscl.algebra import values as exp
from xscl.algebra.events import Constant, EventCondition, Fold, Next, Schema, Select, Stream, value_kind
from xscl.algebra.joins import PatternNode, Test
from xscl.check_expressions import blocks, name_span
from xscl.event_forms import is_windowed
from xscl.event_lower import schemas_of
from xscl.event_patterns import PatternResolver
from xscl.event_resolve import Resolver, Scope
from xscl.lower import and_arms, compared_text
from xscl.parser import located_queries
from xscl.printer import to_xscl
from xscl.text import Lines, Problem, XsclError

_CASES = ("lower-case", "upper-case")
_PARTS = {"contains": "has {} in it", "starts-with": "begins with {}", "ends-with": "ends with {}"}
_TEXTS = (*_CASES, "normalize-space", "canonical-url", "host")
"""Functions that return a text and leave their own results unchanged."""


def condition_warnings(query: syntax.Query) -> Iterator[Problem]:
    for condition in _conditions(query.source):
        for expr in _walk(condition):
            yield from _impossible(expr)
    for block in blocks(query.source):
        yield from _variables_in_filters(block)


def _conditions(source: syntax.Input) -> Iterator[exp.Expr]:
    match source:
        case syntax.Block():
            for step in source.steps:
                yield from step.filters
        case syntax.Join():
            yield from _conditions(source.left)
            yield from _conditions(source.right)
            yield source.pred
        case syntax.SubQuery():
            yield from _conditions(source.source)


def _walk(expr: exp.Expr) -> Iterator[exp.Expr]:
    yield expr
    steps = expr.steps if isinstance(expr, exp.Rel | exp.VarPath) else ()
    parts = [condition for step in steps for condition in step.filters]
    for part in parts or exp.operands_of(expr):
        yield from _walk(part)


def _impossible(expr: exp.Expr) -> Iterator[Problem]:
    match expr:
        case (
            exp.Compare(op="=" | "!=", left=exp.Call(name=name), right=exp.String() as literal)
            | exp.Compare(op="=" | "!=", left=exp.String() as literal, right=exp.Call(name=name))
        ):
            said, holds = "is {}", _holds(expr)
        case exp.Call("contains" | "starts-with" | "ends-with", (exp.Call(name=name), exp.String() as literal)):
            said, holds = _PARTS[expr.name], "never"
            if name not in _CASES:
                return
        case _:
            return
    text = literal.value
    if name not in _TEXTS or not text:
        return
    # A host alone is not an address.
    given = exp.derive(name, f"http://{text}/" if name == "host" and "/" not in text else text)
    if given != text:
        message = f"{name}(...) never {said.format(to_xscl(literal))}: this {holds} holds"
        hint = f"write {to_xscl(exp.String(given))}" if given else f"{name}(...) is empty for such a text"
        yield Problem(message, literal.span, hint)


def _holds(expr: exp.Compare) -> str:
    return "always" if expr.op == "!=" else "never"


class _Bound(NamedTuple):
    """The step that binds a variable, and, inside a filter, the filter's path and step."""

    step: exp.Step
    path: tuple[exp.Step, ...]
    owner: exp.Step | None


def _variables_in_filters(block: syntax.Block) -> Iterator[Problem]:
    names: dict[str, _Bound] = {}
    paths: list[tuple[exp.Rel, exp.Step]] = []
    _collect(block.steps, None, names, paths)
    for path, context in paths:
        first = path.steps[0] if path.steps else None
        if first is None or first.axis != "/" or first.test.kind != "element" or first.test.prefix is not None:
            continue
        name, bound = first.test.local, names.get(first.test.local)
        if bound is None or bound.step.test.local == name or path.span.start != first.test.span.start:
            continue  # it is not a variable, or an element of that name is likely, or ./ in front of it says so
        hint = f"write the path from this filter's node to it, or ./{name} for an element"
        if bound.step is context or bound.owner is context:
            steps = (*(bound.path if bound.owner is context else ()), *path.steps[1:])
            meant = to_xscl(exp.Rel(tuple(replace(step, filters=(), var=None) for step in steps)))
            hint = f"write {meant} (or ./{name}, if you mean an element of that name)"
        message = f"{name} is a variable, and filters know paths only: this is an element named {name}"
        yield Problem(message, first.test.span, hint)


def _collect(
    steps: tuple[exp.Step, ...], owner: exp.Step | None, names: dict[str, _Bound], paths: list[tuple[exp.Rel, exp.Step]]
) -> None:
    for number, step in enumerate(steps, 1):
        if step.var is not None:
            names[step.var] = _Bound(step, steps[:number], owner)
        todo = list(step.filters)
        while todo:
            expr = todo.pop()
            if isinstance(expr, exp.Rel):
                paths.append((expr, step))
                _collect(expr.steps, step, names, paths)
            todo += exp.operands_of(expr)


REPEATED = frozenset({"folder", "author", "category", "link", "enclosure"})
TIMES, ADDRESSES = frozenset({"timestamp", "updated"}), frozenset({"item_url", "channel_url", "feed_url", "href"})
"""Fields that an item may have several times; those that hold a time; and, with attributes, those that hold a URL."""

ROOT: Node = (0, 0)  # the root of an item

Places = frozenset[Node]  # nodes of `_item`, or DOCUMENT


@cache
def _item() -> ParsedDocument:
    """An item with each of its fields once, with all attributes."""
    root = etree.Element("item")
    for field in FIELDS:
        etree.SubElement(root, field, dict.fromkeys(ATTRIBUTES.get(field, ()), ""))
    return parse_document(etree.tostring(root))


def _name(place: Node) -> str:
    number, attribute = place
    if number < 0:
        return ""
    return _item().attribute(number, attribute)[0] if attribute else str(_item().elements[number].tag)


def _is_field(place: Node) -> bool:
    return place > ROOT and not place[1]


def _holds_no_text(place: Node) -> bool:
    return _is_field(place) and _name(place) in ATTRIBUTES


def follow_step(places: Places, step: exp.Step) -> Places:
    test = Test(step.test.kind, "*" if step.test.prefix in (None, "*") else step.test.prefix, step.test.local)
    part = PreparedNode(PatternNode(step.axis, test, var="end"))
    return frozenset(node for place in places for ((_, node),) in each_below(part, _item(), place))


def is_single(places: Places, steps: tuple[exp.Step, ...]) -> bool:
    """Whether a path without filters leads from one of these places to at most one node."""
    for step in steps:
        below = follow_step(places, step)
        if step.axis != "/" or step.filters or len(below) != 1 or any(_name(place) in REPEATED for place in below):
            return False
        places = below
    return True


CALLED = {
    "pubDate": "timestamp", "pubdate": "timestamp", "published": "timestamp", "date": "timestamp", "time": "timestamp",
    "modified": "updated", "url": "item_url", "uri": "item_url", "href": "item_url", "id": "guid",
    "summary": "description", "abstract": "description", "body": "content", "text": "content", "encoded": "content",
    "headline": "title", "name": "title", "creator": "author", "byline": "author", "tag": "category",
    "tags": "category", "categories": "category", "authors": "author", "links": "link", "language": "lang",
    "feed": "feed_title", "source": "feed_title", "site": "channel_url", "channel": "channel_url", "image": "enclosure",
    "media": "enclosure", "thumbnail": "enclosure", "entry": "item", "post": "item", "article": "item", "rss": "item",
}  # fmt: skip
"""Other names for the parts of an item."""

_Names = dict[str, Places | None]  # the places of variables; None if unknown


def item_warnings(query: syntax.Query, published: Collection[str]) -> Iterator[Problem]:
    """Yields warnings for a query (with spans) of items. Ignores all but the default stream, or all if `published`."""
    checker = _Checker(published)
    names = checker.source(query.source)
    if isinstance(query.select, syntax.SelectItems):
        checker.operands((item.operand for item in query.select.items), names)
    elif isinstance(query.select, exp.ElementConstructor):
        checker.operands((hole.operand for hole in exp.holes_of(query.select)), names)
    yield from checker.problems


class _Checker:
    def __init__(self, published: Collection[str]) -> None:
        self._published = published
        self.problems: list[Problem] = []

    def _warn(self, message: str, span: exp.Span, hint: str) -> None:
        self.problems.append(Problem(message, span, hint))

    def source(self, source: syntax.Input) -> _Names:
        """Checks a source. Returns the places of the names it makes visible."""
        match source:
            case syntax.Block():
                names: _Names = {}
                known = source.stream == syntax.DEFAULT_STREAM and syntax.DEFAULT_STREAM not in self._published
                self._steps(source.steps, frozenset((DOCUMENT,)) if known else None, names)
                return names
            case syntax.Join():
                names = self.source(source.left) | self.source(source.right)
                self._conditions([source.pred], None, names)
                return names
            case syntax.SubQuery():
                names = self.source(source.source)
                if not isinstance(source.select, syntax.SelectItems):
                    return names
                places = self.operands([item.operand for item in source.select.items], names)
                return {item.name: place for item, place in zip(source.select.items, places, strict=True)}

    def operands(self, operands: Iterable[exp.Expr], names: _Names) -> list[Places | None]:
        """Checks the operands of a SELECT. Returns the places of those that are nodes."""
        return [self._operand(operand, None, names) for operand in operands]

    def _steps(self, steps: Sequence[exp.Step], places: Places | None, names: _Names) -> Places | None:
        """Checks a path and adds its bindings to `names`. Returns where it leads, None if unknown."""
        for step in steps:
            if places is not None:
                found = follow_step(places, step)
                if not found:
                    self._warn(*_missing(step, places))
                places = found or None
            if step.var is not None:
                names[step.var] = places
            self._conditions(step.filters, places, names)
        return places

    def _conditions(self, conditions: Iterable[exp.Expr], context: Places | None, names: _Names) -> None:
        arms = [arm for condition in conditions for arm in and_arms(condition)]
        for arm in arms:
            if not isinstance(arm, exp.VarPath):
                self._operand(arm, context, names)
        self._contradictions(arms, context, names)

    def _comparison(self, expr: exp.Compare, context: Places | None, names: _Names) -> None:
        left, right = self._value(expr.left, context, names), self._value(expr.right, context, names)
        for places, other in ((left, expr.right), (right, expr.left)):
            what = _what(places)
            if what == "a time" and self._of_times(expr, other):
                return
            if not what or (expr.op in ("=", "!=") and not isinstance(other, exp.Number)):
                continue
            if what == "a time" and not isinstance(other, exp.Number):
                continue
            hint = 'compare it with a time, such as "2026-07-16"' if what == "a time" else "compare it with = or !="
            message = f"{_named(places)} holds {what}, which is not a number: this {_holds(expr)} holds"
            self._warn(message, expr.span, hint)
            return

    def _of_times(self, expr: exp.Compare, other: exp.Expr) -> bool:
        dated = f"write date({to_xscl(expr.left)}) {expr.op} date({to_xscl(expr.right)})"
        if expr.op in exp.ORDERS and isinstance(other, exp.Rel | exp.VarPath):
            self._warn("two paths are compared as numbers, and this is a time: this never holds", expr.span, dated)
            return True
        if expr.op in exp.ORDERS or not isinstance(other, exp.String):
            return False
        if (written := exp.time_text(other.value)) in ("", other.value):
            return False
        dated = dated.replace(f"date({to_xscl(other)})", to_xscl(other))
        self._warn(f"items write this time as {written}: this {_holds(expr)} holds", expr.span, dated)
        return True

    def _value(self, expr: exp.Expr, context: Places | None, names: _Names) -> Places | None:
        places = self._operand(expr, context, names)
        if places is not None and all(map(_holds_no_text, places)):
            field = min(map(_name, places))
            self._warn(f"{field} holds no text", expr.span, f"write {field}/@href")
            return None
        return places

    def _operand(self, expr: exp.Expr, context: Places | None, names: _Names) -> Places | None:
        """Checks an operand or a condition. Returns where a path leads, None if unknown."""
        match expr:
            case exp.Rel():
                return self._steps(expr.steps, context, names)
            case exp.VarPath():
                return self._steps(expr.steps, names.get(expr.var), names)
            case exp.Or() | exp.Not():
                for arg in exp.operands_of(expr):
                    self._conditions([arg], context, names)
            case exp.Compare():
                self._comparison(expr, context, names)
            case exp.Call():
                check = self._operand if expr.name == "count" else self._value
                for argument in expr.args:
                    check(argument, context, names)
        return None

    def _contradictions(self, arms: Sequence[exp.Expr], context: Places | None, names: _Names) -> None:
        known: dict[object, str] = {}
        for arm in arms:
            path, text = compared_text(arm) or (None, "")
            if not isinstance(path, exp.Rel | exp.VarPath):
                continue
            above = context if isinstance(path, exp.Rel) else names.get(path.var)
            if is_single(above or frozenset(), path.steps) and (before := known.setdefault(path, text)) != text:
                message = f'one text cannot be both "{before}" and "{text}": this never holds'
                self._warn(message, arm.span, "write or between the two, if either will do")


# ---------------------------------------------------------------- what places hold, in words


def _what(places: Places | None) -> str:
    names = set(map(_name, places or ()))
    if names and names <= TIMES:
        return "a time"
    return "an address" if names and names <= ADDRESSES else ""


def _named(places: Places | None) -> str:
    return " or ".join(sorted(filter(None, map(_name, places or ()))))


def _missing(step: exp.Step, above: Places) -> tuple[str, exp.Span, str]:
    test, span = step.test, step.test.span
    if test.prefix not in (None, "*"):
        hint = f"write {test.local} without the prefix, or read feeds as they are (raw)"
        return "items have no namespaces", span, hint
    if test.kind == "attribute":
        return _missing_attribute(step, above)
    if all(map(_is_field, above)):
        owner = min(map(_name, above))
        hint = f"it holds text: end the path with {owner}"
        if attributes := ATTRIBUTES.get(owner, ()):
            hint = f"it has the attributes {list_with_and(attributes)}, as in {owner}/@{attributes[0]}"
        if test.local in attributes:
            hint = f"{test.local} is an attribute: write {owner}/@{test.local}"
        return f"{owner} has no elements in it", span, hint
    if above == {DOCUMENT} and step.axis == "/":
        hint = f"write //{test.local}" if test.local in FIELDS else "write //item"
        return f"the root element of an item is item, not {test.local}", span, hint
    known = ["item", *FIELDS] if DOCUMENT in above else FIELDS
    hint = _did_you_mean(test.local, known) or f"they have {list_with_and(FIELDS)}"
    return f"items have no {test.local}", span, hint


def _missing_attribute(step: exp.Step, above: Places) -> tuple[str, exp.Span, str]:
    local, span = step.test.local, step.test.span
    owners = [_name(place) for place in above if _holds_no_text(place)]
    if owners:
        owner = min(owners)
        hint = _did_you_mean(local, ATTRIBUTES[owner]) or f"it has {list_with_and(ATTRIBUTES[owner])}"
        return f"{owner} has no attribute {local}", span, hint
    if ROOT in above and local in FIELDS:
        return f"items have no attribute {local}", span, f"{local} is an element: write it without the @"
    having = (field for field in FIELDS if local in ATTRIBUTES.get(field, ()))
    hints = (f"{field} has it: write {field}/@{local}" for field in having)
    hint = next(hints, "only link and enclosure have attributes")
    return f"{_named(above) or 'this'} has no attribute {local}", span, hint


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    called = "href" if "href" in known and name in ("url", "uri", "src") else CALLED.get(name)
    meant = called if called in known else None
    close = get_close_matches(name.lower(), known, n=1)
    return f"did you mean {meant or close[0]}?" if meant or close else ""


MOST_COMPARED = 1_000  # maximum number of PUBLISHed names an unknown stream is compared with


def stream_warnings(query: syntax.Query, published: Collection[str], *, feeds: bool) -> Iterator[Problem]:
    """Yields warnings for a query with spans, in a script that PUBLISHes these names. With `feeds`, documents come on
    the default stream alone; otherwise on any stream, so only likely typos are reported."""
    default = syntax.DEFAULT_STREAM
    for block in blocks(query.source):
        stream = block.stream
        if stream == default or stream in published or stream in syntax.OWN_STREAMS:
            continue
        names = list(islice(published, MOST_COMPARED))
        close = get_close_matches(stream, names, n=1, cutoff=0.75)
        folded = [name for name in (default, *names) if name.lower() == stream.lower()]
        hint = "".join(f"did you mean {meant}?" for meant in (folded or close)[:1])
        message, span = f"nothing PUBLISHes {stream}", exp.Span(block.span.start, block.span.start + len(stream))
        if feeds:
            message = f"{message}, and feeds come on stream {default}"
            if stream == "item" or stream in FIELDS:
                hint = f"to read all elements of this name, write {default}//{stream}"
            elif "." in stream:
                hint = f"write {default}//{'/'.join(filter(None, stream.split('.')[1:]))}"
            hint = hint or f"read {default}, or PUBLISH {stream} in another query"
        if hint:
            yield Problem(message, span, hint)


_NUMBER_HINT = "make it a number where the event is defined, with number(...)"


def _remarks(query: syntax.EventQuery, schemas: Mapping[str, Schema]) -> list[Problem]:
    """Warnings for a query without problems, in the order of their places, which are in its own text."""
    body, place = query.stream, None
    if isinstance(body, syntax.Sequenced):
        of_pattern = _PatternRemarking(schemas)
        of_pattern.pattern(query, body)
        found, hint = of_pattern.remarks, "write a window, such as WITHIN 30 d"
        if query.within is not None and query.within.us is None:
            place = query.within.span
    else:
        remarking = _Remarking(schemas)
        remarking.query(query.select, body, query.within)
        found, place = remarking.remarks, _without_end(query, body, schemas)
        hint = "write WITHIN and a window at the end of the query, such as WITHIN 30 d"
    if place is not None:
        found.append(Problem("what waits here is kept for ever: nothing says how long a result may take", place, hint))
    # A part of the tree may have been resolved more than once.
    distinct = {(problem.span.start, problem.span.end, problem.message): problem for problem in found}
    return [problem for _, problem in sorted(distinct.items())]


class _TextRemarks(Resolver):
    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        super().__init__(schemas, ())
        self.remarks: list[Problem] = []

    def comparison(self, expr: exp.Compare, scope: Scope, negated: bool) -> EventCondition | None:
        """Texts count as numbers in all but = and !=, and beside a number."""
        values = [(one, value) for one in (expr.left, expr.right) if (value := self.value(one, scope)) is not None]
        kinds = [value_kind(value) for _, value in values]
        texts = [
            one for (one, value), kind in zip(values, kinds, strict=True)
            if kind == "string" and not isinstance(value, Constant)
        ]  # fmt: skip
        if len(texts) == 2 and expr.op in exp.ORDERS:
            message = f"{expr.op} compares numbers, and both of these are texts: it holds for texts that are numbers"
            hint = f"{_NUMBER_HINT}; DUR and GAP say how far apart events are"
            self.remarks.append(Problem(message, expr.span, hint))
        elif len(texts) == 1 and len(values) == 2 and (expr.op in exp.ORDERS or "number" in kinds):
            message = "a text is compared with a number: this never holds for a text that is not one"
            self.remarks.append(Problem(message, texts[0].span, _NUMBER_HINT))
        return super().comparison(expr, scope, negated)


class _PatternRemarking(_TextRemarks, PatternResolver): ...


class _Remarking(_TextRemarks):
    def query(self, select: object, source: syntax.EventStream, within: syntax.Window | None) -> Stream | None:
        """WITHIN has a meaning for NEXT and FOLD only."""
        if within is not None and within.us is not None and not _has_joins(source):
            hint = "remove it; OVER in the braces of AGGREGATE says how far back it looks"
            self.remarks.append(Problem("WITHIN changes nothing without NEXT or FOLD", within.span, hint))
        return super().query(select, source, within)  # type: ignore[arg-type]  # the items, which are passed on

    def filter(self, node: syntax.Filtered) -> Stream | None:
        """After a NEXT without a condition, a FILTER tests the first event only, whichever it is."""
        join = node.source
        if isinstance(join, syntax.NextStream) and join.condition is None:
            left, right = Resolver.stream(self, join.left), Resolver.stream(self, join.right)
            if left is not None and right is not None:
                self._behind_next(node.condition, left.schema, right.schema, join.word)
        return super().filter(node)

    def _behind_next(self, condition: syntax.EventExpr, left: Schema, right: Schema, word: str) -> None:
        names = {name for name, _ in right}
        clash = any(name in names for name, _ in left)
        before = {f"{name}_1" if clash else name for name, _ in left}
        for atom in condition.args if isinstance(condition, exp.And) else (condition,):
            match atom:
                case exp.Compare(op="=", left=syntax.Reference(name=one), right=syntax.Reference(name=other)):
                    if {one, other} & before and {one, other} & names:
                        which = "first" if word == "NEXT" else "latest"
                        message = f"{word} has taken the {which} event of all before this is tested"
                        hint = f"write it in the braces of {word} for the {which} event for which it holds"
                        self.remarks.append(Problem(message, atom.span, hint))


def _has_joins(node: syntax.EventStream) -> bool:
    match node:
        case syntax.Inner():
            return _has_joins(node.stream)
        case syntax.Filtered() | syntax.Grouped():
            return _has_joins(node.source)
        case syntax.UnionStream():
            return _has_joins(node.left) or _has_joins(node.right)
    return isinstance(node, syntax.NextStream | syntax.Iteration)


def _without_end(query: syntax.EventQuery, node: syntax.EventStream, schemas: Mapping[str, Schema]) -> exp.Span | None:
    """The place of the outermost NEXT or FOLD of the query whose state never expires."""
    stream = Resolver(schemas, ()).query(query.select, node, query.within)
    if stream is None or is_windowed(stream):
        return None
    while True:
        match node:
            case syntax.Inner():
                node = node.stream
            case syntax.Filtered() | syntax.Grouped():
                node = node.source
            case syntax.UnionStream() | syntax.NextStream() | syntax.Iteration():
                own = Resolver(schemas, ()).stream(node)
                while isinstance(own, Select):
                    own = own.source
                if isinstance(own, Next | Fold) and own.within is None:
                    return node.span
                left = Resolver(schemas, ()).stream(node.left)
                node = node.right if left is not None and is_windowed(left) else node.left
            case _:
                return node.span


def event_warnings(text: str, script: syntax.Script, *, feeds: bool, items: bool) -> Iterator[Problem]:
    """Yields warnings for the event statements of a correct script, over feed entries (`feeds`), as `items` or raw."""
    published = script.published()
    read = {name.name for query in script.event_queries for name in syntax.names_read(query.stream)}
    for definition in script.definitions:
        if script.event_queries and definition.name not in read:
            span = name_span(definition, text)
            yield Problem(f"nothing reads the event {definition.name}", span, "remove it, or write a query over it")
        query = definition.as_query()
        yield from stream_warnings(query, published, feeds=feeds)
        if items:
            yield from item_warnings(query, published)
    schemas = schemas_of(script)
    for event_query in script.event_queries:
        for problem in _remarks(event_query, schemas):
            yield problem.moved(event_query.span.start)


def _words_alone(text: str, script: syntax.Script) -> Iterator[Problem]:
    """Yields warnings for queries of one word that nothing here PUBLISHes."""
    published = script.published()
    for query in script.queries:
        word = text[query.span.start : query.span.end]
        if isinstance(query.source, syntax.Block) and word == query.source.stream and word not in published:
            hint = f"write FROM {word} if that is meant, or //{word} for the elements of that name"
            yield Problem(f"this word alone is a query: it takes every document of a stream {word}", query.span, hint)


def warnings_of(text: str, script: syntax.Script, feeds: EntryForm | None) -> list[XsclError]:
    """Returns the warnings for a script, in text order. `feeds` is the form of feed entries as documents; None if
    documents are something else."""
    published = script.published()

    def problems(query: syntax.Query) -> Iterator[Problem]:
        yield from stream_warnings(query, published, feeds=feeds is not None)
        yielded = list(condition_warnings(query))
        yield from yielded
        if feeds == "item":
            places = [problem.span for problem in yielded]
            yield from (problem for problem in item_warnings(query, published) if problem.span not in places)

    lines = Lines(text)
    found = [] if feeds is not None else [XsclError(problem, lines) for problem in _words_alone(text, script)]
    warned: list[int] = []
    right: set[object] = set()
    for number, query in enumerate(script.queries):
        parts = query.shared_parts()
        if parts in right:
            continue
        if any(True for _ in problems(query)):
            warned.append(number)
        else:
            right.add(parts)
    if not warned and not script.has_events:
        return found
    located = located_queries(text, warned) if warned else ()
    found += [XsclError(problem, lines) for query in located for problem in problems(query)]
    if script.has_events:
        of_events = event_warnings(text, script, feeds=feeds is not None, items=feeds == "item")
        found += [XsclError(problem, lines) for problem in of_events]
    return sorted(found, key=lambda warning: (warning.span.start, warning.span.end))
