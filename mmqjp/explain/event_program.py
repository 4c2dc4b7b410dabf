"""The event statements of a script, compiled: of each its operators in normal form, and the plan of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice

from mmqjp.queries.event_compile import read_by
from mmqjp.queries.model import Subscription
from mmqjp.queries.registry import Registry
from pattern_stage.plan import Plan
from pattern_stage.row_users import RowUsers
from pattern_stage.rules import RULE_NAMES, RuleName
from pattern_stage.statements import Statements
from pattern_stage.values import Texts
from xscl import Script, to_xscl
from xscl.algebra import event_sequences as algebra
from xscl.algebra.event_sequences import NearPattern, Pattern
from xscl.algebra.events import Aggregate, Events, Filter, Fold, Next, Select, Union
from xscl.event_check import schemas_of
from xscl.event_normal import lower_statement
from xscl.event_syntax import EventQuery


@dataclass(frozen=True, slots=True)
class Statement:
    """An event query: its name, its text, and its operators."""

    name: str
    text: str
    stream: algebra.Statement


class EventProgram:
    """Event queries, numbered from 0, in a plan of their own that nothing runs."""

    def __init__(self, statements: Sequence[Statement], rules: Iterable[RuleName] = RULE_NAMES) -> None:
        self.statements = statements
        self.plan = Plan(Texts(), rules)
        self._added = Statements(self.plan)
        for number, one in enumerate(statements):
            self._added.add(number, one.stream, 0)
        self._added.settle()

    @cached_property
    def users(self) -> RowUsers:
        """Which statements have which rows."""
        return RowUsers(self.plan, self._added, range(len(self.statements)))

    def sharing(self, number: int) -> list[str]:
        """Returns the names of the other statements that share operators with one: rows of the same m-ops."""
        return list(dict.fromkeys(self.statements[other].name for other in self.users.sharing(number)))

    def last(self, number: int) -> int:
        """Returns the m-op whose events are those of a statement."""
        return self._added.bound(number)[0].mops[-1].number

    def users_of_mops(self) -> Mapping[int, Sequence[str]]:
        """Returns for each m-op the names of the statements that have a row of it."""
        found: dict[int, dict[str, None]] = {}
        for number, one in enumerate(self.statements):
            for mop in self._added.bound(number)[0].mops:
                found.setdefault(mop.number, {})[one.name] = None
        for partial, mops in self.plan.partials().items():
            found[partial] = {name: None for mop in mops for name in found[mop.number]}
        return {mop: tuple(names) for mop, names in found.items()}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[str]]:
        """For each event stream the names of the queries that read it."""
        found: dict[str, dict[str, None]] = {}
        for one in self.statements:
            for stream in read_by(one.stream):
                found.setdefault(stream, {})[one.name] = None
        return {stream: tuple(names) for stream, names in found.items()}


def compiled(script: Script) -> list[Statement]:
    """Returns the event queries of a correct script."""
    schemas = schemas_of(script)
    named = zip(script.all_queries, script.names(), strict=True)
    return [
        Statement(name, to_xscl(query), lower_statement(query, schemas))
        for query, name in named
        if isinstance(query, EventQuery)
    ]


def registered(registry: Registry, first: Iterable[Subscription] = (), most: int | None = None) -> list[Statement]:
    """Returns the registered event queries: `first` those, and of all `most`, if it is given."""
    queries = (query for query in registry.subscriptions.values() if query.is_events)
    chosen = dict.fromkeys(chain(first, islice(queries, most)))
    return [Statement(query.name, query.text, registry.events.stream_of(query.form_id)) for query in chosen]


def operators_of(stream: algebra.Statement) -> list[algebra.Statement]:
    """Returns a stream and all that it is made of, inputs first."""
    match stream:
        case Events() | Pattern() | NearPattern():
            return [stream]
        case Select() | Filter() | Aggregate():
            return [*operators_of(stream.source), stream]
        case Union() | Next() | Fold():
            return [*operators_of(stream.left), *operators_of(stream.right), stream]


def kept_for(stream: algebra.Statement) -> int | None:
    """Returns how long an event can matter to a stream, in microseconds: 0 if nothing is kept, None for ever."""
    longest = 0
    for one in operators_of(stream):
        if isinstance(one, Next | Fold | Pattern | NearPattern):
            if one.within is None:
                return None
            longest = max(longest, one.within)
        elif isinstance(one, Aggregate):
            longest = max(longest, one.over or 0)
    return longest
