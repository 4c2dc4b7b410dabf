"""The meaning of event statements: expressions over attributes, and operators of Cayuga's algebra, with names resolved.

Each reference names the input that has the attribute, and each operator the attributes of its results. DEFINE EVENT is
a tree pattern over a stream's documents and the sources of an event's attributes. PATTERN is a sequence of events,
whose conditions are split by when they are tested; they refer to "#0", "#1", ..., which their `names` resolve, so they
are ordinary conditions in which each name is an Attribute of `left`. See docs/patterns.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

from common.tools import frozen
from xscl.algebra.joins import PatternNode
from xscl.algebra.values import CompareOp

Kind = Literal["string", "number"]

Schema = tuple[tuple[str, Kind], ...]  # names and kinds of the attributes of a stream's events, in order

Part = Literal["left", "latest", "right"]
"""The event that a reference's attribute belongs to. With one input: `left`. In NEXT: `left` ($1) and `right` ($2). In
FOLD: `left` ($1, the instance's initial values), `latest` ($) and `right` ($2)."""

Made = frozenset[str]  # attributes whose texts may be results of functions

ArithmeticOp = Literal["+", "-", "*", "/", "%"]

# ---------------------------------------------------------------- expressions


@frozen
class Constant:
    """A string or a number. Windows are numbers of seconds."""

    value: str | float


@frozen
class Parameter:
    """A template's placeholder for a constant that differs between statements: column `index` of their rows."""

    index: int
    kind: Kind


@frozen
class Attribute:
    part: Part
    name: str
    kind: Kind


@frozen
class Duration:
    """DUR: `t1 - t0` in seconds; in a condition of NEXT or FOLD, that of the combined event."""


@frozen
class Gap:
    """GAP: the right event's t0 minus the t1 of the left's latest event, in seconds. In NEXT and FOLD only."""


@frozen
class Arithmetic:
    """An operation on two numbers. NULL if either is NULL, or if the result is not finite."""

    op: ArithmeticOp
    left: Value
    right: Value


@frozen
class Function:
    """A call of a function: one that derives values in XSCL, number, string-length, coalesce, concat or abs."""

    name: str
    args: tuple[Value, ...]
    kind: Kind


Value = Constant | Parameter | Attribute | Duration | Gap | Arithmetic | Function


@frozen
class Comparison:
    """`left op right`: of strings if op is = or != and both are strings, else of numbers. False if either is NULL."""

    op: CompareOp
    left: Value
    right: Value


@frozen
class TextTest:
    """`contains`, `starts-with`, `ends-with` or `matches`, perhaps negated. False if an argument is NULL."""

    name: str
    args: tuple[Value, ...]
    negated: bool = False


@frozen
class NullTest:
    value: Value
    negated: bool = False


Atom = Comparison | TextTest | NullTest


@frozen
class AllOf:
    """Holds if all of `args` do; without any, it holds."""

    args: tuple[EventCondition, ...] = ()


@frozen
class AnyOf:
    """Holds if any of `args` does. There is no NOT: negations have been pushed down to the atoms."""

    args: tuple[EventCondition, ...]


EventCondition = Atom | AllOf | AnyOf
ALWAYS = AllOf()

_Leaf = Constant | Parameter | Attribute | Duration | Gap
_LEAVES = frozenset(get_args(_Leaf))

_Node = TypeVar("_Node", bound=EventCondition | Value)


def operands(node: EventCondition | Value) -> tuple[EventCondition | Value, ...]:
    match node:
        case Comparison() | Arithmetic():
            return node.left, node.right
        case AllOf() | AnyOf() | TextTest() | Function():
            return node.args
        case NullTest():
            return (node.value,)
    return ()


def map_parts(node: _Node, change: Callable[[Any], Any]) -> _Node:
    """Replaces the outermost parts of a condition or value for which `change` does not return None. Makes one call per
    level, because trees may be nearly as deep as the stack allows."""
    made: Any = change(node)
    if made is None:
        match node:
            case Comparison():
                made = Comparison(node.op, map_parts(node.left, change), map_parts(node.right, change))
            case AllOf() | AnyOf():
                made = type(node)(tuple([map_parts(arg, change) for arg in node.args]))
            case Arithmetic():
                made = Arithmetic(node.op, map_parts(node.left, change), map_parts(node.right, change))
            case Function():
                made = Function(node.name, tuple([map_parts(arg, change) for arg in node.args]), node.kind)
            case TextTest():
                made = TextTest(node.name, tuple([map_parts(arg, change) for arg in node.args]), node.negated)
            case NullTest():
                made = NullTest(map_parts(node.value, change), node.negated)
            case _:
                made = node
    found: _Node = made
    return found


def leaves(node: EventCondition | Value) -> Iterator[Value]:
    """Yields the attributes, parameters, constants, DUR and GAP of a condition or value, from left to right."""
    waiting: list[Any] = [node]
    while waiting:
        one = waiting.pop()
        if one.__class__ in _LEAVES:
            yield one
        else:
            waiting += reversed(operands(one))


def map_leaves(node: _Node, leaf: Callable[[Value], Value]) -> _Node:
    """Replaces the leaves of a condition or value."""
    return map_parts(node, lambda one: leaf(one) if one.__class__ in _LEAVES else None)


def value_kind(value: Value) -> Kind:
    match value:
        case Constant(value=constant):
            return "string" if isinstance(constant, str) else "number"
        case Parameter(kind=kind) | Attribute(kind=kind) | Function(kind=kind):
            return kind
    return "number"


# ---------------------------------------------------------------- operators


@frozen
class Events:
    """The events of a stream that is defined or that event statements PUBLISH."""

    stream: str
    schema: Schema


@frozen
class Select:
    """Computes new attributes from old ones (π, ρ and α in one)."""

    source: Stream
    items: tuple[tuple[str, Value], ...]
    schema: Schema


@frozen
class Filter:
    source: Stream
    condition: EventCondition

    @property
    def schema(self) -> Schema:
        return self.source.schema


@frozen
class Union:
    """The events of both inputs, without duplicates. The schemas are equal."""

    left: Stream
    right: Stream

    @property
    def schema(self) -> Schema:
        return self.left.schema


@frozen
class Next:
    """`left NEXT{condition} right`: each left event with the first later right events for which the condition holds.
    `within` is the maximum `t1 - t0` of a result in microseconds; None is unbounded. `names` has, in the order of
    `schema`, the input that each attribute of a result comes from, and its name there."""

    left: Stream
    right: Stream
    condition: EventCondition
    within: int | None
    names: tuple[tuple[Part, str], ...]
    schema: Schema


@frozen
class Latest(Next):
    """`left LATEST BEFORE{condition} right`: each right event with the last left events before it for which the
    condition holds. `within` drops results that are too long; it does not change which events are the last."""


@frozen
class Fold:
    """`left FOLD{chooses, continues, sets} right`: runs of right events that begin with a left event.

    Among the later right events for which `chooses` holds, those with the least t1 are next. The run continues with
    each of these for which `continues` holds, and takes its attributes and those of `sets`. Each run of two or more
    events is a result. `within` is as in Next. `names` has a result's attributes, in the order of `schema`: the first
    (`left`) or the `latest` value of an attribute of the left schema."""

    left: Stream
    right: Stream
    chooses: EventCondition
    continues: EventCondition
    sets: tuple[tuple[str, Value], ...]
    within: int | None
    names: tuple[tuple[Part, str], ...]
    schema: Schema


AggregateName = Literal["count", "count distinct", "sum", "avg", "median", "percentile", "min", "max", "argmax"]


@frozen
class Aggregated:
    """An aggregate over a group's events: `count()`, `count(x)`, `sum(x)`, ..., `argmax(x, y)`. The second argument of
    `percentile(x, 95)` is a Constant, or its Parameter."""

    name: AggregateName
    args: tuple[Value, ...]


@frozen
class Aggregate:
    """Aggregates, for each group and each t1 (`t`) of its events, the group's events with `t - over < t1 <= t`; `over`
    is in microseconds, and without it only those with `t1 = t` count. `by` names attributes of the source. Arithmetic
    on aggregates is done by a Select above. The schema has the attributes of `by`, then `items`."""

    source: Stream
    items: tuple[tuple[str, Aggregated], ...]
    by: tuple[str, ...]
    over: int | None
    schema: Schema


@frozen
class Sessions(Aggregate):
    """AGGREGATE with OVER SESSION: aggregates the events of each session of a group. An event continues a session if
    its t1 is less than `over` after that of the previous event. A result lasts from the t1 of the session's first event
    to `over` after that of its last one."""


StoryChange = Literal["opened", "grew", "merged", "closed"]

CHANGES: tuple[StoryChange, ...] = get_args(StoryChange)


@frozen
class Stories:
    """Groups the source's events, which are pairs of documents (`xscl.story_queries`), into stories. A result is each
    change listed in `tell` for which `having` holds; without `tell`, the first change of a story for which it holds. A
    story lasts `lasting` microseconds from its first document. `counts` are attributes of the results and the values
    that they count. `name` distinguishes the ids of its stories from those of other statements."""

    source: Stream
    name: str
    counts: tuple[tuple[str, str], ...]
    lasting: int | None
    having: EventCondition
    tell: tuple[StoryChange, ...]
    schema: Schema


SIDES = "a", "b"
OWN = "id", "stream", "time", "feed"
"""The attributes that STORIES reads of each document of a pair, besides counted values."""

STORY_TEXTS = "first", "latest", "joined", "merged"
"""The attributes of a story for its output document: documents, and ids of stories, as JSON."""


def story_schema(counts: Iterable[str]) -> Schema:
    numbers: list[tuple[str, Kind]] = [(name, "number") for name in ("members", "feeds", *counts)]
    texts: list[tuple[str, Kind]] = [(name, "string") for name in STORY_TEXTS]
    return ("story", "string"), ("change", "string"), *numbers, *texts


Stream = Events | Select | Filter | Union | Next | Fold | Aggregate | Stories


def operator_name(operator: Statement) -> str:
    names: dict[type, str] = {Sessions: "AGGREGATE", Latest: "LATEST BEFORE"}
    return names.get(type(operator)) or type(operator).__name__.upper()


def sources_of(stream: Stream) -> tuple[Stream, ...]:
    """The input streams of an operator, left before right."""
    match stream:
        case Events():
            return ()
        case Select() | Filter() | Aggregate() | Stories():
            return (stream.source,)
        case Union() | Next() | Fold():
            return stream.left, stream.right


def read_by(statement: Statement) -> dict[str, Schema]:
    """The schemas of the event streams that a statement derives from, by name.

    >>> sorted(read_by(Union(Events("A", ()), Select(Events("B", ()), (), ()))))
    ['A', 'B']
    """
    match statement:
        case Events(stream=name, schema=schema):
            return {name: schema}
        case Pattern() | NearPattern():
            return statement.streams
    return {name: schema for source in sources_of(statement) for name, schema in read_by(source).items()}


def window_of(operator: Stream) -> int | None:
    """The WITHIN, OVER or LASTING of an operator, in microseconds."""
    if isinstance(operator, Next | Fold):
        return operator.within
    if isinstance(operator, Stories):
        return operator.lasting
    return operator.over if isinstance(operator, Aggregate) else None


def made_texts(operator: Statement, left: Made = frozenset(), right: Made = frozenset()) -> Made:
    """The attributes of an operator's results whose texts may come from functions; `left` and `right`: of its
    inputs."""
    own = {"left": left}
    match operator:
        case Filter():
            return left
        case Union():
            return left | right
        case Select(items=items):
            return frozenset([name for name, value in items if is_made_text(value, own)])
        case Aggregate(items=aggregates):
            texts = [name for name, one in aggregates if one.name == "argmax" and is_made_text(one.args[0], own)]
            return left.intersection(operator.by).union(texts)
        case Next() | Fold():
            latest = made_of_latest(operator, left, right) if isinstance(operator, Fold) else left
            made = {"left": left, "latest": latest, "right": right}
            pairs = zip(operator.schema, operator.names, strict=True)
            return frozenset([name for (name, _), (part, before) in pairs if before in made[part]])
    return frozenset()


def made_of_latest(fold: Fold, left: Made, right: Made) -> Made:
    """Like `made_texts`, for the latest values of a run."""
    latest = left | right
    for _ in fold.sets:  # each may derive from the previous one
        made = {"left": left, "latest": latest, "right": right}
        latest |= {name for name, value in fold.sets if is_made_text(value, made)}
    return latest


def is_made_text(value: Value, made: Mapping[str, Made]) -> bool:
    """Whether a value may be a text that a function returned; `made` has the attributes that may be, by part."""
    if isinstance(value, Attribute):
        return value.name in made[value.part]
    return isinstance(value, Function) and value.kind == "string"


def with_parts(
    operator: Stream,
    sources: Sequence[Stream],
    window: int | None,
    value: Callable[[Value], Value],
    condition: Callable[[EventCondition], EventCondition],
) -> Stream:
    """Replaces an operator's input streams, its WITHIN or OVER, and its conditions and values, in order."""
    if isinstance(operator, Events):
        return operator
    left, right = sources[0], sources[-1]
    match operator:
        case Filter():
            return Filter(left, condition(operator.condition))
        case Select(items=items):
            return Select(left, tuple([(name, value(one)) for name, one in items]), operator.schema)
        case Next():
            tested = condition(operator.condition)
            return type(operator)(left, right, tested, window, operator.names, operator.schema)
        case Fold():
            chooses, continues = condition(operator.chooses), condition(operator.continues)
            sets = tuple([(name, value(one)) for name, one in operator.sets])
            return Fold(left, right, chooses, continues, sets, window, operator.names, operator.schema)
        case Aggregate(items=aggregates):
            made = [(name, Aggregated(one.name, tuple(map(value, one.args)))) for name, one in aggregates]
            return type(operator)(left, tuple(made), operator.by, window, operator.schema)
        case Stories():
            tested = condition(operator.having)
            return Stories(left, operator.name, operator.counts, window, tested, operator.tell, operator.schema)
        case Union():
            return Union(left, right)


@frozen
class EventAttribute:
    """An attribute: the value of a node, with functions applied, innermost first. The node is that of the pattern's
    variable `var` or, with `path`, the first one that the path reaches from there; its end has the variable
    ATTRIBUTE_END. Without such a node the attribute is NULL. If `var` is None, it is a constant."""

    name: str
    kind: Kind
    var: str | None
    path: PatternNode | None = None
    functions: tuple[str, ...] = ()
    constant: str = ""


ATTRIBUTE_END = "#end"
"""The variable at the end of an attribute's path."""


@frozen
class EventPattern:
    """A definition of events: one for each distinct choice of nodes of `variables` in a match of the pattern in a
    document. The first variable is the block's root."""

    stream: str
    pattern: PatternNode
    variables: tuple[str, ...]
    attributes: tuple[EventAttribute, ...]

    @property
    def schema(self) -> Schema:
        return tuple([(attribute.name, attribute.kind) for attribute in self.attributes])


# ---------------------------------------------------------------- what is looked for


@frozen
class Variable:
    """A component of SEQ: an event, or with `kleene` one or more, each before the next. Components form groups,
    numbered from 0: all events of a group precede those of the next. A group has one variable, or those of a SET. A
    `negated` component precedes the group `group`: 0 if it comes first, the number of groups if it is last."""

    name: str
    source: Events
    group: int
    kleene: bool = False
    negated: bool = False


ItemPosition = Literal["only", "first", "each", "previous", "last", "every"]
"""The event of a variable that a name refers to: `v.x`, `v[1].x`, `v[i].x`, `v[i-1].x`, `v[v.LEN].x` or `v[].x`."""


@frozen
class OfItem:
    variable: int
    place: ItemPosition
    name: str


@frozen
class Length:
    """`v.LEN`: the number of events of a Kleene variable."""

    variable: int


@frozen
class OfItems:
    """An aggregate over the events of a Kleene variable: `v[]` or, if `earlier`, `v[..i-1]`. In its arguments an
    Attribute of `left` is that of such an event."""

    variable: int
    aggregated: Aggregated
    earlier: bool = False


@frozen
class OfMatches:
    """In ALL MATCHES TOGETHER: an aggregate over a variable's events in all matches, in which an event counts once per
    match; without `aggregated`, the number of matches, and `variable` is the last one."""

    variable: int
    aggregated: Aggregated | None = None


Referent = OfItem | Length | OfItems | OfMatches

Names = tuple[tuple[str, Referent], ...]
"""The referents of a condition's or value's names `#0`, `#1`, ..., in order of mention."""

Phase = Literal["first", "each", "complete"]
"""When a condition is tested: when a variable gets its first (or only) event, a further one, or is complete. Each
variable has `first`, then `each`, then `complete`, which begins with the next variable's first event or the end of a
match."""


@frozen
class WhereConjunct:
    """A conjunct of WHERE, tested on the last event that it mentions: of `variable` (its position in the pattern), in
    `phase`.

    In phase `each` the names `each` and `previous`, and aggregates of earlier events, refer to this new event, the
    second or a later one. `v[].x` that is tested as its variable gets events is two conjuncts: `first` in phase
    `first`, `each` in phase `each`.

    Elsewhere it holds for all: if it mentions `each`, `previous` or earlier events of another variable, or of its own
    in phase `complete`, for each event of that variable but the first; if it mentions `every`, for each event. If it
    mentions several such variables, it holds for all combinations of their events. None mentions `every` and `each`,
    `previous` or earlier events of one variable.

    An event of a negated variable ends a match if all conjuncts of the variable hold; their phase is `complete`, since
    they may mention all other variables. In a pattern with a SET, a group's variables have no order in time, so a match
    has to satisfy all conjuncts, whatever their phase."""

    condition: EventCondition
    names: Names
    variable: int
    phase: Phase

    def __repr__(self) -> str:
        # Ids of stored statements are digests of this text, which must outlive the name of the class.
        values = (self.condition, self.names, self.variable, self.phase)
        return "Conjunct(condition={!r}, names={!r}, variable={!r}, phase={!r})".format(*values)


Strategy = Literal["strict", "partition", "next", "any"]
"""The events that may lie between those of a match: none of the pattern's streams; none with equal keys; none that
could continue the match; any."""


@frozen
class Returned:
    """An item of RETURN with one value, or one per event of variable `each`, which its names call `every`."""

    name: str
    value: Value
    names: Names
    each: int | None = None


EVENTS = "#events"
"""The attribute with the values of all events of a match: a JSON array of arrays, as text, by variable, then time."""


@frozen
class Pattern:
    """`PATTERN SEQ(...)` without ERRORS.

    `keys` are attributes that are equal, and not NULL, in all events of a match, and of one kind in all sources.
    `conjuncts` concern the variables that are not negated, in the order of time, `kills` negated ones, and `having`
    complete ones. `within` is the maximum time in microseconds from the first event's t0 to the last event's t1; None
    is unbounded. With `maximal`, a match is reported if none is earlier or longer (EARLIEST MAXIMAL); with `apart`, if
    it begins after the end of the previously reported one (NON OVERLAPPING). `returned` is None without RETURN.

    The schema has RETURN's single-valued items, perhaps in another order. On request it also has items with a value per
    event, as JSON arrays in text; and EVENTS."""

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
        return max(variable.group for variable in self.variables if not variable.negated) + 1

    @property
    def has_sets(self) -> bool:
        return sum(not variable.negated for variable in self.variables) > self.groups

    @property
    def is_late(self) -> bool:
        """Whether a match is decided only when its window has passed, and not at its last event."""
        last = self.groups - 1
        open_end = self.maximal and any(one.kleene and one.group == last for one in self.variables)
        return open_end or any(one.negated and one.group > last for one in self.variables)

    @property
    def streams(self) -> dict[str, Schema]:
        return {variable.source.stream: variable.source.schema for variable in self.variables}


@frozen
class Together(Pattern):
    """A Pattern with ALL MATCHES TOGETHER: one result for each event that ends matches, if HAVING holds, with the
    interval and the part of that event. HAVING and RETURN have OfMatches, and attributes of that event. The strategy is
    `any`, and conditions compare events with the event before and with first and last ones of other variables, so that
    matches need not be enumerated."""


def is_exact(item: Returned) -> bool:
    """Whether an item counts matches or events, or sums values: it is a text, since it may exceed any float."""
    of = dict(item.names).get(item.value.name) if isinstance(item.value, Attribute) else None
    return isinstance(of, OfMatches) and (of.aggregated is None or of.aggregated.name in ("count", "sum"))


# ---------------------------------------------------------------- nearly matching

ERRORS = "errors"  # the attribute with the number of missing letters


@frozen
class Letter:
    """An event of a stream. A `needed` one (!) cannot be left out."""

    source: Events
    needed: bool = False


@frozen
class Word:
    parts: tuple[Letters, ...]


@frozen
class OneOf:
    parts: tuple[Letters, ...]


@frozen
class Repeated:
    """`least` repetitions or more: 0 for `*`, 1 for `+`."""

    part: Letters
    least: int


Letters = Letter | Word | OneOf | Repeated


@frozen
class NearPattern:
    """`PATTERN SEQ(...) ... ERRORS <= errors`: events that lack at most `errors` letters of a word of `letters`.

    `keys`, `within` and `apart` are as in Pattern. `budget` bounds the state per value of the keys; None is unbounded.
    In `returned` an Attribute of `left` can only be ERRORS. The schema has the items of RETURN and ERRORS, perhaps in
    another order; and, on request, EVENTS."""

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
        return {one.source.stream: one.source.schema for one in letters_of(self.letters)}


def letters_of(letters: Letters, repeated: int = 1) -> tuple[Letter, ...]:
    """The letters of an expression, from left to right; those of a repetition are listed `repeated` times.

    >>> a, b = Letter(Events("A", ())), Letter(Events("B", ()), needed=True)
    >>> [letter.source.stream for letter in letters_of(Word((a, Repeated(OneOf((a, b)), 0))))]
    ['A', 'A', 'B']
    """
    match letters:
        case Letter():
            return (letters,)
        case Repeated(part=part):
            return letters_of(part, repeated) * repeated
        case Word(parts=parts) | OneOf(parts=parts):
            return tuple(letter for part in parts for letter in letters_of(part, repeated))


_Statement = TypeVar("_Statement", bound="Statement")


def _map_letters(letters: Letters, change: Callable[[Events], Events]) -> Letters:
    match letters:
        case Letter():
            return replace(letters, source=change(letters.source))
        case Repeated():
            return replace(letters, part=_map_letters(letters.part, change))
        case Word() | OneOf():
            return replace(letters, parts=tuple([_map_letters(part, change) for part in letters.parts]))


def map_events(statement: _Statement, change: Callable[[Events], Events]) -> _Statement:
    """Replaces the events that a statement reads.

    >>> map_events(Union(Events("A", ()), Events("B", ())), lambda one: Events(one.stream.lower(), ()))
    Union(left=Events(stream='a', schema=()), right=Events(stream='b', schema=()))
    """
    made: Any
    match statement:
        case Events():
            made = change(statement)
        case Pattern(variables=variables):
            made = replace(statement, variables=tuple([replace(one, source=change(one.source)) for one in variables]))
        case NearPattern(letters=letters):
            made = replace(statement, letters=_map_letters(letters, change))
        case _:
            sources = [map_events(one, change) for one in sources_of(statement)]
            made = with_parts(statement, sources, window_of(statement), lambda value: value, lambda one: one)
    return made  # type: ignore[no-any-return]  # each case makes a statement of the same class


def count_letters(letters: Letters, of_choice: Callable[[Iterable[int]], int], least: int) -> int:
    """Counts the letters of a word. A repetition counts as often as its minimum, but at least `least` times;
    `of_choice` combines the counts of alternatives, such as `min` for the shortest word.

    >>> a = Letter(Events("A", ()))
    >>> word = Word((OneOf((Word((a, a)), a)), Repeated(a, 0), Repeated(a, 3)))
    >>> count_letters(word, min, 0), count_letters(word, sum, 1)
    (4, 7)
    """
    match letters:
        case Letter():
            return 1
        case Repeated():
            return count_letters(letters.part, of_choice, least) * max(letters.least, least)
        case Word() | OneOf():
            counts = (count_letters(part, of_choice, least) for part in letters.parts)
            return sum(counts) if isinstance(letters, Word) else of_choice(counts)


Statement = Stream | Pattern | NearPattern
"""A query over events. A PATTERN is never an operand: operators read it only by the name that it PUBLISHes."""
