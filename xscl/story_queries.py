"""Expands a join with STORIES into the three statements that it is shorthand for: the join, whose hidden outputs are
pairs of documents; the definition of an event for each pair; and an event query that groups these into stories.

The event of a pair has, for each of its documents, `a_` and `b_`: the `id`, `stream`, `time` (of its end, in
microseconds) and `feed` of the document, and the values that HAVING counts."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from xscl import syntax
from xscl.algebra import values as exp
from xscl.algebra.events import CHANGES, OWN, SIDES
from xscl.algebra.joins import NEGATED
from xscl.algebra.values import OF_DOCUMENT, Span
from xscl.check_expressions import visible_names
from xscl.text import EVENT_NAME, Problem

PAIRS = ".pairs"  # suffix of the hidden query's name
FEED = "feed_url"  # the child of a document's node that has the address of its feed


def statements_of(query: syntax.StoryQuery) -> tuple[syntax.Query, syntax.EventDefinition, syntax.EventQuery]:
    """Returns the statements that a join with STORIES is shorthand for. Raises Problem."""
    pairs, stories, span = query.pairs, query.stories, query.span
    join = pairs.source
    if not isinstance(join, syntax.Join) or join.op in NEGATED:
        raise Problem("STORIES needs a join", stories.span, "join documents that report the same: a JOIN {...} b")
    if pairs.select is not None and not isinstance(pairs.select, syntax.SelectStar):
        hint = "leave SELECT out: a story shows the documents as they are"
        raise Problem("SELECT does not go with STORIES", pairs.select.span, hint)
    if not stories.lasting.us:
        fault = "would never close" if stories.lasting.us is None else "would be over at once"
        raise Problem(f"the story {fault}", stories.lasting.span, "write how long one lasts, such as LASTING 7 d")
    taken = visible_names(join)
    sides = [
        _named_block(one, f"story_{side}", taken) for one, side in zip((join.left, join.right), SIDES, strict=True)
    ]
    op = "JOIN UNORDERED" if join.op == "JOIN" else join.op  # reports each pair once
    select = exp.ElementConstructor("pair", (), tuple(map(_document, SIDES, sides)), span)
    name = pairs.publish or ""
    both = replace(join, op=op, left=sides[0], right=sides[1])
    hidden = syntax.Query(both, select, name + PAIRS, span, None, syntax.MadeForOthers(span))
    counted: list[exp.Expr] = []
    having = None if stories.having is None else _condition(stories.having, counted)
    event = _event_name(name)
    definition = syntax.EventDefinition(event, _block(name + PAIRS, span), tuple(_attributes(counted, span)), span)
    counts = tuple(_count(number, span) for number in range(1, len(counted) + 1))
    source = syntax.StreamName(event, span)
    tell = _told(stories)
    stream = syntax.StoryStream(counts, stories.lasting, having, tell, source, span)
    return hidden, definition, syntax.EventQuery(stream, None, None, name, span, pairs.hidden)


def _told(stories: syntax.StoryClause) -> tuple[str, ...]:
    for one in stories.tell:
        if one not in CHANGES:
            raise Problem(f"stories have no change {one}", stories.span, f"write some of {', '.join(CHANGES)}")
    return stories.tell


def _event_name(name: str) -> str:
    """The name of the event. Names of queries may have other characters, or be keywords."""
    if EVENT_NAME.fullmatch(name):
        return f"{name}_pairs"
    return f"pairs_{blake2b(name.encode(), digest_size=4).hexdigest()}"


def _named_block(source: syntax.Input, name: str, taken: Container[str]) -> syntax.Block:
    """Returns the block with a variable for its node: its own, or the name with as many primes as make it unique."""
    if not isinstance(source, syntax.Block):
        raise Problem("STORIES needs a join of two blocks", source.span, "PUBLISH the inner query, and read its name")
    *steps, last = source.steps
    if last.test.kind == "attribute":
        raise Problem("the documents of STORIES are elements", last.span, "write the path of an element")
    while name in taken:
        name += "'"
    return replace(source, steps=(*steps, last if last.var else replace(last, var=name)))


def _document(side: str, block: syntax.Block) -> exp.ElementConstructor:
    var = exp.VarPath(block.steps[-1].var or "", (), block.span)

    def hole(operand: exp.Expr, text: str) -> exp.Hole:
        return exp.Hole(operand, text, block.span)

    attributes = tuple(
        (name, (hole(exp.Call(function, (var,), block.span), f"{function}({var.var})"),))
        for name, function in zip(OWN, OF_DOCUMENT, strict=False)
    )
    return exp.ElementConstructor(side, attributes, (hole(var, var.var),), block.span)


def _block(stream: str, span: Span) -> syntax.Block:
    return syntax.Block(stream, (exp.Step("/", exp.NameTest("element", "pair"), (), "p", span),), span)


def _attributes(counted: list[exp.Expr], span: Span) -> list[syntax.DefinedAttribute]:
    found = []
    for side in SIDES:
        node = _step(side), _step("*")
        own = [exp.VarPath("p", (node[0], _step(name, "attribute")), span) for name in OWN[:3]]
        operands: list[exp.Expr] = [*own, exp.VarPath("p", (*node, _step(FEED)), span)]
        operands += [_from_pair(one, node) for one in counted]
        names = [*OWN, *(f"n{number}" for number in range(1, len(counted) + 1))]
        found += [
            syntax.DefinedAttribute(f"{side}_{name}", operand, name == "time", False, span)
            for name, operand in zip(names, operands, strict=True)
        ]
    return found


def _step(name: str, kind: Any = "element") -> exp.Step:
    return exp.Step("/", exp.NameTest(kind, name))


def _from_pair(value: exp.Expr, node: tuple[exp.Step, ...]) -> exp.Expr:
    match value:
        case exp.Rel(steps=steps):
            return exp.VarPath("p", (*node, *steps), value.span)
        case exp.Call(name=name, args=(inner, *others)):
            return exp.Call(name, (_from_pair(inner, node), *others), value.span)
    raise Problem("count(DISTINCT ...) counts values of a path", value.span, "write count(DISTINCT channel_url)")


def _condition(node: Any, counted: list[exp.Expr]) -> Any:
    match node:
        case exp.And(args=args) | exp.Or(args=args):
            return type(node)(tuple([_condition(one, counted) for one in args]), node.span)
        case exp.Compare(op=op, left=count, right=number):
            reference = _reference(count, counted)
            return exp.Compare(op, reference, number, node.span)  # type: ignore[arg-type]  # of an event, as below
    raise AssertionError(f"no condition of a story: {node!r}")


def _reference(count: Any, counted: list[exp.Expr]) -> syntax.Reference:
    if count.value is None:
        if count.name not in ("members", "feeds"):
            hint = "write members, feeds, or count(DISTINCT path)"
            raise Problem(f"a story has no {count.name}", count.span, hint)
        return syntax.Reference("", count.name, count.span)
    if count.value not in counted:
        counted.append(count.value)
    return syntax.Reference("", f"n{counted.index(count.value) + 1}", count.span)


def _count(number: int, span: Span) -> syntax.Named:
    value = syntax.Reference("", f"n{number}", span)
    counted = exp.Call(exp.COUNT_DISTINCT, (value,), span)  # type: ignore[arg-type]  # of an event, as the parser makes it
    return syntax.Named(counted, f"n{number}", span)
