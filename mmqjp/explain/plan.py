"""The plan of all queries together: value joins of XSCL, and the m-ops of event queries, before and after the rules.

What the queries of a store share: which templates they have, with how many rows of R_T, and what these cost.

Estimates the cost of a template: how many pairs of nodes with equal values a new document brings.

When absences are decided, and what is kept for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import nlargest
from itertools import islice
from typing import Any

from join_stage.protocol import Cost
from join_stage.tables import DOCUMENTS, EQUAL_VALUES
from mmqjp.engine import Session
from mmqjp.explain.automaton import EventProgram, NamedStatement
from mmqjp.explain.terms import MAX_NAMES, format_window, structure_text
from mmqjp.process import printable_line
from mmqjp.queries.model import HiddenStream, Owner, Subscription, Target
from mmqjp.queries.registry import Registry
from pattern_stage.plan import RuleName
from pattern_stage.statements import described
from templates.graph import Shape
from xscl.algebra.joins import Hidden, NormalQuery
from xscl.algebra.trees import is_hidden, short_name

JOIN_RULE = "t_join"
"""The rule for value joins of XSCL: those of one template become one, with a row of R_T for each."""

JOIN_MEANING = (
    "t_⋈: value joins of queries over documents that have one template are one join with the relation R_T, whose rows "
    "are what they differ in. Queries with equal joins share a row."
)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the plan. `key` names it in `reads`; `shapes` say what it does, `rows` what its queries differ
    in, and `users` are their names."""

    key: str
    title: str
    shapes: tuple[str, ...] = ()
    rows: int = 0
    users: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


