"""The syntax tree of XSCL and of event statements: immutable nodes, which can be printed as text again.

Trees are equal regardless of their places in a text (`span`). The span of a statement is relative to the script; those
inside an event statement are relative to its own text. The parser normalises spellings: a path without a stream reads
the stream `S`, the name of a stream alone is `stream/*`, `AS x` is `->x`, `[title]` is `[./title]`, `(block)` is the
block, and parentheses that only group are not in the tree."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from common.tools import frozen
from xscl.algebra.events import ArithmeticOp, Schema
from xscl.algebra.joins import JoinOp
from xscl.algebra.values import ElementConstructor, Expr, Span, Step, nowhere

DEFAULT_STREAM = "S"

OWN_STREAMS = ("mmqjp:visits",)
"""The streams that the product itself fills. Only these have a colon in their names."""


@frozen
class Block:
    """A tree pattern over one stream. Its root is the node of the last step."""

    stream: str
    steps: tuple[Step, ...]
    span: Span = nowhere()


# ---------------------------------------------------------------- SELECT


@frozen
class SelectItem:
    """`operand AS name`. A lone variable is selected under its own name."""

    operand: Expr
    name: str
    span: Span = nowhere()


@frozen
class SelectStar:
    """`*`: the block roots and the items of subqueries; of events, all attributes."""

    span: Span = nowhere()


@frozen
class SelectItems:
    items: tuple[SelectItem, ...]
    span: Span = nowhere()


SelectClause = SelectStar | SelectItems | ElementConstructor

# ---------------------------------------------------------------- FROM


@frozen
class Window:
    """In microseconds; None is INF."""

    us: int | None
    span: Span = nowhere()


@frozen
class SessionGap(Window):
    """`SESSION window`: a session ends after this long without an event."""


@frozen
class Join:
    """`left FOLLOWED BY{pred, window} right`, or JOIN, or JOIN UNORDERED."""

    op: JoinOp
    left: Input
    right: Input
    pred: Expr
    window: Window
    span: Span = nowhere()


@frozen
class SubQuery:
    """A query in parentheses with a SELECT, which defines what the outer query sees and under which names."""

    select: SelectStar | SelectItems
    source: Input
    span: Span = nowhere()


Input = Block | Join | SubQuery


@frozen
class Once:
    """`ONCE PER (keys) WITHIN window`, after the name in PUBLISH. None is unbounded. The span begins with the name."""

    keys: tuple[Expr, ...]
    window: Window | None = None
    span: Span = nowhere()


@frozen
class StoryCount:
    """`members`, `feeds`, or `count(DISTINCT value)` of a path from a document's node: then `value` is that."""

    name: str
    value: Expr | None = None
    span: Span = nowhere()


@frozen
class StoryClause:
    """STORIES, after the name in PUBLISH. `having` compares counts with numbers. The span begins with the name."""

    lasting: Window
    having: EventExpr | StoryCount | None
    tell: tuple[str, ...]
    span: Span = nowhere()


@frozen
class StoryQuery:
    """A join whose matches form stories. It is shorthand for three statements (`xscl.story_queries`)."""

    pairs: Query
    stories: StoryClause
    span: Span = nowhere()


@frozen
class MadeForOthers:
    """HIDDEN, after the name in PUBLISH: only other queries receive the outputs. The span begins with the name."""

    span: Span = nowhere()


@frozen
class Query:
    """One standing query. `select` is None if missing, which means `*`. `once` and `hidden` need a PUBLISH name."""

    source: Input
    select: SelectClause | None = None
    publish: str | None = None
    span: Span = nowhere()
    once: Once | None = None
    hidden: MadeForOthers | None = None

    def shared_parts(self) -> tuple[object, ...]:
        """The identities of the parts that the parser shares: all but PUBLISH name, HIDDEN and join window."""
        source = self.source
        if isinstance(source, Join):
            return source.op, id(source.left), id(source.right), id(source.pred), id(self.select), id(self.once)
        return id(source), id(self.select), id(self.once)


@frozen
class StreamName:
    name: str
    span: Span = nowhere()


Qualifier = Literal["", "$1", "$2", "$"]
"""The qualifier of a reference: in NEXT and FOLD the left event, the right one, or FOLD's latest."""


@frozen
class Reference:
    """An attribute: `name`, `$1.name`, `$2.name` or `$.name`."""

    side: Qualifier
    name: str
    span: Span = nowhere()


ItemIndex = Literal["", "1", "i", "i-1", "LEN", "[]", "..i-1"]
"""The event of a variable: `v`, `v[1]`, `v[i]`, `v[i-1]`, `v[v.LEN]`; or the events of `v[]` or `v[..i-1]`."""


@frozen
class ItemReference:
    """In PATTERN, an attribute of a variable's event, such as `v[1].name`; `v.LEN` has the same form. Without a name it
    stands for the events of `v[]` or `v[..i-1]`, as the argument of count()."""

    variable: str
    place: ItemIndex
    name: str
    span: Span = nowhere()


