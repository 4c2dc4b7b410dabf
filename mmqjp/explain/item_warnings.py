"""Warns of queries over items that can match nothing: names that items do not have, comparisons that never hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches

from feeds.item import ATTRIBUTES, FIELDS
from mmqjp.explain.item_places import ADDRESSES, DOCUMENT, ITEM, TIMES, Place, Places, follow, is_single
from xscl import to_xscl
from xscl.algebra.comparisons import ORDERS
from xscl.algebra.expressions import (
    And,
    Call,
    Compare,
    ElementConstructor,
    Expr,
    Not,
    Number,
    Or,
    Rel,
    Span,
    Step,
    String,
    VarPath,
    holes_of,
)
from xscl.algebra.times import time_text
from xscl.problems import Problem
from xscl.syntax import DEFAULT_STREAM, Block, Input, Join, Query, SelectItems, SubQuery

CALLED = {
    "pubDate": "timestamp", "pubdate": "timestamp", "published": "timestamp", "date": "timestamp", "time": "timestamp",
    "modified": "updated", "url": "item_url", "uri": "item_url", "href": "item_url", "id": "guid",
    "summary": "description", "abstract": "description", "body": "content", "text": "content", "encoded": "content",
    "headline": "title", "name": "title", "creator": "author", "byline": "author", "tag": "category",
    "tags": "category", "categories": "category", "authors": "author", "links": "link", "language": "lang",
    "feed": "feed_title", "source": "feed_title", "site": "channel_url", "channel": "channel_url", "image": "enclosure",
    "media": "enclosure", "thumbnail": "enclosure", "entry": "item", "post": "item", "article": "item", "rss": "item",
}  # fmt: skip
"""What others call the parts of an item."""

Names = dict[str, Places | None]
"""The places of variables; None if nothing is known of them."""


def item_warnings(query: Query, published: Collection[str]) -> Iterator[Problem]:
    """The warnings for a query with spans over items, which come on the default stream. Nothing is known of the
    documents of other streams, and of the default one if it is `published` too."""
    checker = _Checker(published)
    names = checker.source(query.source)
    if isinstance(query.select, SelectItems):
        checker.operands((item.operand for item in query.select.items), names)
    elif isinstance(query.select, ElementConstructor):
        checker.operands((hole.operand for hole in holes_of(query.select)), names)
    yield from checker.problems


class _Checker:
    """Checks one query, and collects its `problems`."""

    def __init__(self, published: Collection[str]) -> None:
        self._published = published
        self.problems: list[Problem] = []

    def _warn(self, message: str, span: Span, hint: str) -> None:
        self.problems.append(Problem(message, span, hint))

    # ------------------------------------------------------------ sources

    def source(self, source: Input) -> Names:
        """Checks a source. Returns the places of the names that it makes visible."""
        match source:
            case Block():
                names: Names = {}
                known = source.stream == DEFAULT_STREAM and DEFAULT_STREAM not in self._published
                self._steps(source.steps, frozenset((DOCUMENT,)) if known else None, names)
                return names
            case Join():
                names = self.source(source.left) | self.source(source.right)
                self._conditions([source.pred], None, names)
                return names
            case SubQuery():
                names = self.source(source.source)
                if not isinstance(source.select, SelectItems):
                    return names
                operands = [item.operand for item in source.select.items]
                places = self.operands(operands, names)
                return {item.name: place for item, place in zip(source.select.items, places, strict=True)}

    def operands(self, operands: Iterable[Expr], names: Names) -> list[Places | None]:
        """Checks the operands of a SELECT. Returns the places of those that are nodes."""
        return [self._operand(operand, None, names) for operand in operands]

    # ------------------------------------------------------------ paths

    def _steps(self, steps: Sequence[Step], places: Places | None, names: Names) -> Places | None:
        """Checks a path. Returns where it leads, None if that is not known. `names` takes up what it binds."""
        for step in steps:
            if places is not None:
                found = follow(places, step)
                if not found:
                    self._warn(*_missing(step, places))
                places = found or None
            if step.var is not None:
                names[step.var] = places
            self._conditions(step.filters, places, names)
        return places

    # ------------------------------------------------------------ conditions

    def _conditions(self, conditions: Iterable[Expr], context: Places | None, names: Names) -> None:
        """Checks conditions that must all hold of one node, which is at `context`."""
        arms = [arm for condition in conditions for arm in _arms(condition)]
        for arm in arms:
            self._condition(arm, context, names)
        self._contradictions(arms, context, names)

    def _condition(self, expr: Expr, context: Places | None, names: Names) -> None:
        match expr:
            case Rel():
                self._steps(expr.steps, context, names)
            case Or():
                for arg in expr.args:
                    self._conditions([arg], context, names)
            case Not():
                self._conditions([expr.arg], context, names)
            case Compare():
                self._comparison(expr, context, names)
            case Call():
                for argument in expr.args:
                    self._value(argument, context, names)

    def _comparison(self, expr: Compare, context: Places | None, names: Names) -> None:
        left, right = self._value(expr.left, context, names), self._value(expr.right, context, names)
        for places, other in ((left, expr.right), (right, expr.left)):
            what = _what(places)
            if what == "a time" and self._of_times(expr, other):
                return
            if not what or (expr.op in ("=", "!=") and not isinstance(other, Number)):
                continue
            if what == "a time" and not isinstance(other, Number):
                continue
            holds = "always" if expr.op == "!=" else "never"
            hint = 'compare it with a time, such as "2026-07-16"' if what == "a time" else "compare it with = or !="
            self._warn(f"{_named(places)} holds {what}, which is no number: this {holds} holds", expr.span, hint)
            return

    def _of_times(self, expr: Compare, other: Expr) -> bool:
        """Warns if a comparison of a field that holds a time with `other` compares it as a number or as a text."""
        dated = f"write date({to_xscl(expr.left)}) {expr.op} date({to_xscl(expr.right)})"
        if expr.op in ORDERS and isinstance(other, Rel | VarPath):
            self._warn("two paths are compared as numbers, and this is a time: this never holds", expr.span, dated)
            return True
        if expr.op in ORDERS or not isinstance(other, String) or time_text(other.value) in ("", other.value):
            return False
        holds = "always" if expr.op == "!=" else "never"
        dated = dated.replace(f"date({to_xscl(other)})", to_xscl(other))
        self._warn(f"items write this time as {time_text(other.value)}: this {holds} holds", expr.span, dated)
        return True

    def _value(self, expr: Expr, context: Places | None, names: Names) -> Places | None:
        """Checks an operand whose text is used. Returns the places of a node."""
        places = self._operand(expr, context, names)
        if places is not None and all(place.holds_no_text() for place in places):
            field = next(iter(places)).name
            self._warn(f"{field} holds no text", expr.span, f"write {field}/@href")
            return None
        return places

    def _operand(self, expr: Expr, context: Places | None, names: Names) -> Places | None:
        match expr:
            case Rel():
                return self._steps(expr.steps, context, names)
            case VarPath():
                return self._steps(expr.steps, names.get(expr.var), names)
            case Call(name="count"):
                for argument in expr.args:
                    self._operand(argument, context, names)
            case Call():
                for argument in expr.args:
                    self._value(argument, context, names)
            case And() | Or() | Not() | Compare():
                self._condition(expr, context, names)
        return None

    def _contradictions(self, arms: Sequence[Expr], context: Places | None, names: Names) -> None:
        """Warns if a node would have to have two texts."""
        known: dict[object, String] = {}
        for arm in arms:
            found = _literal(arm)
            if found is None:
                continue
            path, literal = found
            above = context if isinstance(path, Rel) else names.get(path.var)
            if not is_single(above or frozenset(), path.steps):
                continue
            before = known.setdefault(path, literal)
            if before.value != literal.value:
                message = f'one text cannot be both "{before.value}" and "{literal.value}": this never holds'
                self._warn(message, arm.span, "write or between the two, if either will do")


def _arms(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, And):
        for arg in expr.args:
            yield from _arms(arg)
    else:
        yield expr


def _literal(arm: Expr) -> tuple[Rel | VarPath, String] | None:
    """The path and the text of a condition that they are equal."""
    match arm:
        case Compare(op="=", left=Rel() | VarPath() as path, right=String() as literal):
            return path, literal
        case Compare(op="=", left=String() as literal, right=Rel() | VarPath() as path):
            return path, literal
    return None


# ---------------------------------------------------------------- what places hold, in words


def _what(places: Places | None) -> str:
    """What is known of the texts at all of these places."""
    names = {place.name for place in places or ()}
    if names and names <= TIMES:
        return "a time"
    return "an address" if names and names <= ADDRESSES else ""


def _named(places: Places | None) -> str:
    return " or ".join(sorted(place.name for place in places or ()))


def _missing(step: Step, above: Places) -> tuple[str, Span, str]:
    """The warning for a step that leads nowhere: message, place, hint."""
    test, span = step.test, step.test.span
    if test.prefix not in (None, "*"):
        return (
            "items have no namespaces",
            span,
            f"write {test.local} without the prefix, or read feeds as they are (raw)",
        )
    if test.kind == "attribute":
        return _missing_attribute(step, above)
    if all(place.is_field for place in above):
        owner = min(place.name for place in above)
        if test.local in ATTRIBUTES.get(owner, ()):
            hint = f"{test.local} is an attribute: write {owner}/@{test.local}"
        elif owner in ATTRIBUTES:
            hint = f"it has the attributes {_list(ATTRIBUTES[owner])}, as in {owner}/@{ATTRIBUTES[owner][0]}"
        else:
            hint = f"it holds text: end the path with {owner}"
        return f"{owner} has no elements in it", span, hint
    if above == {DOCUMENT} and step.axis == "/":
        hint = f"write //{test.local}" if test.local in FIELDS else "write //item"
        return f"the root element of an item is item, not {test.local}", span, hint
    known = ["item", *FIELDS] if DOCUMENT in above else FIELDS
    return f"items have no {test.local}", span, _did_you_mean(test.local, known) or f"they have {_list(FIELDS)}"


def _missing_attribute(step: Step, above: Places) -> tuple[str, Span, str]:
    local, span = step.test.local, step.test.span
    owners = [place for place in above if place.holds_no_text()]
    if owners:
        owner = min(place.name for place in owners)
        hint = _did_you_mean(local, ATTRIBUTES[owner]) or f"it has {_list(ATTRIBUTES[owner])}"
        return f"{owner} has no attribute {local}", span, hint
    if ITEM in above and local in FIELDS:
        return f"items have no attribute {local}", span, f"{local} is an element: write it without the @"
    with_attribute = [field for field in FIELDS if local in ATTRIBUTES.get(field, ())]
    hint = (
        f"{with_attribute[0]} has it: write {with_attribute[0]}/@{local}"
        if with_attribute
        else "only link and enclosure have attributes"
    )
    return f"{_named(_named_only(above)) or 'this'} has no attribute {local}", span, hint


def _named_only(places: Places) -> frozenset[Place]:
    return frozenset(place for place in places if place.names)


def _did_you_mean(name: str, known: Sequence[str]) -> str:
    called = "href" if "href" in known and name in ("url", "uri", "src") else CALLED.get(name)
    meant = called if called in known else None
    close = get_close_matches(name.lower(), known, n=1)
    return f"did you mean {meant or close[0]}?" if meant or close else ""


def _list(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
