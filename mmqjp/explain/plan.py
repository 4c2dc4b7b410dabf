"""The plan of all queries: value joins of XSCL and m-ops of event queries, before and after the rules. Also summarises
which templates and rows of R_T the queries of a store share and their cost, estimates a template's cost as the expected
pairs of equal nodes per new document, and says when absences are decided and how long their documents are retained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING

from common.tools import JsonRecord
from join_stage.protocol import Cost
from join_stage.tables import DOCUMENTS, EQUAL_VALUES
from mmqjp.explain.automaton import EventProgram, NamedStatement
from mmqjp.explain.shown import format_window
from mmqjp.explain.terms import few, structure_text
from mmqjp.process import printable_line
from mmqjp.queries.model import HiddenStream, Owner, Subscription, Target
from mmqjp.queries.registry import Registry
from pattern_stage.plan import RuleName
from pattern_stage.statements import described
from templates.graph import Shape
from xscl.algebra.joins import Hidden, NormalQuery
from xscl.algebra.trees import is_hidden, short_name

if TYPE_CHECKING:
    from mmqjp.engine import Session

JOIN_RULE = "t_join"
"""The rule that merges value joins of one template, with a row of R_T for each."""

JOIN_MEANING = (
    "t_⋈: value joins of queries over documents that have one template are one join with the relation R_T, whose rows "
    "are what they differ in. Queries with equal joins share a row."
)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the plan. Others refer to `key` in `reads`; `shapes` say what it does, `rows` how its queries
    differ, and `users` names them."""

    key: str
    title: str
    shapes: tuple[str, ...] = ()
    rows: int = 0
    users: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


def whole_plan(registry: Registry, rules: Sequence[RuleName], *, joined: bool) -> list[Operation]:
    """Returns the operations of all queries, inputs first where possible. `joined`: the rule for value joins is on."""
    events = _EventPlan(registry, rules)
    joins = _join_operations(registry, joined=joined)
    makers: dict[str, list[str]] = {}
    for operation in joins:
        for name in operation.users:
            makers.setdefault(name, []).append(operation.key)
    for name, key in events.ends:
        makers.setdefault(name, []).append(key)
    found = [*joins, *events.operations]
    known = {operation.key for operation in found}
    read = dict.fromkeys(key for operation in found for key in operation.reads if key not in known)
    streams = [
        Operation(key, _documents(key, made=key in makers), reads=tuple(dict.fromkeys(makers.get(key, ()))))
        for key in read
    ]
    return _inputs_first([*streams, *found])


def _documents(stream: str, *, made: bool) -> str:
    name = f"inner join {short_name(stream)}" if is_hidden(stream) else stream
    return f"outputs {name}" if made else f"documents {name}"


# ---------------------------------------------------------------- joins


def _join_operations(registry: Registry, *, joined: bool) -> list[Operation]:
    groups: dict[str, list[tuple[Owner, Target]]] = {}
    for owner in registry.owners():
        for target in owner.targets:
            kind = "join" if len(target.streams) > 1 else "filter"
            key = f"{kind} {target.template}" if joined else f"{kind} {len(groups)}"
            groups.setdefault(key, []).append((owner, target))
    return [_join(key, group, joined=joined) for key, group in groups.items()]


def _join(key: str, group: Sequence[tuple[Owner, Target]], *, joined: bool) -> Operation:
    kind, _, number = key.partition(" ")
    names = tuple(dict.fromkeys(_owner_name(owner) for owner, _ in group))
    streams = tuple(dict.fromkeys(stream for _, target in group for stream in target.streams))
    title = f"{kind.upper()} of template {number}" if joined else kind.upper()
    ops = dict.fromkeys(str(target.op) for _, target in group if target.op is not None)
    return Operation(key, title, tuple(ops), len({target.row for _, target in group}), names, streams)


def _owner_name(owner: Owner) -> str:
    return owner.name if isinstance(owner, Subscription) else owner.label.removeprefix("inner join ")


# ---------------------------------------------------------------- event queries


class _EventPlan:
    """The m-ops of event queries as operations; `ends` maps m-ops to the queries that end there."""

    def __init__(self, registry: Registry, rules: Sequence[RuleName]) -> None:
        queries = [query for query in registry.subscriptions.values() if query.is_events]
        program = EventProgram(
            [NamedStatement(one.name, one.text, registry.events.form(one.form_id).stream) for one in queries], rules
        )
        last = [program.last(number) for number in range(len(queries))]
        self.ends = [
            (query.name, _operator_key(number)) for query, number in zip(queries, last, strict=True) if query.publishes
        ]
        makers: dict[str, list[str]] = {}
        for name, key in self.ends:
            makers.setdefault(name, []).append(key)
        users = program.users_of_mops()
        self.operations = []
        for one in described(program.plan):
            reads = tuple(_operator_key(number) for number in one.reads)
            if not reads:
                definition = registry.events.definitions.get(one.title)
                made = makers.get(one.title, ()) if definition is None else (definition.pattern.stream,)
                operation = Operation(
                    _operator_key(one.number), f"events {one.title}", reads=tuple(dict.fromkeys(made))
                )
            else:
                operation = Operation(
                    _operator_key(one.number), one.title, one.shapes, one.rows, tuple(users.get(one.number, ())), reads
                )
            self.operations.append(operation)


