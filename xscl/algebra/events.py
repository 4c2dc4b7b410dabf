"""What event statements mean: expressions over attributes, and operators of Cayuga's algebra over streams of events.

Names are resolved here: each reference says whose attribute it is, and each operator says under which name an attribute
leaves it. The operators are defined in docs/semantics.md, section 22.

What DEFINE EVENT means: a tree pattern over documents of a stream, and where an event's attributes come from.

What PATTERN statements mean: sequences of events, with names resolved, and conditions taken apart by when they are
tested.

docs/semantics.md defines them. A condition says "#0", "#1", ... for what it mentions of a match; its `names`
say what each stands for. So conditions and values are those of `xscl.algebra.events`: a name is an Attribute of `left`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.tools import quick
from xscl.algebra.trees import PatternNode
from xscl.algebra.values import CompareOp

Kind = Literal["string", "number"]

Schema = tuple[tuple[str, Kind], ...]
"""The attributes of a stream's events, in their order: name and kind."""

Part = Literal["left", "latest", "right"]
"""Whose attribute a reference means. Of an operator with one input: `left`. Of NEXT: `left` ($1) and `right` ($2). Of
FOLD: `left` ($1, the values that the instance began with), `latest` ($) and `right` ($2)."""

ArithmeticOp = Literal["+", "-", "*", "/", "%"]

# ---------------------------------------------------------------- expressions


@quick
@dataclass(frozen=True, slots=True)
class Constant:
    """A string or a number. Windows are numbers of seconds."""

    value: str | float


@quick
@dataclass(frozen=True, slots=True)
class Parameter:
    """What stands in a template where statements have different constants: column `index` of their rows."""

    index: int
    kind: Kind