@frozen
class EquivalenceTest:
    """`[x, y]`: these attributes are equal in all events."""

    names: tuple[Reference, ...]
    span: Span = nowhere()


@frozen
class TimeMeasure:
    name: Literal["DUR", "GAP"]
    span: Span = nowhere()


@frozen
class Percentage:
    """`80%`: the number as written, without the sign."""

    text: str
    span: Span = nowhere()


@frozen
class Null:
    """NULL, which is rejected as an expression."""

    span: Span = nowhere()


@frozen
class ArithmeticExpr:
    op: ArithmeticOp
    left: EventExpr
    right: EventExpr
    span: Span = nowhere()


@frozen
class Minus:
    arg: EventExpr
    span: Span = nowhere()


@frozen
class IsNull:
    value: EventExpr
    negated: bool = False
    span: Span = nowhere()


EventExpr = (
    Expr
    | Reference
    | ItemReference
    | EquivalenceTest
    | TimeMeasure
    | Percentage
    | Window
    | Null
    | ArithmeticExpr
    | Minus
    | IsNull
)
"""An expression of an event statement. It has no paths, and a Window in it is a number of seconds."""


# ---------------------------------------------------------------- components


@frozen
class OneEvent:
    """`stream variable`, or, `many`, `stream+ variable[]`."""

    stream: StreamName
    variable: str
    many: bool = False
    span: Span = nowhere()


@frozen
class NoEvent:
    """`~(component)`."""

    component: Component
    span: Span = nowhere()


@frozen
class AnyOrder:
    """`SET(components)`."""

    components: tuple[Component, ...]
    span: Span = nowhere()


@frozen
class LetterOf:
    """`stream`, or, `needed`, `stream!`: a component of a pattern with ERRORS."""

    stream: StreamName
    needed: bool = False
    span: Span = nowhere()


@frozen
class Alternatives:
    """`(a, b | c)`: alternative words."""

    words: tuple[tuple[Component, ...], ...]
    span: Span = nowhere()


@frozen
class Repetition:
    """`part*`, `part+` or `part{least,}`."""

    part: LetterOf | Alternatives
    least: int
    span: Span = nowhere()


Component = OneEvent | NoEvent | AnyOrder | LetterOf | Alternatives | Repetition

# ---------------------------------------------------------------- clauses


@frozen
class ListedVariable:
    """A variable in parentheses after a strategy: `v`, or, `many`, `v[]`."""

    name: str
    many: bool = False
    span: Span = nowhere()


@frozen
class StrategyName:
    """`skip_till_next_match(a, b[])`: a name, and optional variables."""

    name: str
    variables: tuple[ListedVariable, ...] = ()
    span: Span = nowhere()


@frozen
class Errors:
    """`ERRORS <= most BUDGET budget`."""

    most: int
    budget: int | None = None
    span: Span = nowhere()


@frozen
class Mode:
    """`EARLIEST MAXIMAL` and `NON OVERLAPPING`; without either, ALL MATCHES."""

    maximal: bool = False
    apart: bool = False
    span: Span = nowhere()


@frozen
class TogetherMode(Mode):
    """`ALL MATCHES TOGETHER`."""


@frozen
class Sequenced:
    """A PATTERN's body; WITHIN, RETURN and PUBLISH are its query's. The span is that of `PATTERN SEQ(...)`."""

    components: tuple[Component, ...]
    strategy: StrategyName | None = None
    where: EventExpr | None = None
    errors: Errors | None = None
    having: EventExpr | None = None
    mode: Mode = Mode()
    span: Span = nowhere()


# ---------------------------------------------------------------- definitions


@frozen
class DefinedAttribute:
    """`name := operand` or `name IN path`. With `number` the value is a number: the operand is one, or was written as
    `number(operand)`. With `each` there is an event for each node of the path; otherwise the first node is used."""

    name: str
    operand: Expr
    number: bool
    each: bool
    span: Span = nowhere()


@frozen
class EventDefinition:
    """`DEFINE EVENT name FROM block (attributes)`."""

    name: str
    block: Block
    attributes: tuple[DefinedAttribute, ...]
    span: Span = nowhere()

    def as_query(self) -> Query:
        """A query over documents that selects the attributes."""
        items = tuple(SelectItem(one.operand, f"{number}", one.span) for number, one in enumerate(self.attributes))
        return Query(self.block, SelectItems(items), None, self.span)


# ---------------------------------------------------------------- streams


@frozen
class Named:
    """`expression AS name`. An attribute alone has its own name. A missing name is empty."""

    expr: EventExpr
    name: str
    span: Span = nowhere()


EventItems = tuple[Named | SelectStar, ...]  # items of SELECT or RETURN


@frozen
class Filtered:
    condition: EventExpr
    source: EventStream
    span: Span = nowhere()


@frozen
class Grouped:
    """`AGGREGATE{items BY by OVER over} source`."""

    items: tuple[Named, ...]
    by: tuple[Reference, ...]
    over: Window | None
    source: EventStream
    span: Span = nowhere()


