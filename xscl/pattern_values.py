"""Resolves the expressions of PATTERN statements: which event of which variable a reference means.

What is mentioned of a match gets a name of its own, and conditions are made of attributes with these names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from typing import Any

from xscl.algebra.event_sequences import Length, OfItem, OfItems, Place, Referent
from xscl.algebra.events import Aggregated, AggregateName, Attribute, Kind, Schema, Value
from xscl.algebra.expressions import Span
from xscl.event_constants import kind_of
from xscl.event_expressions import Alike, EventCall, EventExpr, ItemReference, Reference
from xscl.event_resolve import Resolver, Schemas
from xscl.event_values import AGGREGATES, Operator, Scope

_PLACES: dict[str, Place] = {"1": "first", "i": "each", "i-1": "previous", "LEN": "last", "[]": "every"}


@dataclass(frozen=True, slots=True)
class Declared:
    """A variable: its place among all, and the attributes of its events."""

    number: int
    schema: Schema
    many: bool = False
    negated: bool = False


class PatternValues(Resolver):
    """Resolves values and conditions over `variables`, and names what they mention."""

    def __init__(self, schemas: Schemas, documents: Sequence[str]) -> None:
        super().__init__(schemas, documents)
        self.variables: dict[str, Declared] = {}
        self.named_as: dict[str, Referent] = {}
        """What the names in conditions stand for."""
        self._names: dict[Referent, str] = {}

    def scope(self, operator: Operator) -> Scope:
        """That of a condition or value of a clause: WHERE, HAVING, or RETURN."""
        return Scope(operator, (), grouped=lambda call: self._of_items(call, operator))

    def attribute_of(self, referent: Referent, kind: Kind) -> Value:
        """What stands for a referent in a condition."""
        name = self._names.setdefault(referent, f"@{len(self._names)}")
        self.named_as[name] = referent
        return Attribute("left", name, kind)

    # ------------------------------------------------------------ references

    def item(self, found: ItemReference, scope: Scope) -> Value | None:
        """An attribute of an event of a variable."""
        name = found.variable
        if scope.operator == "AGGREGATE":  # the arguments of an aggregate, all of one variable
            return self.attribute(found, "left", scope)
        variable = self.variable(name, found.span)
        if variable is None:
            return None
        if variable.negated and scope.operator != "WHERE":
            self.problem(f"{name} is negated", found.span, f"a match has no {name}; {scope.operator} tells of one")
        elif not variable.many and found.place:
            hint = f"write {name}.{found.name or 'x'}; several are {name}[], of a component A+ {name}[]"
            self.problem(f"{name} is one event", found.span, hint)
        elif not variable.many:
            return self._of_item(found, variable, "only")
        elif not found.place and found.name.upper() == "LEN":
            return self.attribute_of(Length(variable.number), "number")
        elif not found.place:
            ways = f"{name}[1].{found.name}, {name}[{name}.LEN].{found.name}, or {name}[].{found.name} for each"
            self.problem(f"{name} has several events", found.span, f"write {ways}")
        elif found.place == "..i-1" or not found.name:
            text = f"{name}[{'..i-1' if found.place == '..i-1' else ''}]"
            hint = f"write count({text}), or max({text}.{found.name or 'x'})"
            self.problem(f"{text} stands in an aggregate", found.span, hint)
        elif found.place in ("i", "i-1") and scope.operator != "WHERE":
            hint = f"write {name}[1], {name}[{name}.LEN] or {name}[]"
            self.problem(f"{name}[{found.place}] belongs in WHERE", found.span, hint)
        else:
            return self._of_item(found, variable, _PLACES[found.place])
        return None

    def _of_item(self, found: ItemReference, variable: Declared, place: Place) -> Value | None:
        kinds = dict(variable.schema)
        if found.name in kinds:
            return self.attribute_of(OfItem(variable.number, place, found.name), kinds[found.name])
        self.unknown(found.name, kinds, found.span, Scope("WHERE", variable.schema))
        return None

    def variable(self, name: str, span: Span) -> Declared | None:
        """A variable of the pattern, or None if there is none of the name."""
        if name in self.variables:
            return self.variables[name]
        close = get_close_matches(name, self.variables, n=1)
        known = ", ".join(self.variables)
        hint = f"did you mean {close[0]}?" if close else f"the variables are {known}" if known else "remove it"
        self.problem(f"there is no variable {name}", span, hint)
        return None

    def reference(self, found: Reference, scope: Scope) -> Value | None:
        """A bare name, which is none of a pattern."""
        if found.side:
            self.problem(f"{found.side} belongs in NEXT or FOLD", found.span, f"write a variable: a.{found.name}")
            return None
        having = [name for name, one in self.variables.items() if found.name in dict(one.schema) and not one.negated]
        if found.name in self.variables:
            one = self.variables[found.name]
            example = f"{found.name}[1].x" if one.many else f"{found.name}.x"
            self.problem(f"{found.name} is a variable", found.span, f"write {example} for its attribute x")
        else:
            name = having[0] if having else next(iter(self.variables), "a")
            place = "[1]" if having and self.variables[name].many else ""
            self.problem(f"{found.name} is of no variable", found.span, f"write {name}{place}.{found.name}")
        return None

    def alike(self, found: Alike) -> None:
        """`[x]` anywhere but among the conjuncts of WHERE."""
        hint = "write it beside the other conditions of WHERE, with AND"
        self.problem("[...] is a condition on all events", found.span, hint)

    # ------------------------------------------------------------ aggregates

    def _of_items(self, call: EventCall, operator: Operator) -> Value | None:
        """An aggregate of `v[]` or of `v[..i-1]`."""
        items = list(_items(call.args))
        if not items:
            hint = f"write {call.name}(v[]{'' if call.name == 'count' else '.x'}) with a variable v[]"
            self.problem(f"{call.name}() is of the events of a variable", call.span, hint)
            return None
        first = items[0]
        variable = self.variable(first.variable, first.span)
        if variable is None:
            return None
        for one in items:
            is_other = (one.variable, one.place) != (first.variable, first.place)
            if is_other and one.place in ("[]", "..i-1"):
                self.problem("an aggregate of two variables", one.span, f"write {first.variable} in both places")
                return None
            if one.place not in ("[]", "..i-1"):
                hint = f"write {one.variable}[].{one.name}"
                self.problem("an aggregate is of v[] or of v[..i-1]", one.span, hint)
                return None
        if not variable.many:
            self.problem(f"{first.variable} is one event", first.span, f"write {first.variable}.{first.name or 'x'}")
            return None
        if first.place == "..i-1" and operator != "WHERE":
            self.problem(f"{first.variable}[..i-1] belongs in WHERE", first.span, f"write {first.variable}[]")
            return None
        return self._aggregated(call, variable, earlier=first.place == "..i-1")

    def _aggregated(self, call: EventCall, variable: Declared, *, earlier: bool) -> Value | None:
        args: list[Value] = []
        if not (call.name == "count" and len(call.args) == 1 and _is_bare(call.args[0])):
            for one in _items(call.args):
                if not one.name:
                    self.problem(f"{call.name}() is of an attribute", one.span, f"write {one.variable}[].x")
                    return None
            if not self.counted(call, *AGGREGATES[call.name]):
                return None
            scope = Scope("AGGREGATE", variable.schema)
            found = [self.value(arg, scope) for arg in call.args]
            args = [value for value in found if value is not None]
            if len(args) < len(found):
                return None
        name: AggregateName = call.name  # type: ignore[assignment]  # AGGREGATES has no others
        kind = kind_of(args[0]) if name == "argmax" else "number"
        return self.attribute_of(OfItems(variable.number, Aggregated(name, tuple(args)), earlier), kind)


def _is_bare(expr: EventExpr) -> bool:
    return isinstance(expr, ItemReference) and not expr.name


def _items(node: Any) -> Iterator[ItemReference]:
    """The references to events of variables in a part of the tree, from left to right."""
    if isinstance(node, ItemReference):
        yield node
    elif isinstance(node, tuple):
        for one in node:
            yield from _items(one)
    elif is_dataclass(node) and not isinstance(node, Span | type):
        for field in fields(node):
            yield from _items(getattr(node, field.name))