@quick
@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of an event."""

    part: Part
    name: str
    kind: Kind


@quick
@dataclass(frozen=True, slots=True)
class Duration:
    """DUR: `t1 - t0` in seconds; in a condition of NEXT or FOLD that of the concatenation."""


@quick
@dataclass(frozen=True, slots=True)
class Gap:
    """GAP: the right event's t0 less the t1 of the left's latest event, in seconds. In NEXT and FOLD only."""


@quick
@dataclass(frozen=True, slots=True)
class Arithmetic:
    """An operation on two numbers. It is NULL if a number is, or if its result is not finite."""

    op: ArithmeticOp
    left: Value
    right: Value


@quick
@dataclass(frozen=True, slots=True)
class Function:
    """A function of values: a derived value of XSCL, number, string-length, coalesce, concat or abs."""

    name: str
    args: tuple[Value, ...]
    kind: Kind


Value = Constant | Parameter | Attribute | Duration | Gap | Arithmetic | Function


@quick
@dataclass(frozen=True, slots=True)
class Comparison:
    """`left op right`. Two strings are compared as strings by = and !=, all else as numbers. False if one is NULL."""

    op: CompareOp
    left: Value
    right: Value


@quick
@dataclass(frozen=True, slots=True)
class TextTest:
    """`contains`, `starts-with`, `ends-with` or `matches`, or that it does not hold (`negated`). Either is false if an
    argument is NULL."""

    name: str
    args: tuple[Value, ...]
    negated: bool = False


@quick
@dataclass(frozen=True, slots=True)
class NullTest:
    """`value IS NULL`, or, `negated`, `value IS NOT NULL`."""

    value: Value
    negated: bool = False


Atom = Comparison | TextTest | NullTest


@quick
@dataclass(frozen=True, slots=True)
class AllOf:
    """A condition that holds if all of `args` do. Without args it holds."""

    args: tuple[EventCondition, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class AnyOf:
    """A condition that holds if any of `args` does. NOT has been pushed to the atoms, so there is none."""

    args: tuple[EventCondition, ...]


EventCondition = Atom | AllOf | AnyOf
ALWAYS = AllOf()

# ---------------------------------------------------------------- operators


@quick
@dataclass(frozen=True, slots=True)
class Events:
    """The events of a stream: one that is defined, or that event statements PUBLISH."""

    stream: str
    schema: Schema


@quick
@dataclass(frozen=True, slots=True)
class Select:
    """New attributes from old ones (π, ρ and α at once)."""

    source: Stream
    items: tuple[tuple[str, Value], ...]
    schema: Schema


@quick
@dataclass(frozen=True, slots=True)
class Filter:
    """The events for which a condition holds (σ)."""

    source: Stream
    condition: EventCondition

    @property
    def schema(self) -> Schema:
        return self.source.schema


@quick
@dataclass(frozen=True, slots=True)
class Union:
    """The events of both, equal ones once. The schemas are equal."""

    left: Stream
    right: Stream

    @property
    def schema(self) -> Schema:
        """That of both."""
        return self.left.schema


@quick
@dataclass(frozen=True, slots=True)
class Next:
    """`left NEXT{condition} right`: each left event with the first later right events for which the condition holds.

    `within` is the greatest `t1 - t0` of a result in microseconds; None for no bound. `names` has the attributes of a
    result, in the order of `schema`: whose each is, and its name there.
    """

    left: Stream
    right: Stream
    condition: EventCondition
    within: int | None
    names: tuple[tuple[Part, str], ...]
    schema: Schema


@quick
@dataclass(frozen=True, slots=True)
class Fold:
    """`left FOLD{chooses, continues, sets} right`: runs of right events that begin with a left event.

    Of the later right events for which `chooses` holds, those with the least t1 are next; the run goes on with each of
    them for which `continues` holds, and has its attributes and those of `sets`. Each run is a result, but those of
    left events alone. `within` is as in Next. `names` has the attributes of a result, in the order of `schema`: the
    first (`left`) or the `latest` value of an attribute of the left schema.
    """

    left: Stream
    right: Stream
    chooses: EventCondition
    continues: EventCondition
    sets: tuple[tuple[str, Value], ...]
    within: int | None
    names: tuple[tuple[Part, str], ...]
    schema: Schema


AggregateName = Literal["count", "sum", "avg", "min", "max", "argmax"]


@quick
@dataclass(frozen=True, slots=True)
class Aggregated:
    """An aggregate of the events of a group: `count()`, `count(x)`, `sum(x)`, ..., `argmax(x, y)`."""

    name: AggregateName
    args: tuple[Value, ...]


@quick
@dataclass(frozen=True, slots=True)
class Aggregate:
    """For each group and each t1 of its events: values of the events of the group with `t - over < t1 <= t`.

    Without `over`, in microseconds, those with `t1 = t`. `by` names attributes of the source; `items` may do arithmetic
    on aggregates only through a Select above. The schema has the attributes of `by`, then `items`.
    """

    source: Stream
    items: tuple[tuple[str, Aggregated], ...]
    by: tuple[str, ...]
    over: int | None
    schema: Schema


Stream = Events | Select | Filter | Union | Next | Fold | Aggregate


@quick
@dataclass(frozen=True, slots=True)
class EventAttribute:
    """An attribute: the value of a node, with functions applied to it, the innermost first.

    The node is that of the variable `var` of the pattern, or, with `path`, the first that the path leads to from there,
    the end of which has the variable ATTRIBUTE_END. Without such a node the attribute is NULL. If `var` is None, the
    attribute is a constant.
    """

    name: str
    kind: Kind
    var: str | None
    path: PatternNode | None = None
    functions: tuple[str, ...] = ()
    constant: str = ""


ATTRIBUTE_END = "#end"
"""The variable at the end of an attribute's path."""


@quick
@dataclass(frozen=True, slots=True)
class EventPattern:
    """A definition of events. There is an event for each distinct choice of nodes of `variables` in a document that a
    match of the pattern has: the first is the block's root."""

    stream: str
    pattern: PatternNode
    variables: tuple[str, ...]
    attributes: tuple[EventAttribute, ...]

    @property
    def schema(self) -> Schema:
        """The names and kinds of the attributes."""
        return tuple([(attribute.name, attribute.kind) for attribute in self.attributes])


# ---------------------------------------------------------------- what is looked for


@quick
@dataclass(frozen=True, slots=True)
class Variable:
    """A component of SEQ: an event, or with `kleene` one or more of them, each before the next.

    Components stand in groups, numbered from 0: all events of a group are before those of the next. A group has one
    variable, or those of a SET. A `negated` one stands in front of the group `group`: 0 if it leads, and as many as
    there are groups if it is the last.
    """

    name: str
    source: Events
    group: int
    kleene: bool = False
    negated: bool = False


ItemPosition = Literal["only", "first", "each", "previous", "last", "every"]
"""Which event of a variable a name means: `v.x`, `v[1].x`, `v[i].x`, `v[i-1].x`, `v[v.LEN].x` or `v[].x`."""


