"""The oracle's schemas, and the names that NEXT and FOLD give (docs/semantics.md, section 22).

In particular:
- FOLD may not set an attribute that its right has. A bare name in FOLD is of the left side, and not one that FOLD sets:
  first and latest values would differ.
- UNION takes schemas that are equal as sets of names and kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tests.oracle.event_syntax import (
    Aggregate,
    Cel,
    Expr,
    Filter,
    Fn,
    Fold,
    Item,
    Name,
    Next,
    Of,
    Ref,
    Str,
    Stream,
    Union,
)

Kind = Literal["string", "number"]
Schema = dict[str, Kind]

STRING_FUNCTIONS = (
    *(
        "normalize-space",
        "lower-case",
        "upper-case",
        "canonical-url",
        "host",
        "domain",
        "words",
        "year-month",
        "concat",
    ),
    *("substring-before", "substring-after"),
)


class Malformed(ValueError):
    """A statement that the language refuses."""


def schema_of(stream: Stream, schemas: Mapping[str, Schema]) -> Schema:
    """The attributes of a stream's events, in order. Raises Malformed where names clash or are missing."""
    match stream:
        case Name():
            return dict(schemas[stream.name])
        case Filter():
            return schema_of(stream.source, schemas)
        case Cel():
            return _selected(stream, schema_of(stream.stream, schemas))
        case Aggregate():
            source = schema_of(stream.source, schemas)
            made = [(name, source[name]) for name in stream.by]
            return _distinct([*made, *((item.label, kind_of(item.expr, source)) for item in stream.items)])
        case Union():
            left, right = schema_of(stream.left, schemas), schema_of(stream.right, schemas)
            if left != right:
                raise Malformed("UNION of unequal schemas")
            return left
        case Next():
            left, right = schema_of(stream.left, schemas), schema_of(stream.right, schemas)
            names = left_names(left, right)
            return _distinct([*((names[name], kind) for name, kind in left.items()), *right.items()])
        case Fold():
            left, right = schema_of(stream.left, schemas), schema_of(stream.right, schemas)
            changing = changing_names(stream, left, right)
            both = {name: left[name] for name in changing}
            for item in stream.sets:
                if kind_of(item.expr, {**left, **right}) != left[item.label]:
                    raise Malformed(f"{item.label} changes its kind")
            return _distinct([*((f"{name}_1", kind) for name, kind in both.items()), *left.items()])


def left_names(left: Schema, right: Schema) -> dict[str, str]:
    """What NEXT calls the attributes of the left: all `x_1` if any name clashes."""
    clash = bool(left.keys() & right.keys())
    return {name: f"{name}_1" if clash else name for name in left}


def changing_names(fold: Fold, left: Schema, right: Schema) -> list[str]:
    """The attributes of a FOLD that have a first and a latest value."""
    if not right.items() <= left.items():
        raise Malformed("FOLD's right has attributes that its left has not")
    if missing := [item.label for item in fold.sets if item.label not in left]:
        raise Malformed(f"FOLD's left has no {missing}")
    changed = [item.label for item in fold.sets]
    if len({*changed, *right}) < len(changed) + len(right):
        raise Malformed("FOLD sets a name twice, or one that its right has")
    return [name for name in left if name in right or name in changed]


def _selected(cel: Cel, source: Schema) -> Schema:
    if cel.select is None:
        return source
    return _distinct([(item.label, kind_of(item.expr, source)) for item in items_of(cel.select, source)])


def items_of(select: tuple[Item | None, ...], source: Schema) -> list[Item]:
    """The items of a SELECT, with all attributes in place of `*`."""
    found: list[Item] = []
    for item in select:
        found += [Item(Ref(name)) for name in source] if item is None else [item]
    return found


def _distinct(pairs: list[tuple[str, Kind]]) -> Schema:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise Malformed(f"an attribute is there twice: {[name for name, _ in pairs]}")
    return made


def kind_of(expr: Expr, source: Schema) -> Kind:
    """What an expression's values are."""
    match expr:
        case Str():
            return "string"
        case Ref():
            return source[expr.name]
        case Of():
            return source[f"{expr.variable}.{expr.name}"]
        case Fn("coalesce" | "argmax"):
            return kind_of(expr.args[0], source)
        case Fn():
            return "string" if expr.name in STRING_FUNCTIONS else "number"
    return "number"