def _operator_key(number: int) -> str:
    return f"m-op {number}"


# ---------------------------------------------------------------- order and text


def _inputs_first(operations: Sequence[Operation]) -> list[Operation]:
    by_key = {operation.key: operation for operation in operations}
    found: dict[str, Operation] = {}
    entered: set[str] = set()
    waiting = [(key, False) for key in reversed(by_key)]
    while waiting:
        key, done = waiting.pop()
        if done:
            found.setdefault(key, by_key[key])
        elif key not in entered:
            entered.add(key)
            waiting.append((key, True))
            waiting += [(other, False) for other in reversed(by_key[key].reads) if other in by_key]
    return list(found.values())


def plan_lines(operations: Sequence[Operation]) -> Iterator[str]:
    numbers = {operation.key: number for number, operation in enumerate(operations)}
    for number, one in enumerate(operations):
        reads = " and ".join(str(numbers[key]) for key in one.reads)
        of = f" of {reads}" if one.rows else f" from {reads}" if reads else ""
        rows = f": {one.rows:,} row{'s' * (one.rows != 1)} for {few(one.users)}" if one.rows else ""
        yield f"{number}  {one.title}{of}{rows}"
        yield from (f"     {shape}" for shape in one.shapes)


MOST_TEMPLATES, MOST_ROWS, MOST_NAMES = 20, 10, 10
"""Maximum number of templates shown, of rows per template (most subscribers first), and of names per row."""

FEW_READERS = 100
"""Queries behind an inner join are named if it has at most this number of readers."""


@dataclass(frozen=True, slots=True)
class SharedRowUse:
    """A row of R_T: its number, its number of subscribing conjunctive queries, and some of their names."""

    row: int
    subscribers: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedTemplate:
    """A template: its number and structure, its counts of R_T rows and subscribers, and the rows with the most
    subscribers.

    `milliseconds` and `matches` are those of the last batch measured, for this template and those in `together`; None
    if unknown. `one_more` is the average cost of one more row, in milliseconds. One more query of an existing row costs
    only its outputs.
    """

    template: int
    structure: str
    rows: int
    subscribers: int
    most_shared: tuple[SharedRowUse, ...]
    milliseconds: float | None = None
    matches: int | None = None
    together: tuple[int, ...] = ()
    one_more: float | None = None


@dataclass(frozen=True, slots=True)
class Sharing(JsonRecord):
    """What the queries of a store share. `shown` has the costliest of its `templates`.

    `queries` counts registered queries, `forms` those that differ in more than names and windows, `patterns` the shared
    steps of tree patterns, `rows` and `subscribers` those of all templates. `plan` is the plan measured.
    """

    queries: int
    forms: int
    patterns: int
    rows: int
    subscribers: int
    templates: int
    shown: tuple[SharedTemplate, ...]
    plan: str | None = None


@dataclass(slots=True)
class _Tally:
    """Counts of a template; its rows as number of subscribers and negated row number."""

    rows: list[tuple[int, int]] = field(default_factory=list)
    subscribers: int = 0


def summarise_sharing(engine: Session) -> Sharing:
    """Summarises what registered queries share, in time linear in the rows of R_T, not in the queries."""
    registry, catalog = engine.registry, engine.catalog
    tallies: dict[int, _Tally] = {}
    for row, targets in registry.rows.items():
        template, count = targets.template_and_count()
        if (tally := tallies.get(template)) is None:
            tally = tallies[template] = _Tally()
        tally.rows.append((count, -row))
        tally.subscribers += count
    plan, costs = engine.costs() or (None, {})

    def order(template: int) -> tuple[float, int, int]:
        tally = tallies[template]
        return costs[template].seconds if template in costs else -1.0, len(tally.rows), tally.subscribers

    def shown(template: int) -> SharedTemplate:
        tally, cost = tallies[template], costs.get(template)
        most = nlargest(MOST_ROWS, tally.rows)
        return SharedTemplate(
            template,
            structure_text(catalog.templates[template]),
            len(tally.rows),
            tally.subscribers,
            tuple(SharedRowUse(-row, count, _subscriber_names(engine, -row)) for count, row in most),
            *_measured(cost, tallies),
        )

    return Sharing(
        queries=len(registry.subscriptions),
        forms=len({query.form_id for query in registry.subscriptions.values()}),
        patterns=len(catalog.steps),
        rows=len(registry.rows),
        subscribers=sum(tally.subscribers for tally in tallies.values()),
        templates=len(tallies),
        shown=tuple(map(shown, nlargest(MOST_TEMPLATES, tallies, key=order))),
        plan=plan,
    )