@quick
@dataclass(frozen=True, slots=True)
class OfItem:
    """An attribute of an event of a variable."""

    variable: int
    place: ItemPosition
    name: str


@quick
@dataclass(frozen=True, slots=True)
class Length:
    """`v.LEN`: how many events a Kleene variable has."""

    variable: int


@quick
@dataclass(frozen=True, slots=True)
class OfItems:
    """An aggregate of the events of a Kleene variable: of `v[]`, or, `earlier`, of `v[..i-1]`.

    In its arguments an Attribute of `left` is one of such an event.
    """

    variable: int
    aggregated: Aggregated
    earlier: bool = False


Referent = OfItem | Length | OfItems

Names = tuple[tuple[str, Referent], ...]
"""What the names of a condition or of a value stand for: `#0`, `#1`, ... in the order in which they are mentioned."""

Phase = Literal["first", "each", "complete"]
"""When a condition is tested: when a variable gets its first (or only) event, when it gets a further one, or when it
has all. All follow one another in time: for each variable in its order, `first`, then `each`, then `complete`. What is
`complete` is known as the next variable gets its first event, or at the end of a match."""


@quick
@dataclass(frozen=True, slots=True)
class WhereConjunct:
    """A conjunct of WHERE, tested with the event that it mentions last.

    That is an event of `variable` (its place in the pattern), in `phase`. In phase `each` the names `each` and
    `previous`, and aggregates of earlier events, are about this new event, the second or a later one. `v[].x` that is
    tested as its variable gets events is two conjuncts: the one for `first` says `first`, that for `each` says `each`.

    Elsewhere it holds for all: if it mentions `each`, `previous` or earlier events of another variable, or of its own
    in phase `complete`, for each event of that variable but the first; if it mentions `every`, for each event. If it
    mentions several such variables, it holds for all combinations of their events. None mentions `every` and `each`,
    `previous` or earlier events of one variable.

    Of a negated variable: the event kills a match if all conjuncts of the variable hold; the phase is `complete`, for
    it may mention all other variables.

    In a pattern with a SET there is no order of time among the variables of a group, so that a match has to satisfy all
    conjuncts, whatever their phase.
    """

    condition: EventCondition
    names: Names
    variable: int
    phase: Phase

    def __repr__(self) -> str:
        # Ids of stored statements are digests of this text, which must outlive the name of the class.
        values = (self.condition, self.names, self.variable, self.phase)
        return "Conjunct(condition={!r}, names={!r}, variable={!r}, phase={!r})".format(*values)


Strategy = Literal["strict", "partition", "next", "any"]
"""Which events may lie between those of a match: none of the streams of the pattern; none with equal keys; none that
the match could go on with; or any."""


@quick
@dataclass(frozen=True, slots=True)
class Returned:
    """An item of RETURN. It has one value; or, with `each`, the number of a variable, one for each event of that:
    then its names say `every` for it."""

    name: str
    value: Value
    names: Names
    each: int | None = None


EVENTS = "#events"
"""The attribute that has those of all events of a match: a text, a JSON array of arrays of their values. They stand
variable by variable, in the order of time."""


@quick
@dataclass(frozen=True, slots=True)
class Pattern:
    """`PATTERN SEQ(...)` without ERRORS.

    `keys` are attributes in which all events of a match are equal, and not NULL; they are of one kind in all sources.
    `conjuncts` are about the variables that are not negated, in the order of time, `kills` about those that are.
    `having` is about complete variables. `within` is the greatest time in microseconds from the first event's t0 to the
    last event's t1, None for no bound. With `maximal` a match is told if none is earlier or longer (EARLIEST MAXIMAL),
    with `apart` if it begins after the end of the one told before (NON OVERLAPPING). `returned` is None if there is no
    RETURN.

    The schema has the items of RETURN that have one value, perhaps in another order. If somebody asks for them, it also
    has items with a value for each event, as texts, JSON arrays of the values; and EVENTS.
    """

    variables: tuple[Variable, ...]
    strategy: Strategy
    keys: tuple[str, ...]
    conjuncts: tuple[WhereConjunct, ...]
    kills: tuple[WhereConjunct, ...]
    having: EventCondition
    having_names: Names
    within: int | None
    maximal: bool
    apart: bool
    returned: tuple[Returned, ...] | None
    schema: Schema

    @property
    def groups(self) -> int:
        """How many groups of variables there are, one behind the other."""
        return max(variable.group for variable in self.variables if not variable.negated) + 1

    @property
    def has_sets(self) -> bool:
        """Whether a group has several variables."""
        return sum(not variable.negated for variable in self.variables) > self.groups

    @property
    def is_late(self) -> bool:
        """Whether a match is known only when its window is over, and not at its last event."""
        last = self.groups - 1
        open_end = self.maximal and any(one.kleene and one.group == last for one in self.variables)
        return open_end or any(one.negated and one.group > last for one in self.variables)

    @property
    def streams(self) -> dict[str, Schema]:
        """The streams that are read, by name, each with its attributes."""
        return {variable.source.stream: variable.source.schema for variable in self.variables}