def whole_plan(registry: Registry, rules: Sequence[RuleName], *, joined: bool) -> list[Operation]:
    """Returns the operations of all registered queries, inputs before what reads them where that is possible. `joined`
    says whether the rule for value joins is on."""
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
    """Returns the operations of queries over documents: one for each template, or for each target."""
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
    """The m-ops of event queries as operations, and which of them are the last one of which query: `ends`."""

    def __init__(self, registry: Registry, rules: Sequence[RuleName]) -> None:
        queries = [query for query in registry.subscriptions.values() if query.is_events]
        program = EventProgram(
            [NamedStatement(one.name, one.text, registry.events.stream_of(one.form_id)) for one in queries], rules
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
    """Yields a plan as lines of text: one for an operation, and one for each thing that it does."""
    numbers = {operation.key: number for number, operation in enumerate(operations)}
    for number, one in enumerate(operations):
        reads = " and ".join(str(numbers[key]) for key in one.reads)
        of = f" of {reads}" if one.rows else f" from {reads}" if reads else ""
        rows = f": {one.rows:,} row{'s' * (one.rows != 1)} for {few(one.users)}" if one.rows else ""
        yield f"{number}  {one.title}{of}{rows}"
        yield from (f"     {shape}" for shape in one.shapes)


def few(names: Iterable[str]) -> str:
    """Returns names, cut short if they are many."""
    listed = list(names)
    more = f" and {len(listed) - MAX_NAMES:,} more" if len(listed) > MAX_NAMES else ""
    return ", ".join(listed[:MAX_NAMES]) + more


MOST_TEMPLATES, MOST_ROWS, MOST_NAMES = 20, 10, 10
"""How many templates are shown, of each the rows with the most subscribers, and of each of these the names."""

FEW_READERS = 100
"""The queries behind an inner join are named if it has no more readers."""


@dataclass(frozen=True, slots=True)
class SharedRowUse:
    """A row of R_T: its number, how many conjunctive queries subscribe to it, and names of some of their queries."""

    row: int
    subscribers: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedTemplate:
    """A template: its number and structure, the rows of R_T that it has, and how many conjunctive queries subscribe to
    them; the rows with the most subscribers.

    `milliseconds` and `matches` are those of the last batch that it was answered in, together with the templates
    `together`; None if that is not known. `one_more` is what one more row would take in such a batch, in milliseconds:
    an average. One more query of a row that is there takes nothing but its outputs.
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
class Sharing:
    """What the queries of a store share. `shown` has the costliest of its `templates`.

    `queries` counts the registered queries, `forms` the different ones among them but for names and windows, `patterns`
    the shared steps of tree patterns, `rows` and `subscribers` those of all templates. `plan` is what was measured.
    """

    queries: int
    forms: int
    patterns: int
    rows: int
    subscribers: int
    templates: int
    shown: tuple[SharedTemplate, ...]
    plan: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON object."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Sharing:
        """Returns what such an object says."""
        shown = (
            SharedTemplate(
                **one
                | {
                    "most_shared": tuple(
                        SharedRowUse(row["row"], row["subscribers"], tuple(row["names"])) for row in one["most_shared"]
                    ),
                    "together": tuple(one["together"]),
                }
            )
            for one in found["shown"]
        )
        return Sharing(**{**found, "shown": tuple(shown)})


@dataclass(slots=True)
class _Tally:
    """What was counted of a template: its rows, as the number of subscribers and the negated number of the row."""

    rows: list[tuple[int, int]] = field(default_factory=list)
    subscribers: int = 0


def summarise_sharing(engine: Session) -> Sharing:
    """Returns what the registered queries share. It takes time for each row of R_T, not for each query of a row."""
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
    """The milliseconds, the matches, the templates that were measured together, and what one more row would take."""
    if cost is None:
        return None, None, (), None
    milliseconds = cost.seconds * 1e3
    rows = sum(len(tallies[template].rows) for template in cost.templates if template in tallies)
    return milliseconds, cost.matches, cost.templates, milliseconds / rows if rows else None


def _subscriber_names(engine: Session, row: int) -> tuple[str, ...]:
    """Some names of queries that subscribe to a row, directly or through inner joins that they read."""

    def names() -> Iterator[str]:
        for target in islice(engine.registry.of_row(row), 10 * MOST_NAMES):
            owner = target.owner
            if isinstance(owner, HiddenStream) and owner.reader_count <= FEW_READERS:
                yield from (query.name for query in owner.readers(engine.registry.readers))
            else:
                yield owner.label

    return tuple(islice(dict.fromkeys(names()), MOST_NAMES))


@dataclass(frozen=True)
class Estimates:
    """How often nodes of two variables have the same value, based on `documents` stored documents.

    `pairs` maps two variables to the expected number of pairs per new document.
    """

    documents: int
    pairs: dict[tuple[int, int], float]

    def of_row(self, shape: Shape, variables: tuple[int, ...]) -> tuple[float, tuple[int, int]] | None:
        """Returns the expected pairs per new document for a row's rarest join, and the variables of that join.

        Returns None for a template without joins.
        """
        joins = [(variables[left], variables[right]) for left, right in shape.joins]
        return min(((self.pairs.get(join, 0.0), join) for join in joins), default=None)

    def of_rows(self, shape: Shape, rows: Iterable[tuple[int, ...]]) -> float:
        """Returns the sum over several rows of a template. A join that rows share counts once."""
        rarest = (self.of_row(shape, variables) for variables in rows)
        return sum({join: pairs for pairs, join in filter(None, rarest)}.values())


def estimates(engine: Session) -> Estimates | None:
    """Returns estimates based on the stored documents, or None if there are none."""
    (kept,) = engine.sql(DOCUMENTS, trusted=True).to_pylist()
    if not kept["n"]:
        return None
    rows = engine.sql(EQUAL_VALUES, trusted=True).to_pylist()
    # A new document is tried on the left and on the right.
    return Estimates(kept["n"], {(r["var1"], r["var2"]): 2 * float(r["pairs"]) / kept["n"] for r in rows})


def absences_in(query: NormalQuery | Hidden) -> Iterator[NormalQuery | Hidden]:
    """Yields the absences that a query is made of, each once, those within others first. It may be one itself."""
    met = dict.fromkeys(
        side.hidden for conjunct in query.conjuncts for side in conjunct.sides() if side.hidden is not None
    )
    met |= dict.fromkeys(absent.right.hidden for absent in query.absent if absent.right.hidden is not None)
    found = [one for hidden in met for one in absences_in(hidden)]
    yield from {id(one): one for one in found}.values()
    if query.absent:
        yield query


def decided_when(absence: NormalQuery | Hidden) -> str:
    """Returns which watermark decides an absence."""
    stream = f"the watermark of {right_stream(absence)}"
    if absence.op == "NOT PRECEDED BY":
        return f"decided when {stream} has come to the beginning of a left document"
    return f"decided when {stream} is more than {format_window(absence.window)} past the beginning of a left document"


def answers_after(absence: NormalQuery | Hidden) -> str:
    """Returns how long after a document it is told, in short, and for how long what it asks for is kept."""
    stream = right_stream(absence)
    before = "" if absence.op == "NOT PRECEDED BY" else f"{format_window(absence.window)} and "
    return f"{absence.op} is decided {before}the lateness of {stream} after a document; {retention_text(absence)}"


def retention_text(absence: NormalQuery | Hidden) -> str:
    """Returns for how long documents of the right input are kept."""
    window, stream = absence.window, right_stream(absence)
    if window is None:
        return f"{stream} is kept for good"
    return f"{stream} is kept for {format_window(2 * window if absence.op == 'NOT JOIN' else window)}"


def right_stream(absence: NormalQuery | Hidden) -> str:
    right = absence.absent[0].right
    return "its right input" if right.hidden is not None else printable_line(right.stream)
