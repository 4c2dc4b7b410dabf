"""The plan of all queries, value joins and m-ops, before and after the rules; which templates and rows of R_T queries
share, with measured and estimated costs; when absences are decided, and how long their documents are retained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING

from common.tools import JsonRecord, gathered
from join_stage.protocol import DOCUMENTS, EQUAL_VALUES
from mmqjp.explain.automaton import EventProgram, registered_statements
from mmqjp.explain.terms import few, format_window, structure_text
from mmqjp.process import printable_line
from mmqjp.queries.model import HiddenStream, Owner, Registered, Target
from mmqjp.queries.registry import Registry
from pattern_stage.plan import RuleName
from pattern_stage.statements import described
from templates.graph import Shape
from xscl.algebra.joins import Hidden, NormalQuery, is_hidden, short_name

if TYPE_CHECKING:
    from mmqjp.engine import Session

JOIN_RULE = "t_join"  # the rule that merges value joins of one template, with a row of R_T for each

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

    @property
    def is_of_documents(self) -> bool:
        return self.key.startswith(("join ", "filter "))


def whole_plan(registry: Registry, rules: Sequence[RuleName], *, joined: bool) -> list[Operation]:
    """Returns the operations of all queries, inputs first where possible. `joined`: the rule for value joins is on."""
    ends: dict[str, dict[str, None]] = {}
    found = [*_join_operations(registry, joined=joined), *_event_operations(registry, rules, ends)]
    makers: dict[str, dict[str, None]] = {}
    for operation in found:
        for name in operation.users if operation.is_of_documents else ():
            makers.setdefault(name, {})[operation.key] = None
    for name, keys in ends.items():
        makers.setdefault(name, {}).update(keys)
    known = {operation.key for operation in found}
    streams = []
    for key in dict.fromkeys(key for operation in found for key in operation.reads if key not in known):
        name = f"inner join {short_name(key)}" if is_hidden(key) else key
        title = f"outputs {name}" if key in makers else f"documents {name}"
        streams.append(Operation(key, title, reads=tuple(makers.get(key, ()))))
    return _inputs_first([*streams, *found])


def _join_operations(registry: Registry, *, joined: bool) -> list[Operation]:
    groups: dict[str, list[tuple[Owner, Target]]] = {}
    for owner in registry.owners():
        for target in owner.targets:
            kind = "join" if len(target.streams) > 1 else "filter"
            key = f"{kind} {target.template}" if joined else f"{kind} {len(groups)}"
            groups.setdefault(key, []).append((owner, target))
    found = []
    for key, group in groups.items():
        kind, _, number = key.partition(" ")
        title = f"{kind.upper()} of template {number}" if joined else kind.upper()
        names = dict.fromkeys(
            owner.name if isinstance(owner, Registered) else owner.label.removeprefix("inner join ")
            for owner, _ in group
        )
        targets = [target for _, target in group]
        ops = dict.fromkeys(str(target.op) for target in targets if target.op is not None)
        streams = dict.fromkeys(stream for target in targets for stream in target.streams)
        rows = len({target.row for target in targets})
        found.append(Operation(key, title, tuple(ops), rows, tuple(names), tuple(streams)))
    return found


def _event_operations(
    registry: Registry, rules: Sequence[RuleName], ends: dict[str, dict[str, None]]
) -> Iterator[Operation]:
    """Yields the m-ops of event queries. Adds to `ends` where those that PUBLISH end."""
    queries = [query for query in registry.subscriptions.values() if query.is_events]
    program = EventProgram(registered_statements(registry), rules)
    for number, query in enumerate(queries):
        if query.publishes:
            ends.setdefault(query.name, {})[f"m-op {program.last(number)}"] = None
    users = program.users_of_mops()
    for one in described(program.plan):
        key, reads = f"m-op {one.number}", tuple(f"m-op {number}" for number in one.reads)
        if reads:
            yield Operation(key, one.title, one.shapes, one.rows, tuple(users.get(one.number, ())), reads)
        elif (definition := registry.events.definitions.get(one.title)) is not None:
            yield Operation(key, f"events {one.title}", reads=(definition.pattern.stream,))
        else:
            yield Operation(key, f"events {one.title}", reads=tuple(ends.get(one.title, ())))


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

FEW_READERS = 100  # queries behind an inner join are named if it has at most this number of readers


@dataclass(frozen=True, slots=True)
class SharedRowUse:
    """A row of R_T: its number, its number of subscribing conjunctive queries, and some of their names."""

    row: int
    subscribers: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SharedTemplate:
    """A template: its number and structure, its counts of R_T rows and subscribers, and the rows with the most
    subscribers. `milliseconds` and `matches` are those of the last batch measured, for this template and those in
    `together`; None if unknown. `one_more` is the average cost of one more row, in milliseconds. One more query of an
    existing row costs only its outputs."""

    template: int
    structure: str
    rows: int
    subscribers: int
    most_shared: tuple[SharedRowUse, ...]
    milliseconds: float | None = None
    matches: int | None = None
    together: tuple[int, ...] = ()
    one_more: float | None = None

    def names(self, most: int = MOST_NAMES) -> tuple[list[str], bool]:
        """Returns some names, and whether there may be more. A query may subscribe to several rows, or repeatedly."""
        names = list(dict.fromkeys(name for row in self.most_shared for name in row.names))
        cut = any(row.subscribers > len(row.names) >= MOST_NAMES for row in self.most_shared)
        return names[:most], cut or self.rows > len(self.most_shared) or len(names) > most


@dataclass(frozen=True, slots=True)
class Sharing(JsonRecord):
    """What the queries of a store share. `shown` has the costliest of its `templates`. `queries` counts registered
    queries, `forms` those that differ in more than names and windows, `patterns` the shared steps of tree patterns,
    `rows` and `subscribers` those of all templates. `plan` is the plan measured."""

    queries: int
    forms: int
    patterns: int
    rows: int
    subscribers: int
    templates: int
    shown: tuple[SharedTemplate, ...]
    plan: str | None = None


def summarise_sharing(engine: Session) -> Sharing:
    """Summarises what registered queries share, in time linear in the rows of R_T, not in the queries."""
    registry, catalog = engine.registry, engine.registry.catalog
    counted = ((*targets.template_and_count(), -row) for row, targets in registry.rows.items())
    rows = gathered((template, (count, row)) for template, count, row in counted)
    subscribers = {template: sum(count for count, _ in own) for template, own in rows.items()}
    plan, costs = engine.costs() or (None, {})

    def order(template: int) -> tuple[float, int, int]:
        return (costs[template].seconds if template in costs else -1.0), len(rows[template]), subscribers[template]

    def shown(template: int) -> SharedTemplate:
        own, structure = rows[template], structure_text(catalog.templates[template])
        most = nlargest(MOST_ROWS, own)
        uses = tuple(SharedRowUse(-row, count, _subscriber_names(engine, -row)) for count, row in most)
        found = SharedTemplate(template, structure, len(own), subscribers[template], uses)
        if (cost := costs.get(template)) is None:
            return found
        milliseconds, measured = cost.seconds * 1e3, sum(len(rows.get(other, ())) for other in cost.templates)
        one_more = milliseconds / measured if measured else None
        found = replace(found, matches=cost.matches, together=cost.templates)
        return replace(found, milliseconds=milliseconds, one_more=one_more)

    return Sharing(
        queries=len(registry.subscriptions),
        forms=len({query.form_id for query in registry.subscriptions.values()}),
        patterns=len(catalog.steps),
        rows=len(registry.rows),
        subscribers=sum(subscribers.values()),
        templates=len(rows),
        shown=tuple(map(shown, nlargest(MOST_TEMPLATES, rows, key=order))),
        plan=plan,
    )


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
    sides = (side for conjunct in query.conjuncts for side in conjunct.sides())
    met = dict.fromkeys(side.hidden for side in sides if side.hidden is not None)
    met |= dict.fromkeys(absent.right.hidden for absent in query.absent if absent.right.hidden is not None)
    yield from {id(one): one for hidden in met for one in absences_in(hidden)}.values()
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
