"""The oracle's own syntax of event statements: values, conditions, streams, and the text of each in the language; their
schemas, and the names that NEXT and FOLD give (docs/semantics.md, section 22).

In particular:
- FOLD may not set an attribute that its right has. A bare name in FOLD is of the left side, and not one that FOLD sets:
  first and latest values would differ.
- UNION takes schemas that are equal as sets of names and kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from tests.oracle.values import DERIVED, OF_TWO
from tests.oracle.walk import walk

Side = Literal["", "$1", "$2", "$"]
"""Whose attribute a reference means, as it is written; a bare name has none."""

Relation = Literal["=", "!=", "<", "<=", ">", ">="]
Unit = Literal["us", "ms", "s", "min", "h", "d", "w"]
MICROSECONDS: dict[Unit, int] = {
    "us": 1,
    "ms": 10**3,
    "s": 10**6,
    "min": 60 * 10**6,
    "h": 3600 * 10**6,
    "d": 86400 * 10**6,
    "w": 7 * 86400 * 10**6,
}

# ---------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class Num:
    """A number as it is written; a percentage ends in %."""

    written: str

    def text(self) -> str:
        return self.written

    def value(self) -> float:
        digits = self.written.removesuffix("%")
        return float(Fraction(digits) / (100 if digits != self.written else 1))


@dataclass(frozen=True, slots=True)
class Str:
    value: str

    def text(self) -> str:
        return '"' + self.value.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Window:
    """A length of time; as a value, its seconds."""

    number: str
    unit: Unit = "s"

    def text(self) -> str:
        return f"{self.number} {self.unit}"

    @property
    def us(self) -> int:
        return int(Fraction(self.number) * MICROSECONDS[self.unit])


@dataclass(frozen=True, slots=True)
class Ref:
    name: str
    side: Side = ""

    def text(self) -> str:
        return f"{self.side}.{self.name}" if self.side else self.name


@dataclass(frozen=True, slots=True)
class Time:
    name: Literal["DUR", "GAP"]

    def text(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Op:
    op: Literal["+", "-", "*", "/", "%"]
    left: Expr
    right: Expr

    def text(self) -> str:
        return f"({self.left.text()} {self.op} {self.right.text()})"


@dataclass(frozen=True, slots=True)
class Fn:
    name: str
    args: tuple[Expr, ...] = ()

    def text(self) -> str:
        name, _, word = self.name.partition(" ")
        return f"{name}({word}{' ' * bool(word)}{', '.join(arg.text() for arg in self.args)})"


Place = Literal["", "1", "i", "i-1", "LEN", "[]", "..i-1"]
"""Which event of a pattern's variable: `v`, `v[1]`, `v[i]`, `v[i-1]`, `v[v.LEN]`; each of `v[]`, or of `v[..i-1]`."""


@dataclass(frozen=True, slots=True)
class Of:
    """An attribute of an event of a pattern's variable; without a name the events themselves, for `count`."""

    variable: str
    name: str
    place: Place = ""

    def text(self) -> str:
        inside = {"": "", "LEN": f"[{self.variable}.LEN]", "[]": "[]"}.get(self.place, f"[{self.place}]")
        return self.variable + inside + (f".{self.name}" if self.name else "")


@dataclass(frozen=True, slots=True)
class Len:
    variable: str

    def text(self) -> str:
        return f"{self.variable}.LEN"


Expr = Num | Str | Window | Ref | Time | Op | Fn | Of | Len

# ---------------------------------------------------------------- conditions


@dataclass(frozen=True, slots=True)
class Cmp:
    op: Relation
    left: Expr
    right: Expr

    def text(self) -> str:
        return f"{self.left.text()} {self.op} {self.right.text()}"


@dataclass(frozen=True, slots=True)
class Test:
    """`contains`, `starts-with`, `ends-with` or `matches`."""

    __test__ = False  # pytest is not to collect it

    name: str
    args: tuple[Expr, ...]

    def text(self) -> str:
        return f"{self.name}({', '.join(arg.text() for arg in self.args)})"


@dataclass(frozen=True, slots=True)
class IsNull:
    value: Expr
    negated: bool = False

    def text(self) -> str:
        return f"{self.value.text()} IS {'NOT ' if self.negated else ''}NULL"


