"""The plan of all queries together: value joins of XSCL, and the m-ops of event queries, before and after the rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mmqjp.explain.event_program import EventProgram, Statement
from mmqjp.explain.terms import MAX_NAMES
from mmqjp.queries.model import Owner, Subscription, Target
from mmqjp.queries.registry import Registry
from pattern_stage.describe import described
from pattern_stage.rules import RuleName
from xscl.algebra.system_names import is_hidden, short_name

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
    joins = _joins(registry, joined=joined)
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


def _joins(registry: Registry, *, joined: bool) -> list[Operation]:
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
    names = tuple(dict.fromkeys(_name(owner) for owner, _ in group))
    streams = tuple(dict.fromkeys(stream for _, target in group for stream in target.streams))
    title = f"{kind.upper()} of template {number}" if joined else kind.upper()
    ops = dict.fromkeys(str(target.op) for _, target in group if target.op is not None)
    return Operation(key, title, tuple(ops), len({target.row for _, target in group}), names, streams)


def _name(owner: Owner) -> str:
    return owner.name if isinstance(owner, Subscription) else owner.label.removeprefix("inner join ")


# ---------------------------------------------------------------- event queries


class _EventPlan:
    """The m-ops of event queries as operations, and which of them are the last one of which query: `ends`."""

    def __init__(self, registry: Registry, rules: Sequence[RuleName]) -> None:
        queries = [query for query in registry.subscriptions.values() if query.is_events]
        program = EventProgram(
            [Statement(one.name, one.text, registry.events.stream_of(one.form_id)) for one in queries], rules
        )
        last = [program.last(number) for number in range(len(queries))]
        self.ends = [(query.name, _key(number)) for query, number in zip(queries, last, strict=True) if query.publishes]
        makers: dict[str, list[str]] = {}
        for name, key in self.ends:
            makers.setdefault(name, []).append(key)
        users = program.users_of_mops()
        self.operations = []
        for one in described(program.plan):
            reads = tuple(_key(number) for number in one.reads)
            if not reads:
                definition = registry.events.definitions.get(one.title)
                made = makers.get(one.title, ()) if definition is None else (definition.pattern.stream,)
                operation = Operation(_key(one.number), f"events {one.title}", reads=tuple(dict.fromkeys(made)))
            else:
                operation = Operation(
                    _key(one.number), one.title, one.shapes, one.rows, tuple(users.get(one.number, ())), reads
                )
            self.operations.append(operation)


def _key(number: int) -> str:
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
