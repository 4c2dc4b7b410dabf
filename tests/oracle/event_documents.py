"""The oracle's DEFINE EVENT: what events a document has, and which documents come too late (patterns.md, 2 and 3).

Decided where the definition leaves it open:
- A string that a function makes is a string, a number that one makes (`string-length`) a number, as a number alone is.
- A document that comes too late moves the horizon as any other: it is behind it.
- As long as a stream has no documents there is no horizon, and nothing is late.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from tests.oracle.bindings import Stored
from tests.oracle.event_schemas import Schema
from tests.oracle.event_values import Value, finite
from tests.oracle.events import Event, event
from tests.oracle.match import Matcher, Node
from tests.oracle.values import apply, number
from xscl.algebra.values import Call, Expr, Number, String, VarPath
from xscl.parser import parse_script
from xscl.syntax import Block, SelectItems

NUMBERS = ("number", "string-length")


@dataclass(frozen=True)
class Attribute:
    """`name := operand`, or, with `each`, `name IN path`."""

    name: str
    operand: str
    each: bool = False


@dataclass(frozen=True)
class Definition:
    """`DEFINE EVENT name FROM block (attributes)`; the block, and operands, as texts of the language."""

    name: str
    block: str
    attributes: tuple[Attribute, ...]
    prolog: str = ""

    def text(self) -> str:
        attributes = ", ".join(f"{one.name} {'IN' if one.each else ':='} {one.operand}" for one in self.attributes)
        return f"DEFINE EVENT {self.name} FROM {self.block} ({attributes})"

    def schema(self) -> Schema:
        return {one.name: "number" if _is_number(self._operand(one)) else "string" for one in self.attributes}

    def _operand(self, attribute: Attribute) -> Expr:
        """The operand, read as one of a SELECT."""
        select = parse_script(f"{self.prolog}SELECT {attribute.operand} AS x FROM {self.block}").queries[0].select
        assert isinstance(select, SelectItems)
        return select.items[0].operand

    def events(self, document: Stored) -> list[Event]:
        """The events of a document: one for each distinct choice of nodes."""
        script = parse_script(f"{self.prolog}SELECT * FROM {self.block}")
        block = script.queries[0].source
        assert isinstance(block, Block)
        if document.stream != block.stream:
            return []
        operands = {one: self._operand(one) for one in self.attributes}
        variables = frozenset(path.var for operand in operands.values() if (path := _path(operand)))
        matcher = Matcher(document.tree, dict(script.namespaces), variables)
        found: dict[tuple[object, ...], Event] = {}
        for root, bindings in matcher.embeddings(None, block.steps):
            bound = dict(bindings)
            eaches = [_nodes(matcher, operands[one], bound) for one in self.attributes if one.each]
            for chosen in product(*eaches):
                nodes = (document.stream, document.id, root, tuple(sorted(bound.items())), chosen)
                rest = iter(chosen)
                values = {
                    one.name: _value(
                        matcher, operands[one], [next(rest)] if one.each else _nodes(matcher, operands[one], bound)
                    )
                    for one in self.attributes
                }
                found[nodes] = event(values, document.t0, document.t1, [nodes])
        return list(found.values())


def _path(operand: Expr) -> VarPath | None:
    while isinstance(operand, Call):
        operand = operand.args[0]
    return operand if isinstance(operand, VarPath) else None


def _is_number(operand: Expr) -> bool:
    return isinstance(operand, Number) or (isinstance(operand, Call) and operand.name in NUMBERS)


def _nodes(matcher: Matcher, operand: Expr, bound: Mapping[str, Node]) -> list[Node]:
    path = _path(operand)
    if path is None:
        return []
    return matcher.nodes(bound[path.var], path.steps) if path.steps else [bound[path.var]]


def _value(matcher: Matcher, operand: Expr, nodes: Sequence[Node]) -> Value:
    """The value of an operand on the first of some nodes."""
    match operand:
        case Call():
            inner = _value(matcher, operand.args[0], nodes)
            more = [literal.value for literal in operand.args[1:] if isinstance(literal, String)]
            made = None if inner is None else apply(operand.name, inner, *more)
            assert made is None or isinstance(made, str | float)
            return finite(made) if isinstance(made, float) else made
        case String():
            return operand.value
        case Number():
            return finite(number(operand.text))
    return matcher.tree.text(nodes[0]) if nodes else None


# ---------------------------------------------------------------- lateness


def in_time(
    batches: Iterable[Sequence[Stored]], streams: Collection[str], settle: Mapping[str, int]
) -> tuple[list[Stored], list[Stored]]:
    """The documents whose events are not late, and those whose are. `streams` are the external streams behind any event
    statement; `settle` has how many microseconds each waits."""
    greatest: dict[str, int] = {}
    horizon: int | None = None
    kept: list[Stored] = []
    late: list[Stored] = []
    for batch in batches:
        for document in batch:
            (kept if horizon is None or document.t1 >= horizon else late).append(document)
        for document in batch:
            if document.stream in streams:
                greatest[document.stream] = max(document.t1, greatest.get(document.stream, document.t1))
        if len(greatest) == len(set(streams)):
            now = min(most - settle[stream] for stream, most in greatest.items())
            horizon = now if horizon is None else max(now, horizon)
    return kept, late