# ---------------------------------------------------------------- nearly matching

ERRORS = "errors"
"""The attribute that says how many letters are missing."""


@quick
@dataclass(frozen=True, slots=True)
class Letter:
    """An event of a stream. If it is `needed` (!), it cannot be left out."""

    source: Events
    needed: bool = False


@quick
@dataclass(frozen=True, slots=True)
class Word:
    """One after the other."""

    parts: tuple[Letters, ...]


@quick
@dataclass(frozen=True, slots=True)
class OneOf:
    """Any one of several."""

    parts: tuple[Letters, ...]


@quick
@dataclass(frozen=True, slots=True)
class Repeated:
    """The same, `least` times or more often: 0 for `*`, 1 for `+`."""

    part: Letters
    least: int


Letters = Letter | Word | OneOf | Repeated


@quick
@dataclass(frozen=True, slots=True)
class NearPattern:
    """`PATTERN SEQ(...) ... ERRORS <= errors`: events that lack at most so many letters of a word of `letters`.

    `keys`, `within` and `apart` are as in Pattern. `budget` bounds how much is kept for each value of the keys, None
    for no bound. In `returned` an Attribute of `left` can only be ERRORS, the number of missing letters. The schema has
    the items of RETURN and ERRORS, perhaps in another order; and, if somebody asks for it, EVENTS.
    """

    letters: Letters
    errors: int
    budget: int | None
    keys: tuple[str, ...]
    within: int | None
    apart: bool
    returned: tuple[tuple[str, Value], ...] | None
    schema: Schema

    @property
    def streams(self) -> dict[str, Schema]:
        """The streams that are read, by name, each with its attributes."""
        return {one.source.stream: one.source.schema for one in letters_of(self.letters)}


def letters_of(letters: Letters) -> tuple[Letter, ...]:
    """Returns the letters of an expression, as they are written from left to right.

    >>> a, b = Letter(Events("A", ())), Letter(Events("B", ()), needed=True)
    >>> [letter.source.stream for letter in letters_of(Word((a, Repeated(OneOf((a, b)), 0))))]
    ['A', 'A', 'B']
    """
    match letters:
        case Letter():
            return (letters,)
        case Repeated(part=part):
            return letters_of(part)
        case Word(parts=parts) | OneOf(parts=parts):
            return tuple(letter for part in parts for letter in letters_of(part))


def shortest(letters: Letters) -> int:
    """Returns the length of the shortest word.

    >>> a = Letter(Events("A", ()))
    >>> shortest(Word((a, OneOf((Word((a, a)), a)), Repeated(a, 0), Repeated(a, 2))))
    4
    """
    match letters:
        case Letter():
            return 1
        case Repeated(part=part, least=least):
            return shortest(part) * least
        case Word(parts=parts):
            return sum(map(shortest, parts))
        case OneOf(parts=parts):
            return min(map(shortest, parts))


def spelled_out(letters: Letters) -> int:
    """Returns how many letters an expression has, those that are repeated as often as they are at least.

    >>> a = Letter(Events("A", ()))
    >>> spelled_out(Word((OneOf((Word((a, a)), a)), Repeated(a, 0), Repeated(a, 3))))
    7
    """
    match letters:
        case Letter():
            return 1
        case Repeated(part=part, least=least):
            return spelled_out(part) * max(least, 1)
        case Word(parts=parts) | OneOf(parts=parts):
            return sum(map(spelled_out, parts))


Statement = Stream | Pattern | NearPattern
"""What a query over events tells. A PATTERN stands alone: no operator reads one but by the name that it PUBLISHes."""