def _measured(
    cost: Cost | None, tallies: Mapping[int, _Tally]
) -> tuple[float | None, int | None, tuple[int, ...], float | None]:
    """The milliseconds, matches, templates measured together, and cost of one more row."""
    if cost is None:
        return None, None, (), None
    milliseconds = cost.seconds * 1e3
    rows = sum(len(tallies[template].rows) for template in cost.templates if template in tallies)
    return milliseconds, cost.matches, cost.templates, milliseconds / rows if rows else None


def _subscriber_names(engine: Session, row: int) -> tuple[str, ...]:
    """Some names of queries that subscribe to a row, directly or through inner joins."""

    def names() -> Iterator[str]:
        for target in islice(engine.registry.of_row(row), 10 * MOST_NAMES):
            owner = target.owner
            if isinstance(owner, HiddenStream) and owner.reader_count <= FEW_READERS:
                yield from (query.name for query in engine.registry.readers_of(owner))
            else:
                yield owner.label

    return tuple(islice(dict.fromkeys(names()), MOST_NAMES))


@dataclass(frozen=True)
class Estimates:
    """Expected pairs of equal nodes per new document by pair of variables, based on `documents` stored documents."""

    documents: int
    pairs: dict[tuple[int, int], float]

    def of_row(self, shape: Shape, variables: tuple[int, ...]) -> tuple[float, tuple[int, int]] | None:
        """Returns the expected pairs per new document for a row's rarest join, and its variables, if any."""
        joins = [(variables[left], variables[right]) for left, right in shape.joins]
        return min(((self.pairs.get(join, 0.0), join) for join in joins), default=None)

    def of_rows(self, shape: Shape, rows: Iterable[tuple[int, ...]]) -> float:
        """Returns the sum over rows of a template. A join that rows share counts once."""
        rarest = (self.of_row(shape, variables) for variables in rows)
        return sum({join: pairs for pairs, join in filter(None, rarest)}.values())


def estimates(engine: Session) -> Estimates | None:
    """Returns estimates based on the stored documents; None if there are none."""
    (kept,) = engine.sql(DOCUMENTS, trusted=True).to_pylist()
    if not kept["n"]:
        return None
    rows = engine.sql(EQUAL_VALUES, trusted=True).to_pylist()
    # A new document is tried on the left and on the right.
    return Estimates(kept["n"], {(r["var1"], r["var2"]): 2 * float(r["pairs"]) / kept["n"] for r in rows})


def absences_in(query: NormalQuery | Hidden) -> Iterator[NormalQuery | Hidden]:
    """Yields the absences in a query, which may be one itself, each once, inner ones first."""
    met = dict.fromkeys(
        side.hidden for conjunct in query.conjuncts for side in conjunct.sides() if side.hidden is not None
    )
    met |= dict.fromkeys(absent.right.hidden for absent in query.absent if absent.right.hidden is not None)
    found = [one for hidden in met for one in absences_in(hidden)]
    yield from {id(one): one for one in found}.values()
    if query.absent:
        yield query


def decided_when(absence: NormalQuery | Hidden) -> str:
    stream = f"the watermark of {right_stream(absence)}"
    if absence.op == "NOT PRECEDED BY":
        return f"decided when {stream} has come to the beginning of a left document"
    return f"decided when {stream} is more than {format_window(absence.window)} past the beginning of a left document"


def answers_after(absence: NormalQuery | Hidden) -> str:
    """Returns the delay of its answers after a document, and the retention of its right input, in short."""
    stream = right_stream(absence)
    before = "" if absence.op == "NOT PRECEDED BY" else f"{format_window(absence.window)} and "
    return f"{absence.op} is decided {before}the lateness of {stream} after a document; {retention_text(absence)}"


def retention_text(absence: NormalQuery | Hidden) -> str:
    window, stream = absence.window, right_stream(absence)
    if window is None:
        return f"{stream} is kept for good"
    return f"{stream} is kept for {format_window(2 * window if absence.op == 'NOT JOIN' else window)}"


def right_stream(absence: NormalQuery | Hidden) -> str:
    right = absence.absent[0].right
    return "its right input" if right.hidden is not None else printable_line(right.stream)