@frozen
class StoryStream:
    """`STORIES{counts LASTING lasting HAVING having TELL tell} source`."""

    counts: tuple[Named, ...]
    lasting: Window
    having: EventExpr | None
    tell: tuple[str, ...]
    source: EventStream
    span: Span = nowhere()


@frozen
class NextStream:
    """`left NEXT{condition} right`. The span is that of NEXT."""

    left: EventStream
    right: EventStream
    condition: EventExpr | None = None
    span: Span = nowhere()

    @property
    def word(self) -> str:
        return "NEXT"


@frozen
class LatestStream(NextStream):
    """`left LATEST BEFORE{condition} right`. The span is that of LATEST BEFORE."""

    @property
    def word(self) -> str:
        return "LATEST BEFORE"


@frozen
class Iteration:
    """`left FOLD{chooses, continues, sets} right`. The span is that of FOLD."""

    left: EventStream
    right: EventStream
    chooses: EventExpr | None = None
    continues: EventExpr | None = None
    sets: tuple[Named, ...] = ()
    span: Span = nowhere()


@frozen
class UnionStream:
    """`left UNION right`. The span is that of UNION."""

    left: EventStream
    right: EventStream
    span: Span = nowhere()


@frozen
class Inner:
    """A query in parentheses with a SELECT or a WITHIN."""

    select: EventItems | None
    stream: EventStream
    within: Window | None
    span: Span = nowhere()


EventStream = StreamName | Filtered | Grouped | StoryStream | NextStream | Iteration | UnionStream | Inner


@frozen
class EventQuery:
    """A standing query over events. `select` is None if missing, which means all attributes. In a PATTERN statement,
    `stream` is its body, and `select` its RETURN."""

    stream: EventStream | Sequenced
    select: EventItems | None = None
    within: Window | None = None
    publish: str | None = None
    span: Span = nowhere()
    hidden: MadeForOthers | None = None


def names_read(stream: EventStream | Sequenced) -> Iterator[StreamName]:
    """The names of the streams that a statement reads, from left to right."""
    waiting: list[EventStream | Sequenced | Component] = [stream]
    while waiting:
        match waiting.pop():
            case StreamName() as name:
                yield name
            case NextStream() | Iteration() | UnionStream() as node:
                waiting += node.right, node.left
            case Filtered() | Grouped() | StoryStream() as node:
                waiting.append(node.source)
            case Inner() | OneEvent() | LetterOf() as node:
                waiting.append(node.stream)
            case Sequenced() | AnyOrder() as node:
                waiting += reversed(node.components)
            case Alternatives(words=words):
                waiting += reversed([part for word in words for part in word])
            case Repetition(part=part) | NoEvent(component=part):
                waiting.append(part)


@dataclass(frozen=True)
class Script:
    """The statements of a text, its declared namespaces, as pairs of prefix and URI, and the declared table of weights,
    if any. `text` is empty if the statements were not parsed from one."""

    statements: tuple[Query | EventDefinition | EventQuery, ...]
    namespaces: tuple[tuple[str, str], ...] = ()
    weights: str | None = None
    text: str = field(default="", compare=False, repr=False)

    @cached_property
    def queries(self) -> tuple[Query, ...]:
        return tuple([one for one in self.statements if isinstance(one, Query)])

    @cached_property
    def definitions(self) -> tuple[EventDefinition, ...]:
        return tuple([one for one in self.statements if isinstance(one, EventDefinition)])

    @cached_property
    def event_queries(self) -> tuple[EventQuery, ...]:
        return tuple([one for one in self.statements if isinstance(one, EventQuery)])

    @cached_property
    def all_queries(self) -> tuple[Query | EventQuery, ...]:
        """The queries of both kinds, in the order of the text."""
        return tuple([one for one in self.statements if not isinstance(one, EventDefinition)])

    @property
    def has_events(self) -> bool:
        return len(self.queries) < len(self.statements)

    def names(self) -> tuple[str, ...]:
        """The name of each of `all_queries`: its PUBLISH name, else `q` and its position, from 1, or the next free
        number if a query of the script has that name."""
        taken = self.published()
        names: list[str] = []
        number = 0
        for position, query in enumerate(self.all_queries, 1):
            if query.publish is None:
                number = free_number(max(position, number + 1), taken)
            names.append(query.publish or f"q{number}")
        return tuple(names)

    def published(self) -> frozenset[str]:
        return frozenset(query.publish for query in self.all_queries if query.publish is not None)


@dataclass(frozen=True, slots=True)
class EventStreams:
    """Event streams with their attributes: defined ones, and those that event queries PUBLISH."""

    defined: Mapping[str, Schema] = field(default_factory=dict)
    published: Mapping[str, Schema] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in self.defined or name in self.published

    def __len__(self) -> int:
        return len(self.defined) + len(self.published)


NO_EVENTS = EventStreams()


def free_number(first: int, taken: Container[str]) -> int:
    """The least number from `first` on for which `q` and the number form a name that is not `taken`."""
    while f"q{first}" in taken:
        first += 1
    return first