@dataclass(frozen=True, slots=True)
class Not:
    arg: Cond

    def text(self) -> str:
        return f"NOT ({self.arg.text()})"


@dataclass(frozen=True, slots=True)
class Both:
    word: Literal["AND", "OR"]
    args: tuple[Cond, ...]

    def text(self) -> str:
        return f" {self.word} ".join(f"({arg.text()})" if isinstance(arg, Both) else arg.text() for arg in self.args)


Cond = Cmp | Test | IsNull | Not | Both

# ---------------------------------------------------------------- streams


@dataclass(frozen=True, slots=True)
class Item:
    """`expr AS name`; without a name an attribute under its own."""

    expr: Expr
    name: str | None = None

    def text(self) -> str:
        return self.expr.text() if self.name is None else f"{self.expr.text()} AS {self.name}"

    @property
    def label(self) -> str:
        if self.name is not None:
            return self.name
        assert isinstance(self.expr, Ref)
        return self.expr.name


@dataclass(frozen=True, slots=True)
class Name:
    name: str

    def text(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Filter:
    cond: Cond
    source: Stream

    def text(self) -> str:
        return f"FILTER{{{self.cond.text()}}} {_source(self.source)}"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """AGGREGATE; `over` is None without OVER, and what ends a `session`."""

    items: tuple[Item, ...]
    by: tuple[str, ...]
    over: Window | None
    source: Stream
    session: bool = False

    def text(self) -> str:
        by = f" BY {', '.join(self.by)}" if self.by else ""
        over = f" OVER {'SESSION ' * self.session}{self.over.text()}" if self.over else ""
        return f"AGGREGATE{{{', '.join(item.text() for item in self.items)}{by}{over}}} {_source(self.source)}"


@dataclass(frozen=True, slots=True)
class Union:
    left: Stream
    right: Stream

    def text(self) -> str:
        return f"{_left(self.left)} UNION {_source(self.right)}"


@dataclass(frozen=True, slots=True)
class Next:
    """NEXT, or, the `latest`, LATEST BEFORE; without a condition every event qualifies."""

    left: Stream
    cond: Cond | None
    right: Stream
    latest: bool = False

    def text(self) -> str:
        cond = f"{{{self.cond.text()}}}" if self.cond else ""
        return f"{_left(self.left)} {'LATEST BEFORE' if self.latest else 'NEXT'}{cond} {_source(self.right)}"


@dataclass(frozen=True, slots=True)
class Fold:
    """FOLD: what chooses the next event, what lets the iteration go on, and new values."""

    left: Stream
    chooses: Cond | None
    goes_on: Cond | None
    sets: tuple[Item, ...]
    right: Stream

    def text(self) -> str:
        conds = [cond.text() if cond else "" for cond in (self.chooses, self.goes_on)]
        sets = ", ".join(item.text() for item in self.sets)
        return f"{_left(self.left)} FOLD{{{', '.join([*conds, sets])}}} {_source(self.right)}"


@dataclass(frozen=True, slots=True)
class Cel:
    """A whole statement, or one in parentheses. `select` is None for all attributes; an item of None is `*`.
    Only a whole statement may publish."""

    stream: Stream
    select: tuple[Item | None, ...] | None = None
    within: Window | None = None
    publish: str | None = None

    def text(self) -> str:
        head = ""
        if self.select is not None:
            head = "SELECT " + ", ".join("*" if item is None else item.text() for item in self.select) + " "
        tail = (f" WITHIN {self.within.text()}" if self.within else "") + (
            f" PUBLISH {self.publish}" if self.publish else ""
        )
        return f"{head}FROM {_left(self.stream)}{tail}"


Stream = Name | Filter | Aggregate | Union | Next | Fold | Cel


def _source(stream: Stream) -> str:
    return stream.text() if isinstance(stream, Name | Filter | Aggregate) else f"({stream.text()})"


def _left(stream: Stream) -> str:
    return f"({stream.text()})" if isinstance(stream, Cel) else stream.text()


def reads(stream: Stream) -> Iterator[str]:
    return (one.name for one in walk(stream) if isinstance(one, Name))


Kind = Literal["string", "number"]
Schema = dict[str, Kind]

STRING_FUNCTIONS = (*DERIVED, *OF_TWO, "concat")


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
